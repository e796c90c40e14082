"""Whether the blocks of a program lead to each other as they must before gradients can be followed through them."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from pstranspile.ir.attributes import BlockRef
from pstranspile.ir.model import Program


def can_be_followed(program: Program) -> bool:
    """Whether every block that is named is there, and none runs itself; else the run tells what is wrong."""
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
