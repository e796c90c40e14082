"""The variable that a name refers to in a block, and the ops that write it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import chain

from pstranspile.ir.model import Block, Op, Var


class Names:
    """The names of a program's blocks. Each answer is worked out once."""

    def __init__(self, blocks: Sequence[Block]):
        self.blocks = blocks
        self._written_in: dict[int, frozenset[str]] = {}
        self._owners: dict[int, dict[str, int | None]] = {}

    def find(self, name: str, index: int) -> Var | None:
        """The declaration that a name means in a block: its own, or that of an enclosing or forward block."""
        owner = self.owner(name, index)
        return None if owner is None else self.blocks[owner].vars[name]

    def owner(self, name: str, index: int) -> int | None:
        """The block whose variable a name means: this one, its forward block, its parent, and so on outwards."""
        if name in self.blocks[index].vars:
            return index
        if index == 0:
            return None
        known = self._owners.setdefault(index, {})
        if name not in known:
            known[name] = self._search(name, index)
        return known[name]

    def _search(self, name: str, index: int) -> int | None:
        todo, seen = [index], {index}
        for at in todo:
            block = self.blocks[at]
            if name in block.vars:
                return at
            for outer in (block.forward_block, block.parent):
                if outer >= 0 and outer not in seen:
                    seen.add(outer)
                    todo.append(outer)
        return None

    def written(self, index: int) -> frozenset[str]:
        """Names that the ops of a block write."""
        result = self._written_in.get(index)
        if result is None:
            names = chain.from_iterable(chain.from_iterable(op.outputs.values() for op in self.blocks[index].ops))
            result = self._written_in[index] = frozenset(names)
        return result

    @cached_property
    def written_globals(self) -> AbstractSet[str]:
        """Names of variables of block 0 that ops of any block write."""
        if len(self.blocks) == 1:
            return self.written(0)
        names = set(self.written(0))
        for other in range(1, len(self.blocks)):
            names.update(name for name in self.written(other) if self.owner(name, other) == 0)
        return names

    def first_writer(self, name: str, owner: int) -> Op | None:
        """The first op that writes the variable of this name in block `owner`."""
        for index in (owner, *range(owner + 1, len(self.blocks))):
            if name in self.written(index) and self.owner(name, index) == owner:
                return next(op for op in self.blocks[index].ops if name in op.output_names)
        return None

    def visible(self, index: int) -> Iterator[str]:
        """The names that a block and those around it declare."""
        while index >= 0:
            yield from self.blocks[index].vars
            index = self.blocks[index].parent
