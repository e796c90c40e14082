"""A block of a training program under construction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import is_
from typing import NamedTuple

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Op, Var


class BlockDraft:
    """A block under construction. Ops in `front` precede all others, the last one first."""

    def __init__(self, block: Block):
        self.vars: dict[str, Var] = dict(block.vars)
        self.ops: list[Op] = list(block.ops)
        self.front: list[Op] = []
        self.parent = block.parent
        self.forward_block = block.forward_block

    def all_ops(self) -> Iterator[Op]:
        """The ops in execution order."""
        yield from reversed(self.front)
        yield from self.ops

    def freeze(self) -> Block:
        """The block as a value."""
        return Block(FrozenMap(self.vars), tuple(self.all_ops()), self.parent, self.forward_block)

    def gives(self, block: Block) -> bool:
        """Whether `freeze` would give this block, object by object: faster than a comparison of values."""
        return (
            len(self.ops) + len(self.front) == len(block.ops)
            and len(self.vars) == len(block.vars)
            and self.parent == block.parent
            and self.forward_block == block.forward_block
            and _same(self.all_ops() if self.front else self.ops, block.ops)
            and _same(self.vars.values(), block.vars.values())
        )


def gradient_block(blocks: Sequence[BlockDraft], of: int) -> int | None:
    """The block with the gradient ops of block `of`, which trains; None if it has none."""
    return next((number for number, block in enumerate(blocks) if block.forward_block == of), None)


def train_in(blocks: Sequence[BlockDraft], number: int) -> None:
    """Moves the gradient ops of a block that trains to its end, so that each turn of a loop trains."""
    apart = gradient_block(blocks, number)
    if apart is not None:
        source, target = blocks[apart], blocks[number]
        target.ops += source.ops
        target.vars.update(source.vars)
        source.ops.clear()
        source.vars.clear()


def _same(objects: Iterable[object], others: Iterable[object]) -> bool:
    return all(map(is_, objects, others))


class DraftState(NamedTuple):
    """The state of a draft's main program, and the names that were taken."""

    blocks: tuple[Block, ...]
    names: dict[str, int]
    stopped: frozenset[str]
