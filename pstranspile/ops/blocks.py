"""Kernels of the ops that run a sub-block: while, conditional_block, recurrent, and their gradients.

Each forward op keeps the executions of its sub-block (in the variable that Fluid keeps its step scopes in), so that the
gradient block, which runs over them, finds the values of that very step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import zip_longest
from typing import Any, NamedTuple, cast

from pstranspile.ir.attributes import BlockRef, Strings
from pstranspile.ir.model import Op
from pstranspile.lazy import lazy_import
from pstranspile.ops.context import ExecutionContext, Value
from pstranspile.ops.gradient import EMPTY_NAME, SUFFIX, gradient_name
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.values import LoDTensor, SelectedRows

np = lazy_import("numpy")


_MOST_TURNS: ContextVar[int] = ContextVar("most_turns", default=100_000)


@contextmanager
def most_turns(count: int) -> Generator[None]:
    """Has no loop do more turns than `count` for what this thread runs while it holds (default: 100,000).

    A loop that would do more ends in an error of its op. Fluid has no such bound: there a condition that goes on
    holding keeps the process busy for ever.
    """
    token = _MOST_TURNS.set(count)
    try:
        yield
    finally:
        _MOST_TURNS.reset(token)


class Step(NamedTuple):
    """One execution of a sub-block, and the number of the step in the sequence it worked on."""

    context: ExecutionContext
    number: int


class Steps(tuple[Step, ...]):
    """The executions of a sub-block, in order."""

    __slots__ = ()


def _sub_block(op: Op) -> int:
    block = op.attrs["sub_block"]
    assert isinstance(block, int)
    return int(block)


def _names(op: Op, attr: str) -> tuple[str, ...]:
    value = op.attrs.get(attr)
    return tuple(value) if isinstance(value, Strings) else ()


def _kept_steps(context: ExecutionContext, op: Op, slot: str) -> Steps:
    name = op.input(slot)
    steps = context.find(name) if name else None
    if not isinstance(steps, Steps):
        raise ValueError(f"{name} ({slot}) holds no steps: the forward op has not run, or ran as a test")
    return steps


def _is_true(context: ExecutionContext, name: str) -> bool:
    value = _tensor(context.find(name))
    if value is None or value.size != 1:
        raise ValueError(f"the condition {name} must hold one boolean")
    return bool(value.ravel()[0])


def _tensor(value: Value) -> Any:
    """The numbers of a dense value, None for anything else."""
    if isinstance(value, LoDTensor):
        return value.data
    return value if isinstance(value, np.ndarray) else None


def _plus(total: Value | None, more: Value) -> Value:
    """The sum of gradients; the first one is taken as it is."""
    if total is None:
        return more
    if isinstance(total, list) and isinstance(more, list):
        pairs = zip_longest(cast("list[Value]", total), cast("list[Value]", more))  # arrays: what steps have written
        return [a if b is None else _plus(a, b) for a, b in pairs]
    if isinstance(total, SelectedRows) and isinstance(more, SelectedRows):
        rows, value = np.concatenate([total.rows, more.rows]), np.concatenate([total.value, more.value])
        return SelectedRows(rows, value, total.height)
    if isinstance(total, SelectedRows) or isinstance(more, SelectedRows):
        raise ValueError("gradients of some steps are sparse and of others dense")
    added = _tensor(total) + _tensor(more)
    return LoDTensor(added, total.lod) if isinstance(total, LoDTensor) else added


def _zeros_like(value: Value) -> Value | None:
    data = _tensor(value)
    if data is None or data.dtype.kind not in "fc":
        return None
    return LoDTensor(np.zeros_like(data), value.lod) if isinstance(value, LoDTensor) else np.zeros_like(data)


def _gradients(op: Op, slot: str) -> Iterator[tuple[str, str]]:
    """(input, its gradient) for the wanted gradients of an input slot."""
    for name, gradient in zip(op.inputs.get(slot, ()), op.outputs.get(f"{slot}@GRAD", ()), strict=False):
        if gradient != EMPTY_NAME:
            yield name, gradient


def _may_change(context: ExecutionContext, condition: str) -> bool:
    """Whether a turn of a block can give a condition another value than the turn before.

    It can't where nothing that the block computes the condition from is written by the block. Blocks within it, and
    what draws or reads, count as a change.
    """
    needed, written = {condition}, set[str]()
    for op in reversed(context.ops()):
        outputs = set(op.output_names)
        written |= outputs
        if any(isinstance(value, BlockRef) for value in op.attrs.values()):
            return True
        if not needed.isdisjoint(outputs):
            if "random" in op.type or "read" in op.type:
                return True
            needed = (needed - outputs).union(op.input_names)
    return not needed.isdisjoint(written)


def _ended(forward: Iterable[Op], backward: Iterable[Op], gradients: Iterable[str]) -> set[str]:
    """The gradients that end in a step: it gives their variables new values, and nothing in it uses the old ones."""
    given = {
        name for op in forward if "sub_block" not in op.attrs for name in op.output_names if name not in op.input_names
    }
    made = {name for op in backward for name in op.output_names}
    return {name for name in gradients if name not in made and name.removesuffix(SUFFIX) in given}


@kernel("while", "StepScopes")
def _run_while(op: Op) -> Run:
    block, keeps, condition = _sub_block(op), op.attrs["is_test"] is not True, op.inputs["Condition"][0]
    inputs = op.inputs.get("X", ())

    def run(context: ExecutionContext) -> Steps:
        steps: list[Step] = []
        turns, most = 0, _MOST_TURNS.get()
        while _is_true(context, condition):
            if turns >= most:
                raise ValueError(
                    f"its condition %{condition} still holds after {most} turns, the most that a loop may do"
                )
            turns += 1
            step = context.enter(block)
            if not steps and not _may_change(step, condition):
                raise ValueError(f"nothing in its block changes its condition %{condition}, so it would never end")
            counted = {name for inner in step.ops() for name in inner.input_names if name in [*inner.output_names]}
            before = [(name, context.find(name)) for name in inputs if name not in counted] if keeps else []
            step.execute()
            if keeps:
                # The gradient block must see what this step read. What an op updates (a counter) stays outside:
                # the gradient block counts it back itself.
                for name, value in before:
                    if value is not None and context.find(name) is not value:
                        step.keep(name, value)
                steps.append(Step(step, len(steps)))
        return Steps(steps)

    return run


@kernel("while_grad", "X@GRAD")
def _run_while_grad(op: Op) -> Run:
    block = _sub_block(op)
    outside = op.inputs.get("Out@GRAD", ())
    inside = _names(op, "original_output_grad") or outside
    passed_on = set(outside)  # gradients that steps hand back from one to the one before, instead of adding up

    def run(context: ExecutionContext) -> list[Value]:
        totals: dict[str, Value] = {}
        for step in reversed(_kept_steps(context, op, "StepScopes")):
            backward = step.context.enter(block)
            for given, taken in zip(outside, inside, strict=False):
                value = context.find(given)
                if value is None:  # nothing after the loop uses the variable
                    value = _zeros_like(context.find(taken.removesuffix(SUFFIX)))
                if value is not None:
                    backward.keep(taken, value)  # an array of gradients is the same one in all steps
            backward.execute()
            ended = _ended(step.context.ops(), backward.ops(), inside)
            for given, taken in zip(outside, inside, strict=False):
                if taken in ended and (zeros := _zeros_like(backward.own(taken))) is not None:
                    backward.keep(taken, zeros)
                    context.write(given, zeros)
            for name, gradient in _gradients(op, "X"):
                value = backward.own(gradient_name(name))
                if value is None:
                    continue
                if gradient in passed_on:
                    context.write(gradient, value)
                totals[gradient] = value if gradient in passed_on else _plus(totals.get(gradient), value)
        for name, gradient in _gradients(op, "X"):  # of what no step has used
            if gradient not in totals:
                given = context.find(gradient) if gradient in passed_on else None
                totals[gradient] = _zeros_like(context.find(name)) if given is None else given
        return [totals.get(gradient) for gradient in op.outputs.get("X@GRAD", ())]

    return run


@kernel("conditional_block", "Scope")
def _run_conditional_block(op: Op) -> Run:
    block, scalar = _sub_block(op), op.attrs["is_scalar_condition"] is True
    conditions = op.inputs.get("Cond", ())

    def holds(context: ExecutionContext) -> bool:
        if scalar:
            return _is_true(context, conditions[0])
        given = [_tensor(context.find(name)) for name in conditions]
        return all(value is not None and value.size for value in given)

    def run(context: ExecutionContext) -> Steps:
        if not holds(context):
            return Steps()
        step = context.enter(block)
        step.execute()
        return Steps([Step(step, 0)])

    return run


@kernel("conditional_block_grad", "Input@GRAD")
def _run_conditional_block_grad(op: Op) -> Run:
    block = _sub_block(op)
    outside, outputs = op.inputs.get("Out@GRAD", ()), op.inputs.get("Out", ())

    def run(context: ExecutionContext) -> list[Value]:
        steps = _kept_steps(context, op, "Scope")
        backward = steps[0].context.enter(block) if steps else None
        if backward:
            for name in outside:
                value = context.find(name)
                if value is not None:
                    backward.keep(name, value)  # so that what the block makes of it is found there
            backward.execute()
        totals: dict[str, Value] = {}
        for name, gradient in _gradients(op, "Input"):
            found = backward.own(gradient_name(name)) if backward else None
            if backward is None and name in outputs:  # the block has left the variable as it was, and so its gradient
                found = context.find(gradient_name(name))
            totals[gradient] = _zeros_like(context.find(name)) if found is None else found
        ended = _ended(steps[0].context.ops(), backward.ops(), outside) if backward else set[str]()
        for name in ended:
            zeros = _zeros_like(context.find(name))
            totals[name] = zeros
            context.write(name, zeros)
        return [totals.get(gradient) for gradient in op.outputs.get("Input@GRAD", ())]

    return run


class _Recurrence(NamedTuple):
    """The names that a recurrent op and its gradient share."""

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
            _sub_block(op),
            op.inputs.get("inputs", ()),
            op.inputs.get("initial_states", ()),
            _names(op, "ex_states"),
            _names(op, "states"),
            tuple(outputs),
            op.attrs["reverse"] is True,
        )

    def length(self, context: ExecutionContext) -> int:
        """The number of steps, dim 0 of every input."""
        found = {name: len(self.sequence(context, name)) for name in self.inputs}
        if len(set(found.values())) != 1:
            raise ValueError(f"the inputs must have the same number of steps: {found or 'there are none'}")
        return next(iter(found.values()))

    @staticmethod
    def sequence(context: ExecutionContext, name: str) -> Any:
        """The value of an input, steps first."""
        value = _tensor(context.find(name))
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
        made: list[list[Value]] = [[None] * length for _ in names.outputs]
        steps: list[Step] = []
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
            for values, name in zip(made, names.outputs, strict=True):
                values[number] = _tensor(step.own(name))
                if values[number] is None:
                    raise ValueError(f"step {number} makes no {name}")
            steps.append(Step(step, number))
        return [np.stack(values) for values in made], Steps(steps)

    return run


@kernel("recurrent_grad", "inputs@GRAD initial_states@GRAD parameters@GRAD")
def _run_recurrent_grad(op: Op) -> Run:
    names = _Recurrence.of(op, op.inputs.get("outputs", ()))
    output_grads = op.inputs.get("outputs@GRAD", ())

    def seed(backward: ExecutionContext, context: ExecutionContext, step: Step, carried: list[Value]) -> None:
        """The gradients that come into a step: of its outputs, and of its states from the step after it."""
        given: dict[str, Value] = {}
        for name, outside in zip(names.outputs, output_grads, strict=True):
            whole = _tensor(context.find(outside))
            given[gradient_name(name)] = _zeros_like(step.context.own(name)) if whole is None else whole[step.number]
        for name, value in zip(names.states, carried, strict=True):
            state = _zeros_like(step.context.find(name)) if value is None else value
            given[gradient_name(name)] = _plus(given.get(gradient_name(name)), state)
        for name, value in given.items():
            backward.keep(name, value)

    def run(context: ExecutionContext) -> tuple[list[Value], list[Value], list[Value]]:
        steps = _kept_steps(context, op, "step_scopes")
        carried: list[Value] = [None] * len(names.states)
        totals: dict[str, Value] = {}
        parts: dict[str, list[Value]] = {name: [None] * len(steps) for name in names.inputs}
        for step in reversed(steps):
            backward = step.context.enter(names.block)
            seed(backward, context, step, carried)
            backward.execute()
            carried = [backward.own(gradient_name(name)) for name in names.before]
            for name in names.inputs:
                parts[name][step.number] = _tensor(backward.own(gradient_name(name)))
            for name, gradient in _gradients(op, "parameters"):
                value = backward.own(gradient_name(name))
                if value is not None:
                    totals[gradient] = _plus(totals.get(gradient), value)
        return (
            [_joined(parts[name], names.sequence(context, name)) for name in names.inputs],
            [
                _zeros_like(context.find(name)) if value is None else value
                for name, value in zip(names.initial, carried, strict=True)
            ],
            [
                totals.get(gradient, _zeros_like(context.find(name)))
                for name, gradient in zip(op.inputs["parameters"], op.outputs.get("parameters@GRAD", ()), strict=False)
            ],
        )

    return run


def _joined(parts: list[Value], whole: Any) -> Value:
    """The gradients of all steps as one tensor like `whole`, zeros where a step gave none."""
    out = np.zeros_like(whole)
    for number, part in enumerate(parts):
        if part is not None:
            out[number] = part
    return out


@kernel("rnn_memory_helper")
def _run_memory_helper(_op: Op) -> Run:
    def run(X: Any) -> Any:
        return X.copy()

    return run


@kernel("rnn_memory_helper_grad", "X@GRAD", lod="own", may_lack="Out@GRAD")
def _run_memory_helper_grad(_op: Op) -> Run:
    def run(Out: Any, Out_GRAD: Value | None) -> Value:
        return _zeros_like(Out) if Out_GRAD is None else Out_GRAD  # the last step gets none

    return run
