"""Fluid's `transpiler.details.ufind`: sets that are joined."""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class UnionFind:
    """Elements in sets, each in a set of its own at first."""

    def __init__(self, elementes: Iterable[Hashable] | None = None):
        self._above: list[int] = []
        self._numbers: dict[Hashable, int] = {}
        for number, element in enumerate(elementes or ()):
            self._above.append(number)
            self._numbers[element] = number

    def find(self, x: Hashable) -> int:
        """The number of an element's set, -1 for an unknown element."""
        at = self._numbers.get(x, -1)
        while at >= 0 and self._above[at] != at:
            self._above[at] = at = self._above[self._above[at]]
        return at

    def union(self, x: Hashable, y: Hashable) -> None:
        """Joins the sets of two elements."""
        one, other = self.find(x), self.find(y)
        if one != other:
            self._above[one] = other

    def is_connected(self, x: Hashable, y: Hashable) -> bool:
        """Whether two elements are in one set."""
        return self.find(x) == self.find(y)
