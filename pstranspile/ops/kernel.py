"""How an op type computes: kernels, declared beside the schema of their op.

    @kernel("scale", "Out")
    def scale(op: Op) -> Run:
        factor, bias = op.attrs["scale"], op.attrs["bias"]
        def run(X, ScaleTensor=None):
            return X * factor + bias
        return run

The decorated function is called once per op, when a program is prepared; what it returns is called once per step.

* `run`'s parameters are named after input slots (`Out@GRAD` is `Out_GRAD`) and passed by position. A slot that is
  missing or empty gives None; a duplicable slot gives a list.
* It returns the value of the output slot named in the decorator, or, if several are named, a tuple in that order; a
  duplicable slot takes a list; None leaves a variable as it is. Slots that the op does not have are dropped, so a
  costly one should be asked for with `wanted(op, slot)`.
* Values are numpy arrays and SelectedRows. LoD is handled by the caller: outputs get the LoD of the first input that
  has one, unless the decorator says `lod="none"` (outputs have none) or `lod="own"` (run gets and gives LoDTensors).
* Inputs are never changed, except that an op which lists the same variable as input and output may update it in place
  (`in_place(op, input_slot, output_slot)` tells); no two variables share memory unless one is a view made by an op.
* A parameter called `context` gets the ExecutionContext (`ops/context.py`): random numbers, declarations, files, the op
  for messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from pstranspile.ir.model import Op

Run: TypeAlias = Callable[..., Any]
"""One step of an op: input values by position, output values back."""

Factory: TypeAlias = Callable[[Op], Run]
"""Binds an op's attributes and gives its Run."""


class Kernel(NamedTuple):
    """The numpy implementation of an op type. `outputs` are the slots that a Run returns, in order."""

    make: Factory
    outputs: tuple[str, ...]
    lod: str


class KernelError(Exception):
    """Raised by a Run whose input values don't fit; the message is a plain sentence naming the slot.

    Whoever runs the op adds the op, its source line and the shapes seen.
    """


_KERNELS: dict[str, Kernel] = {}


def kernel(op_types: str, outputs: str = "Out", *, lod: str = "share") -> Callable[[Factory], Factory]:
    """Registers the decorated factory as the kernel of these op types (separated by blanks)."""

    def register(factory: Factory) -> Factory:
        for op_type in op_types.split():
            if op_type in _KERNELS:
                raise ValueError(f"op type {op_type} has two kernels")
            _KERNELS[op_type] = Kernel(factory, tuple(outputs.split()), lod)
        return factory

    return register


def kernel_of(op_type: str) -> Kernel | None:
    """The kernel of an op type, None if it has none (of the families imported so far)."""
    return _KERNELS.get(op_type)


def wanted(op: Op, slot: str) -> bool:
    """Whether the op has a variable in this output slot."""
    return bool(op.outputs.get(slot))


def in_place(op: Op, input_slot: str, output_slot: str) -> bool:
    """Whether the op writes the same variable it reads, so that its memory may be reused."""
    return op.input(input_slot) is not None and op.input(input_slot) == op.output(output_slot)
