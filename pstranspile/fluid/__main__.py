"""`python -m pstranspile.fluid SCRIPT`: runs a Fluid script unchanged."""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path
from traceback import extract_tb

from pstranspile.fluid.aliases import install_for_children
from pstranspile.fluid.communicator import idle_server, listen
from pstranspile.fluid.running.interrupts import STATUS as INTERRUPTED
from pstranspile.fluid.running.interrupts import interrupted
from pstranspile.fluid.running.tracebacks import rendered, traceback_of
from pstranspile.fluid.session import OF_CLUSTER, Session, Stopped, is_unread, parsed, show, tell, unread, usage
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.starting import restore


def main(arguments: list[str], command: str = "python -m pstranspile.fluid") -> int:
    """Runs a script; returns the exit status: the script's own, 1 for findings, 2 for wrong usage.

    `command` is the command that the user called, for messages.
    """
    try:
        session = _prepared(arguments, command)
    except KeyboardInterrupt:
        tell("interrupted before the script began")
        return INTERRUPTED
    return session if isinstance(session, int) else _run(session)


def _prepared(arguments: list[str], command: str) -> Session | int:
    """The session that runs the script of a command line, after preparing the script's environment; or an exit status
    if there is no script to run.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        if arguments:
            return show(f"{usage(command)}\n")
        tell(usage(command))
        return 2
    options = parsed(arguments)
    if isinstance(options, str):
        tell(f"{command}: {options}")
        return 2
    if options.compat:
        from pstranspile.fluid.names_used import report

        text, status = report(options.script, as_json=options.json)
        return show(text) or status
    own = ("--check", "--explain", "--compat", *(OF_CLUSTER if options.check or options.explain else ()))
    late = next((word for word in options.rest if word.partition("=")[0] in own), None)
    if late is not None:
        told = f"{late} comes after the script, so it is the script's own; options of this command stand before it"
        tell(f"{command}: {told}")
    listen()
    install_for_children()
    session = Session(options, command)
    script = options.script
    sys.argv = [script, *options.rest]
    folder = os.getcwd() if options.module else str(Path(script).resolve().parent)
    sys.path[: 0 if getattr(sys.flags, "safe_path", False) else 1] = [folder]
    return session


def _run(session: Session) -> int:
    """Runs the script of a session; returns the exit status."""
    options = session.options
    try:
        with session.watching():
            if options.module:
                runpy.run_module(options.module, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(options.script, run_name="__main__")
    except Stopped:
        pass
    except SystemExit as stop:
        if not stop.code:
            _tell_idle_server()
        if session.lacks():
            status = session.end(_line_of(stop, options.script), stop.code)
            if not stop.code:
                return status
        raise
    except DiagnosticError as problem:
        tell(rendered(problem))
        return 1
    except KeyboardInterrupt as stop:
        if sys.excepthook is not sys.__excepthook__:
            raise
        tell(interrupted(stop))
        return INTERRUPTED
    except Exception as problem:
        if isinstance(problem, BrokenPipeError) and is_unread():  # else a connection of the script itself has broken
            return unread()
        if sys.excepthook is not sys.__excepthook__:
            raise
        tell(traceback_of(problem).removesuffix("\n"))
        return 1
    _tell_idle_server()
    return session.end()


def _line_of(stop: SystemExit, script: str) -> str:
    """The place in a script, as file:line, at which it has ended itself; the script alone if it is not known."""
    own = Path(script).resolve()
    lines = [frame.lineno for frame in extract_tb(stop.__traceback__) if Path(frame.filename).resolve() == own]
    return f"{script}:{lines[-1]}" if lines else script


def _tell_idle_server() -> None:
    told = idle_server()
    if told:
        tell(told)


if __name__ == "__main__":
    restore()
    status, gone = 0, 0
    try:
        status = main(sys.argv[1:])
    finally:
        with suppress(ValueError, AttributeError):  # the script may have closed it
            gone = show("")
    sys.exit(gone or status)
