"""The layout of a text, without parsing it: blanks, strings, comments, brackets, and the lines of a statement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from pstranspile.ir.patterns import Pattern

_STRING = r'"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"'
_PIECES = Pattern(_STRING + r"|#[^\n]*|[\[({]|[\])}]")

BLANKS = " \t\r"
"""The blanks of a line, those of the grammar (`SPACE`). A line ends only at a newline.

Other characters that Unicode or Python call a space are ordinary characters, so calls that strip or split text must
name these blanks.
"""


def cut_comment(line: str) -> tuple[str, str, int]:
    """(code, comment, opened minus closed brackets) of a line."""
    depth = 0
    for piece in _PIECES.finditer(line):
        first = piece.group()[0]
        if first == "#":
            return line[: piece.start()].rstrip(BLANKS), piece.group().rstrip(BLANKS), depth
        depth += (first in "([{") - (first in "])}")
    return line.rstrip(BLANKS), "", depth


_HEAD = Pattern(rf"[{BLANKS}]*(?:block[{BLANKS}]*\^|program[{BLANKS}]*@)").match


def is_head(code: str) -> bool:
    """Whether a line of code opens a block or a program: its last bracket stays open."""
    return code.endswith("{") and _HEAD(code) is not None


def statement_length(lines: list[str], start: int, cut: Callable[[str], tuple[str, str, int]] = cut_comment) -> int:
    """The number of lines of the statement on line index `start`; 1 if its brackets are never closed.

    `cut` is `cut_comment`, or a cached version of it.
    """
    depth = 0
    for at in range(start, len(lines)):
        code, _, opened = cut(lines[at])
        if at == start and is_head(code):
            return 1
        depth += opened
        if code and depth <= 0 and not code.endswith(","):
            return at - start + 1
    return 1


_BEGINS = Pattern(
    rf'[{BLANKS}]*(?:\}}|(?:[A-Za-z_][A-Za-z0-9_.@]*|"[^"]*")[{BLANKS}]*'
    rf"(?:[({{%^@#]|->|:(?![{BLANKS}]*[a-z]+[{BLANKS}]*=)|$))"
).match


def begins_statement(line: str) -> bool:
    """Whether a line looks like the start of a statement rather than a continuation inside brackets."""
    return _BEGINS(line) is not None


_CLOSED = Pattern(rf'[^"]*(?:{_STRING}[^"]*)*').fullmatch


def statement_text(lines: list[str], start: int) -> str | None:
    """The statement on line index `start` as one line without comments; None if its lines can't be joined.

    They can be joined if every line but the last ends after a comma or an opening bracket, or before a closing one.
    """
    length = statement_length(lines, start)
    if length == 1:
        return lines[start]
    codes = [code for line in lines[start : start + length] if (code := cut_comment(line)[0])]
    if not all(map(_CLOSED, codes)):
        return None
    parts = [codes[0], *[code.lstrip(BLANKS) for code in codes[1:]]]
    for before, after in pairwise(parts):
        if not before.endswith((",", "(", "[", "{")) and not after.startswith((")", "]", "}")):
            return None
    return " ".join(parts)


WIDTH = 200
"""Longer statements are printed on several lines."""

_COMMAS = Pattern(rf"""{_STRING}|\[(?!%)[^\]"]*(?:{_STRING}[^\]"]*)*\]|(?P<comma>,) """)


def all_wrapped(statements: Sequence[str]) -> Iterable[str]:
    """Statements, each broken into as few lines as the width allows."""
    return map(wrap_statement, statements) if len(max(statements, key=len, default="")) > WIDTH else statements


def wrap_statement(statement: str) -> str:
    """A statement broken after commas into as few lines as the width allows, never inside a list of literals."""
    if len(statement) <= WIDTH:
        return statement
    margin = " " * (len(statement) - len(statement.lstrip(" ")) + 4)
    ends = [result.end("comma") for result in _COMMAS.finditer(statement) if result["comma"]]
    lines: list[str] = []
    start, end = 0, 0
    for possible in (*ends, len(statement)):
        if end > start and possible - start + (len(margin) if lines else 0) > WIDTH:
            lines.append(statement[start:end])
            start = end + 1
        end = possible
    return f"\n{margin}".join([*lines, statement[start:]])
