"""What the readers of statements share: the file, the language, and the findings so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, Note, error
from pstranspile.ir.model import Attrs, Location, Slots
from pstranspile.ir.roles import OpRole
from pstranspile.ir.suggest import nearest
from pstranspile.ir.text.schemas import Language
from pstranspile.ir.text.tree import Token


class OpParts(NamedTuple):
    """An op before its position is known. The fields are those of `Op`, `column` is the column of its type, and
    `script` the line of a script that created it.
    """

    type: str
    inputs: Slots
    outputs: Slots
    attrs: Attrs
    role: OpRole | None
    role_vars: tuple[str, ...] | None
    is_target: bool
    line: int
    column: int
    script: Location | None = None


class ProgramHead(NamedTuple):
    """The properties in the head of a program."""

    name: str
    seed: int
    version: int | None
    location: Location


class BlockHead(NamedTuple):
    """The properties in the head of a block; `parent` None means the enclosing block."""

    label: int
    parent: int | None
    forward: int
    location: Location


class Context:
    """Collects findings while statements are read. `first_line` is the line at which the parsed text starts."""

    def __init__(self, file: str, language: Language, first_line: int = 1):
        self.file = file
        self.language = language
        self.first_line = first_line
        self.findings: list[Diagnostic] = []

    def line(self, token: Token) -> int:
        """The line of a token in the whole file."""
        return self.first_line - 1 + (token.line)

    def at(self, token: Token) -> Location:
        """The place of a token in the whole file."""
        return Location(self.file, self.line(token), token.column)

    def report(self, code: Code, message: str, token: Token, notes: Iterable[Note] = ()) -> None:
        """Adds a finding that marks `token`."""
        self.findings.append(error(code, message, self.at(token), focus=str(token).split("\n")[0], notes=notes))


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` when a known word is near the given one, in whatever case that is written; else nothing."""
    words = list(known)
    near = nearest(given, words) or nearest(given.lower(), words)
    return f"; did you mean `{near}`?" if near else ""


def one_of(words: Iterable[str]) -> str:
    """The words as a choice, for a message: "`a`, `b` or `c`"."""
    quoted = [f"`{word}`" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
