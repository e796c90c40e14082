"""The job of a program in an editor: its errors, and the places of the program's variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pstranspile.compiler.compile import prepare
from pstranspile.compiler.job import Job, JobError, job_warnings
from pstranspile.compiler.job.file import job_of_text
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError
from pstranspile.ir.frozen import EMPTY
from pstranspile.ir.model import Module
from pstranspile.tools.lsp.outline import Declaration, Outline
from pstranspile.tools.lsp.values import Hint, Spot

SHOWN = 2
"""Parts of a variable that a hint names; of more it gives the number."""


class Part(NamedTuple):
    """Rows `start` to `stop` of a variable on the server at `endpoint`, under the name it has there."""

    endpoint: str
    start: int
    stop: int
    name: str


class Placement(NamedTuple):
    """What a job makes of a module: findings about the module, the mode, and the parts of each variable on servers."""

    findings: tuple[Diagnostic, ...]
    mode: str = ""
    trainers: int = 0
    parts: Mapping[str, tuple[Part, ...]] = EMPTY


def job_files(program: Path) -> Iterator[Path]:
    """The paths of the job of a program, best first: `net.job.toml` next to `net.ir`, or `job.toml`; or JSON."""
    for name in (f"{program.stem}.job", "job"):
        yield from (program.with_name(f"{name}.{form}") for form in ("toml", "json"))


def is_job_file(path: Path) -> bool:
    """Whether a file is a job by its name."""
    return path.suffix in (".toml", ".json") and (path.stem == "job" or path.stem.endswith(".job"))


def check_job(path: Path, text: str) -> tuple[Job | None, tuple[Diagnostic, ...]]:
    """The job of a file's text, None if there is none in it; and what is wrong with it."""
    try:
        job = job_of_text(path, text)
    except JobError as problem:
        return None, problem.diagnostics
    return job, job_warnings(job)


def place(module: Module, job: Job) -> Placement:
    """What a job makes of a module without errors."""
    try:
        compiled = prepare(module, job)
        rows = compiled.distributed_vars
    except DiagnosticError as problem:
        return Placement(problem.diagnostics)
    parts: dict[str, tuple[Part, ...]] = {}
    for row in rows:
        width = 1
        for size in row.slice_shape[1:]:
            width *= size
        start = row.offset // width if width else 0
        part = Part(row.endpoint, start, start + (row.slice_shape[0] if row.slice_shape else 1), row.slice)
        parts[row.origin] = (*parts.get(row.origin, ()), part)
    return Placement(compiled.warnings, compiled.plan.mode, compiled.plan.trainers, parts)


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
                    result.append(Hint(Spot(end, len(outline.lines[end].rstrip())), f"→ {label}", tip))
    return sorted(result)
