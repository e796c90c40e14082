"""A block while it is walked."""

from __future__ import annotations

from collections.abc import Callable

from pstranspile.ir.model import Block
from pstranspile.ir.types import VarKind

VALUES = frozenset({VarKind.LOD_TENSOR, VarKind.SELECTED_ROWS})
"""Kinds whose variables hold nothing before they are written; the others exist empty."""


class Frame:
    """A block while it is walked.

    `ready` are the names known to hold a value, with the numbers of the types they hold; `type_of` gives the number of
    the type that any name is declared with, None for those without a declaration.
    `injected` are names that the op which runs the block brings in; `carried` what its loop body writes.
    """

    def __init__(
        self,
        index: int,
        block: Block,
        ready: dict[str, int | None],
        type_of: Callable[[str], int | None],
        injected: frozenset[str],
    ):
        self.index = index
        self.block = block
        self.ready = ready
        self.type_of = type_of
        self.injected = injected
        self.carried: frozenset[str] = frozenset()
