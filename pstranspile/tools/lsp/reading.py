"""Findings of a text while it is typed: a changed statement is read again, and the rest only where necessary.

A text of 10,000 ops takes a few tenths of a second to read, and longer where a statement is wrong. An edit mostly
changes one statement. So the text is compared with the last one that could be read. New statements are put into the
module and old ones taken out; a wrong one is reported without reading the others again.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pstranspile.compiler.compile import trial, well_formed
from pstranspile.compiler.job import JobError
from pstranspile.compiler.job.file import job_text
from pstranspile.frontends.loading import in_place
from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, Severity, not_told_by
from pstranspile.ir.layout import BLANKS, statement_length
from pstranspile.ir.model import (
    Block,
    FrozenMap,
    Location,
    Module,
    Op,
    Origin,
    Program,
    SourceText,
    Var,
    collector_paused,
)
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.text.literals import STORAGE_CLASSES
from pstranspile.ir.text.reader import STRUCTURE
from pstranspile.ops.textual import parse
from pstranspile.tools.lsp.names import Placement, check_job, job_files, of_program, place
from pstranspile.tools.lsp.outline import Outline

MOST_CHANGED = 40
"""The most changed statements that are read one by one; with more, the whole text is read again."""

_ALIKE = 3
"""The number of equal statements in a row, in both texts, that ends a change."""


class Change(NamedTuple):
    """Lines `first_line` up to `last_line` of the new text stand where lines `old_first` up to `old_last` of the older
    one stood.

    Both begin and end between statements. Either may be empty.
    """

    first_line: int
    last_line: int
    old_first: int
    old_last: int

    @property
    def moves(self) -> int:
        """The number of lines by which what follows it stands further down."""
        return self.last_line - self.old_last


def changes(new: Outline, old: Outline) -> list[Change] | None:
    """The changes from an older text to a new one, from top to bottom; None where they are too many to separate.

    Statements outside of them are the same in both texts, one by one. Takes time in proportion to the texts.
    """
    window = _window(new, old)
    texts, old_texts = _statements(new, *window[:2]), _statements(old, *window[2:])
    result: list[Change] = []
    at, old_at, count = 0, 0, 0
    ends = (len(texts), len(old_texts))
    while (at, old_at) != ends:
        if at < ends[0] and old_at < ends[1] and texts[at][1] == old_texts[old_at][1]:
            at, old_at = at + 1, old_at + 1
            continue
        until, old_until = _next_alike(texts, old_texts, at, old_at)
        count += max(until - at, old_until - old_at)
        if count > MOST_CHANGED:
            return None
        first, last = _line(texts, at, window[1]), _line(texts, until, window[1])
        result.append(Change(first, last, _line(old_texts, old_at, window[3]), _line(old_texts, old_until, window[3])))
        at, old_at = until, old_until
    return result


def _window(new: Outline, old: Outline) -> Change:
    """One change that holds all: the lines between those that both texts begin with, and those that both end with."""
    shorter = min(len(new.lines), len(old.lines))
    pairs = enumerate(zip(new.lines, old.lines, strict=False))
    first = next((at for at, (one, other) in pairs if one != other), shorter)
    while first in new.continued_lines or first in old.continued_lines:
        first -= 1
    ends = enumerate(zip(reversed(new.lines), reversed(old.lines), strict=False))
    same = next((at for at, (one, other) in ends if one != other), shorter)
    same = min(same, shorter - first)
    last, old_last = len(new.lines) - same, len(old.lines) - same
    while last in new.continued_lines or old_last in old.continued_lines:
        last, old_last = last + 1, old_last + 1
    return Change(first, last, first, old_last)


def _statements(outline: Outline, first: int, last: int) -> list[tuple[int, str]]:
    """The statements that begin on lines `first` up to `last`, each with its first line and its text."""
    lines, further = outline.lines, outline.continued_lines
    bounds = [*[at for at in range(first, last) if at not in further], last]
    return [(at, lines[at] if end == at + 1 else "\n".join(lines[at:end])) for at, end in pairwise(bounds)]


def _line(statements: list[tuple[int, str]], at: int, end: int) -> int:
    return statements[at][0] if at < len(statements) else end


def _next_alike(
    texts: list[tuple[int, str]], old_texts: list[tuple[int, str]], at: int, old_at: int
) -> tuple[int, int]:
    """The places from which both go on alike, with as few statements left out as possible; their ends if that is too
    far.
    """
    ends = (len(texts), len(old_texts))
    for left_out in range(1, 2 * MOST_CHANGED + 1):
        for count in range(left_out + 1):
            here, there = at + count, old_at + left_out - count
            if here > ends[0] or there > ends[1]:
                continue
            if (here, there) == ends:
                return ends
            alike, old_alike = texts[here : here + _ALIKE], old_texts[there : there + _ALIKE]
            if alike and [text for _, text in alike] == [text for _, text in old_alike]:
                return here, there
    return ends


# A module after some of its text's statements changed, made of the module before: what stayed is kept, and moved.

Value = Op | Var
"""The value of a statement in a block: an op or a variable."""

_LOCATION = Var._fields.index("location")
# Called directly for speed: an edit may move a hundred thousand values.
_new: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def patch_module(
    module: Module, changes: Sequence[Change], values: Mapping[int, Value], outline: Outline, source: SourceText
) -> Module | None:
    """The module of a text, made of that of an older one.

    `values` are the ops and variables that new statements stand for, by line; `outline` is that of the new text. The
    changes must leave heads and ends of programs and blocks as they are, and be in blocks. None where the whole text
    must be read: a variable is declared twice, or an op that refers to blocks came or went.
    """
    if any(_refers(value) for value in values.values()):
        return None
    new: dict[tuple[str, int], dict[int, Value]] = {}
    for line, value in values.items():
        section = outline.section_at(line)
        if section is None:
            return None
        new.setdefault((section.program, section.block), {})[line] = value
    programs: dict[str, Program] = {}
    for name, program in module.programs.items():
        blocks: list[Block] = []
        for index, block in enumerate(program.blocks):
            made = _block(block, changes, new.get((name, index), {}), (name, index))
            if made is None:
                return None
            blocks.append(made)
        programs[name] = program._replace(blocks=tuple(blocks))
    return Module(FrozenMap(programs), source)


def _refers(value: Value) -> bool:
    """Whether an op refers to blocks, whose labels are those of the whole text."""
    return isinstance(value, Op) and any(isinstance(held, BlockRef | BlockRefs) for held in value.attrs.values())


def _block(
    block: Block, changes: Sequence[Change], values: Mapping[int, Value], where: tuple[str, int]
) -> Block | None:
    """A block after changes, with the new values of it by line; `where` are its program and number."""
    ops: list[Op] = []
    for change, old_range, out in _parts(block.ops, changes):
        if any(map(_refers, out)):
            return None
        for line in range(change.first_line, change.last_line):
            op = values.get(line)
            if isinstance(op, Op) and op.origin is not None:
                ops.append(op._replace(origin=Origin(*where, len(ops), op.origin.location)))
        ops += _moved_ops(block.ops[old_range], change.moves, len(ops) - old_range.start)
    variables: list[Var] = []
    declared = tuple(block.vars.values())
    for change, old_range, _ in _parts(declared, changes):
        new = [values.get(line) for line in range(change.first_line, change.last_line)]
        variables += [var for var in new if isinstance(var, Var)]
        variables += _moved_variables(declared[old_range], change.moves)
    names = FrozenMap(zip([var.name for var in variables], variables, strict=True))
    if len(names) != len(variables):
        return None
    head = block.location.line - 1 if block.location is not None else 0
    moves = next((change.moves for change in reversed(changes) if change.old_last <= head), 0)
    return block._replace(ops=tuple(ops), vars=names, location=_moved_statement(block.location, moves))


def _parts(values: Sequence[Value], changes: Sequence[Change]) -> Iterator[tuple[Change, slice, Sequence[Value]]]:
    """The changes, first one that changes nothing: the values of a block kept behind each, and those it takes out."""
    lines = [_line_at(value) for value in values]
    for change, following in pairwise((Change(0, 0, 0, 0), *changes, None)):
        assert change is not None
        first, last = bisect_left(lines, change.old_first), bisect_left(lines, change.old_last)
        end = bisect_left(lines, following.old_first) if following is not None else len(values)
        yield change, slice(last, end), values[first:last]


def _line_at(value: Value) -> int:
    """The line of a value, from 0; -1 where it comes from no text."""
    place = (value.origin.location if value.origin else None) if isinstance(value, Op) else value.location
    return place.line - 1 if place else -1


def _moved_ops(ops: Sequence[Op], lines: int, positions: int) -> Sequence[Op]:
    """The ops moved down by `lines` lines in the text, and by `positions` positions in their block."""
    if not lines and not positions:
        return ops
    result: list[Op] = []
    for op in ops:
        origin = op.origin
        assert origin is not None
        program, block, position, place, rule = origin
        origin = _new(Origin, (program, block, position + positions, _moved_statement(place, lines), rule))
        result.append(_new(Op, (*op[:-1], origin)))
    return result


def _moved_variables(variables: Sequence[Var], lines: int) -> Sequence[Var]:
    """The variables moved down by `lines` lines in the text."""
    if not lines:
        return variables
    before, after = slice(_LOCATION), slice(_LOCATION + 1, None)
    return [_new(Var, (*var[before], _moved_statement(var.location, lines), *var[after])) for var in variables]


def _moved_statement(place: Location | None, lines: int) -> Location | None:
    if place is None or not lines:
        return place
    return _new(Location, (place[0], place[1] + lines, place[2], place[3]))


_BEFORE = ("ir 1", "program @main {", "block ^0 {")
_AFTER = ("}", "}")

_OPENS_OR_ENDS = Pattern(rf".*\{{[{BLANKS}]*(#.*)?$|[{BLANKS}]*\}}").match


class TextReading(NamedTuple):
    """The result of reading a text: its outline, findings, and the module if it can be read.

    `base` is the last module that could be read, `base_outline` the outline of its text: statements with mistakes are
    blank there.
    """

    outline: Outline
    findings: tuple[Diagnostic, ...]
    module: Module | None
    base: Module | None
    base_outline: Outline


def read(text: str, file: str, before: TextReading | None = None) -> TextReading:
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
                return TextReading(outline, problem.diagnostics, None, before.base, before.base_outline)
            base, base_outline = _without_mistakes(outline, problem.diagnostics, file)
            return TextReading(outline, problem.diagnostics, None, base, base_outline)
        return TextReading(outline, _findings(module), module, module, outline)


def _findings(module: Module) -> tuple[Diagnostic, ...]:
    """What `pstranspile verify` tells of a module without compiling it."""
    try:
        in_place(module, module.source.file if module.source is not None else "")
    except DiagnosticError as problem:
        return problem.diagnostics
    return well_formed(module)


def _read_changes(
    outline: Outline, source: SourceText, before: TextReading, changed: Sequence[Change]
) -> TextReading | None:
    """The reading of a text, from the changes since an earlier one; None where they do not suffice."""
    base, old = before.base, before.base_outline
    starts = [
        at
        for change in changed
        for at in range(change.first_line, change.last_line)
        if at not in outline.continued_lines
    ]
    gone = [
        at for change in changed for at in range(change.old_first, change.old_last) if at not in old.continued_lines
    ]
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
    module = patch_module(base, changed, values, outline, source)
    if module is None:
        return None
    if wrong:
        return TextReading(outline, tuple(wrong), None, base, old)
    return TextReading(outline, _findings(module), module, module, outline)


def _declares_again(outline: Outline, start: int, base: Module, removed_lines: Set[int]) -> bool:
    """Whether a wrong statement may declare a variable that its block has, which counts though the rest is wrong.

    Declarations that are new as well are looked for in the text. Those on lines of `removed_lines` are no more. A
    declaration with a wrong first word counts as one that may.
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
    return (place is not None and place.line - 1 not in removed_lines) or len(
        outline.declarations.get(variable.name, ())
    ) > 1


def _is_plain(outline: Outline, start: int) -> bool:
    """Whether the statement of a line is blank, or an op or a declaration of a block."""
    section = outline.section_at(start)
    inside = section is not None and section.block >= 0 and start not in (section.first_line, section.last_line)
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
        return [_shift_finding(f, offset) for f in inside or findings[:1]]
    ops, variables = module.main.main_block.ops, module.main.main_block.vars
    for value in (*ops, *variables.values()):
        if isinstance(value, Var):
            return value._replace(location=_further(value.location, offset))
        place = value.origin.location if value.origin else None
        return value._replace(origin=Origin("", 0, 0, _further(place, offset)))
    return []


def _further(place: Location | None, lines: int) -> Location | None:
    return place._replace(line=place.line + lines) if place is not None and place.line else place


def _shift_finding(finding: Diagnostic, offset: int) -> Diagnostic:
    """A finding of a statement that was read by itself, moved to its place in the text."""
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


# The texts that an editor has open: their readings, and their jobs.


class _PlacedModule(NamedTuple):
    module: Module
    path: Path
    text: str
    placement: Placement


class Workspace:
    """Open texts by path. `text_in_editor` gives the text of a file as the editor has it, None where it is not open."""

    def __init__(self, text_in_editor: Callable[[Path], str | None]):
        self._text_in_editor = text_in_editor
        self._readings: dict[Path, tuple[str, TextReading]] = {}
        self._outlines: dict[Path, tuple[str, Outline]] = {}
        self._placed_modules: dict[Path, _PlacedModule] = {}
        self._tried_modules: dict[Path, tuple[Module, tuple[Diagnostic, ...]]] = {}

    def outline(self, path: Path, text: str) -> Outline:
        """The outline of a program's text."""
        known = self._outlines.get(path)
        if known is None or known[0] != text:
            known = self._outlines[path] = (text, Outline(text.replace("\r\n", "\n").split("\n")))
        return known[1]

    def reading(self, path: Path, text: str) -> TextReading:
        """The reading of a program's text."""
        known = self._readings.get(path)
        if known is None or known[0] != text:
            reading = read(text, str(path), known[1] if known else None)
            known = self._readings[path] = (text, reading)
            self._outlines[path] = (text, reading.outline)
        return known[1]

    def close(self, path: Path) -> None:
        """Forgets a program."""
        for known in (self._readings, self._outlines, self._placed_modules, self._tried_modules):
            known.pop(path, None)

    def findings(self, path: Path, text: str) -> tuple[Diagnostic, ...]:
        """All findings about a program: those of its reading, those of a compile for servers, as `pstranspile verify`
        tells them, and those of its job. What two of them tell is there once, an error before a warning.
        """
        reading = self.reading(path, text)
        if reading.module is None:
            return reading.findings
        tried = self._tried_modules.get(path)
        if tried is None or tried[0] is not reading.module:
            tried = self._tried_modules[path] = reading.module, trial(reading.module, reading.findings).further_findings
        placement = self.placement(path, text)
        of_job = placement.findings if placement is not None else ()
        of_job = not_told_by(of_job, (f for f in reading.findings if f.severity is Severity.ERROR))
        return (*not_told_by(reading.findings, of_job), *not_told_by(tried[1], of_job), *of_job)

    def placement(self, path: Path, text: str) -> Placement | None:
        """The placement of the program by its job; None without a job, or with errors in the program. That by a wrong
        job has its findings alone.
        """
        reading = self.reading(path, text)
        if reading.module is None or any(
            f.severity is Severity.ERROR and f.code != "parameter-without-value" for f in reading.findings
        ):
            return None  # a mode without servers takes what @startup does not initialise for loaded
        try:
            found = self._job_text(path)
        except JobError as problem:
            return Placement(of_program(problem.diagnostics))
        if found is None:
            return None
        known = self._placed_modules.get(path)
        if known is None or known[0] is not reading.module or known[1:3] != found:
            job, findings = check_job(*found)
            placement = place(reading.module, job) if job is not None else Placement(of_program(findings))
            known = self._placed_modules[path] = _PlacedModule(reading.module, *found, placement)
        return known.placement

    def last_placement(self, path: Path) -> Placement | None:
        """The last placement of a program, even if its text has changed since."""
        known = self._placed_modules.get(path)
        return known.placement if known else None

    def job_findings(self, path: Path, text: str) -> tuple[Diagnostic, ...]:
        """The findings about a job file's text."""
        return check_job(path, text)[1]

    def _job_text(self, program: Path) -> tuple[Path, str] | None:
        """The path and the text of a program's job, which need not be saved; None where there is none."""
        for file in job_files(program):
            text = self._text_in_editor(file)
            if text is not None:
                return file, text
            if os.path.lexists(file):
                return file, job_text(file)
        return None
