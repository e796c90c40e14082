"""Kernels. Ops that run a block once or in a loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pstranspile.ir.attributes import BlockRef
from pstranspile.ir.model import Op
from pstranspile.ops.attributes import strings_attr
from pstranspile.ops.gradient import SUFFIX, gradient_name
from pstranspile.runtime.kernels.blocks import (
    MOST_TURNS,
    Step,
    Steps,
    dense_part,
    kept_steps,
    plus,
    sub_block,
    wanted_gradients,
    zeros_for,
)
from pstranspile.runtime.kernels.context import ExecutionContext, Value
from pstranspile.runtime.kernels.kernel import Run, kernel


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


def _ended(forward: Iterable[Op], backward: Iterable[Op], gradients: Iterable[str]) -> set[str]:
    """The gradients that end in a step, because the step overwrites their variables without reading the old values."""
    given = {
        name for op in forward if "sub_block" not in op.attrs for name in op.output_names if name not in op.input_names
    }
    made = {name for op in backward for name in op.output_names}
    return {name for name in gradients if name not in made and name.removesuffix(SUFFIX) in given}


class _Turns(NamedTuple):
    """What is the same for every iteration of a loop: whether it may change the condition, and the inputs that it
    overwrites.

    Variables that an op updates in place (counters) are not among these, because the gradient block counts them back.
    """

    ops: tuple[Op, ...]
    may_end: bool
    replaced: tuple[str, ...]

    @staticmethod
    def of(ops: tuple[Op, ...], condition: str, inputs: Sequence[str]) -> _Turns:
        updated = {name for op in ops for name in {*op.input_names} & {*op.output_names}}
        written = {name for op in ops for name in op.output_names} - updated
        if any(isinstance(value, BlockRef) for op in ops for value in op.attrs.values()):
            written = set(inputs) - updated  # inner blocks may write any variable
        return _Turns(ops, _may_change(ops, condition), tuple(name for name in inputs if name in written))


@kernel("while", "StepScopes")
def _run_while(op: Op) -> Run:
    block, keeps, condition = sub_block(op), op.attrs["is_test"] is not True, op.inputs["Condition"][0]
    inputs = op.inputs.get("X", ())
    last: list[_Turns] = []  # of the block of the previous run, which is the same in all steps of a program

    def turns_of(ops: tuple[Op, ...]) -> _Turns:
        if not last or last[0].ops is not ops:
            last[:] = [_Turns.of(ops, condition, inputs)]
        return last[0]

    def run(context: ExecutionContext) -> Steps:
        steps: list[Step] = []
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
                steps.append(Step(step, len(steps)))
        return Steps(steps)

    return run


@kernel("while_grad", "X@GRAD")
def _run_while_grad(op: Op) -> Run:
    block = sub_block(op)
    outside = op.inputs.get("Out@GRAD", ())
    inside = strings_attr(op, "original_output_grad") or outside
    passed_on = set(outside)  # gradients that replace those of the step before instead of being added to them
    known: list[tuple[tuple[Op, ...], tuple[Op, ...], set[str]]] = []

    def ended_in(forward: tuple[Op, ...], backward: tuple[Op, ...]) -> set[str]:
        if not known or known[0][0] is not forward or known[0][1] is not backward:
            known[:] = [(forward, backward, _ended(forward, backward, inside))]
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
        for name, gradient in wanted_gradients(op, "X"):  # of an input that no step has used
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
        return Steps([Step(step, 0)])

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
            if context.declared(gradient) is None:
                continue  # of a branch that trains, for itself
            result = backward.own(gradient_name(name)) if backward else None
            if (
                backward is None and name in outputs
            ):  # the block did not change the variable, so its gradient passes unchanged
                result = context.find(gradient_name(name))
            totals[gradient] = zeros_for(context.find(name)) if result is None else result
        ended = _ended(steps[0].context.ops(), backward.ops(), outside) if backward else set[str]()
        for name in ended:
            zeros = zeros_for(context.find(name))
            totals[name] = zeros
            context.write(name, zeros)
        return [totals.get(gradient) for gradient in op.outputs.get("Input@GRAD", ())]

    return run
