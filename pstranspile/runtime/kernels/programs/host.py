"""Kernels. Calls of Python functions of the process that made a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr
from pstranspile.runtime.kernels.kernel import Run, kernel

HostFunction: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""From the values of X to those of Out; None for an output without a value."""

_FUNCTIONS: list[HostFunction] = []


def register(function: HostFunction) -> int:
    """Stores a function for ops of this process and returns the number by which ops call it."""
    _FUNCTIONS.append(function)
    return len(_FUNCTIONS) - 1


@kernel("py_func", lod="own")
def _py_func(op: Op) -> Run:
    number, wanted = int_attr(op, "forward_callable_id"), len(op.outputs.get("Out", ()))
    if not 0 <= number < len(_FUNCTIONS):
        raise ValueError(f"function {number} is not known here: it is one of the process that made the program")
    function = _FUNCTIONS[number]

    def run(X: Sequence[Any]) -> list[Any]:
        made = list(function(X or ()))
        if wanted and len(made) != wanted:
            raise ValueError(f"the function gives {len(made)} values, the op writes {wanted}")
        return made[:wanted]

    return run
