"""Which lines of a text belong together, without parsing them: strings, comments and brackets."""

from __future__ import annotations

import re

_PIECES = re.compile(r'"(?:[^"\\\n]|\\[^\n])*"|#[^\n]*|[\[({]|[\])}]')

MAX_LINES = 1000
"""Lines looked at to find the end of one statement."""


def cut_comment(line: str) -> tuple[str, str, int]:
    """(code, comment, brackets opened less brackets closed) of a line."""
    depth = 0
    for piece in _PIECES.finditer(line):
        first = piece.group()[0]
        if first == "#":
            return line[: piece.start()].rstrip(), piece.group().rstrip(), depth
        depth += (first in "([{") - (first in "])}")
    return line.rstrip(), "", depth


def is_head(code: str) -> bool:
    """Whether a line of code opens a block or a program (its last bracket stays open)."""
    return code.endswith("{") and re.match(r"\s*(block\s*\^|program\s*@)", code) is not None


def statement_length(lines: list[str], start: int) -> int:
    """The number of lines that the statement on line index `start` takes; 1 if its brackets are never closed."""
    depth = 0
    for count, line in enumerate(lines[start : start + MAX_LINES], 1):
        code, _, opened = cut_comment(line)
        if count == 1 and is_head(code):
            return 1
        depth += opened
        if code and depth <= 0 and not code.endswith(","):
            return count
    return 1
