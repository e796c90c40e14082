"""Findings for programs to read: as JSON, and as SARIF 2.1.0, which code hosts and editors show."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pstranspile
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, Severity, marked_span
from pstranspile.ir.json_text import json_text
from pstranspile.ir.model import Location
from pstranspile.tools.cli.report import CommandFailure, texts_of


@contextmanager
def errors_as_json(wanted: bool) -> Generator[None]:
    """For commands with `--json`: where the block raises findings, they also are the JSON on stdout, in the form of
    `verify --json`, so that whoever parses stdout finds a document there however the command ends.
    """
    try:
        yield
    except DiagnosticError as problem:
        if wanted:
            print_errors(problem.diagnostics)
        raise
    except CommandFailure as problem:
        if wanted:
            sys.stdout.write(json_text(findings_json(problem.findings, texts_of(problem.findings, problem.sources))))
        raise


def print_errors(findings: Sequence[Diagnostic]) -> None:
    """Prints findings as the JSON of a command that they have ended."""
    sys.stdout.write(json_text(findings_json(findings, texts_of(findings))))


SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
"""The schema that a SARIF log names (OASIS, Static Analysis Results Interchange Format 2.1.0)."""

Lines = Mapping[str, list[str]]
"""The lines of each file, by its name."""


def findings_json(findings: Sequence[Diagnostic], texts: Mapping[str, str]) -> dict[str, Any]:
    """Findings as `verify --json` prints them; `texts` are those of the files, for exact columns.

    Lines and columns count from 1, `end_column` is the one after the last character that is marked. All three are null
    where a finding has no place in a text; `file` is null where it is about no file.
    """
    lines = _lines(texts)
    return {
        "version": 1,
        "errors": sum(finding.severity is Severity.ERROR for finding in findings),
        "warnings": sum(finding.severity is Severity.WARNING for finding in findings),
        "findings": [
            {
                **_place(finding.location, finding.focus, lines),
                "severity": finding.severity.value,
                "code": finding.code,
                "message": finding.message,
                "subject": finding.subject,
                "notes": [
                    {**_place(note.location, note.focus, lines), "message": note.message} for note in finding.notes
                ],
            }
            for finding in findings
        ],
    }


def findings_sarif(findings: Sequence[Diagnostic], texts: Mapping[str, str]) -> dict[str, Any]:
    """Findings as a SARIF log with one run; `texts` are those of the files, for exact columns."""
    lines = _lines(texts)
    codes = sorted({finding.code for finding in findings})
    driver = {
        "name": "pstranspile",
        "version": pstranspile.__version__,
        "rules": [{"id": code} for code in codes],
    }
    results = [_result(finding, codes.index(finding.code), lines) for finding in findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(finding: Diagnostic, rule: int, lines: Lines) -> dict[str, Any]:
    subject = f"{finding.subject}: " if finding.subject and finding.location is None else ""
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.severity.value,
        "message": {"text": subject + finding.message},
    }
    place = _physical(finding.location, finding.focus, lines)
    result["locations"] = [place] if place else []
    related = [_related_location(note, lines) for note in finding.notes]
    return {**result, "relatedLocations": related} if related else result


def _related_location(note: Note, lines: Lines) -> dict[str, Any]:
    return {**(_physical(note.location, note.focus, lines) or {}), "message": {"text": note.message}}


def _physical(location: Location | None, focus: str, lines: Lines) -> dict[str, Any] | None:
    place = _place(location, focus, lines)
    if place["file"] is None:
        return None
    result: dict[str, Any] = {"artifactLocation": {"uri": quote(os.fsencode(place["file"]), safe="/:<>")}}
    if place["line"] is not None:
        names = {"line": "startLine", "column": "startColumn", "end_column": "endColumn"}
        result["region"] = {names[key]: place[key] for key in names if place[key] is not None}
    return {"physicalLocation": result}


def _place(location: Location | None, focus: str, lines: Lines) -> dict[str, Any]:
    """The file, line and columns that a finding marks."""
    if location is None or location.line == 0:
        return {"file": location.file if location else None, "line": None, "column": None, "end_column": None}
    line, column, end = location.line, location.column or None, None
    if location.line <= len(lines.get(location.file, ())):
        index, start, width = marked_span(location, focus, lines[location.file])
        line, column, end = index + 1, start + 1, start + width + 1
    return {"file": location.file, "line": line, "column": column, "end_column": end}


def _lines(texts: Mapping[str, str]) -> dict[str, list[str]]:
    return {name: text.split("\n") for name, text in texts.items()}
