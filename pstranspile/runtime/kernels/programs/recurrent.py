"""Kernels. Recurrences: a block run for each step of sequences of equal length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import strings_attr
from pstranspile.ops.gradient import gradient_name
from pstranspile.runtime.kernels.blocks import (
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
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel


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
                values[number] = dense_part(step.own(name))
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
        """The initial gradients of a step's backward pass: of its outputs, and of its states from the later step."""
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
            [_joined(parts[name], names.sequence(context, name)) for name in names.inputs],
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


def _joined(parts: list[Value], whole: Any) -> Value:
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
