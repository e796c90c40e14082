"""`pstranspile verify`: check that programs are well formed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Severity, quantity
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Module, Program, Role, SourceText
from pstranspile.tools.cli.common import STDIN, add_companions, add_severity, allowed_codes, make_parser
from pstranspile.tools.cli.findings import errors_as_json, findings_json, findings_sarif
from pstranspile.tools.cli.report import report, status_of, texts_of
from pstranspile.tools.cli.written_files import say


def run(arguments: Sequence[str]) -> int:
    """Prints the findings of every input; 1 when one of them is an error."""
    parser = make_parser(
        "verify",
        "Checks programs and prints what is wrong with them, on stderr. Every input is looked at, also when\n"
        "an earlier one has errors. Warnings leave the exit status at 0.\n\n"
        "Of a folder every machine's programs are checked, and whether they fit together.\n\n"
        "What @startup leaves without a value is an error, as it is when the program is compiled for servers;\n"
        "other commands take it for loaded. What else compile refuses for servers is a warning, as one machine\n"
        "may run it, and with --strict ends in status 1.\n\n"
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
    with errors_as_json(options.json):
        codes = allowed_codes(options)
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
        say(text)


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
    """The plan, if it is there, and the programs of every machine; then, without errors, all of them together."""
    from pstranspile.compiler.explain.folder import read_plan_json
    from pstranspile.compiler.folders import load_role, report_changed, roles_in
    from pstranspile.compiler.link import LinkError, link
    from pstranspile.runtime.files.outputs import PLAN_FILE, is_role

    modules: dict[str, Module] = {}
    plan: dict[str, Any] = {}

    def load(role: str, paths: list[Path]) -> Module:
        modules[role] = load_role(paths, printed.findings)
        return modules[role]

    try:
        files = roles_in(folder)
        if os.path.exists(os.path.join(folder, PLAN_FILE)):
            plan = read_plan_json(folder)
    except DiagnosticError as problem:
        printed.findings(problem.diagnostics)
        return status_of(problem)
    statuses = [
        _verify(str(paths[0]), lambda role=role, paths=paths: load(role, paths), options, allow, printed)
        for role, paths in files.items()
    ]
    if any(statuses):
        return max(statuses)
    try:
        report_changed(plan, files, modules, printed.findings)
    except DiagnosticError as problem:
        printed.findings(problem.diagnostics)
        return 1
    whole = all(is_role(role) and {MAIN, STARTUP} <= {*module.programs} for role, module in modules.items())
    if not whole:
        return 0
    roles = [
        Role(name, module[MAIN], module[STARTUP], _without_programs(module.programs, MAIN, STARTUP))
        for name, module in modules.items()
    ]
    try:
        link(roles)
    except LinkError as problem:
        printed.findings(problem.diagnostics, [module.source for module in modules.values()])
        printed.remark(f"{folder}: the programs of the machines do not fit together")
        return 1
    return 0


def _without_programs(programs: FrozenMap[str, Program], *names: str) -> FrozenMap[str, Program]:
    return FrozenMap({name: program for name, program in programs.items() if name not in names})


def _verify(
    path: str,
    load: Callable[[], Module],
    options: argparse.Namespace,
    allow: Sequence[str],
    printed: _Terminal | _Log,
    sources: Sequence[SourceText] = (),
) -> int:
    from pstranspile.compiler.compile import trial, well_formed

    try:
        module = load()
    except DiagnosticError as problem:
        printed.findings(problem.diagnostics, sources)
        _count(path, problem.diagnostics, printed)
        return status_of(problem)
    findings = well_formed(module, strict=options.strict, allow=allow)
    printed.findings(findings, [module.source])
    if _count(path, findings, printed):
        return 1
    refused, beyond = trial(module, findings, strict=options.strict, allow=allow)
    printed.findings(beyond, [module.source])
    errors = _count(path, beyond, printed)
    if refused:
        printed.remark(f"{STDIN if path == '-' else path}: one machine may run it, compile refuses it for servers")
    return 1 if errors else 0


def _count(path: str, findings: Iterable[Diagnostic], printed: _Terminal | _Log) -> int:
    """The number of errors, which is told where there are any."""
    errors = sum(d.severity is Severity.ERROR for d in findings)
    if errors:
        named = STDIN if path == "-" else path
        printed.remark(f"{named}: {quantity(errors, 'error')}")
    return errors
