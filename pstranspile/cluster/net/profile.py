"""Where the time of a process goes: by type of op, and what it does between its programs.

The thread that plays the machine is looked at a few hundred times a second, so that nothing is measured around each of
many small ops. What is found counts for the time since the last look.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType

from pstranspile.runtime.run.source import Source

PAUSE = 0.004
"""Seconds between looks."""

WAITING, WIRE, MACHINE = "(waiting)", "(sending and receiving)", "(the machine itself)"
"""What is done outside of ops."""

_WIRE = tuple(f"/net/{name}.py" for name in ("channel", "transport", "frames", "values", "peer", "http2", "loop"))


class Profile:
    """Looks at the thread that has made it, until it is closed."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._thread = threading.get_ident()
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()

    def _look(self) -> None:
        before = time.perf_counter()
        while not self._over.wait(PAUSE):
            frame = sys._current_frames().get(self._thread)  # pyright: ignore[reportPrivateUsage] (documented)
            now = time.perf_counter()
            if frame is not None:
                name = doing(frame)
                self.seconds[name] = self.seconds.get(name, 0.0) + now - before
            before = now

    def close(self) -> dict[str, float]:
        """Ends it; gives the seconds by what was done."""
        self._over.set()
        self._looking.join()
        return self.seconds


def doing(frame: FrameType | None) -> str:
    """What a thread does that stands there: the type of an op, or one of the names above."""
    outside = ""
    while frame is not None:
        source = frame.f_globals.get("__source__")
        if isinstance(source, Source):
            index = source.owners.get(frame.f_lineno, -1)
            return source.bound[index].op.type if index >= 0 else MACHINE
        file = frame.f_code.co_filename.replace("\\", "/")
        if not outside and file.endswith("/selectors.py"):
            outside = WAITING
        elif not outside and file.endswith(_WIRE):
            outside = WIRE
        frame = frame.f_back
    return outside or MACHINE


def table(by_role: Mapping[str, Mapping[str, float]]) -> str:
    """The profiles of machines as a table: what costs most first, waiting last."""
    lines: list[str] = []
    for role, seconds in by_role.items():
        total = sum(seconds.values()) or 1.0
        lines.append(f"{role:<32}{'seconds':>9}{'share':>8}")
        for name, spent in sorted(seconds.items(), key=lambda item: (item[0] == WAITING, -item[1], item[0])):
            lines.append(f"  {name:<30}{spent:>9.3f}{100 * spent / total:>7.1f}%")
    return "\n".join(lines) + "\n"
