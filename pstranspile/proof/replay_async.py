"""Steps in which servers apply every gradient as it comes, held to the source in the order of what was delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from pstranspile.cluster.checkpoint.state import part_of
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.message import LOOKUP, NOTIFY, PREFETCH, SEND
from pstranspile.compiler.plan.names import trainer_suffix
from pstranspile.compiler.plan.plan import Plan
from pstranspile.proof.given import Given
from pstranspile.proof.halves import Evaluation, Halves
from pstranspile.proof.machine_values import MachineValues, Place
from pstranspile.proof.replay import BY_ID, NO_ROWS, close
from pstranspile.proof.replay_events import ANSWERED, Event, EventReplay
from pstranspile.proof.report import OWN_NORM
from pstranspile.proof.slices import Owned, SliceUpdates, owned_slices, piece_of
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import SelectedRows


class AsyncReplay(EventReplay):
    """Servers in the modes `async` and `half-async`."""

    waits = False

    def __init__(self, given: Given, cluster: Cluster):
        super().__init__(given, cluster)
        self.sent: dict[Place, tuple[str, Owned]] = {}
        """The gradients by server and name there: which program sends them, of which slice."""
        for name, half in self.halves.items():
            for owned in owned_slices(half.plan) if half.plan is not None else ():
                for trainer in range(self.made.plan.trainers):
                    self.sent[owned.server, _plan(half).sent_name(owned.slice, trainer)] = name, owned
        self.counters = {counter.name: counter for plan in self.plans for counter in plan.counters}
        self.notices: Counter[Place] = Counter()

    def begin(self, start: Mapping[str, Value]) -> None:
        """Before the first step."""
        super().begin(start)
        self.start = {name: own_copy(start[name]) for name in self.counters if name in start}
        self.taken()

    def expected(self, half: Halves, step: int) -> MachineValues:
        """What every machine must hold after the step."""
        window = _Window(self, half, step)
        for event in self.taken():
            window.take(event)
        return MachineValues(self.origin, own=window.close())

    def end(self) -> None:
        """Nothing is left to be applied when the trainers leave."""
        for event in self.taken():
            if event.kind in (SEND, NOTIFY):
                self.problems.append(f"after the last step: {event.kind} {event.variable} came to {event.server}")

    def show(
        self,
        updates: SliceUpdates,
        owned: Owned,
        gradient: Value,
        step: int,
        counters: Mapping[str, Value],
        changed: Mapping[Place, Value],
    ) -> None:
        """Notes why an update has `changed` a slice otherwise than the source changes the whole, if it has."""
        name, piece = owned.parameter.name, piece_of(gradient, owned.slice)
        left = isinstance(piece, SelectedRows) and not len(piece.rows)
        if name in self.shown or len(owned.parameter.slices) < 2 or not (left or updates.uses_norm(name)):
            return
        whole = self.whole(updates.names(owned))
        run = updates.apply_whole(self.before, owned, whole, gradient, step, counters)
        for source, place in updates.written(owned).items():
            if not close(changed[place], part_of(*self.origin[place], run[source]), self.before[place]):
                self.shown[name] = NO_ROWS if left else OWN_NORM

    def counted(self, server: str, by_step: Mapping[str, Value]) -> dict[str, Value]:
        """What schedules begin with on a server: the steps of all trainers so far, from 0."""
        result: dict[str, Value] = {}
        for name, counter in self.counters.items():
            count = sum(self.notices[server, own] for own in counter.own)
            result[name] = np.full_like(by_step[name], count)
        return result


def _plan(half: Halves) -> Plan:
    assert half.plan is not None
    return half.plan


class _Window:
    """One step of all trainers."""

    def __init__(self, replay: AsyncReplay, half: Halves, step: int):
        self.replay = replay
        self.half = half
        self.step = step
        self.now: dict[Place, Value] = dict(replay.before)
        self.runs: dict[int, Evaluation] = {}
        self.rows: dict[int, dict[str, list[Value]]] = {}
        """The rows that each trainer got of a table from its first lookup, its second, ..., in tables else empty."""
        self.looked_up: Counter[tuple[int, Place]] = Counter()
        """How many lookups of a trainer a slice has answered."""
        self.fetched: dict[int, dict[Place, Value]] = {}
        trained = () if half.plan is None else owned_slices(half.plan)
        self.own = {(owned.server, owned.slice.name): owned for owned in trained}
        self.applied: Counter[tuple[int, Place]] = Counter()
        self.applied_before: dict[tuple[int, Place], int] = {}
        """How many gradients of a trainer were in a slice that it fetched."""
        self.noticed: Counter[tuple[int, Place]] = Counter()

    def run(self, trainer: int) -> Evaluation:
        """The first half on a trainer, with the rows that it has looked up so far."""
        if trainer not in self.runs:
            rows = self.rows.get(trainer, {})
            remote = {name: rows[name][0] if name in rows else self._empty(name) for name in self._prefetched()}
            self.runs[trainer] = self.replay.share(self.half, trainer, self.step, remote, self._lookups(trainer))
        return self.runs[trainer]

    def _lookups(self, trainer: int) -> dict[int, dict[str, Value]]:
        """What tables held when the lookups of the source (by index) were answered, where it was not always the same.

        The trainer's program does several of them at once.
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

    def _prefetched(self) -> list[str]:
        result = [owned.parameter.name for owned in self.replay.slices.values() if owned.parameter.prefetched]
        return [*result, *(plan.table.name for plan in self.replay.plans if plan.table is not None)]

    def _empty(self, name: str) -> Value:
        placed = self.replay.layout.variables[name]
        held = next(value for place, value in self.now.items() if self.replay.origin[place][0] is placed)
        return np.full(placed.shape, np.nan, (held.value if isinstance(held, SelectedRows) else held).dtype)

    def take(self, event: Event) -> None:
        """One message at a server."""
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
        rows[number][s.start + ids] = self.now[place][ids]

    def _look_up_by_id(self, event: Event) -> None:
        """Rows of the distributed lookup table."""
        for plan in self.replay.plans:
            if plan.table is not None and event.variable in plan.table.ids_sent:
                rows = self.rows.setdefault(event.trainer, {})
                (whole,) = rows.setdefault(plan.table.name, [self._empty(plan.table.name)])
                held = self.now[event.server, plan.table.name]
                asked = np.isin(held.rows, np.asarray(event.payload).reshape(-1))
                whole[held.rows[asked]] = held.value[: len(held.rows)][asked]

    def _update_by_id(self, event: Event, place: Place) -> None:
        table = None if self.half.plan is None else self.half.plan.table
        number = int(event.server.rpartition("_")[2])
        names = () if table is None else (table.sent_name(None, number), table.sent_name(event.trainer, number))
        gradient = None if table is None else self.run(event.trainer)[table.gradient]
        if table is None or gradient is None or event.variable not in names:
            return
        self.replay.shown[table.name] = BY_ID
        updates = self.replay.updates[self.replay.workload.turns.program(self.step)]
        counters = self.replay.counted(event.server, self.replay.start)
        rate = updates.rates(self.now, event.server, self.step, counters)[table.learning_rate]
        here = event.server, table.name
        self.now[here] = updates.update_table(self.now[here], gradient, rate, number)

    def _update(self, event: Event, place: Place) -> None:
        known = self.replay.sent.get(place)
        if known is None:
            self._update_by_id(event, place)
            return
        name, owned = known
        self.applied[event.trainer, place] += 1
        gradient = self.run(event.trainer)[owned.parameter.gradient]
        if gradient is None:
            return
        piece = piece_of(gradient, owned.slice)
        counters = self.replay.counted(owned.server, self.replay.start)
        backup = self.now.get(self._backup(event.trainer, owned)) if _plan(self.half).dc_asgd else None
        moved = None if backup is None else self.now[owned.server, owned.slice.name] - backup
        changed = self.replay.updates[name].apply(self.now, owned, piece, self.step, counters, moved)
        self.now.update(changed)
        if len(self.replay.feeds) == 1:
            self.replay.show(self.replay.updates[name], owned, gradient, self.step, counters, changed)

    def _backup(self, trainer: int, owned: Owned) -> Place:
        return owned.server, f"{owned.slice.name}{trainer_suffix(trainer)}_bak"

    def _answer(self, event: Event, place: Place) -> None:
        value = self.now.get(place)
        owned = self.replay.slices.get(place)
        if value is None or owned is None:
            return
        self.fetched.setdefault(event.trainer, {})[place] = value
        sent = owned.server, self._sent_name(place, event.trainer)
        self.applied_before[event.trainer, place] = self.applied[event.trainer, sent]
        there = self._backup(event.trainer, owned)
        if there in self.now:
            self.now[there] = own_copy(value)

    def _sent_name(self, place: Place, trainer: int) -> str:
        """Under which name the program of this step sends its gradient of a slice; "" if it sends none."""
        owned = self.own.get(place)
        return "" if owned is None or self.half.plan is None else self.half.plan.sent_name(owned.slice, trainer)

    def close(self) -> dict[Place, Value]:
        """What must be there now."""
        result = dict(self.now)
        for trainer in range(len(self.replay.feeds)):
            machine = f"trainer_{trainer}"
            self.replay.kept(result, self.run(trainer), machine)
            self.replay.results(self.run(trainer), trainer, self.step)
            for name, value in self._parameters(trainer).items():
                if (machine, name) in result:
                    result[machine, name] = value
            self._complete(trainer)
        self._count(result)
        return result

    def _parameters(self, trainer: int) -> dict[str, Value]:
        """The parameters of which a trainer has fetched all slices."""
        fetched, by_name = self.fetched.get(trainer, {}), dict[str, list[Owned]]()
        for owned in sorted(self.replay.slices.values(), key=lambda owned: owned.slice.start):
            by_name.setdefault(owned.parameter.name, []).append(owned)
        places = {name: [(o.server, o.slice.name) for o in slices] for name, slices in by_name.items()}
        return {
            name: fetched[of[0]] if len(of) == 1 else np.concatenate([fetched[place] for place in of])
            for name, of in places.items()
            if all(place in fetched for place in of)
        }

    def _complete(self, trainer: int) -> None:
        """Everything must have been sent, and fetched anew, once; a trainer without rows makes no step."""
        if self.run(trainer).idle:
            return
        problems = self.replay.problems
        who = f"step {self.step + 1}: trainer_{trainer}"
        for owned in owned_slices(_plan(self.half)) if self.half.facts is not None else ():
            sent = owned.server, _plan(self.half).sent_name(owned.slice, trainer)
            count = self.applied[trainer, sent]
            if count != 1:
                problems.append(f"{who}'s gradient %{sent[1]} came to {owned.server} {count} times")
            fetched = self.fetched.get(trainer, {})
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
                    if self.noticed[trainer, (server, counter.own[trainer])] != 1:
                        problems.append(f"{who} did not tell {server} of its step once in %{counter.own[trainer]}")

    def _count(self, result: dict[Place, Value]) -> None:
        """The counters of schedules, and those of every trainer on a server."""
        replay = self.replay
        for server in replay.servers if replay.counters else ():
            counted = replay.counted(server, replay.start)
            made: dict[str, Value] = {}
            for updates in replay.updates.values():
                ops, run = updates.half.program.main_block.ops, updates.rates(self.now, server, self.step, counted)
                made.update((name, run[name]) for i in updates.rate_ops() for name in ops[i].output_names)
            made = {name: own_copy(value) for name, value in made.items() if value is not None}
            for name, value in counted.items():
                made[name] = value
                for own in [own for own in replay.counters[name].own if (server, own) in result]:
                    before = replay.before[server, own]
                    count = sum(self.noticed[trainer, (server, own)] for trainer in range(len(replay.feeds)))
                    made[own] = before + np.asarray(count, before.dtype)
            result.update({(server, name): value for name, value in made.items() if (server, name) in result})
