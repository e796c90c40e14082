"""A replay: the comparison of every step of every machine with the source program, from the values before the step.

The results of whole runs may differ: rounding is amplified, trainers are ahead of each other, shares are not the whole.
A single step may not: the source program determines its result from the values before it. So a difference is detected
in the step that makes it, in every mode; in double precision, with very small tolerances.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from math import prod
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import numpy as np

from pstranspile.cluster.checkpoint.api import scopes_of
from pstranspile.cluster.checkpoint.layout import Layout, VariableLayout, VariablePart, layout_of
from pstranspile.cluster.checkpoint.state import misfit, part_of, whole_of
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.compiler.plan.plan import Plan, PlannedParameter, Slice, slice_name
from pstranspile.ir.model import EMPTY
from pstranspile.ops import schema_of
from pstranspile.proof.compare import CHUNK, Snapshot, largest_change, plain, same_arrays, same_bits
from pstranspile.proof.halves import Evaluation, Halves, halves_of, kept_after_first, kept_of
from pstranspile.proof.report import ROUGH
from pstranspile.proof.workload import CheckInput
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.large.forms import whole_in
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import NUMPY_TYPES, LoDTensor, SelectedRows

# The values that all machines of a cluster held at one moment.
#
# Most of them are parts of whole variables, which are kept once; each machine also has values of its own. Of a large
# table of which few rows have changed since the start, only those rows are kept.

Place: TypeAlias = "tuple[str, str]"
"""A variable on a machine: the role name of the machine, and the name of the variable there."""

Origins: TypeAlias = "Mapping[Place, tuple[VariableLayout, VariablePart]]"
"""The variable of the job that each place holds, and which part of it."""

MOST_CHANGED = 1 / 8
"""The largest fraction of a table's rows that may differ for the table to be kept as changed rows."""


class ChangedRows(NamedTuple):
    """An array, stored as the rows in which it differs from a base array. The base is never modified."""

    base: Any
    rows: Any
    values: Any

    def whole(self) -> Any:
        """The whole array as a new one."""
        result = self.base.copy()
        result[self.rows] = self.values
        return result


def changed_rows(value: Any, base: Any) -> ChangedRows | None:
    """The rows in which a large array differs from `base`; None if the array is small or too many rows differ."""
    if value is base or not isinstance(value, np.ndarray) or not isinstance(base, np.ndarray):
        return None
    if value.size < CHUNK or value.ndim < 2 or value.shape != base.shape or value.dtype != base.dtype:
        return None
    result: list[Any] = []
    count, size = 0, max(CHUNK * len(value) // value.size, 1)
    for start in range(0, len(value), size):
        one, other = value[start : start + size], base[start : start + size]
        if not same_bits(one, other):
            bits = np.ascontiguousarray(one).view("uint8") != np.ascontiguousarray(other).view("uint8")
            result.append(start + np.flatnonzero(bits.reshape(len(one), -1).any(1)))
            count += len(result[-1])
            if count > MOST_CHANGED * len(value):
                return None
    rows = np.concatenate([*result, np.zeros(0, "int64")])
    return ChangedRows(base, rows, value[rows])


class MachineValues(MutableMapping[Place, Value]):
    """The values of all machines by place. Callers must not modify the values that it returns.

    `wholes` are the whole variables of which machines hold parts. `own_values` are the values of single places, which
    take precedence; None stands for a place without a value.
    """

    def __init__(self, origins: Origins, wholes: Mapping[str, Any] = EMPTY, own: Mapping[Place, Value] = EMPTY):
        self.origins = origins
        self.wholes = dict(wholes)
        self.own_values = dict(own)
        self._built_arrays: dict[str, Any] = {}
        """The arrays built from `ChangedRows`, by name of the variable."""

    def __getitem__(self, place: Place) -> Value:
        if place in self.own_values:
            value = self.own_values[place]
        else:
            placed, part = self.origins[place]
            whole = self.whole(placed.name)
            value = None if whole is None else part_of(placed, part, whole)
        if value is None:
            raise KeyError(place)
        return value

    def __setitem__(self, place: Place, value: Value) -> None:
        self.own_values[place] = value

    def __delitem__(self, place: Place) -> None:
        self.own_values[place] = None

    def __iter__(self) -> Iterator[Place]:
        for place, (placed, _) in self.origins.items():
            if (self.own_values[place] is not None) if place in self.own_values else placed.name in self.wholes:
                yield place

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def whole(self, name: str) -> Value:
        """The whole value of a variable of which machines hold parts; None if it is not known."""
        kept = self.wholes.get(name)
        if not isinstance(kept, ChangedRows):
            return kept
        if name not in self._built_arrays:
            self._built_arrays[name] = kept.whole()
        return self._built_arrays[name]

    def release(self, name: str) -> bool:
        """Drops the array that was built for a variable, so that its holder may modify it; False if none was built."""
        return self._built_arrays.pop(name, None) is not None

    def following(self, placed: VariableLayout, whole: Value) -> None:
        """Sets a whole variable, and with it the value at every place that holds a part of it."""
        self.wholes[placed.name] = whole
        for part in placed.holders:
            self.own_values.pop((part.machine, part.name), None)

    def copy(self) -> MachineValues:
        """A copy in which values can be set. The arrays are shared."""
        return MachineValues(self.origins, self.wholes, self.own_values)


def values_kept(
    layout: Layout, origins: Origins, now: Mapping[Place, Value], like: list[MachineValues], start: Mapping[str, Any]
) -> MachineValues:
    """The values of machines at this moment, `now`, as a snapshot.

    A value that equals the one in a snapshot of `like` is moved from there instead of copied. Snapshots of `like` lose
    the values of all these places. Of large variables only the rows that differ from `start` are kept.
    """
    result = MachineValues(origins)
    for name, placed in layout.variables.items():
        wholes = [snapshot.wholes.pop(name, None) for snapshot in like]
        whole = None if placed.table else _whole(placed, now, wholes)
        if whole is not None:
            result.wholes[name] = changed_rows(whole, start.get(name)) or whole
        for part in placed.holders:
            place = part.machine, part.name
            known = [snapshot.own_values.pop(place, None) for snapshot in like]
            value = now.get(place)
            if value is None or (whole is not None and same_arrays(value, part_of(placed, part, whole))):
                if value is None and whole is not None:
                    result.own_values[place] = None
                continue
            result.own_values[place] = next((one for one in known if same_arrays(value, one)), None)
            if result.own_values[place] is None:
                result.own_values[place] = own_copy(value)
    return result


def _whole(placed: VariableLayout, now: Mapping[Place, Value], wholes: list[Any]) -> Value:
    """A variable assembled from its parts; None if parts are missing or do not fit.

    If one of `wholes` has the same values, that array is returned.
    """
    values_of_parts = {
        part: value for part in placed.parts if (value := now.get((part.machine, part.name))) is not None
    }
    if not values_of_parts or any(
        part not in values_of_parts or misfit(placed, part, values_of_parts[part]) for part in placed.parts
    ):
        return None
    for whole in wholes:
        if isinstance(whole, np.ndarray) and all(
            same_arrays(v, part_of(placed, part, whole)) for part, v in values_of_parts.items()
        ):
            return whole
    return (
        own_copy(whole_of(placed, values_of_parts)) if len(values_of_parts) == 1 else whole_of(placed, values_of_parts)
    )


# The update of one slice of a parameter on its server, by the optimizer of the source program.


class OwnedSlice(NamedTuple):
    """A slice of a parameter, the parameter, and the role name of the server that owns the slice."""

    parameter: PlannedParameter
    slice: Slice
    server: str


def owned_slices(plan: Plan) -> Iterator[OwnedSlice]:
    """All slices of a plan."""
    for parameter in plan.parameters:
        for s in parameter.slices:
            yield OwnedSlice(parameter, s, f"pserver_{plan.pservers.index(s.endpoint)}")


def piece_of(gradient: Value, s: Slice) -> Value:
    """The part of a whole gradient that belongs to a slice."""
    if isinstance(gradient, SelectedRows):
        inside = (gradient.rows >= s.start) & (gradient.rows < s.stop)
        data = gradient.value[: len(gradient.rows)]
        return SelectedRows(gradient.rows[inside] - s.start, data[inside], s.stop - s.start)
    return gradient[s.start : s.stop] if s.shape != gradient.shape else gradient


class SliceUpdates:
    """Updates slices of a program's parameters as the source program updates the whole parameters."""

    def __init__(self, half: Halves, layout: Layout, seed: int):
        assert half.facts is not None
        self.half = half
        self.seed = seed
        self.ops = {update.parameter: update.ops for update in half.facts.updates}
        self.optimizers = frozenset(index for update in half.facts.updates for index in update.optimizer)
        self.parts: dict[tuple[str, str], list[VariablePart]] = {}
        """The parts of each source variable that a server holds, by (server, variable)."""
        for name, placed in layout.variables.items():
            for part in placed.holders:
                self.parts.setdefault((part.machine, name), []).append(part)
        self._names: dict[tuple[str, int], dict[str, str]] = {}

    def rate_ops(self) -> tuple[int, ...]:
        """The indices of the ops that compute learning rates."""
        assert self.half.facts is not None
        return self.half.facts.roles.learning_rate

    def names(self, owned: OwnedSlice) -> dict[str, str]:
        """The variables on the owning server that the update of a slice reads or writes: source name -> name there."""
        key = owned.slice.name, owned.slice.number
        if key not in self._names:
            block = self.half.program.main_block
            ops = [block.ops[i] for i in (*self.rate_ops(), *self.ops.get(owned.parameter.name, ()))]
            mentioned = dict.fromkeys(name for op in ops for name in op.names)
            result = {name: part for name in mentioned if (part := self._part(name, owned)) is not None}
            self._names[key] = {name: part.name for name, part in result.items()}
        return self._names[key]

    def _part(self, name: str, owned: OwnedSlice) -> VariablePart | None:
        parts = self.parts.get((owned.server, name), [])
        if len(parts) < 2:
            return parts[0] if parts else None
        suffix = slice_name("", owned.slice.number)
        fitting = [part for part in parts if part.shape == owned.slice.shape and part.offset == owned.slice.offset]
        return next(iter(fitting or [part for part in parts if part.name.endswith(suffix)] or parts))

    def apply(
        self,
        values: Mapping[Place, Value],
        owned: OwnedSlice,
        gradient: Value,
        step: int,
        counters: Mapping[str, Value] | None = None,
        moved: Value = None,
    ) -> dict[Place, Value]:
        """The values on the server after the update of a slice, by place.

        `counters` are the values from which schedules start, where the ops of schedules do not count themselves.
        `moved` is the change of the slice since the trainer fetched it, for which the gradient is compensated.
        """
        run = self._run_update(self._own(values, owned), owned.parameter, gradient, step, counters, moved)
        return {place: run[name] for name, place in self.written(owned).items()}

    def apply_whole(
        self,
        values: Mapping[Place, Value],
        owned: OwnedSlice,
        whole: Mapping[str, Value],
        gradient: Value,
        step: int,
        counters: Mapping[str, Value] | None = None,
    ) -> Evaluation:
        """The update of the whole parameter by the source program, for a parameter of which a server owns a slice.

        `whole` are the values of variables that the server does not hold whole, by their names in the source.
        """
        held = {name: whole.get(name, value) for name, value in self._own(values, owned).items()}
        return self._run_update(held, owned.parameter, gradient, step, counters)

    def uses_norm(self, parameter: str) -> bool:
        """Whether the update of a parameter depends on the norm of a whole tensor in the source."""
        ops = [self.half.program.main_block.ops[index] for index in self.ops.get(parameter, ())]
        return any((schema := schema_of(op.type)) is not None and schema.whole_norm for op in ops)

    def _own(self, values: Mapping[Place, Value], owned: OwnedSlice) -> dict[str, Value]:
        names = self.names(owned)
        held = {name: values.get((owned.server, there)) for name, there in names.items()}
        return {name: value for name, value in held.items() if value is not None}

    def _run_update(
        self,
        held: Mapping[str, Value],
        parameter: PlannedParameter,
        gradient: Value,
        step: int,
        counters: Mapping[str, Value] | None,
        moved: Value = None,
    ) -> Evaluation:
        run = Evaluation(self.half.program, held, seed=self.seed, step=step)
        for name, value in (counters or {}).items():
            run.give(name, value)
        run.give(parameter.gradient, gradient)
        ops = self.half.program.main_block.ops
        rates = [i for i in self.rate_ops() if counters is None or not self._counts(i, counters)]
        run.go(rates)
        for index in self.ops[parameter.name]:
            name = ops[index].input("Grad") or ""
            if moved is not None and index in self.optimizers and isinstance(run[name], np.ndarray):
                run.give(name, run[name] + moved * run[name] * run[name])
            run.go((index,))
        return run

    def written(self, owned: OwnedSlice) -> dict[str, Place]:
        """The places that the update of a slice writes: source name -> place."""
        ops, names = self.half.program.main_block.ops, self.names(owned)
        written = dict.fromkeys(n for i in self.ops[owned.parameter.name] for n in ops[i].output_names)
        return {name: (owned.server, names[name]) for name in written if name in names}

    def rates(self, values: Mapping[Place, Value], server: str, step: int, counters: Mapping[str, Value]) -> Evaluation:
        """Computes the learning rates on a server from the `counters` of its schedules."""
        run = Evaluation(self.half.program, self._rate_op_values(values, server), seed=self.seed, step=step)
        for name, value in counters.items():
            run.give(name, value)
        return run.go(i for i in self.rate_ops() if not self._counts(i, counters))

    def _rate_op_values(self, values: Mapping[Place, Value], server: str) -> dict[str, Value]:
        ops = [self.half.program.main_block.ops[i] for i in self.rate_ops()]
        named = {name for op in ops for name in op.names}
        table = self.half.plan.table if self.half.plan is not None else None
        named |= set() if table is None else {table.learning_rate}
        places = {name: (server, name) for name in named}
        return {name: values[place] for name, place in places.items() if place in values}

    def update_table(self, table: Value, gradient: Value, rate: Value, server: int) -> Value:
        """The part of the distributed lookup table on a server after an sgd update.

        `gradient` is sparse rows. Only rows that belong to the server with this number are updated.
        """
        assert self.half.plan is not None
        after = own_copy(table)
        at = {int(row): place for place, row in enumerate(table.rows)}
        data = gradient.value[: len(gradient.rows)]
        for row, change in zip(gradient.rows.tolist(), data, strict=True):
            if row % len(self.half.plan.pservers) == server and row in at:
                after.value[at[row]] -= rate.reshape(-1)[0] * change
        return after

    def _counts(self, index: int, counters: Iterable[str]) -> bool:
        op = self.half.program.main_block.ops[index]
        return (op.output("Out") or "") in counters and op.type in ("increment", "sum")


PRECISE = 1e-12
"""The tolerance for doubles, relative to a value and to the largest change in a step."""

LATE = 1e-9
"""The tolerance relative to a machine's largest change in a step, where trainers scale gradients before the sum."""

NO_ROWS = "a server leaves its slice alone in a step that brings no rows of it; one machine updates the table"
COUNTS = "the servers count the steps of all trainers from 0, and may be ahead of a single machine"
BY_ID = "the servers update a distributed lookup table by sgd with the sum of the trainers' gradients"


class Replay(ABC):
    """Compares a cluster with its source step by step: `begin` takes the values of all machines, `hold` compares.

    `problems` describes the differences.
    """

    waits = True
    """Whether machines wait for each other. If so, a trainer without rows takes part in a step, too."""

    single = ROUGH
    """The tolerance in single precision, relative to a value and to the largest change in a step."""

    exchanges = 0
    """The number of exchanges that were due in the steps, in mode geo."""

    part = 1.0
    """The factor of the gradients with which the backward pass on a trainer begins."""

    def __init__(self, check_input: CheckInput, cluster: Cluster):
        self.compiled, self.workload, self.seed = check_input.compiled, check_input.workload, check_input.seed
        self.cluster = cluster
        self.layout = layout_of(self.compiled)
        self.halves: dict[str, Halves] = halves_of(self.compiled, self.workload)
        self.problems: list[str] = []
        self.design_reasons: dict[str, str] = {}
        """The parameters whose updates on servers differ from the source by design, and why."""
        self.updates = {name: SliceUpdates(h, self.layout, self.seed) for name, h in self.halves.items() if h.facts}
        self.scopes = scopes_of(cluster)
        self.feeds = [trainer.feed for trainer in cluster.trainers]
        self.origin = {
            (part.machine, part.name): (placed, part)
            for placed in self.layout.variables.values()
            for part in placed.holders
        }
        self.start: Snapshot = {}
        self.previous_values = MachineValues(self.origin)
        self.choosing: dict[Place, LargeTable] = {}
        """The large tables before the step that do not take every row of a gradient."""

    # what machines hold

    def live(self) -> dict[Place, Value]:
        """The current persistable values of every machine by place; large tables with all rows."""
        scopes = self.scopes
        held = {place: whole_in(scopes[place[0]].get(place[1]), scopes[place[0]]) for place in self.origin}
        return {place: value for place, value in held.items() if value is not None}

    def look(self, wanted: MachineValues) -> None:
        """Stores the persistable values of every machine as those before the next step.

        Values that equal the ones in `wanted`, or those before this step, are moved from there instead of copied. Both
        are empty afterwards.
        """
        self.previous_values = values_kept(
            self.layout, self.origin, self.live(), [wanted, self.previous_values], self.start
        )
        held = ((place, self.scopes[place[0]].get(place[1])) for place in self.origin)
        self.choosing = {place: value.copy() for place, value in held if chooses_rows(value)}

    def begin(self, start: Snapshot) -> None:
        """Checks before the first step that every machine starts with the initial values of the single machine."""
        self.start = start
        self.look(MachineValues(self.origin, {n: v for n, v in start.items() if self._has_same_size(n, v)}))
        held = [counter for plan in self.plans for counter in plan.counters]
        counters = {name for counter in held for name in (counter.name, *counter.trainer_counters)}
        self.design_reasons.update((counter.name, COUNTS) for counter in held)
        for updates in () if self.waits else self.updates.values():  # servers compute rates before the first gradient
            ops = updates.half.program.main_block.ops
            counters.update(name for i in updates.rate_ops() for name in ops[i].output_names)
        own = {name for counter in held for name in counter.trainer_counters}
        for place, value in self.previous_values.items():
            placed, part = self.origin[place]
            wanted = start.get(placed.name)
            if placed.name in own and not close(value, np.ones_like(value)):
                self.note(0, place, "does not start to count with 1")
            numbers = plain(value) if placed.name in counters else None  # scopes of a block have none
            if numbers is not None and numbers.dtype != NUMPY_TYPES[placed.dtype]:
                self.note(0, place, f"is {numbers.dtype}, not {placed.dtype.text}")
            if wanted is None or placed.table or placed.name in counters:
                continue
            started = part.shape == placed.shape and wanted.shape == placed.startup_shape
            sized = started or self._has_same_size(placed.name, wanted)
            if not sized or not close(value, part_of(placed, part, wanted)):
                self.note(0, place, "does not start as on a single machine")

    def _has_same_size(self, name: str, value: Any) -> bool:
        """Whether a value has as many elements as the job's variable `name`."""
        placed = self.layout.variables.get(name)
        return placed is not None and not placed.table and value.size == prod(placed.shape)

    @property
    def plans(self) -> list[Any]:
        """The plans of the programs that servers train; the plan of the job if there are none."""
        return [half.plan for half in self.halves.values() if half.plan is not None] or [self.compiled.plan]

    def values_of(self, machine: str, names: Iterable[str]) -> dict[str, Value]:
        """The values that a machine had before the step, of those variables that it holds under their source names."""
        held = {name: self.origin.get((machine, name)) for name in names}
        own = [name for name, result in held.items() if result is not None and result[0].name == name]
        return {name: value for name in own if (value := self.previous_values.get((machine, name))) is not None}

    def whole(self, names: Iterable[str]) -> dict[str, Value]:
        """The whole values that the servers held before the step, by variable."""
        result: dict[str, Value] = {}
        for name in names:
            placed = self.layout.variables.get(name)
            if placed is not None and placed.table:
                parts = [self.previous_values[part.machine, part.name] for part in placed.parts]
                table = result[name] = np.full(placed.shape, np.nan, parts[0].value.dtype)
                for part in parts:
                    table[part.rows] = part.value[: len(part.rows)]
            elif (value := self.previous_values.whole(name)) is not None:
                result[name] = value
        return result

    # one step

    @np.errstate(all="ignore")  # values may be infinite or NaN on both sides, and are then compared as they are
    def hold(self, step: int) -> None:
        """Compares every machine with the source program after a step. `step` counts from 0."""
        now = self.live()
        name = self.workload.turns.program(step)
        wanted = self.expected_values(self.halves[name], step)
        wrong = self._misfits(now, wanted)
        wrong = self.not_rounded(wrong, now, wanted, step) if wrong else wrong
        for place in self.unexplained_places(wrong, now, wanted, step) if wrong else ():
            self.note(step + 1, place, "is not what the source program makes of the values before the step")
        self.look(wanted)

    def _misfits(self, now: Mapping[Place, Value], wanted: Mapping[Place, Value]) -> list[Place]:
        collective = self.compiled.plan.collective
        scaled = collective is not None and not collective.averaged_parameters and len(self.feeds) > 1
        floors: dict[str, float] = {}
        for (machine, name), value in wanted.items() if scaled else ():
            change = largest_change(plain(value), plain(self.previous_values.get((machine, name))))
            floors[machine] = max(floors.get(machine, 0.0), LATE * change)
        places = (place for place in wanted if place in now and not self._by_row(place))
        return [p for p in places if not self.fits(p, now[p], wanted[p], floors.get(p[0], 0.0))]

    def _by_row(self, place: Place) -> bool:
        """Whether a place holds the rows of a large table, or its states, by id.

        The source has no ops for them, so they are only compared with the single machine.
        """
        return isinstance(self.scopes[place[0]].get(place[1]), LargeTable | TableState)

    def fits(self, place: Place, value: Value, wanted: Value, floor: Any = 0.0) -> bool:
        """Whether the value of a machine equals the expected one within the tolerances."""
        return same_arrays(value, wanted) or close(value, wanted, self.previous_values.get(place), floor, self.single)

    @abstractmethod
    def end(self) -> None:
        """Checks after the last step, when all trainers have left."""

    @abstractmethod
    def expected_values(self, half: Halves, step: int) -> MachineValues:
        """Computes the expected values of every machine after a step."""

    def not_rounded(
        self, wrong: list[Place], now: Mapping[Place, Value], wanted: MachineValues, step: int
    ) -> list[Place]:
        """The places in `wrong` whose differences can't be due to rounding of gradients."""
        return wrong

    def unexplained_places(
        self, wrong: list[Place], now: Mapping[Place, Value], wanted: MachineValues, step: int
    ) -> list[Place]:
        """The places in `wrong` whose differences are not by design of the mode."""
        return wrong

    def share(
        self,
        half: Halves,
        trainer: int,
        step: int,
        remote: Mapping[str, Value] | None = None,
        given: Mapping[int, Mapping[str, Value]] = EMPTY,
    ) -> Evaluation:
        """Runs the first half of a program on a trainer's share of the batch.

        It starts from the trainer's values, and from those of servers (`remote`, or all of them) for what the trainer
        lacks. `given` sets variables before an op, by the index of the op.
        """
        names = kept_of(half, (*half.first, *half.second))
        own = self.values_of(f"trainer_{trainer}", names)
        values = {**(self.whole(kept_of(half, half.first) - own.keys()) if remote is None else remote), **own}
        feed = self.feeds[trainer](step) or {}
        run = Evaluation(half.program, values, feed, seed=self.seed, stream=trainer, step=step, part=self.part)
        if not run.has_no_rows:
            return run.go(half.first, given, self._needed_variables(half, trainer, step))
        return run.run_without_rows(half.first) if self.waits else run

    def _needed_variables(self, half: Halves, trainer: int, step: int) -> set[str]:
        """The variables of a trainer that are needed after the first half: by later ops, its scope or its results."""
        held = {name for machine, name in self.origin if machine == f"trainer_{trainer}"}
        return {*kept_after_first(half), *held, *self.cluster.trainers[trainer].results[step].values}

    def results(self, run: Evaluation, trainer: int, step: int) -> None:
        """Compares the values that a trainer fetched in a step with those of a run."""
        for name, value in self.cluster.trainers[trainer].results[step].values.items():
            wanted = run[name]
            if wanted is not None and not close(value, wanted):
                self.note(step + 1, (f"trainer_{trainer}", name), "is fetched with another value than the source makes")

    def copy_from_run(self, result: MutableMapping[Place, Value], run: Evaluation, machine: str) -> None:
        """Copies the values of a machine's variables from a run to `result`."""
        for place in [place for place in result if place[0] == machine]:
            value = run[place[1]]
            if value is not None and value is not run.lent.get(place[1]):
                owner = isinstance(value, np.ndarray) and value.flags.owndata
                result[place] = value if owner else own_copy(value)

    def note(self, step: int, place: Place, what: str) -> None:
        """Adds a difference at a place to `problems`. `step` counts from 1; 0 stands for the start."""
        self.problems.append(f"step {step}: %{place[1]} on {place[0]} {what}")


def close(value: Value, wanted: Value, before: Value = None, floor: Any = 0.0, single: float = ROUGH) -> bool:
    """Whether a value equals the wanted one within the tolerance.

    The tolerance is relative to the value and to its change since `before`; `single` is that of single precision.
    `floor` is added to it: one number, or one for each element.
    """
    if isinstance(value, LoDTensor) and isinstance(wanted, LoDTensor) and value.lod != wanted.lod:
        return False
    a, b, c = map(plain, (value, wanted, before))
    if a is None or b is None or a.shape != b.shape:
        return a is None and b is None
    if a.dtype != b.dtype:
        return False
    if same_bits(a, b):
        return True
    if a.dtype.kind != "f" or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    change = largest_change(b, c) if c is not None else 0.0
    part = PRECISE if a.dtype == "float64" else single
    return bool((np.abs(a - b) <= part * (np.abs(b) + change) + floor).all())


# The rows of gradients that large tables take, whose rules say when a row enters.


def chooses_rows(value: Any) -> TypeGuard[LargeTable]:
    """Whether a value is a large table that does not take every row of a gradient."""
    return isinstance(value, LargeTable) and (value.rules.enter_after > 1 or value.rules.enter_chance < 1)


def taken_rows(table: LargeTable, gradient: SelectedRows, start: int = 0) -> SelectedRows:
    """The gradient without the rows that the table, which holds the ids from `start` on, drops in an update.

    The table counts the update; its rows keep their values. Rows of other ids stay in the gradient.
    """
    ids = gradient.rows - start
    inside = (ids >= 0) & (ids < table.height)
    distinct = np.unique(ids[inside])
    _, kept = table.enter(distinct)
    table.end_update()
    stay = ~inside | np.isin(ids, distinct[kept])
    return gradient._replace(rows=gradient.rows[stay], value=gradient.value[: len(ids)][stay])
