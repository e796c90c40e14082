"""Locations of findings, and suggestions of similar names; used only if there is a finding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, Note, Severity, at_op, error, nearest, warning
from pstranspile.ir.layout import statement_text
from pstranspile.ir.model import Block, Location, Op, Origin, SourceText, Var
from pstranspile.ir.text.literals import name as name_text
from pstranspile.ir.text.literals import var_text, word

MAX_SUGGESTIONS = 50
"""The most names in one program for which suggestions are looked up; a thousand wrong names have one cause."""

MAX_CANDIDATES = 2000
"""The most names that are compared with a wrong one."""


def slot_text(slot: str) -> str:
    """The text before the variables of a slot."""
    return f"{word(slot)}="


def near_name(given: str, known: Iterable[str]) -> str | None:
    """The known name that is most like the given one, None if none is near."""
    names = [name for name in known if abs(len(name) - len(given)) <= 3 and name != given]
    if len(names) > MAX_CANDIDATES:
        ends = (given[:3], given[-3:])
        names = [name for name in names if name.startswith(ends[0]) or name.endswith(ends[1])][:MAX_CANDIDATES]
    return nearest(given, names, 0.7)


def suggestion(given: str, known: Iterable[str], sigil: str = "") -> str:
    """`; did you mean ...?` when a known name is near the given one, else nothing."""
    near = near_name(given, known)
    return f"; did you mean `{sigil}{name_text(near) if sigil else near}`?" if near else ""


class Findings:
    """The findings in one program, and their locations."""

    def __init__(self, program: str, blocks: Sequence[Block], source: SourceText | None = None):
        self.program = program
        self.blocks = blocks
        self.source = source
        self._lines: list[str] | None = None
        self.diagnostics: list[Diagnostic] = []
        self._suggestions = 0

    def op(
        self,
        code: Code,
        message: str,
        place: tuple[int, int],
        *,
        focus: str = "",
        severity: Severity = Severity.ERROR,
        notes: Iterable[Note] = (),
    ) -> None:
        """A finding about the op at (block, position)."""
        block, position = place
        op: Op = self.blocks[block].ops[position]
        if op.origin is None:
            op = op._replace(origin=Origin(self.program, block, position))
        self.diagnostics.append(at_op(code, message, op, focus=focus, severity=severity, notes=notes))

    def var(self, code: Code, message: str, var: Var, block: int, severity: Severity = Severity.ERROR) -> None:
        """A finding about a declaration."""
        make = error if severity is Severity.ERROR else warning
        finding = make(code, message, var.location, focus=var_text(var.name))
        self.diagnostics.append(finding._replace(subject=f"@{self.program}^{block} {var_text(var.name)}"))

    def block(self, code: Code, message: str, index: int, focus: str = "", severity: Severity = Severity.ERROR) -> None:
        """A finding about a block."""
        location: Location | None = self.blocks[index].location
        make = error if severity is Severity.ERROR else warning
        finding = make(code, message, location, focus=focus or f"^{index}")
        self.diagnostics.append(finding._replace(subject=f"@{self.program}^{index}"))

    def attribute_focus(self, op: Op, attribute: str) -> str:
        """The text in the source statement with which an attribute begins: `name=`, or `name:` before its kind."""
        location = op.location
        written = word(attribute)
        if self.source is None or location is None or location.file != self.source.file:
            return f"{written}="
        if self._lines is None:
            self._lines = self.source.text.split("\n")
        text = statement_text(self._lines, location.line - 1) if 0 < location.line <= len(self._lines) else None
        return f"{written}:" if text and f"{written}:" in text and f"{written}=" not in text else f"{written}="

    def suggest(self, given: str, known: Iterable[str], sigil: str = "") -> str:
        """The `suggestion` for one of the first MAX_SUGGESTIONS names of a program, else "" (each takes long)."""
        self._suggestions += 1
        return suggestion(given, known, sigil) if self._suggestions <= MAX_SUGGESTIONS else ""
