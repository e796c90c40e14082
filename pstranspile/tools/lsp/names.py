"""Declarations and uses of variables and blocks, and what renaming one changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pstranspile.compiler.compile import prepare
from pstranspile.compiler.job import Job, JobError, job_warnings
from pstranspile.compiler.job.file import job_of_text
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError
from pstranspile.ir.model import EMPTY, Location, Module
from pstranspile.ir.text.literals import name as written
from pstranspile.tools.lsp.outline import Declaration, Outline, Section
from pstranspile.tools.lsp.values import Hint, LineSpan, Piece, RequestRefused, TextPosition, piece_at, pieces, spans_of

# The job of a program in an editor: its errors, and the places of the program's variables.

SHOWN = 2
"""The most parts of a variable that a hint names; for more parts it gives their number."""


class ServerSlice(NamedTuple):
    """Rows `start` to `stop` of a variable on the server at `endpoint`, under the name it has there."""

    endpoint: str
    start: int
    stop: int
    name: str


class Placement(NamedTuple):
    """The result of compiling a module for a job: findings, the mode, and the parts of each variable on servers."""

    findings: tuple[Diagnostic, ...]
    mode: str = ""
    trainers: int = 0
    parts: Mapping[str, tuple[ServerSlice, ...]] = EMPTY


def job_files(program: Path) -> Iterator[Path]:
    """The paths of the job of a program, best first: `net.job.toml` next to `net.ir`, or `job.toml`; or JSON."""
    for name in (f"{program.stem}.job", "job"):
        yield from (program.with_name(f"{name}.{form}") for form in ("toml", "json"))


def is_job_file(path: Path) -> bool:
    """Whether a file is a job by its name."""
    return path.suffix in (".toml", ".json") and (path.stem == "job" or path.stem.endswith(".job"))


def check_job(path: Path, text: str) -> tuple[Job | None, tuple[Diagnostic, ...]]:
    """The job in a file's text, None if it has none; and the findings about it."""
    try:
        job = job_of_text(path, text)
    except JobError as problem:
        return None, problem.diagnostics
    return job, job_warnings(job)


def place(module: Module, job: Job) -> Placement:
    """The placement of a module without errors by a job."""
    try:
        compiled = prepare(module, job)
        rows = compiled.distributed_vars
    except DiagnosticError as problem:
        return Placement(problem.diagnostics)
    parts: dict[str, tuple[ServerSlice, ...]] = {}
    for row in rows:
        width = 1
        for size in row.slice_shape[1:]:
            width *= size
        start = row.offset // width if width else 0
        part = ServerSlice(row.endpoint, start, start + (row.slice_shape[0] if row.slice_shape else 1), row.slice)
        parts[row.origin] = (*parts.get(row.origin, ()), part)
    return Placement(compiled.warnings, compiled.plan.mode, compiled.plan.trainers, parts)


def of_program(findings: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The findings about a program's job, as those of the program: each names its place in the job file."""
    return tuple(f._replace(message=f"{_in_job(f.location)}{f.message}", location=None, notes=()) for f in findings)


def _in_job(place: Location | None) -> str:
    return "" if place is None else f"{place._replace(file=Path(place.file).name)}: "


def where(declared: Declaration, placement: Placement) -> tuple[str, str]:
    """(in a few words, in sentences) where a variable will live; empty for what a trainer makes in every step."""
    parts = placement.parts.get(declared.name, ())
    if not parts:
        if declared.storage != "param" or not placement.mode:
            return "", ""
        return "every trainer", f"Every trainer has it: mode {placement.mode} puts it on no server."
    whole = len(parts) == 1 or len({(part.start, part.stop) for part in parts}) == 1
    texts = [p.endpoint if whole else f"{p.endpoint} rows {p.start}..{p.stop}" for p in parts]
    few = (
        ", ".join(texts) if len(parts) <= SHOWN else f"{len(parts)} parts on {len({p.endpoint for p in parts})} servers"
    )
    lines = [f"- `{p.endpoint}`: rows {p.start} to {p.stop}, as `%{p.name}`" for p in parts]
    return few, "\n".join([f"On the servers (mode {placement.mode}):", "", *lines])


def hints(outline: Outline, placement: Placement, first: int, last: int) -> list[Hint]:
    """Hints of the machines on which parameters and kept variables will live, behind their declarations in @main, in
    lines `first` to `last`.
    """
    result: list[Hint] = []
    for declarations in outline.declarations.values():
        for declared in declarations:
            line = declared.span.line
            if declared.section.program == "main" and first <= line <= last:
                label, tip = where(declared, placement)
                if label:
                    end = outline.end_of(line)
                    result.append(Hint(TextPosition(end, len(outline.lines[end].rstrip())), f"→ {label}", tip))
    return sorted(result)


GRADIENT = "@GRAD"


class NameReference(NamedTuple):
    """What a place names: a `variable`, `label` or `program`, its name, and where it stands."""

    kind: str
    name: str
    span: LineSpan


def named_at(outline: Outline, spot: TextPosition) -> NameReference | None:
    """The variable, block or program at a place."""
    if spot.line >= len(outline.lines):
        return None
    piece = piece_at(outline.lines[spot.line], spot.column)
    if piece is None or piece.kind not in ("variable", "label", "program"):
        return None
    return NameReference(piece.kind, _name(piece), piece.span(spot.line))


def definitions(outline: Outline, named: NameReference) -> list[LineSpan]:
    """The declarations of a name: a variable in the block that the place sees it from, a block at its head."""
    line = named.span.line
    if named.kind == "variable":
        declared = outline.declaration(named.name, line)
        return [declared.span] if declared else []
    here = outline.section_at(line)
    return [
        LineSpan(section.first_line, *_head_span(outline.lines[section.first_line]))
        for section in outline.sections
        if here is not None and _is_meant(section, named, here)
    ]


def _is_meant(section: Section, named: NameReference, here: Section) -> bool:
    if named.kind == "label":
        return section.program == here.program and named.name == str(section.block)
    return section.block < 0 and section.program == named.name


def _head_span(line: str) -> tuple[int, int]:
    words = list(pieces(line))
    return words[1].start, words[1].stop


def references(outline: Outline, named: NameReference) -> list[LineSpan]:
    """All references to what is named at a place, its declaration included.

    A variable that programs keep (`param`, `state`) is one variable in all programs of the file.
    """
    if named.kind == "variable":
        return [span for first, last in _scope(outline, named) for span in _meaning(outline, named, first, last)]
    here = outline.section_at(named.span.line)
    if here is None:
        return []
    lines = range(len(outline.lines))
    if named.kind == "label":  # also in blocks that a wrong bracket has put behind their program
        own = [section for section in outline.sections if section.program == here.program]
        lines = sorted({number for section in own for number in range(section.first_line, section.last_line + 1)})
    return [
        piece.span(number)
        for number in lines
        for piece in pieces(outline.lines[number])
        if piece.kind == named.kind and _name(piece) == named.name
    ]


def uses(outline: Outline, named: NameReference) -> list[LineSpan]:
    """The references to what is named at a place, without its declarations."""
    if named.kind == "variable":
        declared = {declaration.span for declaration in outline.declarations.get(named.name, ())}
    else:
        declared = {*definitions(outline, named)}
    return [span for span in references(outline, named) if span not in declared]


def _name(piece: Piece) -> str:
    return piece.text[1:] if piece.kind == "label" else piece.name


def _scope(outline: Outline, named: NameReference) -> Iterator[tuple[int, int]]:
    """The programs in which a name can mean the same variable: all of them if it is kept, else its own. Blocks that a
    wrong bracket or head has put outside of programs count as parts of theirs.
    """
    declared = outline.declaration(named.name, named.span.line)
    here = outline.section_at(named.span.line)
    if here is None:
        return
    kept = declared is not None and declared.storage in ("param", "state")
    end = -1
    for section in outline.sections:
        if section.first_line > end:
            end = section.last_line
            if kept or section.program == here.program:
                yield section.first_line, section.last_line


def _meaning(outline: Outline, named: NameReference, first: int, last: int) -> Iterator[LineSpan]:
    """The places in a program at which a name means the variable, not another one of an inner block."""
    declared = outline.declaration(named.name, named.span.line)
    kept = declared is not None and declared.storage in ("param", "state")
    for span in spans_of(outline.lines, first, last, "variable", named.name):
        there = outline.declaration(named.name, span.line)
        same = there == declared
        if same or (kept and there is not None and there.storage in ("param", "state")):
            yield span


def rename(outline: Outline, named: NameReference, new: str) -> list[tuple[LineSpan, str]]:
    """The places that change, each with its new characters, when a variable is given another name.

    Its gradients (`%w@GRAD`, and what is named after them) are renamed with it. Raises Refused for what is no
    variable, for a name that is taken, and where a string names the variable, as programs of a cluster do.
    """
    if named.kind != "variable":
        raise RequestRefused("only variables can be renamed; blocks have the numbers of their order")
    new = new.removeprefix("%")
    if new.startswith('"') and new.endswith('"') and len(new) > 1:
        new = new[1:-1]
    if not new or "\n" in new:
        raise RequestRefused("a variable's name has at least one character, and no line ends")
    names = [named.name, *sorted(n for n in outline.declarations if n.startswith(named.name + GRADIENT))]
    changes: dict[LineSpan, str] = {}
    for old in names:
        name = new + old[len(named.name) :]
        if name in outline.declarations and name not in names:
            raise RequestRefused(f"there is a variable %{name} already")
        at = _string_naming(outline, old)
        if at is not None:
            raise RequestRefused(f"line {at + 1} names the variable in a string, which renaming does not change")
        for place in [named.span] if old == named.name else _gradient_declarations(outline, old, named):
            for span in references(outline, NameReference("variable", old, place)):
                changes[span] = f"%{written(name)}"
    return sorted(changes.items())


def _gradient_declarations(outline: Outline, name: str, named: NameReference) -> list[LineSpan]:
    """The declarations of the gradients of a variable, in the programs in which that is this variable."""
    scope = list(_scope(outline, named))
    places = [declared.span for declared in outline.declarations[name]]
    return [span for span in places if any(first <= span.line <= last for first, last in scope)]


def _string_naming(outline: Outline, name: str) -> int | None:
    """The first line with a string that is this name, or begins with it and a colon."""
    for number, line in enumerate(outline.lines):
        if '"' in line and name in line:
            for piece in pieces(line):
                text = piece.text[1:].rstrip('"')
                if piece.kind == "string" and (text == name or text.startswith(f"{name}:")):
                    return number
    return None
