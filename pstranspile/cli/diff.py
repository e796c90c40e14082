"""`pstranspile diff`: the semantic difference of two programs, modules or output folders."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pstranspile.cli.common import make_parser
from pstranspile.cli.report import report
from pstranspile.ir.diagnostics import DiagnosticError

STDIN_ARGUMENT = "-"
"""The argument that means stdin, also where there is a folder of this name."""

TROUBLE = 2
"""The exit status when an input can't be read, which is neither "equal" nor "different"."""


def run(arguments: Sequence[str]) -> int:
    """Prints the differences; 0 when there are none, 1 when there are, 2 when an input can't be read."""
    parser = make_parser(
        "diff",
        "Prints how two programs, modules or output folders differ in what they mean, in the manner of a unified\n"
        "diff. The order of attributes, attributes at their default and the spelling of generated names are no\n"
        "difference. Exits with status 1 when there are differences.",
        ["before.ir after.ir", "net.ir main.pb", "out.before out.after"],
    )
    what = "an .ir file, a serialized ProgramDesc, or a folder that `compile -o` wrote"
    parser.add_argument("a", metavar="A", help=what)
    parser.add_argument("b", metavar="B", help="the same, to compare with; a folder if A is one")
    options = parser.parse_args(arguments)
    folders = [path for path in (options.a, options.b) if path != STDIN_ARGUMENT and os.path.isdir(path)]
    if len(folders) == 1:
        parser.error(f"{folders[0]} is a folder; it is compared with another folder")
    from pstranspile.diff import diff, render

    try:
        differences = diff(options.a, options.b, report=report)
    except DiagnosticError as problem:
        report(problem.diagnostics)
        return TROUBLE
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    sys.stdout.write(render(differences, colour, (options.a, options.b)))
    return 1 if differences else 0
