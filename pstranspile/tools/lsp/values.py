"""Places in a text, the pieces of a line whether or not it makes a statement, and the results of the language server's
features. Numbers count from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pstranspile.ir.patterns import Pattern
from pstranspile.ir.text.literals import read_name


class TextPosition(NamedTuple):
    """A place between two characters of a text: the line, and how many characters of it stand before."""

    line: int
    column: int


class LineSpan(NamedTuple):
    """The characters of a line from `start` up to `stop`."""

    line: int
    start: int
    stop: int


class HoverText(NamedTuple):
    """A hover text in Markdown, and the span of the text that it is about."""

    text: str
    span: LineSpan


class Proposal(NamedTuple):
    """A completion. `kind` is a word of the protocol (`Function`, `Variable`, ...).

    `insert` takes the span's place; it is a snippet, with places to fill in, if `snippet` is set.
    """

    label: str
    kind: str
    detail: str
    insert: str
    span: LineSpan
    snippet: bool = False


def without_places(snippet: str) -> str:
    """The plain text of a snippet, for editors without support for snippets."""
    text = re.sub(r"\$\{[0-9]+:([^}]*)\}", r"\1", snippet)
    return re.sub(r"\$[0-9]+", "", text).replace("\\}", "}")


class Fold(NamedTuple):
    """Lines `first_line` to `last_line` that an editor may fold away behind the first."""

    first_line: int
    last_line: int


class Hint(NamedTuple):
    """A few words that an editor shows behind a line; `tip` has the details."""

    position: TextPosition
    label: str
    tip: str


class RequestRefused(Exception):
    """A request that can't be fulfilled, for the reason in the text."""


_STRING = r'"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"?'
_PIECES = Pattern(
    rf"(?P<comment>#.*)"
    rf"|(?P<script>@(?:[A-Za-z0-9_.@/]+|{_STRING}):[0-9]+)"
    rf"|(?P<variable>%(?:[A-Za-z0-9_.@/]+|{_STRING})?)"
    rf"|(?P<program>@(?:[A-Za-z0-9_.@/]+|{_STRING})?)"
    r"|(?P<label>\^-?[0-9]*)"
    rf"|(?P<string>{_STRING})"
    r"|(?P<arrow>->)"
    r"|(?P<number>-?[0-9][0-9.eE+-]*)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_.@]*)"
    r"|(?P<mark>[^\s])"
)


class Piece(NamedTuple):
    """A piece of a line: its kind (a group of the pattern above), its characters, and where they begin."""

    kind: str
    text: str
    start: int

    @property
    def stop(self) -> int:
        """The column after its last character."""
        return self.start + len(self.text)

    def span(self, line: int) -> LineSpan:
        """The place of the piece, on this line."""
        return LineSpan(line, self.start, self.stop)

    @property
    def name(self) -> str:
        """The name that a variable or program is written for; the characters themselves where they are no name yet."""
        try:
            return read_name(self.text) if len(self.text) > 1 else ""
        except (ValueError, IndexError):
            return self.text[1:]


def pieces(line: str) -> Iterator[Piece]:
    """The pieces of a line from left to right, without the blanks between them."""
    for match in _PIECES.finditer(line):
        yield Piece(match.lastgroup or "mark", match.group(), match.start())


def piece_at(line: str, column: int) -> Piece | None:
    """The piece that a column is in, or at the end of; of two that meet there, the one that is no mark."""
    touching = [piece for piece in pieces(line) if piece.start <= column <= piece.stop]
    return min(touching, key=lambda piece: piece.kind in ("mark", "arrow"), default=None)


def spans_of(lines: list[str], first: int, last: int, kind: str, name: str) -> Iterator[LineSpan]:
    """The places of a name in lines `first` to `last`, as pieces of this kind."""
    for number in range(first, min(last + 1, len(lines))):
        line = lines[number]
        if name in line or "\\" in line:
            for piece in pieces(line):
                if piece.kind == kind and piece.name == name:
                    yield piece.span(number)
