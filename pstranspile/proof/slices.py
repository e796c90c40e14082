"""The update of one slice of a parameter on its server, by the optimizer of the source program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from pstranspile.cluster.checkpoint.layout import Layout, Part
from pstranspile.compiler.plan.names import slice_name
from pstranspile.compiler.plan.plan import Plan, PlannedParameter, Slice
from pstranspile.ops import schema_of
from pstranspile.proof.halves import Evaluation, Halves
from pstranspile.proof.machine_values import Place
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import SelectedRows


class Owned(NamedTuple):
    """A slice of a parameter and the role name of the server that owns it."""

    parameter: PlannedParameter
    slice: Slice
    server: str


def owned_slices(plan: Plan) -> Iterator[Owned]:
    """All slices of a plan."""
    for parameter in plan.parameters:
        for s in parameter.slices:
            yield Owned(parameter, s, f"pserver_{plan.pservers.index(s.endpoint)}")


def piece_of(gradient: Value, s: Slice) -> Value:
    """The part of a whole gradient that belongs to a slice."""
    if isinstance(gradient, SelectedRows):
        inside = (gradient.rows >= s.start) & (gradient.rows < s.stop)
        data = gradient.value[: len(gradient.rows)]
        return SelectedRows(gradient.rows[inside] - s.start, data[inside], s.stop - s.start)
    return gradient[s.start : s.stop] if s.shape != gradient.shape else gradient


class SliceUpdates:
    """Updates slices of the parameters of a program as the source does it with whole ones."""

    def __init__(self, half: Halves, layout: Layout, seed: int):
        assert half.facts is not None
        self.half = half
        self.seed = seed
        self.ops = {update.parameter: update.ops for update in half.facts.updates}
        self.optimizers = frozenset(index for update in half.facts.updates for index in update.optimizer)
        self.parts: dict[tuple[str, str], list[Part]] = {}
        """What each server holds of each variable of the source."""
        for name, placed in layout.variables.items():
            for part in placed.holders:
                self.parts.setdefault((part.machine, name), []).append(part)
        self._names: dict[tuple[str, int], dict[str, str]] = {}

    def rate_ops(self) -> tuple[int, ...]:
        """The ops that work learning rates out."""
        assert self.half.facts is not None
        return self.half.facts.roles.learning_rate

    def names(self, owned: Owned) -> dict[str, str]:
        """What the update of a slice reads and writes of what its server keeps: source name -> name there."""
        key = owned.slice.name, owned.slice.number
        if key not in self._names:
            block = self.half.program.main_block
            ops = [block.ops[i] for i in (*self.rate_ops(), *self.ops.get(owned.parameter.name, ()))]
            mentioned = dict.fromkeys(name for op in ops for name in op.names)
            result = {name: part for name in mentioned if (part := self._part(name, owned)) is not None}
            self._names[key] = {name: part.name for name, part in result.items()}
        return self._names[key]

    def _part(self, name: str, owned: Owned) -> Part | None:
        parts = self.parts.get((owned.server, name), [])
        if len(parts) < 2:
            return parts[0] if parts else None
        suffix = slice_name("", owned.slice.number)
        fitting = [part for part in parts if part.shape == owned.slice.shape and part.offset == owned.slice.offset]
        return next(iter(fitting or [part for part in parts if part.name.endswith(suffix)] or parts))

    def apply(
        self,
        values: Mapping[Place, Value],
        owned: Owned,
        gradient: Value,
        step: int,
        counters: Mapping[str, Value] | None = None,
        moved: Value = None,
    ) -> dict[Place, Value]:
        """What the server holds after the update of a slice. `counters` are what schedules are to begin with, where
        they don't count themselves; `moved` is by how much the slice is ahead of the gradient, to be compensated.
        """
        run = self._updated(self._own(values, owned), owned.parameter, gradient, step, counters, moved)
        return {place: run[name] for name, place in self.written(owned).items()}

    def apply_whole(
        self,
        values: Mapping[Place, Value],
        owned: Owned,
        whole: Mapping[str, Value],
        gradient: Value,
        step: int,
        counters: Mapping[str, Value] | None = None,
    ) -> Evaluation:
        """What the source makes of the whole parameter, of which a server owns a slice. `whole` are the values of
        variables that are not whole there, by their names in the source.
        """
        held = {name: whole.get(name, value) for name, value in self._own(values, owned).items()}
        return self._updated(held, owned.parameter, gradient, step, counters)

    def uses_norm(self, parameter: str) -> bool:
        """Whether the update of a parameter depends on a norm of what is whole in the source."""
        ops = [self.half.program.main_block.ops[index] for index in self.ops.get(parameter, ())]
        return any((schema := schema_of(op.type)) is not None and schema.whole_norm for op in ops)

    def _own(self, values: Mapping[Place, Value], owned: Owned) -> dict[str, Value]:
        names = self.names(owned)
        held = {name: values.get((owned.server, there)) for name, there in names.items()}
        return {name: value for name, value in held.items() if value is not None}

    def _updated(
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

    def written(self, owned: Owned) -> dict[str, Place]:
        """What the update of a slice writes of what its server keeps: source name -> place."""
        ops, names = self.half.program.main_block.ops, self.names(owned)
        written = dict.fromkeys(n for i in self.ops[owned.parameter.name] for n in ops[i].output_names)
        return {name: (owned.server, names[name]) for name in written if name in names}

    def rates(self, values: Mapping[Place, Value], server: str, step: int, counters: Mapping[str, Value]) -> Evaluation:
        """The learning rates on a server for what its schedules count."""
        run = Evaluation(self.half.program, self._held(values, server), seed=self.seed, step=step)
        for name, value in counters.items():
            run.give(name, value)
        return run.go(i for i in self.rate_ops() if not self._counts(i, counters))

    def _held(self, values: Mapping[Place, Value], server: str) -> dict[str, Value]:
        ops = [self.half.program.main_block.ops[i] for i in self.rate_ops()]
        named = {name for op in ops for name in op.names}
        table = self.half.plan.table if self.half.plan is not None else None
        named |= set() if table is None else {table.learning_rate}
        places = {name: (server, name) for name in named}
        return {name: values[place] for name, place in places.items() if place in values}

    def update_table(self, table: Value, gradient: Value, rate: Value, server: int) -> Value:
        """The rows of the distributed lookup table on a server (by number), after sgd with a gradient."""
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
