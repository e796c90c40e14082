"""`pstranspile fmt`: programs in canonical text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pstranspile.cli.common import STDIN, make_parser
from pstranspile.cli.report import quoting, report, status_of
from pstranspile.ir.codes import declare
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location, SourceText

declare("fmt-file", "A file to format can't be read, or is not text.")


def run(arguments: Sequence[str]) -> int:
    """Rewrites files in place (stdin to stdout); with `--check` only says which would change."""
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
    return max(_format(path, options.check) for path in options.inputs)


def _format(path: str, check: bool) -> int:
    from pstranspile.textual import format_text

    try:
        text = _read(path)
        with quoting(SourceText(STDIN if path == "-" else path, text)):
            formatted = format_text(text, STDIN if path == "-" else path)
    except DiagnosticError as problem:
        report(problem.diagnostics)
        return status_of(problem)
    if check:
        if formatted != text:
            print(path)
        return 1 if formatted != text else 0
    if path == "-":
        sys.stdout.write(formatted)
    elif formatted != text:
        from pstranspile.outputs import write_output

        write_output(path, formatted.encode("utf-8"))
        print(path)
    return 0


def _read(path: str) -> str:
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return data.decode("utf-8")
    except OSError as problem:
        raise _unusable(path, f"can't be read: {problem.strerror or problem}") from None
    except UnicodeDecodeError as problem:
        raise _unusable(path, f"is not text: byte {problem.start} is not UTF-8") from None


def _unusable(path: str, message: str) -> DiagnosticError:
    return DiagnosticError([error("fmt-file", message, Location(path))])
