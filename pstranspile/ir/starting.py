"""Ends a process with one sentence if a signal arrives while it starts. Needs no other module of the package."""

import os
import signal
import sys
from contextlib import suppress
from typing import Any


def _end(number: int, _: object) -> None:
    """Ends the process through SystemExit, so that unfinished output is removed. The exit status is the one that shells
    report for a process that a signal ended.
    """
    sys.exit(128 + number)


def _end_at_once(number: int, _: object) -> None:
    """Ends the process immediately while it starts: it has not begun anything yet, and an exception raised during an
    import may be lost.
    """
    with suppress(OSError):
        os.write(2, b"interrupted before anything was done\n")
    os._exit(128 + number)


def _ends() -> list[int]:
    """The signals that end the process: SIGTERM, and SIGINT and SIGHUP unless they are ignored (as SIGHUP is under
    nohup) or have another handler.
    """
    hangup = getattr(signal, "SIGHUP", None)
    handlers = {signal.SIGINT: signal.default_int_handler, hangup: signal.SIG_DFL}
    wanted = [signal.SIGINT, signal.SIGTERM, *([] if hangup is None else [hangup])]
    return [n for n in wanted if signal.getsignal(n) in (handlers.get(n, signal.getsignal(n)), _end_at_once)]


_before: dict[int, Any] = {}
"""The handlers that signals had before the process started."""


def guard() -> None:
    """Makes signals end the process immediately, until `begin` or `restore` is called."""
    for number in _ends():
        if signal.getsignal(number) is not _end_at_once:
            _before[number] = signal.signal(number, _end_at_once)


def begin() -> None:
    """Makes the signals that end the process immediately raise exceptions instead."""
    for number in _ends():
        if signal.getsignal(number) is _end_at_once:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _end)


def restore() -> None:
    """Gives the signals that end the process immediately the handlers that they had before `guard`."""
    for number, handler in _before.items():
        if signal.getsignal(number) is _end_at_once:
            signal.signal(number, handler)
