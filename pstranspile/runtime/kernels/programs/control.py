"""Kernels. Ops that run a block once or in a loop."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.ir.attributes import BlockRef
from pstranspile.ir.model import Op
from pstranspile.ops.attributes import strings_attr
from pstranspile.ops.gradient import EMPTY_NAME, SUFFIX, gradient_name
from pstranspile.runtime.kernels.kernel import ExecutionContext, Run, Value, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import plain
from pstranspile.runtime.values import Array, LoDTensor, SelectedRows

# Functions that kernels of ops with a sub-block share.
#
# The forward op keeps the executions of its sub-block, one for each step, in the variable that holds Fluid's step
# scopes. The gradient op runs the gradient block over each of them, so that the block finds the values of that step.


MOST_TURNS: ContextVar[int] = ContextVar("most_turns", default=100_000)
"""The largest number of iterations of a loop."""


@contextmanager
def most_turns(count: int) -> Generator[None]:
    """Limits loops that this thread runs within the context to `count` iterations (default: 100,000).

    A loop that exceeds the limit fails with an error of its op. Fluid has no such limit, so there a condition that
    never becomes false keeps the process busy for ever.
    """
    token = MOST_TURNS.set(count)
    try:
        yield
    finally:
        MOST_TURNS.reset(token)


class BlockRun(NamedTuple):
    """One execution of a sub-block, and the number of its step in the sequence."""

    context: ExecutionContext
    number: int


class Steps(tuple[BlockRun, ...]):
    """The executions of a sub-block, in order."""

    __slots__ = ()


def sub_block(op: Op) -> int:
    """The number of the block that an op runs."""
    block = op.attrs["sub_block"]
    assert isinstance(block, int)
    return int(block)


def kept_steps(context: ExecutionContext, op: Op, slot: str) -> Steps:
    """The executions that the forward op kept in a slot. Raises ValueError if there are none."""
    name = op.input(slot)
    steps = context.find(name) if name else None
    if not isinstance(steps, Steps):
        raise ValueError(f"{name} ({slot}) holds no steps: the forward op has not run, or ran as a test")
    return steps


def dense_part(value: Value) -> Any:
    """The numbers of a dense value as an array, None for any other value."""
    if isinstance(value, LoDTensor):
        return value.data
    return value if isinstance(value, np.ndarray) else None


def plus(total: Value | None, more: Value) -> Value:
    """The sum of two gradients. Without a `total` it is `more` itself."""
    if total is None:
        return more
    if isinstance(total, list) and isinstance(more, list):
        pairs = zip_longest(cast("list[Value]", total), cast("list[Value]", more))  # tensor arrays, by step
        return [a if b is None else plus(a, b) for a, b in pairs]
    if isinstance(total, SelectedRows) and isinstance(more, SelectedRows):
        rows, value = np.concatenate([total.rows, more.rows]), np.concatenate([total.value, more.value])
        return SelectedRows(rows, value, total.height)
    if isinstance(total, SelectedRows) or isinstance(more, SelectedRows):
        raise ValueError("gradients of some steps are sparse and of others dense")
    added = dense_part(total) + dense_part(more)
    return LoDTensor(added, total.lod) if isinstance(total, LoDTensor) else added


def zeros_for(value: Value) -> Value | None:
    """Zeros with the dims of a dense numeric value, None for any other value."""
    data = dense_part(value)
    if data is None or data.dtype.kind not in "iufc":
        return None
    return LoDTensor(np.zeros_like(data), value.lod) if isinstance(value, LoDTensor) else np.zeros_like(data)


def wanted_gradients(op: Op, slot: str) -> Iterator[tuple[str, str]]:
    """Pairs of an input and its gradient, for the wanted gradients of an input slot."""
    for name, gradient in zip(op.inputs.get(slot, ()), op.outputs.get(f"{slot}@GRAD", ()), strict=False):
        if gradient != EMPTY_NAME:
            yield name, gradient


def _is_true(context: ExecutionContext, name: str) -> bool:
    value = dense_part(context.find(name))
    if value is None or value.size != 1:
        raise ValueError(f"the condition {name} must hold one boolean")
    return bool(value.ravel()[0])


def _may_change(ops: Sequence[Op], condition: str) -> bool:
    """Whether an iteration of a block can give a condition another value than the iteration before.

    It can't if the block writes nothing that it computes the condition from. Inner blocks, and ops that draw random
    numbers or read files, count as a change.
    """
    needed, written = {condition}, set[str]()
    for op in reversed(ops):
        outputs = set(op.output_names)
        written |= outputs
        if any(isinstance(value, BlockRef) for value in op.attrs.values()):
            return True
        if not needed.isdisjoint(outputs):
            if "random" in op.type or "read" in op.type:
                return True
            needed = (needed - outputs).union(op.input_names)
    return not needed.isdisjoint(written)


def _overwritten_gradients(forward: Iterable[Op], backward: Iterable[Op], gradients: Iterable[str]) -> set[str]:
    """The gradients that a step does not pass on to the step before, because the step overwrites their variables
    without reading the old values.
    """
    given = {
        name for op in forward if "sub_block" not in op.attrs for name in op.output_names if name not in op.input_names
    }
    made = {name for op in backward for name in op.output_names}
    return {name for name in gradients if name not in made and name.removesuffix(SUFFIX) in given}


class _LoopProperties(NamedTuple):
    """Properties that all iterations of a loop share: whether the block can change the condition, and the inputs that
    it overwrites.

    Variables that an op updates in place (counters) are not among these inputs, because the gradient block counts them
    back.
    """

    ops: tuple[Op, ...]
    may_end: bool
    replaced: tuple[str, ...]

    @staticmethod
    def of(ops: tuple[Op, ...], condition: str, inputs: Sequence[str]) -> _LoopProperties:
        updated = {name for op in ops for name in {*op.input_names} & {*op.output_names}}
        written = {name for op in ops for name in op.output_names} - updated
        if any(isinstance(value, BlockRef) for op in ops for value in op.attrs.values()):
            written = set(inputs) - updated  # inner blocks may write any variable
        return _LoopProperties(ops, _may_change(ops, condition), tuple(name for name in inputs if name in written))


@kernel("while", "StepScopes")
def _run_while(op: Op) -> Run:
    block, keeps, condition = sub_block(op), op.attrs["is_test"] is not True, op.inputs["Condition"][0]
    inputs = op.inputs.get("X", ())
    last: list[_LoopProperties] = []  # for the block of the previous run, mostly the same one

    def turns_of(ops: tuple[Op, ...]) -> _LoopProperties:
        if not last or last[0].ops is not ops:
            last[:] = [_LoopProperties.of(ops, condition, inputs)]
        return last[0]

    def run(context: ExecutionContext) -> Steps:
        steps: list[BlockRun] = []
        turns, most = 0, MOST_TURNS.get()
        while _is_true(context, condition):
            if turns >= most:
                raise ValueError(
                    f"its condition %{condition} still holds after {most} turns, the most that a loop may do"
                )
            turns += 1
            step = context.enter(block)
            about = turns_of(step.ops())
            if not about.may_end:
                raise ValueError(f"nothing in its block changes its condition %{condition}, so it would never end")
            before = [(name, context.find(name)) for name in about.replaced] if keeps else []
            step.execute()
            if keeps:
                # The gradient block needs the values that this step read
                for name, value in before:
                    if value is not None and context.find(name) is not value:
                        step.keep(name, value)
                steps.append(BlockRun(step, len(steps)))
        return Steps(steps)

    return run


@kernel("while_grad", "X@GRAD")
def _run_while_grad(op: Op) -> Run:
    block = sub_block(op)
    outside = op.inputs.get("Out@GRAD", ())
    inside = strings_attr(op, "original_output_grad") or outside
    passed_on = set(outside)  # these gradients replace those of the step before instead of being added to them
    known: list[tuple[tuple[Op, ...], tuple[Op, ...], set[str]]] = []

    def ended_in(forward: tuple[Op, ...], backward: tuple[Op, ...]) -> set[str]:
        if not known or known[0][0] is not forward or known[0][1] is not backward:
            known[:] = [(forward, backward, _overwritten_gradients(forward, backward, inside))]
        return known[0][2]

    def run(context: ExecutionContext) -> list[Value]:
        totals: dict[str, Value] = {}
        for step in reversed(kept_steps(context, op, "StepScopes")):
            backward = step.context.enter(block)
            for given, taken in zip(outside, inside, strict=False):
                value = context.find(given)
                if value is None:  # nothing after the loop uses the variable
                    value = zeros_for(context.find(taken.removesuffix(SUFFIX)))
                if value is not None:
                    backward.keep(taken, value)  # all steps share an array of gradients
            backward.execute()
            ended = ended_in(step.context.ops(), backward.ops())
            for given, taken in zip(outside, inside, strict=False):
                if taken in ended and (zeros := zeros_for(backward.own(taken))) is not None:
                    backward.keep(taken, zeros)
                    context.write(given, zeros)
            for name, gradient in wanted_gradients(op, "X"):
                value = backward.own(gradient_name(name))
                if value is None:
                    continue
                if gradient in passed_on:
                    context.write(gradient, value)
                totals[gradient] = value if gradient in passed_on else plus(totals.get(gradient), value)
        for name, gradient in wanted_gradients(op, "X"):  # the gradient of an input that no step has used
            if gradient not in totals:
                given = context.find(gradient) if gradient in passed_on else None
                totals[gradient] = zeros_for(context.find(name)) if given is None else given
        return [totals.get(gradient) for gradient in op.outputs.get("X@GRAD", ())]

    return run


@kernel("conditional_block", "Scope")
def _run_conditional_block(op: Op) -> Run:
    block, scalar = sub_block(op), op.attrs["is_scalar_condition"] is True
    conditions = op.inputs.get("Cond", ())

    def holds(context: ExecutionContext) -> bool:
        if scalar:
            return _is_true(context, conditions[0])
        given = [dense_part(context.find(name)) for name in conditions]
        return all(value is not None and value.size for value in given)

    def run(context: ExecutionContext) -> Steps:
        if not holds(context):
            return Steps()
        step = context.enter(block)
        step.execute()
        return Steps([BlockRun(step, 0)])

    return run


@kernel("conditional_block_grad", "Input@GRAD")
def _run_conditional_block_grad(op: Op) -> Run:
    block = sub_block(op)
    outside, outputs = op.inputs.get("Out@GRAD", ()), op.inputs.get("Out", ())

    def run(context: ExecutionContext) -> list[Value]:
        steps = kept_steps(context, op, "Scope")
        backward = steps[0].context.enter(block) if steps else None
        if backward:
            for name in outside:
                value = context.find(name)
                if value is not None:
                    backward.keep(name, value)  # so that the block's result is stored there
            backward.execute()
        totals: dict[str, Value] = {}
        for name, gradient in wanted_gradients(op, "Input"):
            if context.declaration(gradient) is None:
                continue  # of a branch that trains, for itself
            result = backward.own(gradient_name(name)) if backward else None
            if (
                backward is None and name in outputs
            ):  # the block did not change the variable, so its gradient passes unchanged
                result = context.find(gradient_name(name))
            totals[gradient] = zeros_for(context.find(name)) if result is None else result
        ended = _overwritten_gradients(steps[0].context.ops(), backward.ops(), outside) if backward else set[str]()
        for name in ended:
            zeros = zeros_for(context.find(name))
            totals[name] = zeros
            context.write(name, zeros)
        return [totals.get(gradient) for gradient in op.outputs.get("Input@GRAD", ())]

    return run


# Kernels. Selection of branches, for a whole tensor or row by row.


def _branch_number(mask: Any, count: int) -> int:
    data = plain(mask)
    if data.size != 1:
        raise ValueError("Mask must hold one number")
    number = int(data.item(0))
    if not 0 <= number < count:
        raise ValueError(f"Mask is {number}, there are {count} branches")
    return number


@kernel("select_input", lod="own")
def _select_input(op: Op) -> Run:
    names = op.inputs["X"]

    def run(Mask: Any, context: ExecutionContext) -> Value:
        name = names[_branch_number(Mask, len(names))]  # other branches may not have run
        value = context.find(name)
        if value is None:
            raise ValueError(f"the branch that Mask chooses has given {name} no value")
        return LoDTensor(value.data.copy(), value.lod) if isinstance(value, LoDTensor) else value.copy()

    return run


@plain_kernel("select_output", lod="own")
def _select_output(X: Any, Mask: Any, *, count: int = per_op(lambda op: len(op.outputs["Out"]))) -> list[Value | None]:
    outs: list[Value | None] = [None] * count
    outs[_branch_number(Mask, count)] = LoDTensor(X.data.copy(), X.lod) if isinstance(X, LoDTensor) else X.copy()
    return outs


def _offsets(x: Any, level: int) -> list[int]:
    """The offsets of the pieces of x, each of which goes to one of the branches: sequences, or rows if x has no LoD."""
    if not isinstance(x, LoDTensor):
        return list(range(len(x) + 1))
    if level != 0 or len(x.lod) != 1:
        raise ValueError(
            f"X has {len(x.lod)} LoD levels and level is {level}; only sequences of one level can be split"
        )
    return x.lod[0]


def _pieces(x: Any, level: int, mask: Any) -> tuple[list[int], list[bool]]:
    offsets, chosen = _offsets(x, level), plain(mask).reshape(-1).astype(bool).tolist()
    if len(chosen) != len(offsets) - 1:
        raise ValueError(f"Mask has {len(chosen)} elements, X has {len(offsets) - 1} pieces")
    return offsets, chosen


def _part(x: Any, offsets: list[int], kept: list[bool]) -> Value:
    """The pieces of x that `kept` selects, joined."""
    data = plain(x)
    lengths = np.diff(offsets)
    out = data[np.repeat(np.asarray(kept, bool), lengths)]
    return LoDTensor(out, [[0, *np.cumsum(lengths[kept]).tolist()]]) if isinstance(x, LoDTensor) else out


@plain_kernel("split_lod_tensor", "OutTrue OutFalse", lod="own")
def _split(X: Any, Mask: Any, *, level: int) -> tuple[Value, Value]:
    offsets, chosen = _pieces(X, level, Mask)
    return _part(X, offsets, chosen), _part(X, offsets, [not taken for taken in chosen])


@plain_kernel("merge_lod_tensor merge_lod_tensor_infer", lod="own")
def _merge(X: Any, Mask: Any, InTrue: Any, InFalse: Any, *, level: int) -> Value:
    _, chosen = _pieces(X, level, Mask)
    sides = {True: InTrue, False: InFalse}
    starts = {side: [0] if value is None else _offsets(value, level) for side, value in sides.items()}
    taken = {True: 0, False: 0}
    rows: list[Array] = []
    for side in chosen:
        number, offsets = taken[side], starts[side]
        if number + 1 >= len(offsets):
            raise ValueError(f"{'InTrue' if side else 'InFalse'} has fewer pieces than Mask asks of it")
        rows.append(plain(sides[side])[offsets[number] : offsets[number + 1]])
        taken[side] = number + 1
    if InTrue is None and InFalse is None:
        raise ValueError("neither InTrue nor InFalse has a value")
    out = np.concatenate(rows) if rows else plain(InFalse if InTrue is None else InTrue).copy()
    if isinstance(InTrue, LoDTensor) or isinstance(InFalse, LoDTensor):
        return LoDTensor(out, [[0, *np.cumsum([len(piece) for piece in rows]).tolist()]])
    return out


# Kernels. Recurrences: a block run for each step of sequences of equal length.


class _Recurrence(NamedTuple):
    """The names of a recurrent op, shared with its gradient op."""

    block: int
    inputs: tuple[str, ...]
    initial: tuple[str, ...]
    before: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    reverse: bool

    @staticmethod
    def of(op: Op, outputs: Iterable[str]) -> _Recurrence:
        return _Recurrence(
            sub_block(op),
            op.inputs.get("inputs", ()),
            op.inputs.get("initial_states", ()),
            strings_attr(op, "ex_states"),
            strings_attr(op, "states"),
            tuple(outputs),
            op.attrs["reverse"] is True,
        )

    def length(self, context: ExecutionContext) -> int:
        """The number of steps, dim 0 of every input."""
        result = {name: len(self.sequence(context, name)) for name in self.inputs}
        if len(set(result.values())) != 1:
            raise ValueError(f"the inputs must have the same number of steps: {result or 'there are none'}")
        return next(iter(result.values()))

    @staticmethod
    def sequence(context: ExecutionContext, name: str) -> Any:
        """The value of an input, steps first."""
        value = dense_part(context.find(name))
        if value is None or not value.ndim:
            raise ValueError(f"{name} must be a tensor whose first dim is the steps")
        return value


@kernel("recurrent", "outputs step_scopes")
def _run_recurrent(op: Op) -> Run:
    names = _Recurrence.of(op, op.outputs.get("outputs", ()))

    def run(context: ExecutionContext) -> tuple[list[Value], Steps]:
        length = names.length(context)
        order = range(length - 1, -1, -1) if names.reverse else range(length)
        states = [context.find(name) for name in names.initial]
        output_steps: list[list[Value]] = [[None] * length for _ in names.outputs]
        steps: list[BlockRun] = []
        for number in order:
            step = context.enter(names.block)
            for name in names.inputs:
                step.keep(name, names.sequence(context, name)[number])
            for name, state in zip(names.before, states, strict=True):
                if state is None:
                    raise ValueError(f"the state {name} has no initial value")
                step.keep(name, state)
            step.execute()
            states = [step.find(name) for name in names.states]
            for values, name in zip(output_steps, names.outputs, strict=True):
                values[number] = dense_part(step.own(name))
                if values[number] is None:
                    raise ValueError(f"step {number} makes no {name}")
            steps.append(BlockRun(step, number))
        return [np.stack(values) for values in output_steps], Steps(steps)

    return run


@kernel("recurrent_grad", "inputs@GRAD initial_states@GRAD parameters@GRAD")
def _run_recurrent_grad(op: Op) -> Run:
    names = _Recurrence.of(op, op.inputs.get("outputs", ()))
    output_grads = op.inputs.get("outputs@GRAD", ())

    def seed(backward: ExecutionContext, context: ExecutionContext, step: BlockRun, carried: list[Value]) -> None:
        """Sets the initial gradients of a step's backward pass: of its outputs, and of its states, which come from the
        later step.
        """
        given: dict[str, Value] = {}
        for name, outside in zip(names.outputs, output_grads, strict=True):
            whole = dense_part(context.find(outside))
            given[gradient_name(name)] = zeros_for(step.context.own(name)) if whole is None else whole[step.number]
        for name, value in zip(names.states, carried, strict=True):
            state = zeros_for(step.context.find(name)) if value is None else value
            given[gradient_name(name)] = plus(given.get(gradient_name(name)), state)
        for name, value in given.items():
            backward.keep(name, value)

    def run(context: ExecutionContext) -> tuple[list[Value], list[Value], list[Value]]:
        steps = kept_steps(context, op, "step_scopes")
        carried: list[Value] = [None] * len(names.states)
        totals: dict[str, Value] = {}
        parts: dict[str, list[Value]] = {name: [None] * len(steps) for name in names.inputs}
        for step in reversed(steps):
            backward = step.context.enter(names.block)
            seed(backward, context, step, carried)
            backward.execute()
            carried = [backward.own(gradient_name(name)) for name in names.before]
            for name in names.inputs:
                parts[name][step.number] = dense_part(backward.own(gradient_name(name)))
            for name, gradient in wanted_gradients(op, "parameters"):
                value = backward.own(gradient_name(name))
                if value is not None:
                    totals[gradient] = plus(totals.get(gradient), value)
        return (
            [_stack_gradients(parts[name], names.sequence(context, name)) for name in names.inputs],
            [
                zeros_for(context.find(name)) if value is None else value
                for name, value in zip(names.initial, carried, strict=True)
            ],
            [
                totals.get(gradient, zeros_for(context.find(name)))
                for name, gradient in zip(op.inputs["parameters"], op.outputs.get("parameters@GRAD", ()), strict=False)
            ],
        )

    return run


def _stack_gradients(parts: list[Value], whole: Any) -> Value:
    """The gradients of all steps stacked into a tensor like `whole`; zeros for steps without a gradient."""
    out = np.zeros_like(whole)
    for number, part in enumerate(parts):
        if part is not None:
            out[number] = part
    return out


@plain_kernel("rnn_memory_helper")
def _run_memory_helper(X: Any) -> Any:
    return X.copy()


@plain_kernel("rnn_memory_helper_grad", "X@GRAD", lod="own")
def _run_memory_helper_grad(Out: Any, Out_GRAD: Value | None) -> Value:
    return zeros_for(Out) if Out_GRAD is None else Out_GRAD  # the last step gets no gradient
