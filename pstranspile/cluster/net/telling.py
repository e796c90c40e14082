"""Lines on stderr about the events of a machine: the processes that it refuses, and what it can't do.

Other processes decide on texts in these lines, and on their number. So each message is printed as one line, control
characters are escaped, and of many similar lines only some are printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from pstranspile.ir.diagnostics import visible

MOST = 4000
"""The most characters of a line."""

AT_ONCE = 20
"""The most lines that are printed at once."""

SECONDS = 10.0
"""Seconds between two lines after that; a line says how many were omitted before it."""


def tell(role: str, text: str) -> None:
    """Prints a line about the machine `role`."""
    print(f"pstranspile start: {visible(role)}: {visible(text, MOST)}", file=sys.stderr, flush=True)


class Told:
    """Prints lines about the machine `role`, at a limited rate, as others can cause any number. `clock` gives
    seconds.
    """

    def __init__(self, role: str, clock: Callable[[], float]):
        self._role, self._clock = role, clock
        self._room, self._looked = float(AT_ONCE), clock()
        self._left_out = 0

    def __call__(self, text: str) -> None:
        """Prints a line, or counts it as omitted if there were too many."""
        now = self._clock()
        self._room = min(self._room + (now - self._looked) / SECONDS, float(AT_ONCE))
        self._looked = now
        if self._room < 1.0:
            self._left_out += 1
            return
        self._room -= 1.0
        more = f" ({self._left_out} lines like this were left out)" if self._left_out else ""
        self._left_out = 0
        tell(self._role, text + more)
