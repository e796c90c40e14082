"""Whether a cluster keeps its promise when faults occur: `check --faults`.

A synchronous cluster that lost no trainer must end bit for bit as without faults. While trainers are away, servers
update with the gradients of the others. Then the cluster must end, within rounding, as a single machine that is fed
only the rows of the trainers that were present.

Every gradient that synchronous trainers sent must be applied once, in its step. A gradient counts when its trainer has
reported, by its send barrier, that it sent everything of the step. If a trainer crashes before that report, what it
sent in the step must not be applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.message import SEND, SEND_BARRIER, Message, step_label
from pstranspile.cluster.machines.rings import RingListener
from pstranspile.cluster.machines.scenario import Crash, Departure, Scenario
from pstranspile.cluster.machines.server import Contributions, Server, ServerListener
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.proof.compare import OF_LARGEST, Snapshot, differ, largest_change, plain, same_in_doubles
from pstranspile.proof.replays import Ledger, held_to_source
from pstranspile.proof.report import BITWISE, DIFFERENT, ROUGH, ROUNDING, Away, Faulty
from pstranspile.proof.training import SingleMachine, start_cluster
from pstranspile.proof.workload import CheckInput, precisely
from pstranspile.runtime.run.batch import concat_shares
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.run.seeds import is_divided


class Entry(NamedTuple):
    """A gradient: the server it went to, the step (an index from 0), the trainer's number, and the variable."""

    server: str
    step: int
    trainer: int
    variable: str


class UpdateLedger(ServerListener):
    """Records what trainers send and servers apply. It must be made before the cluster starts, and becomes the observer
    of the network.

    Without a cluster, the caller records what was sent, reported and applied.
    """

    def __init__(self, cluster: Cluster | None = None):
        self.sent: dict[Entry, Any] = {}
        """The gradients that were sent. The ledger keeps each value, so that an object identifies its gradient."""
        self.send_barriers: set[tuple[str, int, int]] = set()
        """Server, step and trainer of every send barrier sent."""
        self.applied: dict[tuple[str, int], list[tuple[str, int, Any]]] = {}
        """The applied gradients by server and update: variable, trainer and value. A restarted server repeats
        updates.
        """
        self.doubled: list[Entry] = []
        if cluster is None:
            return
        for server in cluster.servers:
            server.listen(self)
        cluster.network.observe(self)

    def __call__(self, event: str, message: Message) -> None:
        """Receives every message when it is posted."""
        if event != "post":
            return
        if message.kind == SEND:
            entry = Entry(message.target, message.step, message.trainer, message.variable)
            if entry in self.sent:
                self.doubled.append(entry)
            self.sent[entry] = message.payload
        elif message.kind == SEND_BARRIER:
            self.send_barriers.add((message.target, message.step, message.trainer))

    def updating(self, server: Server, contributions: Callable[[], Contributions]) -> None:
        """Records the gradients of an update that a server begins."""
        self.applied[server.name, server.updates] = contributions()

    def problems(self, *, ended: bool = True) -> list[str]:
        """Describes gradients that were lost, or not applied exactly once in their step. Empty if there are none.

        With `ended=False` the run stopped before its end, and gradients that are not yet applied are no problem.
        """
        result = [f"{_entry_label(entry)} was sent twice by the program" for entry in self.doubled]
        seen: dict[Entry, int] = {}
        for (server, step), values in self.applied.items():
            for variable, trainer, value in values:
                entry = Entry(server, step, trainer, variable)
                seen[entry] = seen.get(entry, 0) + 1
                if entry not in self.sent:
                    result.append(f"{_entry_label(entry)} was applied, but never sent in this step")
                elif not _same_value(self.sent[entry], value):
                    result.append(f"{_entry_label(entry)} was applied with another value than was sent")
                elif (server, step, trainer) not in self.send_barriers:
                    result.append(f"{_entry_label(entry)} was applied, but its trainer did not report")
        result += [f"{_entry_label(entry)} was applied {count} times" for entry, count in seen.items() if count > 1]
        for entry in self.sent:
            if ended and entry not in seen and (entry.server, entry.step, entry.trainer) in self.send_barriers:
                result.append(f"{_entry_label(entry)} was lost")
        return result


def _same_value(one: Any, other: Any) -> bool:
    """Whether two values are the same object, or equal bit for bit after a server has read one from a file."""
    if one is other:
        return True
    if isinstance(one, tuple):
        parts = cast("tuple[Any, ...]", one)
        return isinstance(other, tuple) and all(map(_same_value, parts, cast("tuple[Any, ...]", other)))
    if not hasattr(one, "tobytes"):
        return one == other
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def _entry_label(entry: Entry) -> str:
    return f"{entry.variable} of trainer {entry.trainer}, {step_label(entry.step)}, on {entry.server}"


Alike: TypeAlias = "Callable[[str, Any, Any, float], bool]"
"""Whether two values of a variable count as equal: by name, value, expected value, and largest relative difference."""


class FaultlessRun(NamedTuple):
    """The run without faults: its final parameters, and whether it kept the promise of the mode.

    `uneven` tells whether shares had different numbers of rows.
    """

    parameters: Snapshot
    keeps_promise: bool
    uneven: bool = False


def check_faults(check_input: CheckInput, faults: Scenario, sound: FaultlessRun | None) -> Faulty:
    """Runs a cluster with faults and returns the outcome.

    `sound` is None for modes that promise no equality. Raises DiagnosticError, but not if the cluster gets stuck.
    """
    workload = check_input.workload
    run = _FaultyRun(check_input, faults)
    result = Faulty(
        str(faults), run.fault_texts, run.wait_notes, run.wrong(counting=sound is None), unreached=run.unreached
    )
    if run.wait_notes:
        return result
    if sound is None:
        if any(isinstance(event, Departure | Crash) for event in faults.events):
            return result
        held, _ = precisely(check_input, lambda given: held_to_source(given, None, faults))
        return result._replace(wrong=(*result.wrong, *held.problems), held=True)
    counted = _contributing_trainers(run.books, run.sums, run.cluster, workload.steps)
    if isinstance(counted, str):
        return result._replace(not_compared=counted)
    all_trainers = frozenset(range(len(run.cluster.trainers)))
    away = tuple(_absences(counted, run.cluster))
    if all(names == all_trainers for names in counted):
        return _compare_parameters(result, run.ends, sound.parameters, _never)
    result = result._replace(away=away)
    if not sound.keeps_promise:
        return result._replace(not_compared="without faults, too, it is not what a single machine gives")
    if sound.uneven:
        return result._replace(not_compared="shares have different numbers of rows, and count as if nobody were away")
    (ours, wanted, start), _ = precisely(
        check_input, lambda given: (_FaultyRun(given, faults).ends, *_train(given, counted))
    )
    return _compare_parameters(result, ours, wanted, _fitting(wanted, start))


class _Sums(RingListener):
    """Records, by step, the trainers whose parts went into each sum over a ring."""

    def __init__(self) -> None:
        self.trainer_sets: dict[int, set[frozenset[int]]] = {}

    def sum_done(self, step: int, trainers: Sequence[int]) -> None:
        """Records that a sum over a ring was made of the parts of these trainers."""
        self.trainer_sets.setdefault(step, set()).add(frozenset(trainers))


class _FaultyRun:
    """A run with faults, up to its end or to the point where the cluster gets stuck."""

    def __init__(self, check_input: CheckInput, faults: Scenario):
        self.cluster = start_cluster(check_input, watch=False, faults=faults)
        assert self.cluster.injector is not None
        self.books = UpdateLedger(self.cluster)
        sums = _Sums()
        self.sums = sums.trainer_sets
        """The trainers, by step, whose parts went into each sum over a ring."""
        for side in self.cluster.rings.values():
            side.listen(sums)
        self.gradients = Ledger()
        self.cluster.network.observe(self.gradients)
        self.wait_notes: tuple[str, ...] = ()
        self.ends: Snapshot = {}
        try:
            self.cluster.run_to(check_input.workload.steps)
            self.ends = _parameters(self.cluster)
            self.cluster.finish()
        except DiagnosticError as problem:
            if [finding.code for finding in problem.diagnostics] != ["cluster-stuck"]:
                raise
            self.wait_notes = tuple(note.message for finding in problem.diagnostics for note in finding.notes)
        self.unreached = () if self.wait_notes else tuple(self.cluster.injector.unreached_lines())
        self.fault_texts = tuple(f"tick {tick}: {text}" for tick, text in self.cluster.injector.log)
        self.restarts = self.cluster.injector.scenario.restarts

    def wrong(self, *, counting: bool) -> tuple[str, ...]:
        """Describes gradients that were lost or applied twice. With `counting`, those that belong to no fixed step are
        included.
        """
        result = tuple(self.books.problems(ended=not self.wait_notes))
        return result + (
            tuple(self.gradients.problems(restarts=self.restarts)) if counting and not self.wait_notes else ()
        )


def _parameters(cluster: Cluster) -> Snapshot:
    """The final parameters: those of the servers, or without servers those of the first trainer that is still
    present.
    """
    result = cluster.parameters()
    if cluster.servers:
        return result
    trainer = next((trainer for trainer in cluster.trainers if not trainer.gone), cluster.trainers[0])
    return {name: own_copy(trainer.scope[name]) for name in result}


def _never(_name: str, _value: Any, _wanted: Any, _difference: float) -> bool:
    """The rule for values that must be bitwise equal: no difference is accepted."""
    return False


def _fitting(wanted: Snapshot, start: Snapshot) -> Alike:
    """The rule for values that may differ by rounding. It is strict for values in double precision."""
    changes = {name: largest_change(plain(wanted[name]), plain(start.get(name))) for name in wanted}
    floor = OF_LARGEST * max(changes.values(), default=0.0)

    def is_within_tolerance(name: str, ours: Any, expected: Any, difference: float) -> bool:
        wide = expected is not None and expected.dtype == "float64"
        return same_in_doubles(ours, expected, changes[name], floor) if wide else difference <= ROUGH

    return is_within_tolerance


def _compare_parameters(result: Faulty, ours: Snapshot, wanted: Snapshot, alike: Alike) -> Faulty:
    """Compares the final parameters and returns the outcome with the worst verdict. `alike` judges values that
    differ.
    """
    result = result._replace(equality=BITWISE)
    for name in sorted(set(ours) & set(wanted)):
        a, b = plain(ours[name]), plain(wanted[name])
        same, difference = differ(a, b, by_element=True)
        if not same and result.equality != DIFFERENT:
            fits = alike(name, a, b, difference)
            result = result._replace(equality=ROUNDING if fits else DIFFERENT, variable="" if fits else name)
        result = result._replace(worst=max(result.worst, difference))
    return result


# The trainers that counted in each step.


def _contributing_trainers(
    books: UpdateLedger, sums: Mapping[int, set[frozenset[int]]], cluster: Cluster, steps: int
) -> list[frozenset[int]] | str:
    """The trainers whose gradients went into the update of each step; a sentence if machines do not agree on them."""
    result: list[frozenset[int]] = []
    for step in range(steps):
        if cluster.servers:
            by_server = {
                server.name: frozenset(trainer for _, trainer, _ in books.applied[server.name, step])
                for server in cluster.servers
                if books.applied.get((server.name, step))
            }
            if len(set(by_server.values())) > 1:
                return f"a trainer crashed half-way through {step_label(step)}: some servers counted it, others did not"
            result.append(next(iter(by_server.values()), frozenset[int]()))
        else:
            trainers = sums.get(step, set())
            if len(trainers) > 1:
                return f"a trainer crashed half-way through {step_label(step)}: it took part in some operations only"
            result.append(next(iter(trainers), frozenset[int]()))
    return result


def _absences(counted: Sequence[frozenset[int]], cluster: Cluster) -> Iterable[Away]:
    """The periods, in steps from 1, in which a trainer did not count."""
    for trainer in cluster.trainers:
        begun = 0
        for step, names in enumerate([*counted, frozenset({trainer.index})], start=1):
            if trainer.index not in names and not begun:
                begun = step
            elif trainer.index in names and begun:
                yield Away(trainer.name, begun, step - 1)
                begun = 0


# The single machine on the rows of the trainers that counted.


def _train(check_input: CheckInput, counted: Sequence[frozenset[int]]) -> tuple[Snapshot, Snapshot]:
    """Trains a single machine in each step on the shares of the trainers that counted.

    Returns its final parameters, and its initial values. Steps in which no trainer counted are left out.
    """
    workload, single = check_input.workload, SingleMachine(check_input)
    trainers = start_cluster(check_input, watch=False).trainers
    for step, present in enumerate(counted):
        shares = [share for index in sorted(present) if (share := trainers[index].feed(step)) is not None]
        if shares:
            program = workload.programs[workload.turns.program(step)]
            single.train(step, concat_shares(shares, [name for name in shares[0] if is_divided(program, name)]))
    parameters = {var.name for var in workload.whole_program.parameters()}
    return {name: value for name, value in single.values().items() if name in parameters}, single.start
