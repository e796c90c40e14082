"""The command as a process: `python -m pstranspile`, and what the console script calls."""

import os
import signal
import sys
from contextlib import suppress


def _end(number: int, _: object) -> None:
    """Ends the process as an error does, so that what it has begun to write is taken away. The exit status is the one
    that shells report for a process that was told to end.
    """
    sys.exit(128 + number)


def _end_at_once(number: int, _: object) -> None:
    """Ends the process while it starts: nothing is begun yet, and an exception in an import may be lost."""
    with suppress(OSError):
        os.write(2, b"interrupted before anything was done\n")
    os._exit(128 + number)


def _begin() -> None:
    """Has signals raise exceptions from here on."""
    for number in _ends():
        if signal.getsignal(number) is _end_at_once:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _end)


def _send_again(lost: "sys.UnraisableHookArgs") -> None:
    """Sends an interrupt again whose exception was lost, as where Python cleans up after an object."""
    if lost.exc_type is KeyboardInterrupt:
        from threading import Timer

        Timer(_AGAIN, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(lost)


_AGAIN = 0.05
"""Seconds until a signal is sent again."""


def _ends() -> list[int]:
    """The signals that end the process: not an interrupt where that is ignored, no hangup under nohup."""
    hangup = getattr(signal, "SIGHUP", None)
    handlers = {signal.SIGINT: signal.default_int_handler, hangup: signal.SIG_DFL}
    wanted = [signal.SIGINT, signal.SIGTERM, *([] if hangup is None else [hangup])]
    return [n for n in wanted if signal.getsignal(n) in (handlers.get(n, signal.getsignal(n)), _end_at_once)]


def _open_streams() -> None:
    """Points closed standard streams at nothing: what is opened later must not take their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def main() -> int:
    """Runs the command of the process's arguments; an interrupt ends it without a traceback even while it starts."""
    for number in _ends():
        signal.signal(number, _end_at_once)
    _open_streams()
    sys.unraisablehook = _send_again
    try:
        from pstranspile.tools.cli import main as run

        return run(begins=_begin)
    except KeyboardInterrupt:
        return 130
    finally:
        _begin()


if __name__ == "__main__":
    sys.exit(main())
