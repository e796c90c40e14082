"""`pstranspile diff`: the semantic difference of two programs, modules or output folders."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pstranspile
from pstranspile.frontends.loading import of_python
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.ir.reading import misspelt
from pstranspile.tools.cli.common import STDIN, make_parser, require_page, write_page
from pstranspile.tools.cli.findings import print_errors
from pstranspile.tools.cli.report import report, verdict_first

if TYPE_CHECKING:
    from pstranspile.compiler.diff import Difference
    from pstranspile.ir.model import Module

STDIN_ARGUMENT = "-"
"""The argument that means stdin, also where there is a folder of this name."""

TROUBLE = 2
"""The exit status when an input can't be read, which is neither "equal" nor "different"."""


def _parser() -> ArgumentParser:
    parser = make_parser(
        "diff",
        "Prints how two programs, modules or output folders differ in what they mean, in the manner of a unified\n"
        "diff. The order of attributes, attributes at their default and the spelling of generated names are no\n"
        "difference. Exits with status 1 when there are differences.",
        [
            "before.ir after.ir",
            "net.ir main.pb --startup startup.pb",
            "a.pb b.pb --startup a.startup.pb --startup b.startup.pb",
            "out.before out.after --json",
        ],
    )
    what = "an .ir file, a serialized ProgramDesc, FILE.py:NAME, or a folder that `compile -o` wrote"
    parser.add_argument("a", metavar="A", help=what)
    parser.add_argument("b", metavar="B", help="the same, to compare with; a folder if A is one")
    parser.add_argument(
        "--startup",
        metavar="FILE",
        action="append",
        default=[],
        help="the serialized startup program of an input that is a serialized main program; given twice, those of A "
        "and B",
    )
    parser.add_argument(
        "--meta",
        metavar="FILE",
        action="append",
        default=[],
        help="JSON with what such an input does not carry, as `export` writes it; given twice, that of A and B",
    )
    parser.add_argument("--json", action="store_true", help="print the differences as JSON")
    parser.add_argument("--html", metavar="FILE", help="write the differences as a page for the browser, - for stdout")
    return parser


def run(arguments: Sequence[str]) -> int:
    """Prints the differences; 0 when there are none, 1 when there are, 2 when an input can't be read."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.html and options.json:
        parser.error("--html and --json are two forms of one output")
    if options.a == options.b == STDIN_ARGUMENT:
        parser.error("A and B can't both be read from stdin")
    folders = [path for path in (options.a, options.b) if path != STDIN_ARGUMENT and os.path.isdir(path)]
    missing = [
        path
        for path in (options.a, options.b)
        if path != STDIN_ARGUMENT and not os.path.lexists(path) and of_python(path) is None
    ]
    if missing:
        findings = [
            error("input-unreadable", f"there is no such file or folder{misspelt(path)}", Location(path))
            for path in missing
        ]
        report(findings)
        if options.json:
            print_errors(findings)
        return TROUBLE
    if len(folders) == 1:
        parser.error(f"{folders[0]} is a folder; it is compared with another folder")
    companions = options.startup or options.meta
    if folders and companions:
        parser.error("--startup and --meta go with files; folders hold those of their machines")
    with verdict_first():
        return _compare(parser, options, companions)


def _compare(parser: ArgumentParser, options: Namespace, companions: list[str]) -> int:
    """Prints or writes the differences; gives the exit status."""
    from pstranspile.compiler.diff import diff, render, summary

    try:
        if options.html:
            require_page(options.html, (options.a, options.b, *options.startup, *options.meta))
        given = _with_companions(parser, options) if companions else (options.a, options.b)
        differences = diff(*given, report=report)
        if options.html:
            _write_page(options, differences)
    except DiagnosticError as problem:
        report(problem.diagnostics)
        if options.json:
            print_errors(problem.diagnostics)
        return TROUBLE
    if options.html:
        if options.html != STDIN_ARGUMENT:
            sys.stdout.write(f"{summary(differences)}\n")
    elif options.json:
        from pstranspile.ir.json_text import json_text

        sys.stdout.write(
            json_text({"count": len(differences), "differences": [result.as_dict() for result in differences]})
        )
    elif differences:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        sys.stdout.write(f"{render(differences, colour, (options.a, options.b))}{summary(differences)}\n")
    return 1 if differences else 0


def _write_page(options: Namespace, differences: Sequence[Difference]) -> None:
    """Writes the page of some differences. Raises DiagnosticError when it can't be written."""
    from pstranspile.compiler.diff import summary
    from pstranspile.tools.report import DIFFERENCES, page

    paths = (options.a, options.b)
    names = [STDIN if path == STDIN_ARGUMENT else os.path.basename(os.path.normpath(path)) for path in paths]
    data = {
        "a": names[0],
        "b": names[1],
        "summary": summary(differences),
        "differences": [{**result.as_dict(), "heading": result.heading} for result in differences],
        "made_by": f"pstranspile {pstranspile.__version__}",
    }
    write_page(options.html, page(f"{names[0]} and {names[1]}", data, DIFFERENCES), "a page of the differences")


def _with_companions(parser: ArgumentParser, options: Namespace) -> tuple[Module, Module]:
    """Both inputs, the serialized ones with their startup programs and metadata. Raises DiagnosticError."""
    from pstranspile.frontends.loading import is_text, load_bytes, read_bytes, read_stdin

    data = [read_stdin() if path == STDIN_ARGUMENT else read_bytes(path) for path in (options.a, options.b)]
    serialized = [number for number, content in enumerate(data) if not is_text(content)]
    for name, given in (("startup", options.startup), ("meta", options.meta)):
        if given and len(serialized) != len(given):
            parser.error(f"--{name} goes with a serialized main program: {len(serialized)} of A and B are such")
    startups, metas = (dict(zip(serialized, given, strict=False)) for given in (options.startup, options.meta))
    first, second = (
        load_bytes(
            content,
            STDIN if path == STDIN_ARGUMENT else path,
            startups.get(number),
            metas.get(number),
            report=report,
        )
        for number, (path, content) in enumerate(zip((options.a, options.b), data, strict=True))
    )
    return first, second
