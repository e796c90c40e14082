"""`pstranspile fmt`: rewrite programs in canonical text."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pstranspile.ir.diagnostics import DiagnosticError, error, in_one_line, shell_line
from pstranspile.ir.model import Location, SourceText
from pstranspile.tools.cli.common import STDIN, make_parser
from pstranspile.tools.cli.report import CommandFailure, quoting, report, status_of
from pstranspile.tools.cli.written_files import PENDING


def run(arguments: Sequence[str]) -> int:
    """Rewrites files in place (stdin to stdout); with `--check` only lists those that would change."""
    parser = make_parser(
        "fmt",
        "Rewrites .ir files in canonical form, in place. A file with errors is left as it is. "
        "With -, text goes from stdin to stdout.",
        ["net.ir", "--check golden/*.ir", "- < net.ir"],
    )
    parser.add_argument("inputs", metavar="INPUT", nargs="+", help=".ir files, or - for stdin to stdout")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; list the files that are not in canonical form and exit with status 1",
    )
    options = parser.parse_args(arguments)
    PENDING.expect_files(() if options.check else options.inputs)
    return max(_format(path, options.check) for path in options.inputs)


def _format(path: str, check: bool) -> int:
    name = STDIN if path == "-" else path
    try:
        if path != "-" and not check and os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            message = "this is no regular file, so the text can't be written back; `fmt -` reads one from stdin"
            raise DiagnosticError([error("input-unreadable", message, Location(name))])
        data = _read(path)
        formatted = _canonical_text(data, name)
        changed = formatted.encode("utf-8") != data
        if path != "-" and not check and changed:
            from pstranspile.runtime.files.outputs import write_output

            write_output(path, formatted.encode("utf-8"))
        PENDING.written(path)
    except DiagnosticError as problem:
        report(problem.diagnostics)
        return status_of(problem)
    except CommandFailure as stop:
        return stop.status
    if path == "-" and not check:
        sys.stdout.write(formatted)
    elif changed:
        print(in_one_line(path))
    return 1 if check and changed else 0


def _canonical_text(data: bytes, name: str) -> str:
    """A program as canonical text. Raises DiagnosticError or CommandFailure, also for data that is
    plainly no program.
    """
    from pstranspile.frontends.loading import decode_text, require_program
    from pstranspile.ops.textual import format_text

    try:
        text = decode_text(data, name)
    except DiagnosticError:
        require_program(data, name)
        raise
    with quoting(SourceText(name, text)):
        try:
            return format_text(text, name)
        except DiagnosticError:
            require_program(data, name)
            raise


def _read(path: str) -> bytes:
    from pstranspile.frontends.loading import of_python, read_bytes, read_stdin

    if of_python(path) is not None:
        message = (
            f"this is no file of text; {shell_line(['pstranspile', 'import', path])} prints the text of its program"
        )
        raise DiagnosticError([error("input-format", message, Location(path))])
    return read_stdin() if path == "-" else read_bytes(path)
