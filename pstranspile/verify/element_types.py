"""The element types that a program's ops give a variable: used only once a declaration disagrees with one of them.

A variable holds what was written last. Where ops write it with several element types its declaration can name only
one of them, as that of the decay rate which Fluid's `ExponentialMovingAverage` makes of an integer step counter.
"""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.ir.model import Block, TensorType, Var
from pstranspile.ir.types import DType
from pstranspile.ops.shapes import ShapeError, declared_type, infer_types


def given_types(blocks: Sequence[Block], name: str) -> frozenset[DType]:
    """The element types that ops give the variable of block 0 with this name, as far as their rules say."""
    found: set[DType] = set()
    for index, block in enumerate(blocks):
        for op in block.ops:
            if name not in op.output_names or not _is_outer(blocks, name, index):
                continue
            try:
                inferred = infer_types(op, lambda read, index=index: declared_type(_find(blocks, read, index)))
            except ShapeError:
                continue
            for slot, names in op.outputs.items():
                types: Sequence[TensorType | None] = inferred.get(slot, ())
                found.update(given.dtype for at, given in zip(names, types, strict=False) if at == name and given)
    return frozenset(found)


def _is_outer(blocks: Sequence[Block], name: str, index: int) -> bool:
    """Whether a name means the variable of block 0 in a block."""
    var = _find(blocks, name, index)
    return var is not None and var is blocks[0].vars.get(name)


def _find(blocks: Sequence[Block], name: str, index: int) -> Var | None:
    seen: set[int] = set()
    while 0 <= index < len(blocks) and index not in seen:
        seen.add(index)
        var = blocks[index].vars.get(name)
        if var is not None:
            return var
        index = blocks[index].parent
    return None
