"""What kernels of ops with a sub-block share.

The forward op keeps the executions of its sub-block, one for each step, in the variable that holds Fluid's step scopes.
The gradient op runs the gradient block over each of them, so that the block finds the values of that step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.gradient import EMPTY_NAME
from pstranspile.runtime.kernels.context import ExecutionContext, Value
from pstranspile.runtime.values import LoDTensor, SelectedRows

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


class Step(NamedTuple):
    """One execution of a sub-block, and the number of its step in the sequence."""

    context: ExecutionContext
    number: int


class Steps(tuple[Step, ...]):
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
    """The numbers of a dense value, None for anything else."""
    if isinstance(value, LoDTensor):
        return value.data
    return value if isinstance(value, np.ndarray) else None


def plus(total: Value | None, more: Value) -> Value:
    """The sum of two gradients. Without a `total` it is `more` itself."""
    if total is None:
        return more
    if isinstance(total, list) and isinstance(more, list):
        pairs = zip_longest(cast("list[Value]", total), cast("list[Value]", more))  # arrays: what steps have written
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
