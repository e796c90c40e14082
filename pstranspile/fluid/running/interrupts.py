"""Reports of an interrupted script: the line where it was interrupted, and what it was waiting for."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from signal import SIGINT

from pstranspile.fluid.running.tracebacks import line_of_script

STATUS = 128 + SIGINT
"""The exit status of an interrupted script, as shells report it."""

_told_at_exit: list[bool] = []


@contextmanager
def naming_wait(what: Callable[[], str]) -> Generator[None]:
    """A context manager that adds to an interrupt in its block the sentence of what the block waits for.

    The script still catches a KeyboardInterrupt; the sentence is its text.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(*(stop.args or filter(None, (what(),)))) from None


def interrupted(stop: KeyboardInterrupt) -> str:
    """The sentence that reports a script ended by an interrupt: its line, and what it was waiting for there."""
    place = line_of_script(stop)
    return ": ".join(filter(None, (f"interrupted at {place}" if place else "interrupted", str(stop))))


def end_as_interrupted() -> None:
    """Makes this process, which is ending, exit with the status of an interrupt after everything else is done."""
    _told_at_exit.append(True)


def _end() -> None:
    if _told_at_exit:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a script may have closed the stream, or its reader has gone
                stream.flush()
        os._exit(STATUS)


atexit.register(_end)  # registered first, so it runs after all functions that scripts register
