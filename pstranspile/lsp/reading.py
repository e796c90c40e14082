"""Findings of a text as it is typed: what a keystroke changed is read anew, and the rest only where it must be.

A text of 10,000 ops takes a few tenths of a second to read, and several times that where a statement is wrong and each
has to be looked at. An edit mostly changes one statement. So the lines are compared with those of the last text that
could be read: a statement that took the place of another is put into the module, and a wrong one is reported alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.collector import collector_paused
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, Severity
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Location, Module, Op, Origin, SourceText, Var
from pstranspile.ir.text.diagnose import STRUCTURE
from pstranspile.lsp.outline import Outline, Section
from pstranspile.ops.textual import parse
from pstranspile.verify import verify

MOST_CHANGED = 40
"""With more statements changed, the whole text is read anew."""

_INSIDE_BLOCK = ("ir 1", "program @main {", "block ^0 {")
_INSIDE_PROGRAM = _INSIDE_BLOCK[:2]

Value = Op | Var
"""What a statement in a block stands for."""


class Reading(NamedTuple):
    """What a text says: its outline, findings, and the module if it can be read.

    `base` is the last module that could be read, `base_lines` the text of it: lines with mistakes are empty there.
    """

    outline: Outline
    findings: tuple[Diagnostic, ...]
    module: Module | None
    base: Module | None
    base_lines: list[str]


def read(text: str, file: str, before: Reading | None = None) -> Reading:
    """Reads a text and verifies it. `before` is what an earlier text of the file gave."""
    lines = (text.replace("\r\n", "\n") if "\r" in text else text).split("\n")
    outline = Outline(lines)
    source = SourceText(file, text)
    with collector_paused():
        if before is not None and before.base is not None:
            changed = _changed_lines(outline.lines, before.base_lines)
            starts = list(dict.fromkeys(map(outline.start_of, changed)))
            if len(starts) <= MOST_CHANGED:
                wrong, values = _read_statements(outline, starts, file)
                if wrong:
                    return Reading(outline, tuple(wrong), None, before.base, before.base_lines)
                if len(values) == len(starts) and len(lines) == len(before.base_lines):
                    module = _patched(before.base, {**dict.fromkeys(changed), **values}, source)
                    if module is not None:
                        return Reading(outline, verify(module), module, module, lines)
        try:
            module = parse(text, file)
        except DiagnosticError as problem:
            base, base_lines = _without_mistakes(outline, problem.diagnostics, file)
            return Reading(outline, problem.diagnostics, None, base, base_lines)
        return Reading(outline, verify(module), module, module, lines)


def _changed_lines(new: Sequence[str], old: Sequence[str]) -> list[int]:
    """The lines of a text that an older one does not have there; with other numbers of lines, all between the ends."""
    if len(new) == len(old):
        return [at for at, (one, other) in enumerate(zip(new, old, strict=True)) if one != other]
    first, last = 0, 0
    shorter = min(len(new), len(old))
    while first < shorter and new[first] == old[first]:
        first += 1
    while last < shorter - first and new[-1 - last] == old[-1 - last]:
        last += 1
    return list(range(first, len(new) - last))


def _read_statements(
    outline: Outline, starts: Iterable[int], file: str
) -> tuple[list[Diagnostic], dict[int, Value | None]]:
    """What is wrong with single statements, and what those stand for that are ops and declarations (None: blank).

    Heads and ends of blocks are in neither, nor what only the whole text can tell.
    """
    wrong: list[Diagnostic] = []
    values: dict[int, Value | None] = {}
    for start in starts:
        section = outline.section_at(start)
        lines = outline.lines[start : outline.end_of(start) + 1]
        words = outline.statement(start)
        if not words:
            values[start] = None
        elif section is not None and start not in (section.first, section.last):
            result = _read_statement(lines, start, section, file)
            if isinstance(result, Value):
                values[start] = result
            else:
                wrong += result
    return wrong, values


def _read_statement(lines: list[str], start: int, section: Section, file: str) -> Value | Sequence[Diagnostic]:
    """The op or variable of a statement, or what is wrong with it (nothing, where only the whole text can tell)."""
    before = _INSIDE_BLOCK if section.block >= 0 else _INSIDE_PROGRAM
    after = ["}"] * (len(before) - 1)
    offset = start - len(before)
    try:
        module = parse("\n".join([*before, *lines, *after]), file)
    except DiagnosticError as problem:
        return [_moved(f, offset, start, len(lines)) for f in problem.diagnostics if f.code not in STRUCTURE]
    block = module.main.main_block
    for op in block.ops:
        place = op.origin.location if op.origin else None
        return op._replace(origin=Origin("", 0, 0, _further(place, offset)))
    for var in block.vars.values():
        return var._replace(location=_further(var.location, offset))
    return []


def _further(place: Location | None, lines: int) -> Location | None:
    return place._replace(line=place.line + lines) if place is not None and place.line else place


def _moved(finding: Diagnostic, offset: int, start: int, count: int) -> Diagnostic:
    """A finding of a statement read by itself, where it stands in the text."""
    place = _further(finding.location, offset)
    if place is None or not start < place.line <= start + count:
        place = Location(place.file if place else "", start + 1, 1)
    notes = tuple(Note(n.message, _further(n.location, offset), n.focus) for n in finding.notes)
    return finding._replace(location=place, notes=notes)


def _patched(module: Module, values: dict[int, Value | None], source: SourceText) -> Module | None:
    """The module with what changed lines stand for; None unless each took the place of one of its kind."""
    wanted = {start + 1: value for start, value in values.items()}
    programs = dict(module.programs)
    replaced = 0
    for name, program in module.programs.items():
        blocks = list(program.blocks)
        for index, block in enumerate(blocks):
            ops = {number: op for number, op in enumerate(block.ops) if _line(op) in wanted}
            variables = [var for var in block.vars.values() if _line(var) in wanted]
            made = _with_values(ops, variables, wanted)
            if made is None:
                return None
            new_ops, new_vars = made
            replaced += len(ops) + len(variables)
            names = [new_vars.get(key, var) for key, var in block.vars.items()]
            if len({var.name for var in names}) != len(names):
                return None  # a name twice, which reading the whole text reports
            listed = list(block.ops)
            for number, op in new_ops.items():
                listed[number] = op
            blocks[index] = block._replace(ops=tuple(listed), vars=FrozenMap({var.name: var for var in names}))
        programs[name] = program._replace(blocks=tuple(blocks))
    complete = replaced == sum(value is not None for value in wanted.values())
    return Module(FrozenMap(programs), source) if complete else None


def _with_values(
    ops: dict[int, Op], variables: list[Var], wanted: dict[int, Value | None]
) -> tuple[dict[int, Op], dict[str, Var]] | None:
    """The new op for each old one by number, the new variable for each old one by name; None for other kinds."""
    new_ops: dict[int, Op] = {}
    new_vars: dict[str, Var] = {}
    for number, old in ops.items():
        new = wanted[_line(old)]
        if not isinstance(new, Op) or new.origin is None or old.origin is None or _refers(new) or _refers(old):
            return None
        new_ops[number] = new._replace(origin=old.origin._replace(location=new.origin.location))
    for old in variables:
        new = wanted[_line(old)]
        if not isinstance(new, Var):
            return None
        new_vars[old.name] = new
    return new_ops, new_vars


def _refers(op: Op) -> bool:
    """Whether an op refers to blocks, whose labels are those of the whole text."""
    return any(isinstance(value, BlockRef | BlockRefs) for value in op.attrs.values())


def _line(value: Value) -> int:
    place = (value.origin.location if value.origin else None) if isinstance(value, Op) else value.location
    return place.line if place else 0


def _without_mistakes(outline: Outline, findings: Iterable[Diagnostic], file: str) -> tuple[Module | None, list[str]]:
    """The module of a text whose wrong statements are taken out, to compare further texts with."""
    lines = list(outline.lines)
    for at in _lines_of(findings):
        if at < len(lines):
            for line in range(outline.start_of(at), outline.end_of(at) + 1):
                lines[line] = ""
    try:
        return parse("\n".join(lines), file), lines
    except DiagnosticError:
        return None, []


def _lines_of(findings: Iterable[Diagnostic]) -> Iterator[int]:
    return (f.location.line - 1 for f in findings if f.location and f.location.line and f.severity is Severity.ERROR)
