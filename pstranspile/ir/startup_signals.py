"""How the process of a command starts: a signal ends it with one sentence, and modules cost the collector nothing.
Needs no other module of the package.
"""

import _thread
import gc
import os
import signal
import time
from contextlib import suppress
from typing import Any

_AGAIN = 0.05
"""Seconds until a signal is sent again whose exception was lost."""

_told: list[int] = []
"""The signals that have raised an exception."""

_process = os.getpid()
"""The process whose signals are sent again, not those that are forked from it."""


class EndSignal(SystemExit):
    """A signal ends the process. The exit status is the one that shells report for a process that a signal ended.

    An exception from a signal handler is lost where Python cleans up after an object, or where a library drops all
    exceptions: then nobody has called `arrive` when this object goes, and the signal is sent again.
    """

    def __init__(self, number: int):
        super().__init__(128 + number)
        self._number = number

    def arrive(self) -> None:
        """Notes that the process ends by this exception."""
        self._number = 0

    def __del__(self) -> None:
        if self._number and os.getpid() == _process:
            with suppress(Exception):  # the interpreter may be ending
                _thread.start_new_thread(_send_again, (self._number,))


def _send_again(number: int) -> None:
    time.sleep(_AGAIN)
    os.kill(os.getpid(), number)


def _end(number: int, _: object) -> None:
    """Ends the process through an exception, so that unfinished output is removed."""
    _told.append(number)
    raise EndSignal(number)


def _interrupt(number: int, _: object) -> None:
    """Ends the process through KeyboardInterrupt, as Python does by itself."""
    _told.append(number)
    raise KeyboardInterrupt


def told_to_end() -> int:
    """The first signal that has raised an exception here; 0 if none has.

    Modules written in C make errors of their own of what is raised while they import others, so such an error may be
    all that is left of a signal.
    """
    return _told[0] if _told else 0


def _end_at_once(number: int, _: object) -> None:
    """Ends the process immediately while it starts: it has not begun anything yet, and an exception raised during an
    import may be lost.
    """
    with suppress(OSError):
        os.write(2, b"interrupted before anything was done\n")
    os._exit(128 + number)


def _termination_signals() -> list[int]:
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
    for number in _termination_signals():
        if signal.getsignal(number) is not _end_at_once:
            _before[number] = signal.signal(number, _end_at_once)


def begin() -> None:
    """Makes the signals that end the process immediately raise exceptions instead."""
    for number in _termination_signals():
        if signal.getsignal(number) is _end_at_once:
            signal.signal(number, _interrupt if number == signal.SIGINT else _end)


def restore() -> None:
    """Gives the signals that end the process immediately the handlers that they had before `guard`."""
    for number, handler in _before.items():
        if signal.getsignal(number) is _end_at_once:
            signal.signal(number, handler)


def freeze_modules() -> None:
    """Takes what the process of a command has imported out of the garbage collector's sight, for it stays to the end.

    To look at it again and again, at last as the process ends, would take a tenth of the time of a short command. In
    another process nothing is done: what it holds besides may become garbage. Code of users is imported after this, so
    that their objects are collected as ever.
    """
    if _before:
        gc.freeze()
