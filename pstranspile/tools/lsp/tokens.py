"""The pieces of a line, whether or not it makes a statement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pstranspile.ir.patterns import Pattern
from pstranspile.ir.text.literals import read_name
from pstranspile.tools.lsp.values import Span

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

    def span(self, line: int) -> Span:
        """The place of the piece, on this line."""
        return Span(line, self.start, self.stop)

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


def spans_of(lines: list[str], first: int, last: int, kind: str, name: str) -> Iterator[Span]:
    """The places of a name in lines `first` to `last`, as pieces of this kind."""
    for number in range(first, min(last + 1, len(lines))):
        line = lines[number]
        if name in line or "\\" in line:
            for piece in pieces(line):
                if piece.kind == kind and piece.name == name:
                    yield piece.span(number)
