"""Signals that come while a process starts: it ends at once, with a sentence. Nothing else is imported for this."""

import os
import signal
import sys
from contextlib import suppress
from typing import Any


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


def _ends() -> list[int]:
    """The signals that end the process: not an interrupt where that is ignored, no hangup under nohup."""
    hangup = getattr(signal, "SIGHUP", None)
    handlers = {signal.SIGINT: signal.default_int_handler, hangup: signal.SIG_DFL}
    wanted = [signal.SIGINT, signal.SIGTERM, *([] if hangup is None else [hangup])]
    return [n for n in wanted if signal.getsignal(n) in (handlers.get(n, signal.getsignal(n)), _end_at_once)]


_before: dict[int, Any] = {}
"""The handlers that signals had before the process started."""


def guard() -> None:
    """Has signals end the process at once, until `begin` or `restore`."""
    for number in _ends():
        if signal.getsignal(number) is not _end_at_once:
            _before[number] = signal.signal(number, _end_at_once)


def begin() -> None:
    """Has signals raise exceptions from here on, where they end the process at once."""
    for number in _ends():
        if signal.getsignal(number) is _end_at_once:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _end)


def restore() -> None:
    """Has signals do what they did before `guard`, where they end the process at once."""
    for number, handler in _before.items():
        if signal.getsignal(number) is _end_at_once:
            signal.signal(number, handler)
