"""The command as a process: `python -m pstranspile`, and what the console script calls."""

import os
import signal
import sys


def _end(number: int, _: object) -> None:
    """Ends the process as an error does, so that what it has begun to write is taken away. The exit status is the one
    that shells report for a process that was told to end.
    """
    sys.exit(128 + number)


def _end_at_once(number: int, _: object) -> None:
    """Ends the process while it starts: nothing is begun yet, and an exception in an import may be lost."""
    os._exit(128 + number)


def _take_interrupts() -> None:
    """Has interrupts raise KeyboardInterrupt from here on."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _open_streams() -> None:
    """Points closed standard streams at nothing: what is opened later must not take their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def main() -> int:
    """Runs the command of the process's arguments; an interrupt ends it without a traceback even while it starts."""
    signal.signal(signal.SIGTERM, _end)
    hangup = getattr(signal, "SIGHUP", None)
    if hangup is not None and signal.getsignal(hangup) is signal.SIG_DFL:  # not under nohup
        signal.signal(hangup, _end)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    _open_streams()
    try:
        from pstranspile.tools.cli import main as run

        return run(begins=_take_interrupts)
    except KeyboardInterrupt:
        return 130
    finally:
        _take_interrupts()


if __name__ == "__main__":
    sys.exit(main())
