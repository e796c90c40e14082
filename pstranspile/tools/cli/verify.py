"""`pstranspile verify`: check that programs are well formed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pstranspile
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, Severity, counted, marked
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Location, Module, Program, Role, SourceText
from pstranspile.tools.cli.common import STDIN, add_companions, add_severity, allowed, make_parser
from pstranspile.tools.cli.report import report, status_of, texts_of

# Diagnostics for programs to read: as JSON, and as SARIF 2.1.0, which code hosts and editors show.

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
    related = [_related(note, lines) for note in finding.notes]
    return {**result, "relatedLocations": related} if related else result


def _related(note: Note, lines: Lines) -> dict[str, Any]:
    return {**(_physical(note.location, note.focus, lines) or {}), "message": {"text": note.message}}


def _physical(location: Location | None, focus: str, lines: Lines) -> dict[str, Any] | None:
    place = _place(location, focus, lines)
    if place["file"] is None:
        return None
    result: dict[str, Any] = {"artifactLocation": {"uri": quote(place["file"], safe="/:<>")}}
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
        index, start, width = marked(location, focus, lines[location.file])
        line, column, end = index + 1, start + 1, start + width + 1
    return {"file": location.file, "line": line, "column": column, "end_column": end}


def _lines(texts: Mapping[str, str]) -> dict[str, list[str]]:
    return {name: text.split("\n") for name, text in texts.items()}


def run(arguments: Sequence[str]) -> int:
    """Prints the findings of every input; 1 when one of them is an error."""
    parser = make_parser(
        "verify",
        "Checks programs and prints what is wrong with them, on stderr. Every input is looked at, also when "
        "an earlier one has errors. Warnings leave the exit status at 0. Of a folder every machine's programs are "
        "checked, and whether they fit together. What @startup leaves without a value is an error, as it is when the "
        "program is compiled for servers; other commands take it for loaded.\n\n"
        "docs/reference/diagnostics.md explains the codes.",
        ["net.ir", "main.pb --startup startup.pb", "out", "net.ir --sarif > findings.sarif"],
    )
    parser.add_argument(
        "inputs",
        metavar="INPUT",
        nargs="+",
        help=".ir files, serialized ProgramDescs, folders that `compile -o` wrote, or - for text on stdin",
    )
    add_companions(parser)
    add_severity(parser)
    parser.add_argument("--all", action="store_true", help="print every finding, also where many are alike")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print every finding as JSON, on stdout")
    forms.add_argument(
        "--sarif", action="store_true", help="print every finding as a SARIF 2.1.0 log, on stdout, for code hosts"
    )
    options = parser.parse_args(arguments)
    if len(options.inputs) > 1 and (options.startup or options.meta):
        parser.error("--startup and --meta go with a single INPUT")
    codes = allowed(options)
    printed = _Log() if options.json or options.sarif else _Terminal(options.all)
    status = 0
    for path in options.inputs:
        if path != "-" and os.path.isdir(path):
            status = max(status, _verify_folder(path, options, codes, printed))
        else:
            status = max(status, _verify_input(path, options, codes, printed))
    if isinstance(printed, _Log):
        print(printed.text(sarif=options.sarif), end="")
    return status


class _Terminal:
    """Prints findings for a person, on stderr, as they come."""

    def __init__(self, every: bool):
        self._every = every

    def findings(self, findings: Iterable[Diagnostic], sources: Iterable[SourceText | None] = ()) -> None:
        """Takes findings about texts."""
        report(findings, sources, every=self._every)

    def remark(self, text: str) -> None:
        """Takes a sentence about an input as a whole."""
        print(text, file=sys.stderr)


class _Log:
    """Keeps findings for a program to read, all in one document."""

    def __init__(self) -> None:
        self._findings: list[Diagnostic] = []
        self._texts: dict[str, str] = {}

    def findings(self, findings: Iterable[Diagnostic], sources: Iterable[SourceText | None] = ()) -> None:
        """Takes findings about texts."""
        taken = tuple(findings)
        self._findings += taken
        self._texts |= texts_of(taken, sources)

    def remark(self, text: str) -> None:
        """A sentence about an input as a whole says nothing beyond its findings."""

    def text(self, *, sarif: bool) -> str:
        """The document: JSON, or SARIF."""
        from pstranspile.ir.json_text import json_text

        return json_text((findings_sarif if sarif else findings_json)(self._findings, self._texts))


def _verify_input(path: str, options: argparse.Namespace, allow: Sequence[str], printed: _Terminal | _Log) -> int:
    from pstranspile.frontends.loading import load, load_bytes, read_stdin

    texts: list[SourceText] = []

    def read() -> Module:
        if path != "-":
            return load(path, options.startup, options.meta, report=printed.findings)
        data = read_stdin()
        texts.append(SourceText(STDIN, data.decode("utf-8", errors="replace")))  # which can't be read again to quote it
        return load_bytes(data, STDIN, options.startup, options.meta, report=printed.findings)

    return _verify(path, read, options, allow, printed, texts)


def _verify_folder(folder: str, options: argparse.Namespace, allow: Sequence[str], printed: _Terminal | _Log) -> int:
    """The programs of every machine, then, where none has errors, all of them together."""
    from pstranspile.compiler.folders import load_role, roles_in
    from pstranspile.compiler.link import LinkError, link
    from pstranspile.runtime.files.outputs import is_role

    modules: dict[str, Module] = {}

    def load(role: str, paths: list[Path]) -> Module:
        modules[role] = load_role(paths, printed.findings)
        return modules[role]

    try:
        files = roles_in(folder)
    except DiagnosticError as problem:
        printed.findings(problem.diagnostics)
        return status_of(problem)
    statuses = [
        _verify(str(paths[0]), lambda role=role, paths=paths: load(role, paths), options, allow, printed)
        for role, paths in files.items()
    ]
    whole = all(is_role(role) and {MAIN, STARTUP} <= {*module.programs} for role, module in modules.items())
    if any(statuses) or not whole:
        return max(statuses)
    roles = [
        Role(name, module[MAIN], module[STARTUP], _without(module.programs, MAIN, STARTUP))
        for name, module in modules.items()
    ]
    try:
        link(roles)
    except LinkError as problem:
        printed.findings(problem.diagnostics, [module.source for module in modules.values()])
        printed.remark(f"{folder}: the programs of the machines do not fit together")
        return 1
    return 0


def _without(programs: FrozenMap[str, Program], *names: str) -> FrozenMap[str, Program]:
    return FrozenMap({name: program for name, program in programs.items() if name not in names})


def _verify(
    path: str,
    load: Callable[[], Module],
    options: argparse.Namespace,
    allow: Sequence[str],
    printed: _Terminal | _Log,
    sources: Sequence[SourceText] = (),
) -> int:
    from pstranspile.compiler.verify import verify

    try:
        module = load()
    except DiagnosticError as problem:
        printed.findings(problem.diagnostics, sources)
        _count(path, problem.diagnostics, printed)
        return status_of(problem)
    findings = verify(module, strict=options.strict, allow=allow, initialised_here=True)
    printed.findings(findings, [module.source])
    return 1 if _count(path, findings, printed) else 0


def _count(path: str, findings: Iterable[Diagnostic], printed: _Terminal | _Log) -> int:
    """The number of errors, which is told where there are any."""
    errors = sum(d.severity is Severity.ERROR for d in findings)
    if errors:
        named = STDIN if path == "-" else path
        printed.remark(f"{named}: {counted(errors, 'error')}")
    return errors
