"""`python -m pstranspile.fluid SCRIPT`: a Fluid script, as it is."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from pstranspile.fluid.aliases import install_for_children
from pstranspile.fluid.running.launched import listen
from pstranspile.fluid.running.tracebacks import rendered, traceback_of
from pstranspile.fluid.session import Session, Stopped, parsed, usage
from pstranspile.ir.diagnostics import DiagnosticError


def main(arguments: list[str], command: str = "python -m pstranspile.fluid") -> int:
    """Runs a script; gives the exit status: that of the script, 1 for findings, 2 for wrong usage.

    `command` is what the user has called.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(command), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    options = parsed(arguments)
    if isinstance(options, str):
        print(f"{command}: {options}", file=sys.stderr)
        return 2
    if options.compat:
        from pstranspile.fluid.names_used import report

        text, status = report(options.script, as_json=options.json)
        sys.stdout.write(text)
        return status
    listen()
    install_for_children()
    session = Session(options, command)
    script = options.script
    sys.argv = [script, *options.rest]
    sys.path[: 0 if getattr(sys.flags, "safe_path", False) else 1] = [str(Path(script).resolve().parent)]
    try:
        with session.watching():
            runpy.run_path(script, run_name="__main__")
    except Stopped:
        pass
    except DiagnosticError as problem:
        sys.stderr.write(rendered(problem))
        return 1
    except Exception as problem:
        if sys.excepthook is not sys.__excepthook__:
            raise
        sys.stderr.write(traceback_of(problem))
        return 1
    return session.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
