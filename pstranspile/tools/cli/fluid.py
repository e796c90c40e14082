"""`pstranspile fluid`: run a script written for Fluid 1.x, or for static graphs of Paddle 2.x."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence

from pstranspile.fluid.__main__ import main
from pstranspile.tools.cli import INTERRUPTED


def run(arguments: Sequence[str]) -> int:
    """Runs a script as `python -m pstranspile.fluid` does; gives its exit status."""
    interrupt = signal.getsignal(signal.SIGINT)
    if callable(interrupt) and interrupt is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if callable(signal.getsignal(number)):  # that of commands: a script's signals are those of any Python
            signal.signal(number, signal.SIG_DFL)
    try:
        return main([*arguments], "pstranspile fluid")
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except (Exception, KeyboardInterrupt) as problem:  # the script shows its exceptions in its own way
        with contextlib.suppress(Exception):
            sys.excepthook(type(problem), problem, problem.__traceback__)
        return INTERRUPTED if isinstance(problem, KeyboardInterrupt) else 1
