"""The command as a process: `python -m pstranspile`, and what the console script calls."""

import os
import signal
import sys

from pstranspile.ir.startup_signals import EndSignal, begin, guard


def _send_again(lost: "sys.UnraisableHookArgs") -> None:
    """Sends an interrupt again whose exception was lost, as where Python cleans up after an object."""
    if lost.exc_type is KeyboardInterrupt:
        from threading import Timer

        Timer(_AGAIN, os.kill, (os.getpid(), signal.SIGINT)).start()
    elif lost.exc_type is not EndSignal:  # which sends itself again
        sys.__unraisablehook__(lost)


_AGAIN = 0.05
"""Seconds until a signal is sent again."""


def _open_streams() -> None:
    """Points closed standard streams at nothing: what is opened later must not take their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def main() -> int:
    """Runs the command of the process's arguments; an interrupt ends it without a traceback even while it starts."""
    guard()
    _open_streams()
    sys.unraisablehook = _send_again
    try:
        from pstranspile.tools.cli import main as run

        return run(begins=begin)
    except KeyboardInterrupt:
        return 130
    finally:
        begin()


if __name__ == "__main__":
    sys.exit(main())
