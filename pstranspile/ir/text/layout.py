"""How a text is laid out, without parsing it: blanks, strings, comments, brackets, and which lines belong together."""

from __future__ import annotations

import re

_PIECES = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"|#[^\n]*|[\[({]|[\])}]')

BLANKS = " \t\r"
"""The blanks of a line, those of the grammar (`SPACE`); a line ends at a newline alone.

What else Unicode or Python calls a space is a character like any other, so text is never stripped or split without
naming these.
"""


def cut_comment(line: str) -> tuple[str, str, int]:
    """(code, comment, brackets opened less brackets closed) of a line."""
    depth = 0
    for piece in _PIECES.finditer(line):
        first = piece.group()[0]
        if first == "#":
            return line[: piece.start()].rstrip(BLANKS), piece.group().rstrip(BLANKS), depth
        depth += (first in "([{") - (first in "])}")
    return line.rstrip(BLANKS), "", depth


_HEAD = re.compile(rf"[{BLANKS}]*(?:block[{BLANKS}]*\^|program[{BLANKS}]*@)").match


def is_head(code: str) -> bool:
    """Whether a line of code opens a block or a program (its last bracket stays open)."""
    return code.endswith("{") and _HEAD(code) is not None


def statement_length(lines: list[str], start: int) -> int:
    """The number of lines that the statement on line index `start` takes; 1 if its brackets are never closed."""
    depth = 0
    for at in range(start, len(lines)):
        code, _, opened = cut_comment(lines[at])
        if at == start and is_head(code):
            return 1
        depth += opened
        if code and depth <= 0 and not code.endswith(","):
            return at - start + 1
    return 1
