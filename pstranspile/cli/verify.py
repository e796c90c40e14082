"""`pstranspile verify`: check that programs are well formed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pstranspile.cli.common import STDIN, add_companions, add_severity, allowed, load_input, make_parser
from pstranspile.cli.report import Reported, report, status_of
from pstranspile.ir.diagnostics import DiagnosticError, Severity
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import MAIN, STARTUP, Module, Program, Role


def run(arguments: Sequence[str]) -> int:
    """Prints the findings of every input; 1 when one of them is an error."""
    parser = make_parser(
        "verify",
        "Checks programs and prints what is wrong with them, on stderr. Every input is looked at, also when "
        "an earlier one has errors. Warnings leave the exit status at 0. Of a folder every machine's programs are "
        "checked, and whether they fit together.\n\n"
        "docs/reference/diagnostics.md explains the codes.",
        ["net.ir", "main.pb --startup startup.pb", "out"],
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
    options = parser.parse_args(arguments)
    if len(options.inputs) > 1 and (options.startup or options.meta):
        parser.error("--startup and --meta go with a single INPUT")
    codes = allowed(options)
    statuses = [
        _verify_folder(path, options, codes)
        if path != "-" and os.path.isdir(path)
        else _verify(path, lambda path=path: load_input(path, options.startup, options.meta), options, codes)
        for path in options.inputs
    ]
    return max(statuses)


def _verify_folder(folder: str, options: argparse.Namespace, allow: Sequence[str]) -> int:
    """The programs of every machine, then, where none has errors, all of them together."""
    from pstranspile.diff.folders import load_role, roles_in
    from pstranspile.interop.outputs import is_role
    from pstranspile.link import LinkError, link

    modules: dict[str, Module] = {}

    def load(role: str, paths: list[Path]) -> Module:
        modules[role] = load_role(paths, report)
        return modules[role]

    try:
        files = roles_in(folder)
    except DiagnosticError as problem:
        report(problem.diagnostics)
        return status_of(problem)
    statuses = [
        _verify(str(paths[0]), lambda role=role, paths=paths: load(role, paths), options, allow)
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
        report(problem.diagnostics, [module.source for module in modules.values()])
        print(f"{folder}: the programs of the machines do not fit together", file=sys.stderr)
        return 1
    return 0


def _without(programs: FrozenMap[str, Program], *names: str) -> FrozenMap[str, Program]:
    return FrozenMap({name: program for name, program in programs.items() if name not in names})


def _verify(path: str, load: Callable[[], Module], options: argparse.Namespace, allow: Sequence[str]) -> int:
    from pstranspile.verify import verify

    try:
        module = load()
    except DiagnosticError as problem:
        report(problem.diagnostics)
        return status_of(problem)
    except Reported as stop:
        return stop.status
    findings = verify(module, strict=options.strict, allow=allow)
    report(findings, [module.source], every=options.all)
    errors = sum(d.severity is Severity.ERROR for d in findings)
    if errors:
        print(f"{STDIN if path == '-' else path}: {errors} {'error' if errors == 1 else 'errors'}", file=sys.stderr)
    return 1 if errors else 0
