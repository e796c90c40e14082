"""How a run is going: one line that changes on a terminal, a line per step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import perf_counter
from typing import TextIO


class Progress:
    """Shows the numbers of every step as they come."""

    def __init__(self, steps: int, stream: TextIO | None = None):
        self._steps = steps
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._start = perf_counter()
        self._shown = 0.0
        self._width = 0

    def step(self, number: int, numbers: Mapping[str, float]) -> None:
        """Step `number`, counted from 1, has given these numbers."""
        told = "  ".join(f"{name} {value:.6g}" for name, value in numbers.items())
        line = f"step {number}/{self._steps}  {told}".rstrip()
        if not self._live:
            print(line, file=self._stream, flush=True)
            return
        now = perf_counter()
        if now - self._shown < 0.05 and number < self._steps:  # a terminal need not be written to more often
            return
        self._shown = now
        line += f"  {number / max(now - self._start, 1e-9):.1f} steps/s"
        print(f"\r{line:<{self._width}}", end="", file=self._stream, flush=True)
        self._width = len(line)

    def end(self) -> None:
        """The last step is done, or the run has stopped."""
        if self._live and self._width:
            print(file=self._stream)
