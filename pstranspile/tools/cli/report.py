"""Diagnostics on stderr, with the source lines they are about."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Severity, folded, render
from pstranspile.ir.model import SourceText

MAX_QUOTED_BYTES = 64 << 20
"""Files larger than this are not read again only to quote a line of them."""


PLEASE_REPORT = (
    "This is a fault of pstranspile, not of your program. Please report it with the command, its input and the "
    "output of the same command with --traceback."
)


class Reported(Exception):
    """The command has failed and has reported why; carries its exit status, what it has reported, and the texts that
    the findings point into.
    """

    def __init__(self, status: int, findings: tuple[Diagnostic, ...], sources: tuple[SourceText | None, ...]):
        super().__init__(f"exit status {status}")
        self.status = status
        self.findings = findings
        self.sources = sources


@contextmanager
def quoting(*sources: SourceText | None, warnings: Iterable[Diagnostic] = ()) -> Generator[None]:
    """Findings raised inside are printed with lines of `sources`; the command then ends.

    `warnings` are printed after the block, or before what it raises: those alone that it does not raise as errors.
    """
    try:
        yield
    except DiagnosticError as problem:
        raised = {_as_error(finding) for finding in problem.diagnostics}
        findings = (*(item for item in warnings if _as_error(item) not in raised), *problem.diagnostics)
        report(findings, sources)
        raise Reported(status_of(problem), findings, sources) from problem
    report(warnings, sources)


def _as_error(finding: Diagnostic) -> Diagnostic:
    """A finding without what differs where it is a warning at first and an error later."""
    return finding._replace(severity=Severity.ERROR, notes=())


_ABOUT_USAGE = frozenset({"mode-unsupported", "pass-unknown"})


def status_of(problem: DiagnosticError) -> int:
    """The exit status for findings: 2 about the job or options (wrong usage), otherwise 1."""
    from pstranspile.compiler.job import JobError

    about_usage = isinstance(problem, JobError) or any(d.code in _ABOUT_USAGE for d in problem.diagnostics)
    return 2 if about_usage else 1


def use_colour() -> bool:
    """Whether stderr is a terminal and the user has not asked for plain text (NO_COLOR)."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


def report(
    diagnostics: Iterable[Diagnostic], sources: Iterable[SourceText | None] = (), *, every: bool = False
) -> None:
    """Prints the findings, of many that are alike one with their number, unless `every` one is asked for.

    Lines are quoted from `sources`, and from files still on disk for the rest.
    """
    findings = tuple(diagnostics)
    findings = findings if every else tuple(folded(findings))
    if findings:
        print(render(findings, texts_of(findings, sources), colour=use_colour()), file=sys.stderr)


def texts_of(findings: Iterable[Diagnostic], sources: Iterable[SourceText | None] = ()) -> dict[str, str]:
    """The texts that findings point into, by file name: from `sources`, or from files still on disk."""
    texts = {source.file: source.text for source in sources if source is not None}
    for file in sorted(_files(findings) - texts.keys()):
        text = _reread(file)
        if text is not None:
            texts[file] = text
    return texts


def _files(findings: Iterable[Diagnostic]) -> set[str]:
    places = [place for d in findings for place in (d.location, *(note.location for note in d.notes))]
    return {place.file for place in places if place is not None and place.line > 0}


def _reread(file: str) -> str | None:
    try:
        path = Path(file)
        if not path.is_file() or path.stat().st_size > MAX_QUOTED_BYTES:
            return None
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):  # gone, or no text: the finding is printed without its line
        return None
