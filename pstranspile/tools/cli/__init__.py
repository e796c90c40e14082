"""The command line: one file per verb.

Only the verb that was asked for is imported, so that every command starts fast.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pstranspile.ir.diagnostics import DiagnosticError, did_you_mean, in_one_line
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.startup_signals import EndSignal, told_to_end

if TYPE_CHECKING:
    from argparse import ArgumentParser

OK = 0
"""The exit code where all is well."""

FINDINGS = 1
"""The exit code where something was found, or differs."""

USAGE = 2
"""The exit code of wrong usage."""

INTERNAL = 3
"""The exit code of a fault of this program."""

INTERRUPTED = 130
"""The exit code after an interrupt, as shells report it (128 + SIGINT)."""

BROKEN_PIPE = 141
"""The exit code after a closed pipe, as shells report it (128 + SIGPIPE)."""


_OF_NO_STREAM = frozenset({errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
"""Errors that name no file and are of no stream: no folder for temporary files is there, or the system gives a process
no more descriptors, no more processes, or no memory for one."""


class Verb(NamedTuple):
    """A command: the module that holds it (`run(arguments) -> exit code`), and what it does."""

    module: str
    summary: str


_FIRST_LINE = Pattern(r'"""`pstranspile (\w+)`: (.+)[.?]"""')


def _find_verbs() -> dict[str, Verb]:
    verbs: dict[str, Verb] = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        with path.open(encoding="utf-8") as file:
            match = _FIRST_LINE.match(file.readline())
        if match:
            verbs[match[1]] = Verb(path.stem, match[2])
    return verbs


VERBS: Mapping[str, Verb] = _find_verbs()
"""Every command by name: the files of this folder whose first line is `pstranspile NAME`, a colon and a sentence."""

_EPILOG = """\
Every command has its own help: pstranspile COMMAND --help

examples:
  pstranspile compile net.ir --pservers ps0:6174,ps1:6174 --trainers 2 -o out
  pstranspile plan net.ir --pservers 2 --trainers 2
  pstranspile import main.pb --startup startup.pb -o net.ir
  pstranspile diff before.ir after.ir

exit status: 0 fine, 1 findings or differences, 2 wrong usage, 3 a fault of pstranspile itself"""


def main(argv: Sequence[str] | None = None, *, begins: Callable[[], object] = lambda: None) -> int:
    """Runs one command (default: the process's arguments) and returns its exit status.

    `begins` is called when the command's module is imported, and it begins.

    Diagnostics go to stderr, and so do messages of failures; nothing is raised for a user's mistake.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]  # closed by the parent process
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]  # likewise
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    _print_as_utf8()
    if arguments[:1] == ["fluid"]:  # the streams are the script's
        return _run(arguments, begins)
    from pstranspile.tools.cli.streams import Streams

    streams = Streams(" ".join(["pstranspile", *arguments[:1]]))
    with streams.in_place():
        status = _run(arguments, begins)
    return FINDINGS if streams.failed and status == OK else status


def _run(arguments: Sequence[str], begins: Callable[[], object]) -> int:
    """Runs one command, and returns its exit status."""
    from pstranspile.tools.cli.written_files import PENDING, is_told_to_end

    PENDING.begin()
    try:
        try:
            status = _dispatch(arguments, begins)
        except SystemExit as stop:  # argparse ends this way, after it has printed
            if isinstance(stop, EndSignal):
                stop.arrive()
            if is_told_to_end(stop):
                PENDING.tell_of_interruption()
            status = stop.code if isinstance(stop.code, int) else OK
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        PENDING.tell_of_interruption()
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except DiagnosticError as problem:
        return _report(problem)
    except OSError as problem:  # what commands read and write by name has diagnostics; this is stdin or stdout
        name = "standard input or output: " if problem.filename is None else f"{problem.filename}: "
        if problem.filename is None and problem.errno in _OF_NO_STREAM:
            name = ""
        hint = "; `ulimit -n` says how many a process may have, and raises it" if problem.errno == errno.EMFILE else ""
        print(in_one_line(f"pstranspile: error: {name}{problem.strerror or problem}{hint}"), file=sys.stderr)
        _silence_stdout()
        return FINDINGS
    except MemoryError as problem:
        reason = f": {problem}" if str(problem) else ""
        print(f"pstranspile: error: there is not enough memory{reason}", file=sys.stderr)
        return FINDINGS
    except Exception as fault:
        if number := told_to_end():  # which has interrupted an import
            PENDING.tell_of_interruption()
            return 128 + number
        return _internal(fault, "--traceback" in arguments)


def _dispatch(arguments: Sequence[str], begins: Callable[[], object]) -> int:
    name = arguments[0] if arguments else "--help"
    verb = VERBS.get(name)
    if verb is None:
        parser = _top_parser()
        later = next((word for word in arguments if word in VERBS), None)
        if later is not None and name.startswith("-") and name not in ("-h", "--help", "--version"):
            parser.error(f"the command comes first: pstranspile {later} ...")
        parser.parse_args(arguments or ["--help"])
        parser.error("a command is missing")
    run: Callable[[Sequence[str]], int] = importlib.import_module(f"pstranspile.tools.cli.{verb.module}").run
    begins()
    return run(arguments[1:])


def _top_parser() -> ArgumentParser:
    import argparse

    from pstranspile.tools.cli.common import Parser, Version

    class CommandParser(Parser):
        def error(self, message: str) -> NoReturn:
            self.print_usage(sys.stderr)
            self.exit(USAGE, f"pstranspile: error: {message}\n")

    class Command(argparse.Action):
        def __call__(self, parser: object, _namespace: object, values: object, _option: object = None) -> None:
            if values is None:
                return
            hint = did_you_mean(str(values), VERBS) or f"; the commands are {', '.join(VERBS)}"
            raise argparse.ArgumentError(None, f"there is no command {values!r}{hint}")

    width = max(map(len, VERBS))
    commands = "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items())
    parser = CommandParser(
        prog="pstranspile",
        usage="pstranspile COMMAND ...",
        description=f"Turns a single-machine training program into the programs of a cluster.\n\ncommands:\n{commands}",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=Version, help="print the version and exit")
    parser.add_argument("command", nargs="?", action=Command, help=argparse.SUPPRESS)
    return parser


def _report(problem: DiagnosticError) -> int:
    from pstranspile.tools.cli.report import report, status_of

    report(problem.diagnostics)
    return status_of(problem)


def _internal(fault: Exception, with_traceback: bool) -> int:
    from pstranspile.tools.cli.report import PLEASE_REPORT, CommandFailure

    if isinstance(fault, CommandFailure):
        return fault.status
    if with_traceback:
        import traceback

        traceback.print_exception(fault)
    else:
        print(f"pstranspile: internal error: {type(fault).__name__}: {fault}", file=sys.stderr)
        print(PLEASE_REPORT, file=sys.stderr)
    return INTERNAL


def _print_as_utf8() -> None:
    """Makes stdout take any text: programs are UTF-8 whatever the locale, and what can't be UTF-8 is escaped."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and (out.encoding.lower() != "utf-8" or out.errors != "backslashreplace"):
        out.reconfigure(encoding="utf-8", errors="backslashreplace")


def _silence_stdout() -> None:
    """Points stdout at nothing, so that the interpreter's last flush does not fail a second time."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # stdout is no file of the system, there is nothing to flush
        return
