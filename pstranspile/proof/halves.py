"""A training program cut in two: what each trainer computes from its share, and what is done with the gradients."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.compiler.analysis import Facts
from pstranspile.compiler.analysis.updates import find_roles
from pstranspile.compiler.compile import Compiled
from pstranspile.compiler.emit.servers import ServerJob
from pstranspile.compiler.plan.plan import Plan
from pstranspile.ir.model import EMPTY, Program
from pstranspile.ir.types import OpRole
from pstranspile.proof.workload import Workload
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.batch import Batch
from pstranspile.runtime.run.bound_ops import BoundOp
from pstranspile.runtime.run.feeds import check_feeds
from pstranspile.runtime.run.frame import Execution, Frame
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.run.seeds import apart_from, scale_seeds, seeds_of, without_unmade_terms
from pstranspile.runtime.values import LoDTensor, SelectedRows


class Halves(NamedTuple):
    """The ops of a source program by index: `first` on a trainer's share, `second` once the gradients are combined.

    `sent_gradients` maps parameters to the gradients between the two. `plan` and `facts` are those of a program that
    servers train, else None.
    """

    program: Program
    first: tuple[int, ...]
    second: tuple[int, ...]
    sent_gradients: Mapping[str, str]
    plan: Plan | None = None
    facts: Facts | None = None


def halves_of(made: Compiled, workload: Workload) -> dict[str, Halves]:
    """The programs of a check, by name, each cut where the mode of the job combines gradients."""
    parts = {part.name: part for part in made.emitter.parts} if isinstance(made.emitter, ServerJob) else {}
    result: dict[str, Halves] = {}
    for name, program in workload.programs.items():
        part = parts.get(name)
        if part is None and parts:  # trainers run it as it is
            result[name] = Halves(without_unmade_terms(program), tuple(range(len(program.main_block.ops))), (), {})
            continue
        if part is None:
            result[name] = _by_roles(program)
            continue
        ops = part.facts.program.main_block.ops
        first = tuple(i for i in range(len(ops)) if i not in part.facts.moved)
        sent = {parameter.name: parameter.gradient for parameter in part.plan.parameters}
        if part.plan.table is not None:
            sent[part.plan.table.name] = part.plan.table.gradient
        # the mode has put sums of counters in the place of schedules' own, and otherwise changed roles and names only
        counting = [op if op.type == "increment" else None for op in program.main_block.ops]
        if len(counting) == len(ops):
            ops = tuple(one or other for one, other in zip(counting, ops, strict=True))
        block = part.facts.program.main_block._replace(ops=ops)
        source = without_unmade_terms(part.facts.program.with_main_block(block))
        result[name] = Halves(source, first, tuple(sorted(part.facts.moved)), sent, part.plan, part.facts)
    return result


def _by_roles(program: Program) -> Halves:
    """Cuts a program where trainers without servers combine gradients: after the gradients that backward ops name
    together with their parameters.
    """
    ops = program.main_block.ops
    sent: dict[str, str] = {}
    made_last: dict[str, int] = {}
    for index, op in enumerate(ops):
        if (op.role or OpRole.FORWARD) & OpRole.BACKWARD:
            for parameter, gradient in op.role_pairs:
                if gradient in op.output_names:
                    sent[parameter], made_last[gradient] = gradient, index
    roles = find_roles(program.main_block)
    second = {*roles.moved_by_role, *roles.trainer_clips}
    late: set[str] = set()
    for index, op in enumerate(ops):
        after = any(index > made_last.get(name, len(ops)) or name in late for name in op.input_names)
        if index in second or after:
            second.add(index)
            late.update(name for name in op.output_names if name not in program.main_block.vars or after)
    first = tuple(index for index in range(len(ops)) if index not in second)
    return Halves(without_unmade_terms(program), first, tuple(sorted(second)), sent)


class Evaluation:
    """One execution of block 0 of a program, from given values, in as many parts as the caller runs.

    `values` are the initial values of variables by name. They are not modified: an op that writes one gets a copy. Only
    those named in `own` may be modified. The gradients with which the backward pass begins are multiplied by `part`.
    """

    def __init__(
        self,
        program: Program,
        values: Mapping[str, Value],
        feed: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        stream: int = 0,
        step: int = 0,
        own: Container[str] = (),
        part: float = 1.0,
    ):
        self.weight = part * (feed.weight if isinstance(feed, Batch) else 1.0)
        self.has_no_rows = isinstance(feed, Batch) and feed.rows == 0
        """Whether the feed has no rows; ops that need rows are skipped then."""
        self._seeds = seeds_of(program) if self.weight != 1.0 else {}
        self.execution = Execution(program, Scope(), seed=seed, stream=stream, step=step)
        self.program = program
        self.execution.begin(feed)
        self.frame = Frame(self.execution)
        self.ops: list[list[BoundOp]] = []
        """The ops by index, each with the ops that copy or add up values for it. Filled at the first use."""
        self.lent: dict[str, Value] = {}
        """Values that belong to the caller. An op that writes one of them gets a copy first."""
        for name, value in {**values, **check_feeds(program, feed or {})}.items():
            self.lend(name, value)
            if name in own:
                self.lent.pop(name, None)

    def lend(self, name: str, value: Value) -> None:
        """Sets a variable to a value that stays the caller's. A value that is no array is copied."""
        if not isinstance(value, np.ndarray):
            self.give(name, value)
            return
        self.lent[name] = value
        self.frame.write(name, value)

    def give(self, name: str, value: Value) -> None:
        """Sets a variable to a copy of a value."""
        self.lent.pop(name, None)
        self.frame.write(name, own_copy(value))

    def take(self, name: str) -> Value:
        """Removes a variable and returns its value; None if it has none."""
        value = self.frame.find(name)
        self.lent.pop(name, None)
        self.frame.forget(name)
        return value

    def go(
        self,
        indices: Iterable[int],
        given: Mapping[int, Mapping[str, Value]] = EMPTY,
        keep: Container[str] | None = None,
    ) -> Evaluation:
        """Runs the ops at `indices`, in this order, and returns the evaluation itself.

        `given` sets variables before an op, by its index. The gradients with which the backward pass begins are
        weighted. With `keep`, every other tensor that these ops read or write is dropped after its last use. Raises
        DiagnosticError.
        """
        ops = self.ops = self.ops or self.execution.ops_with_copies()
        indices = tuple(indices)
        last = {} if keep is None else self.last_uses(indices, keep)
        with np.errstate(all="ignore"):
            for index in indices:
                for name, value in given.get(index, EMPTY).items():
                    self.give(name, value)
                for bound in ops[index]:
                    if not self.lent.keys().isdisjoint(bound.op.output_names):
                        for name in self.lent.keys() & {*bound.op.output_names}:
                            self.give(name, self.lent[name])
                    for name, value in self.frame.run_op(bound):
                        self.frame.write(name, value)
                if index in self._seeds:
                    self.frame.write(self._seeds[index], scale_seeds({"": self[self._seeds[index]]}, self.weight)[""])
                self.forget(last.get(index, ()))
        return self

    def last_uses(self, indices: Sequence[int], keep: Container[str]) -> dict[int, list[str]]:
        """The variables not in `keep`, by the index of the last op among `indices` that names them.

        Empty for a program with sub-blocks, which may read any variable.
        """
        if len(self.program.blocks) > 1:
            return {}
        last: dict[str, int] = {}
        ops = self.ops = self.ops or self.execution.ops_with_copies()
        for index in indices:
            for bound in ops[index]:
                last.update(dict.fromkeys((*bound.op.input_names, *bound.op.output_names), index))
        names: dict[int, list[str]] = {}
        for name, index in last.items():
            if name not in keep:
                names.setdefault(index, []).append(name)
        return names

    def forget(self, names: Iterable[str]) -> None:
        """Drops tensors that are not persistable."""
        for name in names:
            if isinstance(self.frame.local.get(name), np.ndarray | LoDTensor | SelectedRows):
                del self.frame.local[name]
                self.lent.pop(name, None)

    def run_without_rows(self, indices: Sequence[int]) -> Evaluation:
        """Runs only those of the ops that need no rows."""
        return self.go(apart_from(self.program, self.execution.feed, indices))

    def __getitem__(self, name: str) -> Value:
        """The current value of a variable; None if it has none."""
        return self.frame.find(name)


def kept_after_first(half: Halves) -> frozenset[str]:
    """The variables that are needed after the first half: gradients, and what the remaining ops name."""
    first = set(half.first)
    later = [op for index, op in enumerate(half.program.main_block.ops) if index not in first]
    return frozenset(half.sent_gradients.values()).union(name for op in later for name in op.names)


def kept_of(half: Halves, indices: Iterable[int]) -> set[str]:
    """The persistable variables that the ops at `indices`, or any sub-block, name."""
    blocks = half.program.blocks
    named = [*(blocks[0].ops[index] for index in indices), *(op for block in blocks[1:] for op in block.ops)]
    result = {name for op in named for name in op.names}
    return {name for name, var in blocks[0].vars.items() if var.persistable and name in result}


def combine_gradients(values: list[Value], count: int = 0, *, summed: bool = False) -> Value:
    """The mean of the trainers' gradients, added up in the given order; sparse rows are concatenated.

    The sum is divided by `count`, or by the number of `values` if `count` is 0. With `summed` it is not divided.
    """
    first, count = values[0], 1 if summed else count or len(values)
    if count == 1 and len(values) == 1:
        return first
    if isinstance(first, SelectedRows):
        rows = np.concatenate([value.rows for value in values])
        data = np.concatenate([value.value[: len(value.rows)] for value in values])
        return SelectedRows(rows, data * data.dtype.type(1 / count), first.height)
    total = own_copy(first)
    for value in values[1:]:
        total += value
    total *= total.dtype.type(1 / count)
    return total
