"""`python -m pstranspile.fluid SCRIPT`: a Fluid script, as it is."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from pstranspile.fluid.aliases import install_for_children
from pstranspile.fluid.session import USAGE, Session, Stopped, parsed
from pstranspile.ir.diagnostics import DiagnosticError

_OF_SCALARS = "only 0-dimensional arrays can be converted to Python scalars"
_NO_NUMBERS = """\
note: since version 2.4 numpy makes no numbers of arrays with one element, as float(np.array(loss)) of older scripts
      does; run the script where numpy is older: pip install 'numpy<2.4'
"""


def main(arguments: list[str]) -> int:
    """Runs a script; gives the exit status: that of the script, 1 for findings, 2 for wrong usage."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    options = parsed(arguments)
    if isinstance(options, str):
        print(f"python -m pstranspile.fluid: {options}", file=sys.stderr)
        return 2
    install_for_children()
    session = Session(options)
    script = options.script
    sys.argv = [script, *options.rest]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        with session.watching():
            runpy.run_path(script, run_name="__main__")
    except Stopped:
        pass
    except DiagnosticError as problem:
        return session.failed(problem)
    except TypeError as problem:
        if _OF_SCALARS in str(problem):
            print(_NO_NUMBERS, file=sys.stderr)
        raise
    return session.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
