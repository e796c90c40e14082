"""`pstranspile verify`: are programs well formed?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pstranspile.cli.common import STDIN, add_companions, add_severity, allowed, load_input, make_parser
from pstranspile.cli.report import Reported, report, status_of
from pstranspile.ir.diagnostics import DiagnosticError, Severity


def run(arguments: Sequence[str]) -> int:
    """Prints the findings of every input; 1 when one of them is an error."""
    parser = make_parser(
        "verify",
        "Checks programs and prints what is wrong with them, on stderr. Every input is looked at, also when "
        "an earlier one has errors. Warnings leave the exit status at 0.\n\n"
        "docs/diagnostics.md explains the codes.",
        ["net.ir", "main.pb --startup startup.pb", "out/*.ir"],
    )
    parser.add_argument(
        "inputs",
        metavar="INPUT",
        nargs="+",
        help=".ir files, serialized ProgramDescs, or - for text on stdin",
    )
    add_companions(parser)
    add_severity(parser)
    parser.add_argument("--all", action="store_true", help="print every finding, also where many are alike")
    options = parser.parse_args(arguments)
    if len(options.inputs) > 1 and (options.startup or options.meta):
        parser.error("--startup and --meta go with a single INPUT")
    codes = allowed(options)
    statuses = [_verify(path, options, codes) for path in options.inputs]
    return max(statuses)


def _verify(path: str, options: argparse.Namespace, allow: Sequence[str]) -> int:
    from pstranspile.verify import verify

    try:
        module = load_input(path, options.startup, options.meta)
    except DiagnosticError as problem:
        report(problem.diagnostics)
        return status_of(problem)
    except Reported as stop:
        return stop.status
    found = verify(module, strict=options.strict, allow=allow)
    report(found, [module.source], every=options.all)
    errors = sum(d.severity is Severity.ERROR for d in found)
    if errors:
        print(f"{STDIN if path == '-' else path}: {errors} {'error' if errors == 1 else 'errors'}", file=sys.stderr)
    return 1 if errors else 0
