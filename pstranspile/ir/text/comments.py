"""Formatting: the canonical text with the comments and blank lines of the text it was made from.

A comment on lines of its own goes with the statement that follows it, a comment at the end of a line with the
statement on that line. The comments inside a statement written on several lines go before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pstranspile.ir.layout import BLANKS, cut_comment, is_head, wrapped
from pstranspile.ir.model import Block, Module, Op, Program, Var
from pstranspile.ir.text.distribution import Statement
from pstranspile.ir.text.printer import End, Printed, module_lines
from pstranspile.ir.text.schemas import Language

_PROGRAM = re.compile(rf"program[{BLANKS}]*@").match
_BLOCK = re.compile(rf"block[{BLANKS}]*\^").match


class Written(NamedTuple):
    """A statement as written in a text, and the comments of the lines around it.

    `above` holds comment lines, and "" for a blank line; `trailing` is the comment at its end or "".
    """

    line: int
    code: str
    above: tuple[str, ...]
    trailing: str


def written_statements(text: str) -> Iterator[Written]:
    """The statements of a text that parses, and last an empty one that holds what follows them."""
    above: list[str] = []
    inside: list[str] = []
    start, first, open_brackets, unfinished = 0, "", 0, False
    for number, line in enumerate(text.split("\n"), 1):
        code, comment, depth = cut_comment(line)
        code = code.lstrip(BLANKS)
        if not unfinished and not code:
            if comment or (above and above[-1] != "") or (not above and start):
                above.append(comment)
            continue
        if not unfinished:
            start, first = number, code
            open_brackets = 0 if is_head(code) or code == "}" else depth
        else:
            open_brackets += depth
        unfinished = open_brackets > 0 or code.endswith(",") or (unfinished and not code)
        if unfinished:
            inside += [comment] if comment else []
            continue
        yield Written(start, first, (*above, *inside), comment)
        above, inside = [], []
    yield Written(0, "", tuple(above), "")


def _line_of(value: object) -> int:
    """The source line of a value that a line was printed for; 0 if it is not known."""
    location = value.location if isinstance(value, Op | Var | Block) else None
    return location.line if location else 0


class _Sources:
    """Finds the written statement of each printed line. Programs must be queried in order."""

    def __init__(self, text: str):
        self.at_line: dict[int, Written] = {}
        self.ends: dict[tuple[int, int], Written] = {}
        self.programs: list[Written] = []
        self.distributions: list[list[Written]] = []
        self.version: Written | None = None
        self.last = Written(0, "", (), "")
        open_at: list[int] = []
        for written in written_statements(text):
            if not written.line:
                self.last = written
            elif written.code == "}":
                self.ends[(len(self.programs), open_at.pop())] = written
            else:
                self.at_line[written.line] = written
                if _PROGRAM(written.code):
                    self.programs.append(written)
                    self.distributions.append([])
                    open_at.append(0)
                elif _BLOCK(written.code):
                    open_at.append(written.line)
                elif open_at == [0]:
                    self.distributions[-1].append(written)
                elif self.version is None:
                    self.version = written
        self.current = 0

    def of(self, value: object) -> Written | None:
        """The statement that a printed value was read from."""
        if isinstance(value, Program):
            self.current += 1
            return self.programs[self.current - 1]
        if isinstance(value, Statement):
            return self.distributions[self.current - 1][value.number]
        if isinstance(value, End):
            return self.ends.get((self.current, _line_of(value.of)))
        return self.at_line.get(_line_of(value)) if value is not None else None


def _with_comments(printed: Printed, sources: _Sources) -> Iterator[str]:
    assert sources.version is not None
    for position, (line, value) in enumerate(zip(printed.lines, printed.values, strict=True)):
        written = sources.version if position == 0 else sources.of(value)
        text = wrapped(line)
        if written is not None:
            indent = line[: len(line) - len(line.lstrip(" "))]
            ends = isinstance(value, End)
            inner = indent + "  " if ends else indent
            above = list(written.above)
            if ends and above and above[-1] == "":
                above.pop()
            at_top = position and printed.lines[position - 1].endswith("{")
            if above and above[0] == "" and (at_top or printed.lines[position - 1] == ""):
                above.pop(0)
            yield from (inner + comment if comment else "" for comment in above)
            if written.trailing:
                text = f"{text}  {written.trailing}"
        yield text
    rest = list(sources.last.above)
    while rest and rest[-1] == "":
        rest.pop()
    yield from rest


def format_module(module: Module, text: str, language: Language) -> str:
    """The canonical text of `module` with the comments and blank lines of `text`, which it was parsed from."""
    printed = module_lines(module, language)
    return "\n".join(_with_comments(printed, _Sources(text))) + "\n"
