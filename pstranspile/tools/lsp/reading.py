"""Findings of a text as it is typed: what a keystroke changed is read anew, and the rest only where it must be.

A text of 10,000 ops takes a few tenths of a second to read, and longer where a statement is wrong. An edit mostly
A text of 10,000 ops takes a few tenths of a second to read, and longer where a statement is wrong. An edit mostly
changes one statement. So the text is compared with the last one that could be read (`changes.py`). New statements are
put into the module and old ones taken out (`patching.py`); a wrong one is reported without reading the others again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from pstranspile.compiler.verify import verify
from pstranspile.ir.collector import collector_paused
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, Severity
from pstranspile.ir.layout import BLANKS, statement_length
from pstranspile.ir.model import Location, Module, Origin, SourceText, Var
from pstranspile.ir.text.diagnose import STRUCTURE
from pstranspile.ir.text.literals import STORAGE_CLASSES
from pstranspile.ops.textual import parse
from pstranspile.tools.lsp.changes import Change, changes
from pstranspile.tools.lsp.outline import Outline
from pstranspile.tools.lsp.patching import Value, patched

_BEFORE = ("ir 1", "program @main {", "block ^0 {")
_AFTER = ("}", "}")

_OPENS_OR_ENDS = re.compile(rf".*\{{[{BLANKS}]*(#.*)?$|[{BLANKS}]*\}}").match


class Reading(NamedTuple):
    """The result of reading a text: its outline, findings, and the module if it can be read.

    `base` is the last module that could be read, `base_outline` the outline of its text: statements with mistakes are
    blank there.
    """

    outline: Outline
    findings: tuple[Diagnostic, ...]
    module: Module | None
    base: Module | None
    base_outline: Outline


def read(text: str, file: str, before: Reading | None = None) -> Reading:
    """Reads a text and verifies it. `before` is what an earlier text of the file gave."""
    outline = Outline((text.replace("\r\n", "\n") if "\r" in text else text).split("\n"))
    with collector_paused():
        changed = changes(outline, before.base_outline) if before is not None and before.base is not None else None
        if before is not None and changed is not None:
            reading = _read_changes(outline, SourceText(file, text), before, changed)
            if reading is not None:
                return reading
        try:
            module = parse(text, file)
        except DiagnosticError as problem:
            if before is not None and changed is not None:
                return Reading(outline, problem.diagnostics, None, before.base, before.base_outline)
            base, base_outline = _without_mistakes(outline, problem.diagnostics, file)
            return Reading(outline, problem.diagnostics, None, base, base_outline)
        return Reading(outline, verify(module), module, module, outline)


def _read_changes(outline: Outline, source: SourceText, before: Reading, changed: Sequence[Change]) -> Reading | None:
    """The reading of a text, from the changes since an earlier one; None where they do not suffice."""
    base, old = before.base, before.base_outline
    starts = [at for change in changed for at in range(change.first, change.last) if at not in outline.further]
    gone = [at for change in changed for at in range(change.old_first, change.old_last) if at not in old.further]
    if base is None or not all(_is_plain(old, at) for at in gone) or not all(_is_plain(outline, at) for at in starts):
        return None
    wrong: list[Diagnostic] = []
    values: dict[int, Value] = {}
    for start in starts:
        if outline.statement(start):
            result = _read_statement(outline, start, source.file)
            if isinstance(result, Value):
                values[start] = result
            elif not result or _declares_again(outline, start, base, {*gone}):
                return None
            else:
                wrong += result
    module = patched(base, changed, values, outline, source)
    if module is None:
        return None
    if wrong:
        return Reading(outline, tuple(wrong), None, base, old)
    return Reading(outline, verify(module), module, module, outline)


def _declares_again(outline: Outline, start: int, base: Module, gone: Set[int]) -> bool:
    """Whether a wrong statement may declare a variable that its block has, which counts though the rest is wrong.

    Declarations that are new as well are looked for in the text. Those on lines of `gone` are no more. A declaration
    with a wrong first word counts as one that may.
    """
    section = outline.section_at(start)
    words = [piece for _, piece in outline.statement(start)]
    if section is None or len(words) < 2 or words[1].kind != "variable":
        return False
    if words[0].text not in STORAGE_CLASSES:
        return True
    variable = words[1]
    declared = base.programs[section.program].blocks[section.block].vars.get(variable.name)
    place = declared.location if declared is not None else None
    return (place is not None and place.line - 1 not in gone) or len(outline.declarations.get(variable.name, ())) > 1


def _is_plain(outline: Outline, start: int) -> bool:
    """Whether the statement of a line is blank, or an op or a declaration of a block."""
    section = outline.section_at(start)
    inside = section is not None and section.block >= 0 and start not in (section.first, section.last)
    return inside or not outline.statement(start)


def _read_statement(outline: Outline, start: int, file: str) -> Value | Sequence[Diagnostic]:
    """The op or variable of a statement, or its finding (nothing where the whole text must be read for it).

    Where its brackets stay open, what follows it is read as well, because it may be refused there.
    """
    count = outline.end_of(start) + 1 - start
    lines = outline.lines[start : start + max(count, statement_length(outline.lines, start))]
    offset = start - len(_BEFORE)
    try:
        module = parse("\n".join([*_BEFORE, *lines, *_AFTER]), file)
    except DiagnosticError as problem:
        if any(map(_OPENS_OR_ENDS, lines[:count])):
            return []  # it may be meant as the head or the end of a block
        findings = [f for f in problem.diagnostics if f.code not in STRUCTURE]
        places = [f.location.line - len(_BEFORE) if f.location is not None else 0 for f in findings]
        inside = [f for f, place in zip(findings, places, strict=True) if 0 < place <= count]
        return [_moved(f, offset) for f in inside or findings[:1]]
    ops, variables = module.main.main_block.ops, module.main.main_block.vars
    for value in (*ops, *variables.values()):
        if isinstance(value, Var):
            return value._replace(location=_further(value.location, offset))
        place = value.origin.location if value.origin else None
        return value._replace(origin=Origin("", 0, 0, _further(place, offset)))
    return []


def _further(place: Location | None, lines: int) -> Location | None:
    return place._replace(line=place.line + lines) if place is not None and place.line else place


def _moved(finding: Diagnostic, offset: int) -> Diagnostic:
    """A finding of a statement read by itself, where it stands in the text."""
    notes = tuple(Note(n.message, _further(n.location, offset), n.focus) for n in finding.notes)
    return finding._replace(location=_further(finding.location, offset), notes=notes)


def _without_mistakes(outline: Outline, findings: Iterable[Diagnostic], file: str) -> tuple[Module | None, Outline]:
    """The module of a text whose wrong statements are taken out, to compare further texts with."""
    lines = list(outline.lines)
    for at in (
        f.location.line - 1 for f in findings if f.location and f.location.line and f.severity is Severity.ERROR
    ):
        if at < len(lines):
            for line in range(outline.start_of(at), outline.end_of(at) + 1):
                lines[line] = ""
    try:
        return parse("\n".join(lines), file), Outline(lines)
    except DiagnosticError:
        return None, outline
