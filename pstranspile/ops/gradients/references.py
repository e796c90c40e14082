"""The check that the blocks of a program refer to each other correctly, before gradients are followed through them."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from pstranspile.ir.attributes import BlockRef
from pstranspile.ir.model import Program


def can_be_followed(program: Program) -> bool:
    """Whether every referenced block exists and no block contains itself; otherwise a run reports the mistake."""
    count = len(program.blocks)
    inner = {
        index: {int(ref) for op in block.ops if isinstance(ref := op.attrs.get("sub_block"), BlockRef)}
        for index, block in enumerate(program.blocks)
    }
    named = {number for numbers in inner.values() for number in numbers}
    named.update(number for block in program.blocks for number in (block.parent, block.forward_block) if number >= 0)
    if not all(0 <= number < count for number in named):
        return False
    try:
        TopologicalSorter(inner).prepare()
    except CycleError:
        return False
    return True
