"""The replays of all modes, and the run that carries one out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.checkpoint.state import part_of
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.message import GET, GET_NOW, GET_ROWS, LOOKUP, NOTIFY, PREFETCH, SEND, Message
from pstranspile.cluster.machines.scenario import Scenario
from pstranspile.compiler.job.modes import Promise, settings_of
from pstranspile.compiler.modes.geo import delta_name
from pstranspile.compiler.plan.plan import Plan, PlannedParameter, trainer_suffix
from pstranspile.proof.compare import PreciseComparison, Snapshot, plain
from pstranspile.proof.halves import Evaluation, Halves, combine_gradients, kept_of
from pstranspile.proof.replay import (
    BY_ID,
    NO_ROWS,
    MachineValues,
    OwnedSlice,
    Place,
    Replay,
    SliceUpdates,
    close,
    owned_slices,
    piece_of,
    taken_rows,
)
from pstranspile.proof.report import OWN_NORM, Applied, Verdict
from pstranspile.proof.training import ClusterValues, SingleMachine, start_cluster, train_both
from pstranspile.proof.workload import CheckInput
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.run.seeds import nothing_of
from pstranspile.runtime.values import SelectedRows

# The ledger of gradients sent to servers that wait for nobody.


class Ledger:
    """A network observer that records which gradients were sent and applied, and the age of the parameters behind them.

    `plans` are those of the programs that train: each names its own gradients.
    """

    def __init__(self, plans: Iterable[Plan] = ()):
        self.parameter_of: dict[str, str] = {}
        """The parameter that each gradient is for, by the name under which the gradient is sent."""
        self.table_of: dict[str, str] = {}
        """The part of a distributed lookup table that ids are sent for, by the name under which they are sent."""
        for plan in plans:
            for trainer in range(plan.trainers):
                slices = (s for parameter in plan.parameters for s in parameter.slices)
                self.parameter_of.update((plan.sent_name(s, trainer), s.name) for s in slices)
            self._know_table(plan)
        self.sent_messages: dict[tuple[str, str, int], Message] = {}
        """The messages that were sent, by source, target and number."""
        self.take_counts: Counter[tuple[str, str, int]] = Counter()
        self.updates: Counter[str] = Counter()
        self.fetched_updates: dict[tuple[int, str], int] = {}
        """How many updates there were in what a trainer fetched last, by trainer and parameter."""
        self.looked_up: dict[tuple[int, str], dict[int, int]] = {}
        """How many updates there were in the rows that a trainer looked up, by trainer and parameter, then by step."""
        self.staleness: list[int] = []

    def _know_table(self, plan: Plan) -> None:
        table = plan.table
        for server, ids in enumerate(() if table is None else table.ids_sent):
            assert table is not None
            part = self.table_of[ids] = f"{table.name}.pserver_{server}"
            for trainer in (None, *range(plan.trainers)):
                self.parameter_of[table.sent_name(trainer, server)] = part

    def __call__(self, event: str, message: Message) -> None:
        """Receives every message when it is posted and when it is delivered."""
        key = message.source, message.target, message.sequence
        if message.kind == SEND and event == "post":
            self.sent_messages[key] = message
        elif message.kind == SEND and event == "deliver":
            self.take_counts[key] += 1
            name = self.parameter_of.get(message.variable)
            if name is not None:
                self.staleness.append(self.updates[name] - self._begun_with(message, name))
                self.updates[name] += 1
        elif event == "deliver" and message.kind in (GET, GET_NOW):
            self.fetched_updates[message.trainer, message.variable] = self.updates[message.variable]
        elif event == "deliver" and message.kind in (LOOKUP, PREFETCH):
            name = self.table_of.get(message.variable, message.variable)
            steps = self.looked_up.setdefault((message.trainer, name), {})
            steps.setdefault(message.step, self.updates[name])

    def _begun_with(self, message: Message, name: str) -> int:
        """How many updates of a parameter there were in the values from which a trainer made a gradient.

        A trainer may look up the rows of its next step before the gradient of this one arrives.
        """
        steps = self.looked_up.get((message.trainer, name), {})
        own = max((step for step in steps if step <= message.step), default=None)
        if own is None:
            return self.fetched_updates.get((message.trainer, name), 0)
        for step in [step for step in steps if step < own]:
            del steps[step]
        return steps[own]

    def result(self) -> Applied:
        """What became of the gradients of the plans. A gradient counts as applied if it was applied exactly once."""
        sent = [key for key, message in self.sent_messages.items() if message.variable in self.parameter_of]
        ages = self.staleness
        once = sum(self.take_counts[key] == 1 for key in sent)
        return Applied(len(sent), once, max(ages, default=0), sum(ages) / len(ages) if ages else 0.0)

    def problems(self, *, restarts: bool) -> Iterator[str]:
        """Describes gradients that were lost, or applied more than once.

        With `restarts` a server may return to a checkpoint and apply again the gradients that came after it.
        """
        for key, message in self.sent_messages.items():
            count = self.take_counts[key]
            if not count:
                yield f"{message} was lost"
            elif count > 1 and not restarts:
                yield f"{message} was applied {count} times"


# Replays that follow the order in which servers received messages.

ANSWERED = (GET, GET_NOW, GET_ROWS)


class Event(NamedTuple):
    """A message that a server received: its kind, the server, the variable, and the number of the trainer."""

    kind: str
    server: str
    variable: str
    trainer: int
    payload: Any = None


class EventReplay(Replay):
    """A replay that follows the order in which the servers received messages."""

    def __init__(self, check_input: CheckInput, cluster: Cluster):
        super().__init__(check_input, cluster)
        self.events: list[Event] = []
        self.cluster.network.observe(self._watch)
        self.servers = {f"pserver_{i}" for i in range(len(self.compiled.plan.pservers))}
        self.slices: dict[Place, OwnedSlice] = {}
        """The slices by server and name of the variable there."""
        for plan in self.plans:
            self.slices.update({(owned.server, owned.slice.name): owned for owned in owned_slices(plan)})

    def _watch(self, event: str, message: Message) -> None:
        if event == "deliver" and message.target in self.servers:
            payload = message.payload if message.kind in (LOOKUP, PREFETCH) else None
            self.events.append(Event(message.kind, message.target, message.variable, message.trainer, payload))

    def take_events(self) -> list[Event]:
        """The events since the last call."""
        events, self.events = self.events, []
        return events


# Replays of synchronous steps, in which gradients are combined before the second half.

SINGLE = 2e-6
"""The tolerance in single precision, relative to a value and to its largest change in a step.

It is small because the replayed ops read the machines' own values, so that few results differ at all.
"""

ROUNDED = 2.0**-24
"""The rounding error in single precision for each term of a sum, relative to the sum of the terms' absolute values."""


class SyncReplay(Replay):
    """A replay of trainers that combine gradients, through servers or rings, or average their parameters.

    In single precision the mean of gradients may be rounded differently from the machines' mean. An optimizer that
    divides by the size of gradients amplifies the difference where gradients nearly cancel out. To bound its effect,
    the step is repeated with gradients that are rounded up and with gradients that are rounded down.
    """

    single = SINGLE

    def __init__(self, check_input: CheckInput, cluster: Cluster):
        super().__init__(check_input, cluster)
        self.rows: dict[str, SelectedRows] = {}
        """The mean gradients of the step that are sparse rows, by name."""
        collective = self.compiled.plan.collective
        self.averages = collective.averaged_parameters if collective is not None else ()
        """The parameters that trainers average instead of gradients."""
        self.rounded = 0
        """The direction in which means of gradients are shifted by the rounding error: 1 upwards, -1 downwards, 0 not
        at all.
        """

    def begin(self, start: Snapshot) -> None:
        """Checks before the first step.

        In single precision, gradients are scaled at the point where trainers scale them: scaling at a later point would
        round differently in every op between the two.
        """
        super().begin(start)
        collective = self.compiled.plan.collective
        doubles = any(getattr(value, "dtype", None) == "float64" for value in start.values())
        if collective is not None and collective.summed and not self.averages and not doubles:
            self.part = 1 / len(self.feeds)

    def expected_values(self, half: Halves, step: int) -> MachineValues:
        """Computes the expected values of every machine after a step."""
        result = self.previous_values.copy()
        runs = self._runs(half, step)
        for trainer, run in enumerate(runs):
            self.copy_from_run(result, run, f"trainer_{trainer}")
            self.results(run, trainer, step)
        if not self.compiled.plan.pservers:
            self._on_trainers(result, half, runs)
        elif half.facts is not None:
            self._on_servers(result, half, runs, step)
        return result

    def end(self) -> None:
        """Checks nothing: synchronous machines have nothing left to do."""

    def _runs(self, half: Halves, step: int) -> list[Evaluation]:
        return [self.share(half, trainer, step) for trainer in range(len(self.feeds))]

    def _on_trainers(self, result: MachineValues, half: Halves, runs: list[Evaluation]) -> None:
        """Runs the second half on every trainer, with the mean gradients. Where parameters are averaged, each trainer
        uses its own gradients.
        """
        gradients = {} if self.averages else _means(half, runs, self.rounded, summed=self.part != 1.0)
        for trainer, run in enumerate(runs):
            self.copy_from_run(result, _run_second_half(half, run, gradients), f"trainer_{trainer}")
        for name in self.averages:
            places = [(f"trainer_{trainer}", name) for trainer in range(len(runs))]
            learnt = [self.previous_values[place] - result[place] for place in places]
            mean = self.previous_values[places[0]] - combine_gradients(learnt)
            for trainer, place in enumerate(places):
                result[place] = mean
                snapshot = f"trainer_{trainer}", f"{name}@SNAPSHOT"
                if snapshot in result:
                    result[snapshot] = mean

    def _on_servers(self, result: MachineValues, half: Halves, runs: list[Evaluation], step: int) -> None:
        """Runs the second half on the whole variables of the servers."""
        gradients = self._means(half, runs)
        self.rows = {name: value for name, value in gradients.items() if isinstance(value, SelectedRows)}
        values = self.whole(kept_of(half, half.second))
        own = {name for name in values if self.previous_values.release(name)} if not self.rounded else set[str]()
        run = Evaluation(half.program, values, seed=self.seed, step=step, own=own)
        table = None if half.plan is None else half.plan.table
        keep = {*self.layout.variables, *(() if table is None else (table.learning_rate,))}
        for name in [*gradients]:
            run.lend(name, gradients.pop(name))  # frees the array after use
        run.go(half.second, keep=keep)
        trained = {p.name for p in half.plan.parameters} if half.plan is not None else set[str]()
        for name in {name for index in half.second for name in half.program.main_block.ops[index].output_names}:
            placed, value = self.layout.variables.get(name), run[name]
            if placed is None or placed.table or value is None:
                continue
            others = [(p.machine, p.name) for p in placed.holders if not p.machine.startswith("pserver")]
            stale = {place: result.get(place) for place in others if name not in trained}
            result.following(placed, value)
            result.own_values.update(stale)
        if table is not None and table.gradient in self.rows:
            if len(runs) > 1 or not _by_sgd(half, table.name):
                self.design_reasons[table.name] = BY_ID
            mean = self.rows[table.gradient]
            total = mean._replace(value=mean.value * mean.value.dtype.type(len(runs)))
            for number in range(len(self.compiled.plan.pservers)):
                place = f"pserver_{number}", table.name
                rate, updates = run[table.learning_rate], self.updates[self.workload.turns.program(step)]
                result[place] = updates.update_table(self.previous_values[place], total, rate, number)

    def _means(self, half: Halves, runs: list[Evaluation]) -> dict[str, Value]:
        """The means of the trainers' gradients by name, without the rows that large tables drop."""
        result = _means(half, runs, self.rounded)
        for owned in owned_slices(half.plan) if half.plan is not None else ():
            name, table = owned.parameter.gradient, self.choosing.get((owned.server, owned.slice.name))
            if table is not None and isinstance(gradient := result.get(name), SelectedRows):
                result[name] = taken_rows(table.copy(), gradient, owned.slice.start)
        return result

    def not_rounded(
        self, wrong: list[Place], now: Mapping[Place, Value], wanted: MachineValues, step: int
    ) -> list[Place]:
        """The places whose differences can't be due to rounding of the mean of gradients."""
        if any(getattr(plain(wanted[place]), "dtype", None) == "float64" for place in wrong):
            return wrong
        half, problems = self.halves[self.workload.turns.program(step)], list(self.problems)
        shifted: list[Mapping[Place, Value]] = []
        for self.rounded in (1, -1):
            shifted.append(self.expected_values(half, step))
        self.rounded, self.problems = 0, problems
        return [place for place in wrong if not self._rounds(place, now[place], wanted[place], shifted)]

    def _rounds(self, place: Place, value: Value, wanted: Value, shifted: Sequence[Mapping[Place, Value]]) -> bool:
        """Whether the value at a place is the expected one, or is as far from it as rounding of gradients can make it.

        `shifted` are the expected values for gradients that are rounded up and down.
        """
        if self.fits(place, value, wanted):
            return True
        middle, ends = plain(wanted), [plain(made[place]) for made in shifted]
        if middle is None or middle.dtype.kind != "f" or any(end is None or end.shape != middle.shape for end in ends):
            return False
        return bool(ends) and self.fits(place, value, wanted, sum(2 * np.abs(end - middle) for end in ends))

    # differences that are by design

    def unexplained_places(
        self, wrong: list[Place], now: Mapping[Place, Value], wanted: MachineValues, step: int
    ) -> list[Place]:
        """The places that still differ if servers update the slices of a parameter separately and skip slices without
        rows.

        Each slice is updated as if it were a whole parameter. Parameters that differ for this reason are recorded in
        `design_reasons`.
        """
        updates = self.updates.get(self.workload.turns.program(step))
        if updates is None or updates.half.plan is None or not self.compiled.plan.pservers:
            return wrong
        bad, gradients = set(wrong), dict[str, Value](self.rows)
        for parameter in updates.half.plan.parameters:
            places = self._places(parameter, updates) & wanted.keys()
            if len(parameter.slices) < 2 or not places & bad:
                continue
            if parameter.gradient not in gradients:  # dense ones are not kept, as they are rarely asked for
                gradients = self._means(updates.half, self._runs(updates.half, step))
            gradient = gradients[parameter.gradient]
            other, left = self._update_slices(parameter, gradient, updates, step)
            shifted = [self._update_slices(parameter, one, updates, step)[0] for one in _both_ways(gradient)]
            compared = [place for place in other if place in now and not self._by_row(place)]
            if all(self._rounds(place, now[place], other[place], shifted) for place in compared):
                if left:
                    self.design_reasons[parameter.name] = NO_ROWS
                elif updates.uses_norm(parameter.name):
                    self.design_reasons.setdefault(parameter.name, OWN_NORM)
                bad -= places
        return [place for place in wrong if place in bad]

    def _places(self, parameter: PlannedParameter, updates: SliceUpdates) -> set[Place]:
        """The places that the update of a parameter writes."""
        assert updates.half.plan is not None
        owned = [part for part in owned_slices(updates.half.plan) if part.parameter is parameter]
        trainers = {(f"trainer_{i}", parameter.name) for i in range(len(self.feeds))}
        return trainers.union(place for part in owned for place in updates.written(part).values())

    def _update_slices(
        self, parameter: PlannedParameter, gradient: Value, updates: SliceUpdates, step: int
    ) -> tuple[dict[Place, Value], bool]:
        """The expected values if slices are updated separately, and whether slices without rows are skipped."""
        assert updates.half.plan is not None
        result: dict[Place, Value] = {}
        parts: list[Value] = []
        left = False
        for owned in owned_slices(updates.half.plan):
            if owned.parameter is parameter:
                piece = piece_of(gradient, owned.slice)
                left |= isinstance(piece, SelectedRows) and not len(piece.rows)
                result.update(updates.apply(self.previous_values, owned, piece, step))
                parts.append(result[owned.server, owned.slice.name])
        whole = np.concatenate(parts)
        return {**result, **{(f"trainer_{i}", parameter.name): whole for i in range(len(self.feeds))}}, left


def _by_sgd(half: Halves, parameter: str) -> bool:
    """Whether the source updates a parameter by plain sgd."""
    types = [op.type for op in half.program.main_block.ops if op.input("Param") == parameter]
    return types == ["sgd"]


def _means(half: Halves, runs: list[Evaluation], rounded: int = 0, *, summed: bool = False) -> dict[str, Value]:
    """The means of the trainers' gradients by name, or their sums if `summed`.

    The gradients are removed from the runs. A trainer without rows counts as one with gradients of zero. `rounded`
    shifts the result by the largest rounding error, upwards (1) or downwards (-1).
    """
    result: dict[str, Value] = {}
    for gradient in dict.fromkeys(half.sent_gradients.values()):
        values = [value for run in runs if (value := run.take(gradient)) is not None]
        terms = sum(map(_terms, values)) if rounded else 0
        values = [_shift_by_rounding(value, rounded * terms) for value in values] if rounded else values
        if values:
            result[gradient] = combine_gradients(
                values, len(runs) if any(run.has_no_rows for run in runs) else 0, summed=summed
            )
        elif runs and all(run.has_no_rows for run in runs):
            result[gradient] = nothing_of(half.program, next(iter(half.program.main_block.ops)), gradient)
    return result


def _both_ways(gradient: Value) -> list[Value]:
    """A gradient in single precision shifted upwards and downwards by the rounding error. Empty in double precision."""
    data = gradient.value if isinstance(gradient, SelectedRows) else plain(gradient)
    return [] if data.dtype == "float64" else [_shift_by_rounding(gradient, by * _terms(gradient)) for by in (1, -1)]


def _terms(gradient: Value) -> int:
    """The largest number of terms in an element of a gradient: 1, or for sparse rows the most repetitions of a row."""
    if not isinstance(gradient, SelectedRows) or not len(gradient.rows):
        return 1
    return int(np.unique(gradient.rows, return_counts=True)[1].max())


def _shift_by_rounding(gradient: Value, terms: int) -> Value:
    """A gradient shifted by the rounding error of a sum of `terms` numbers and of one scaling; downwards if `terms` <
    0.
    """
    if isinstance(gradient, SelectedRows):
        return gradient._replace(value=_shift_by_rounding(gradient.value, terms))
    if not isinstance(gradient, np.ndarray):
        return gradient
    by = ROUNDED * (terms + (1 if terms > 0 else -1))
    return gradient + np.abs(gradient) * gradient.dtype.type(by)


def _run_second_half(half: Halves, run: Evaluation, gradients: Mapping[str, Value]) -> Evaluation:
    """Runs the second half after a run of the first, with `gradients` in the place of the run's own."""
    for name, value in gradients.items():
        run.lend(name, value)
    return run.go(half.second) if gradients or not run.has_no_rows else run.run_without_rows(half.second)


# Replays of servers that apply each gradient on arrival. The order is that in which messages were delivered.


class AsyncReplay(EventReplay):
    """A replay of the modes `async` and `half-async`."""

    waits = False

    def __init__(self, check_input: CheckInput, cluster: Cluster):
        super().__init__(check_input, cluster)
        self.sent_slices: dict[Place, tuple[str, OwnedSlice]] = {}
        """The gradients by server and name there: the program that sends each, and the slice to which it belongs."""
        for name, half in self.halves.items():
            for owned in owned_slices(half.plan) if half.plan is not None else ():
                for trainer in range(self.compiled.plan.trainers):
                    self.sent_slices[owned.server, _plan(half).sent_name(owned.slice, trainer)] = name, owned
        self.counters = {counter.name: counter for plan in self.plans for counter in plan.counters}
        self.notices: Counter[Place] = Counter()

    def begin(self, start: Mapping[str, Value]) -> None:
        """Checks before the first step."""
        super().begin(start)
        self.start = {name: own_copy(start[name]) for name in self.counters if name in start}
        self.take_events()

    def expected_values(self, half: Halves, step: int) -> MachineValues:
        """Computes the expected values of every machine after a step."""
        window = _StepOfTrainers(self, half, step)
        for event in self.take_events():
            window.take(event)
        return MachineValues(self.origin, own=window.close())

    def end(self) -> None:
        """Checks that no gradient is left unapplied when the trainers leave."""
        for event in self.take_events():
            if event.kind in (SEND, NOTIFY):
                self.problems.append(f"after the last step: {event.kind} {event.variable} came to {event.server}")

    def show(
        self,
        updates: SliceUpdates,
        owned: OwnedSlice,
        gradient: Value,
        piece: Value,
        step: int,
        counters: Mapping[str, Value],
        changed: Mapping[Place, Value],
    ) -> None:
        """Records why the update of a slice differs by design from the source's update of the whole parameter, if it
        does.

        `piece` is what the slice takes of the gradient, and `changed` are the values on the server after the update, by
        place.
        """
        name = owned.parameter.name
        left = isinstance(piece, SelectedRows) and not len(piece.rows)
        if name in self.design_reasons or len(owned.parameter.slices) < 2 or not (left or updates.uses_norm(name)):
            return
        whole = self.whole(updates.names(owned))
        run = updates.apply_whole(self.previous_values, owned, whole, gradient, step, counters)
        for source, place in updates.written(owned).items():
            if not close(changed[place], part_of(*self.origin[place], run[source]), self.previous_values[place]):
                self.design_reasons[name] = NO_ROWS if left else OWN_NORM

    def initial_counters(self, server: str, by_step: Mapping[str, Value]) -> dict[str, Value]:
        """The initial values of schedule counters on a server: the number of steps of all trainers so far."""
        result: dict[str, Value] = {}
        for name, counter in self.counters.items():
            count = sum(self.notices[server, own] for own in counter.trainer_counters)
            result[name] = np.full_like(by_step[name], count)
        return result


def _plan(half: Halves) -> Plan:
    assert half.plan is not None
    return half.plan


class _StepOfTrainers:
    """One step of all trainers."""

    def __init__(self, replay: AsyncReplay, half: Halves, step: int):
        self.replay = replay
        self.half = half
        self.step = step
        self.current_values: dict[Place, Value] = dict(replay.previous_values)
        self.runs: dict[int, Evaluation] = {}
        self.rows: dict[int, dict[str, list[Value]]] = {}
        """The rows, by trainer and table, that each lookup of the trainer returned, in order. Other rows are NaN."""
        self.looked_up: Counter[tuple[int, Place]] = Counter()
        """The number of lookups that a slice has answered, by trainer and place."""
        self.fetched_values: dict[int, dict[Place, Value]] = {}
        trained = () if half.plan is None else owned_slices(half.plan)
        self.owned_slices = {(owned.server, owned.slice.name): owned for owned in trained}
        self.applied: Counter[tuple[int, Place]] = Counter()
        self.applied_before: dict[tuple[int, Place], int] = {}
        """The number of a trainer's gradients that were applied to a slice before the trainer fetched it."""
        self.noticed: Counter[tuple[int, Place]] = Counter()

    def run(self, trainer: int) -> Evaluation:
        """Runs the first half on a trainer, with the rows that it has looked up so far."""
        if trainer not in self.runs:
            rows = self.rows.get(trainer, {})
            remote = {name: rows[name][0] if name in rows else self._empty(name) for name in self._prefetched_names()}
            self.runs[trainer] = self.replay.share(self.half, trainer, self.step, remote, self._lookups(trainer))
        return self.runs[trainer]

    def _lookups(self, trainer: int) -> dict[int, dict[str, Value]]:
        """The values of tables at the time of each lookup, by index of the lookup op in the source.

        Only tables that a trainer looked up several times in the step are listed. One op of the trainer's program does
        several lookups of the source.
        """
        rows, counts = self.rows.get(trainer, {}), dict[str, int]()
        got: dict[str, dict[str, Value]] = {}
        program = self.replay.cluster.trainers[trainer].role.programs[self.replay.workload.turns.program(self.step)]
        for op in program.main_block.ops:
            table = op.input("W") or ""
            if op.type == "distributed_lookup_table" and len(rows.get(table, ())) > 1:
                number = counts[table] = counts.get(table, -1) + 1
                held = rows[table][number : number + 1]
                got.update((name, {table: value}) for name in op.output_names for value in held)
        ops = enumerate(self.half.program.main_block.ops)
        return {i: got[name] for i, op in ops if (name := op.output("Out") or "") in got and op.input("W") in got[name]}

    def _prefetched_names(self) -> list[str]:
        result = [owned.parameter.name for owned in self.replay.slices.values() if owned.parameter.prefetched]
        return [*result, *(plan.table.name for plan in self.replay.plans if plan.table is not None)]

    def _empty(self, name: str) -> Value:
        placed = self.replay.layout.variables[name]
        held = next(value for place, value in self.current_values.items() if self.replay.origin[place][0] is placed)
        return np.full(placed.shape, np.nan, (held.value if isinstance(held, SelectedRows) else held).dtype)

    def take(self, event: Event) -> None:
        """Replays one message that a server received."""
        place = event.server, event.variable
        if event.kind == SEND:
            self._update(event, place)
        elif event.kind in ANSWERED:
            self._answer(event, place)
        elif event.kind in (LOOKUP, PREFETCH):
            self._look_up(event, place)
        elif event.kind == NOTIFY:
            self.replay.notices[place] += 1
            self.noticed[event.trainer, place] += 1

    def _look_up(self, event: Event, place: Place) -> None:
        owned = self.replay.slices.get(place)
        if owned is None:
            self._look_up_by_id(event)
            return
        name, s = owned.parameter.name, owned.slice
        rows = self.rows.setdefault(event.trainer, {}).setdefault(name, [])
        number = self.looked_up[event.trainer, place]
        self.looked_up[event.trainer, place] += 1
        if number == len(rows):
            rows.append(self._empty(name))
        ids = np.asarray(event.payload).reshape(-1)
        rows[number][s.start + ids] = self.current_values[place][ids]

    def _look_up_by_id(self, event: Event) -> None:
        """Replays a lookup in the distributed lookup table."""
        for plan in self.replay.plans:
            if plan.table is not None and event.variable in plan.table.ids_sent:
                rows = self.rows.setdefault(event.trainer, {})
                (whole,) = rows.setdefault(plan.table.name, [self._empty(plan.table.name)])
                held = self.current_values[event.server, plan.table.name]
                asked = np.isin(held.rows, np.asarray(event.payload).reshape(-1))
                whole[held.rows[asked]] = held.value[: len(held.rows)][asked]

    def _update_by_id(self, event: Event, place: Place) -> None:
        table = None if self.half.plan is None else self.half.plan.table
        number = int(event.server.rpartition("_")[2])
        names = () if table is None else (table.sent_name(None, number), table.sent_name(event.trainer, number))
        gradient = None if table is None else self.run(event.trainer)[table.gradient]
        if table is None or gradient is None or event.variable not in names:
            return
        self.replay.design_reasons[table.name] = BY_ID
        updates = self.replay.updates[self.replay.workload.turns.program(self.step)]
        counters = self.replay.initial_counters(event.server, self.replay.start)
        rate = updates.rates(self.current_values, event.server, self.step, counters)[table.learning_rate]
        here = event.server, table.name
        self.current_values[here] = updates.update_table(self.current_values[here], gradient, rate, number)

    def _update(self, event: Event, place: Place) -> None:
        known = self.replay.sent_slices.get(place)
        if known is None:
            self._update_by_id(event, place)
            return
        name, owned = known
        self.applied[event.trainer, place] += 1
        gradient = self.run(event.trainer)[owned.parameter.gradient]
        if gradient is None:
            return
        piece = piece_of(gradient, owned.slice)
        table = self.replay.choosing.get((owned.server, owned.slice.name))
        if table is not None and isinstance(piece, SelectedRows):
            piece = taken_rows(table, piece)
        counters = self.replay.initial_counters(owned.server, self.replay.start)
        backup = self.current_values.get(self._backup(event.trainer, owned)) if _plan(self.half).dc_asgd else None
        moved = None if backup is None else self.current_values[owned.server, owned.slice.name] - backup
        changed = self.replay.updates[name].apply(self.current_values, owned, piece, self.step, counters, moved)
        self.current_values.update(changed)
        if len(self.replay.feeds) == 1:
            self.replay.show(self.replay.updates[name], owned, gradient, piece, self.step, counters, changed)

    def _backup(self, trainer: int, owned: OwnedSlice) -> Place:
        return owned.server, f"{owned.slice.name}{trainer_suffix(trainer)}_bak"

    def _answer(self, event: Event, place: Place) -> None:
        value = self.current_values.get(place)
        owned = self.replay.slices.get(place)
        if value is None or owned is None:
            return
        self.fetched_values.setdefault(event.trainer, {})[place] = value
        sent = owned.server, self._sent_name(place, event.trainer)
        self.applied_before[event.trainer, place] = self.applied[event.trainer, sent]
        there = self._backup(event.trainer, owned)
        if there in self.current_values:
            self.current_values[there] = own_copy(value)

    def _sent_name(self, place: Place, trainer: int) -> str:
        """The name under which the step's program sends a trainer's gradient of the slice at a place; "" if it sends
        none.
        """
        owned = self.owned_slices.get(place)
        return "" if owned is None or self.half.plan is None else self.half.plan.sent_name(owned.slice, trainer)

    def close(self) -> dict[Place, Value]:
        """Ends the step: checks that it is complete, and returns the expected values by place."""
        result = dict(self.current_values)
        for trainer in range(len(self.replay.feeds)):
            machine = f"trainer_{trainer}"
            self.replay.copy_from_run(result, self.run(trainer), machine)
            self.replay.results(self.run(trainer), trainer, self.step)
            for name, value in self._parameters(trainer).items():
                if (machine, name) in result:
                    result[machine, name] = value
            self._complete(trainer)
        self._count(result)
        return result

    def _parameters(self, trainer: int) -> dict[str, Value]:
        """The whole parameters of which a trainer has fetched every slice."""
        fetched, by_name = self.fetched_values.get(trainer, {}), dict[str, list[OwnedSlice]]()
        for owned in sorted(self.replay.slices.values(), key=lambda owned: owned.slice.start):
            by_name.setdefault(owned.parameter.name, []).append(owned)
        places = {name: [(o.server, o.slice.name) for o in slices] for name, slices in by_name.items()}
        return {
            name: fetched[of[0]] if len(of) == 1 else np.concatenate([fetched[place] for place in of])
            for name, of in places.items()
            if all(place in fetched for place in of)
        }

    def _complete(self, trainer: int) -> None:
        """Checks that a trainer sent each gradient once and fetched each slice after that. A trainer without rows makes
        no step.
        """
        if self.run(trainer).has_no_rows:
            return
        problems = self.replay.problems
        who = f"step {self.step + 1}: trainer_{trainer}"
        for owned in owned_slices(_plan(self.half)) if self.half.facts is not None else ():
            sent = owned.server, _plan(self.half).sent_name(owned.slice, trainer)
            count = self.applied[trainer, sent]
            if count != 1:
                problems.append(f"{who}'s gradient %{sent[1]} came to {owned.server} {count} times")
            fetched = self.fetched_values.get(trainer, {})
            home = owned.server, owned.slice.name
            if not owned.parameter.prefetched and home not in fetched:
                problems.append(f"{who} did not fetch %{owned.slice.name} from {owned.server}")
            elif not owned.parameter.prefetched and not self.applied_before[trainer, home]:
                problems.append(
                    f"{who} fetched %{owned.slice.name} from {owned.server} before its own gradient was in it"
                )
        if self.half.facts is not None:
            for counter in _plan(self.half).counters:
                for server in self.replay.servers:
                    if self.noticed[trainer, (server, counter.trainer_counters[trainer])] != 1:
                        problems.append(
                            f"{who} did not tell {server} of its step once in %{counter.trainer_counters[trainer]}"
                        )

    def _count(self, result: dict[Place, Value]) -> None:
        """Adds the expected counters of schedules to `result`: those of the server, and the server's counters of each
        trainer.
        """
        replay = self.replay
        for server in replay.servers if replay.counters else ():
            counted = replay.initial_counters(server, replay.start)
            rates: dict[str, Value] = {}
            for updates in replay.updates.values():
                ops, run = (
                    updates.half.program.main_block.ops,
                    updates.rates(self.current_values, server, self.step, counted),
                )
                rates.update((name, run[name]) for i in updates.rate_ops() for name in ops[i].output_names)
            rates = {name: own_copy(value) for name, value in rates.items() if value is not None}
            for name, value in counted.items():
                rates[name] = value
                for own in [own for own in replay.counters[name].trainer_counters if (server, own) in result]:
                    before = replay.previous_values[server, own]
                    count = sum(self.noticed[trainer, (server, own)] for trainer in range(len(replay.feeds)))
                    rates[own] = before + np.asarray(count, before.dtype)
            result.update({(server, name): value for name, value in rates.items() if (server, name) in result})


# Replays of geo-SGD: trainers' local steps, and their exchanges in the order of delivery.


class GeoReplay(EventReplay):
    """A replay of trainers that train locally, and servers that add up their changes."""

    def begin(self, start: Mapping[str, Value]) -> None:
        """Checks before the first step. The initial values of trainers count as exchanged."""
        super().begin(start)
        self.take_events()
        names = {owned.parameter.name for owned in self.slices.values()}
        self.trainers = range(len(self.feeds))
        self.exchanged_values = {
            (t, name): own_copy(self.previous_values[f"trainer_{t}", name]) for t in self.trainers for name in names
        }
        self.touched_rows: dict[tuple[int, str], list[Value]] = {}
        self.since = self.exchanges = 0
        geo = self.compiled.plan.geo
        assert geo is not None
        self.exchange_interval = geo.need_push_nums
        self.deltas = {(owned.server, delta_name(owned.slice.name)): owned for owned in self.slices.values()}

    def expected_values(self, half: Halves, step: int) -> MachineValues:
        """Computes the expected values of every machine after a step."""
        result = dict(self.previous_values)
        for trainer in self.trainers:
            run = self.share(half, trainer, step)
            self.results(run, trainer, step)
            if run.has_no_rows:
                run.run_without_rows(half.second)
            else:
                run.go(half.second)
            self.copy_from_run(result, run, f"trainer_{trainer}")
            for name, gradient in half.sent_gradients.items():
                if not run.has_no_rows and isinstance(value := run[gradient], SelectedRows):
                    self.touched_rows.setdefault((trainer, name), []).append(np.array(value.rows))
        self.since += bool(half.sent_gradients)
        self._exchange(result, due=self.since >= self.exchange_interval, step=step + 1)
        return MachineValues(self.origin, own=result)

    def end(self) -> None:
        """Checks the last exchange: each trainer sends its changes since the exchange before, and then leaves."""
        result = dict(self.previous_values)
        self._exchange(result, due=self.since > 0, step=self.workload.steps)
        now = self.live()
        for place, value in result.items():
            if place in now and not self.fits(place, now[place], value):
                self.note(self.workload.steps, place, "does not end as what trainers have learnt comes to")

    def _exchange(self, result: dict[Place, Value], *, due: bool, step: int) -> None:
        sent: Counter[tuple[int, Place]] = Counter()
        got: dict[int, dict[Place, Value]] = {}
        deltas: dict[tuple[int, str], Value] = {}
        for event in self.take_events():
            place = event.server, event.variable
            if event.kind == SEND and place in self.deltas:
                owned = self.deltas[place]
                home = owned.server, owned.slice.name
                sent[event.trainer, home] += 1
                delta = self._delta(result, deltas, event.trainer, owned.parameter.name)
                result[home] = result[home] + delta[owned.slice.start : owned.slice.stop]
            elif event.kind in ANSWERED and place in self.slices:
                got.setdefault(event.trainer, {})[place] = result[place]
        self._complete(sent, got, due, step)
        for trainer, places in got.items():
            for place, value in places.items():
                self._take_over(result, trainer, self.slices[place], value)
        if due:
            self.since = 0
            self.exchanges += 1

    def _delta(self, result: Mapping[Place, Value], deltas: dict[Any, Value], trainer: int, name: str) -> Any:
        """The change of a parameter on a trainer since the last exchange, divided by the number of trainers.

        From then on the change counts as exchanged.
        """
        if (trainer, name) not in deltas:
            old = self.exchanged_values[trainer, name]
            delta = (result[f"trainer_{trainer}", name] - old) / old.dtype.type(len(self.trainers))
            if any(owned.parameter.sparse for owned in self.slices.values() if owned.parameter.name == name):
                used = np.zeros(len(delta), "bool")
                for rows in self.touched_rows.pop((trainer, name), []):
                    used[rows] = True
                delta[~used] = 0
            old += delta
            deltas[trainer, name] = delta
        return deltas[trainer, name]

    def _take_over(self, result: dict[Place, Value], trainer: int, owned: OwnedSlice, value: Value) -> None:
        """Adds the changes that a server received from other trainers to a trainer's slice."""
        place = f"trainer_{trainer}", owned.parameter.name
        train = own_copy(result[place])
        here = slice(owned.slice.start, owned.slice.stop)
        old = self.exchanged_values[trainer, owned.parameter.name]
        train[here] += value - old[here]
        old[here] = value
        result[place] = train

    def _complete(self, sent: Counter[Any], got: Mapping[int, Any], due: bool, step: int) -> None:
        wanted = int(due)
        for trainer in self.trainers:
            for place, owned in self.slices.items():
                count = sent[trainer, place]
                fetched = place in got.get(trainer, {})
                if count != wanted or (fetched != due and step < self.workload.steps):  # none is fetched at the end
                    what = f"{owned.slice.name} {count} times" + ("" if fetched else ", and did not fetch it")
                    self.problems.append(f"step {step}: trainer_{trainer} sent what it learnt of %{what}")


def replay_of(check_input: CheckInput, cluster: Cluster) -> Replay:
    """Makes the replay for the mode of a job. It must be made before the cluster starts."""
    plan = check_input.compiled.plan
    if plan.geo is not None:
        return GeoReplay(check_input, cluster)
    singly = settings_of(plan.mode).promise is Promise.SINGLE_TRAINER
    return (AsyncReplay if singly else SyncReplay)(check_input, cluster)


class ReplayResult(NamedTuple):
    """The result of a replay.

    `problems` are sentences about differences, `design_reasons` the reasons for differences by design, by variable,
    `verdicts` the verdicts in the precision of the replay, and `exchanges` the number of exchanges in mode geo.
    """

    problems: Sequence[str]
    design_reasons: Mapping[str, str]
    verdicts: Sequence[Verdict] = ()
    exchanges: int = 0


def result_of(replay: Replay, verdicts: Sequence[Verdict] = ()) -> ReplayResult:
    """The result of a replay that has come to its end."""
    return ReplayResult(replay.problems, replay.design_reasons, verdicts, replay.exchanges)


def waits_for_nobody(plan: Plan) -> bool:
    """Whether servers take what comes when it comes, so that another order of events gives other values."""
    return plan.geo is not None or settings_of(plan.mode).promise is Promise.SINGLE_TRAINER


def held_in_order(check_input: CheckInput, schedule: int, ledger: Ledger) -> list[str]:
    """Replays every step of the cluster against the source program, in the order of events that a seed gives.

    Returns the problems, those with gradients in `ledger` too, each with the number of the order.
    """
    single, cluster = SingleMachine(check_input), start_cluster(check_input, schedule, watch=False)
    replay = replay_of(check_input, cluster)
    cluster.network.observe(ledger)
    train_both(single, ClusterValues(check_input.compiled, cluster, single.start), None, replay)
    cluster.finish()
    replay.end()
    return [f"schedule {schedule}: {problem}" for problem in (*replay.problems, *ledger.problems(restarts=False))]


def held_to_source(
    check_input: CheckInput, verdicts: Sequence[Verdict] | None, faults: Scenario | None = None
) -> ReplayResult:
    """Replays every step of a cluster against the source program.

    If `verdicts` are given, both sides are also compared, and the result has the verdicts with that comparison.
    """
    single, cluster = SingleMachine(check_input), start_cluster(check_input, faults=faults)
    replay, precise = (
        replay_of(check_input, cluster),
        PreciseComparison(check_input.workload, single.start, verdicts or ()),
    )
    values = ClusterValues(check_input.compiled, cluster, single.start)
    train_both(single, values, None if verdicts is None else precise.look, replay)
    cluster.finish()
    replay.end()
    return result_of(replay, precise.precise_verdicts())
