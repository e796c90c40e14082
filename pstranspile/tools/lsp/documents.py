"""The texts that an editor has open, by the URIs that it gives them, as it has changed them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from pstranspile.ir.patterns import Pattern

_ENDS = Pattern(r"\r\n?|\n")
"""What ends a line in the protocol. A form feed or U+2028 ends none."""

Place = tuple[int, int]
"""A line, and how many of the editor's units of it stand before the place."""


class Edit(NamedTuple):
    """A text that stands from one place to another now; it is all there is where there are no places."""

    text: str
    start: Place | None = None
    end: Place | None = None


class Document(NamedTuple):
    """An open text, and the editor's number of its version."""

    text: str
    version: int | None


class Documents:
    """Open texts by URI. `units` is how many of the editor's units some characters are."""

    def __init__(self, units: Callable[[str], int]):
        self._units = units
        self._open: dict[str, Document] = {}

    def get(self, uri: str) -> Document | None:
        """An open text; None where it is not open. The same object until the text changes."""
        return self._open.get(uri)

    def open(self, uri: str, text: str, version: int | None) -> None:
        """Takes a text up."""
        self._open[uri] = Document(text, version)

    def change(self, uri: str, edits: Iterable[Edit], version: int | None) -> bool:
        """Changes a text, one edit after the other; returns whether it is open."""
        document = self._open.get(uri)
        if document is None:
            return False
        text = document.text
        for edit in edits:
            text = edited(text, edit, self._units)
        self._open[uri] = Document(text, version)
        return True

    def close(self, uri: str) -> None:
        """Forgets a text."""
        self._open.pop(uri, None)


def edited(text: str, edit: Edit, units: Callable[[str], int]) -> str:
    """A text after an edit. A place behind the end of a line is the end of that line, one behind all lines the end of
    the text.
    """
    if edit.start is None or edit.end is None:
        return edit.text
    start, end = sorted(_offset(text, place, units) for place in (edit.start, edit.end))
    return f"{text[:start]}{edit.text}{text[end:]}"


def _offset(text: str, place: Place, units: Callable[[str], int]) -> int:
    """The number of characters before a place."""
    line, unit = place
    start, end = _line(text, line)
    if unit <= 0 or start == end:
        return start
    content = text[start:end]
    if content.isascii():
        return min(start + unit, end)
    for count, character in enumerate(content):
        if unit <= 0:
            return start + count
        unit -= units(character)
    return end


def _line(text: str, number: int) -> tuple[int, int]:
    """Where the characters of a line begin and end; both are the end of the text where it has no such line."""
    start, ends = 0, _ENDS.finditer(text)
    for _ in range(number):
        end = next(ends, None)
        if end is None:
            return len(text), len(text)
        start = end.end()
    end = next(ends, None)
    return start, end.start() if end else len(text)
