"""Fluid's `contrib.memory_usage_calc`: what a program's variables take."""

from __future__ import annotations

from math import prod
from typing import Any

from pstranspile.fluid.framework import Program
from pstranspile.fluid.graph.vartype import VarType, numpy_name
from pstranspile.fluid.missing import names_of_fluid

_BYTES = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "float16": 2, "int32": 4, "float32": 4}


def memory_usage(program: Any, batch_size: int) -> tuple[float, float, str]:
    """Least and most memory of what the ops of block 0 write, and the unit: 5 to 10 % more than its elements take.

    Raises ValueError for a batch that is not positive, and where dims are not known but for the batch.
    """
    if not isinstance(program, Program):
        raise TypeError(f"memory_usage takes a Program, not a {type(program).__name__}")
    if batch_size <= 0:
        raise ValueError(f"a batch has at least one row, not {batch_size}")
    block = program.global_block()
    names = dict.fromkeys(name for op in block.ops for name in op.output_arg_names if name in block.vars)
    total = float(sum(_size(block.var(name), batch_size) for name in names))
    unit = "B"
    for larger in ("KB", "MB"):
        if total > 1024:
            total, unit = total / 1024, larger
    return total * 1.05, total * 1.1, unit


def _size(variable: Any, batch_size: int) -> int:
    if variable.type is not VarType.LOD_TENSOR:
        return 0
    if sum(dim < 0 for dim in variable.shape) > 1:
        raise ValueError(f"{variable.name} has more than one dim that is not known: {list(variable.shape)}")
    elements = prod(batch_size if dim < 0 else dim for dim in variable.shape)
    return elements * _BYTES.get(numpy_name(variable.dtype), 8)


__getattr__ = names_of_fluid(__name__, globals())
