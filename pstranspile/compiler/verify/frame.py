"""A block while it is walked."""

from __future__ import annotations

from collections.abc import Callable

from pstranspile.compiler.verify.flow import TypeTable
from pstranspile.compiler.verify.names import Names
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


class SubBlockTypes(dict[str, "int | None"]):
    """Numbers of the declared types of the names a sub-block uses, each looked up at its first use."""

    def __init__(self, types: TypeTable, names: Names, index: int):
        self._types, self._names, self._index = types, names, index

    def __missing__(self, name: str) -> int | None:
        number = self[name] = self._types.declared(self._names.find(name, self._index))
        return number
