"""Texts that occur many times in a page, written once."""

from __future__ import annotations


class Texts:
    """Numbers texts in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text."""
        return self._numbers.setdefault(text, len(self._numbers))

    def listed(self) -> list[str]:
        """All texts, by number."""
        return list(self._numbers)
