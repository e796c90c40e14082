"""Diagnostics on stderr, with the source lines they are about."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Severity, fold_similar, not_told_by, render
from pstranspile.ir.model import SourceText

MAX_QUOTED_BYTES = 64 << 20
"""Files larger than this are not read again only to quote a line of them."""


PLEASE_REPORT = (
    "This is a fault of pstranspile, not of your program. Please report it with the command, its input and the "
    "output of the same command with --traceback."
)


class CommandFailure(Exception):
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

    `warnings` are printed after the block, or before what it raises: those alone that its errors do not tell.
    """
    try:
        yield
    except DiagnosticError as problem:
        findings = (*not_told_by(warnings, problem.diagnostics), *problem.diagnostics)
        report(findings, sources)
        raise CommandFailure(status_of(problem), findings, sources) from problem
    report(warnings, sources)


_ABOUT_USAGE = frozenset({"mode-unsupported", "pass-unknown", "start-token"})


def status_of(problem: DiagnosticError) -> int:
    """The exit status for findings: 2 about the job or options (wrong usage), otherwise 1."""
    from pstranspile.compiler.job import JobError

    about_usage = isinstance(problem, JobError) or any(d.code in _ABOUT_USAGE for d in problem.diagnostics)
    return 2 if about_usage else 1


def use_colour() -> bool:
    """Whether stderr is a terminal and the user has not asked for plain text (NO_COLOR)."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


_below_verdict: list[list[str]] = []
"""What is printed below each verdict that is to come, the next one last."""


@contextmanager
def verdict_first() -> Generator[None]:
    """Warnings that are reported inside are printed on stderr when the block ends, so that the verdict it prints on
    stdout stands above them; or as soon as an error is.
    """
    _below_verdict.append([])
    try:
        yield
    finally:
        _print_waiting()
        _below_verdict.pop()


def _print_waiting() -> None:
    for texts in _below_verdict:
        if texts:
            sys.stdout.flush()
            print("\n".join(texts), file=sys.stderr)
            texts.clear()


def report(
    diagnostics: Iterable[Diagnostic], sources: Iterable[SourceText | None] = (), *, every: bool = False
) -> None:
    """Prints the findings, of many that are alike one with their number, unless `every` one is asked for.

    Lines are quoted from `sources`, and from files still on disk for the rest.
    """
    findings = tuple(diagnostics)
    findings = findings if every else tuple(fold_similar(findings))
    if not findings:
        return
    text = render(findings, texts_of(findings, sources), colour=use_colour())
    if _below_verdict and all(finding.severity is Severity.WARNING for finding in findings):
        _below_verdict[-1].append(text)
        return
    _print_waiting()
    print(text, file=sys.stderr)


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
