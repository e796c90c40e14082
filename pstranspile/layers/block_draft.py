"""A block of a training program while it is being made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Op, Var


class BlockDraft:
    """A block while it is being made; ops put in front stand before all others, the last one first."""

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


class DraftState(NamedTuple):
    """The main program of a draft at a time, and which names were taken."""

    blocks: tuple[Block, ...]
    names: dict[str, int]
    stopped: frozenset[str]
