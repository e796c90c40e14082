"""The variables of a block as a mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pstranspile.fluid.graph.variable import Variable


class Vars(Mapping[str, Variable]):
    """The variables of a block by name, as they are now."""

    def __init__(self, block: Any):
        self._block = block

    def __getitem__(self, name: str) -> Variable:
        if name not in self._block.draft.vars:
            raise KeyError(name)
        return self._block.view(name)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._block.draft.vars))

    def __len__(self) -> int:
        return len(self._block.draft.vars)

    def pop(self, name: str, *default: Any) -> Any:
        """Takes a variable out of the block."""
        if name not in self._block.draft.vars and default:
            return default[0]
        result = self[name]
        del self._block.draft.vars[name]
        return result

    def __delitem__(self, name: str) -> None:
        self.pop(name)
