"""How a run is going: one line that changes on a terminal, a line per step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from time import perf_counter
from typing import Any, TextIO

FIRST_NUMBERS = 4
"""How many numbers of a tensor a line shows."""


def shown(value: Any) -> float | str:
    """A fetched value as a line shows it: a single number itself, of others their dims and first numbers."""
    from pstranspile.run.describe import describe, numbers_of

    numbers = numbers_of(value)
    if numbers is None:
        return describe(value)
    if numbers.size == 1 and numbers is value:
        return float(numbers.ravel()[0])
    first = " ".join([f"{float(number):.6g}" for number in numbers.ravel()[:FIRST_NUMBERS]])
    return f"{describe(value)}: {first}{' ...' if numbers.size > FIRST_NUMBERS else ''}"


class Progress:
    """Shows what every step has given as it comes."""

    def __init__(self, steps: int, stream: TextIO | None = None):
        self._steps = steps
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._start = perf_counter()
        self._shown = 0.0
        self._width = 0

    def step(self, number: int, given: Mapping[str, float | str]) -> None:
        """Step `number`, counted from 1, has given these numbers, or words about values."""
        told = "  ".join(f"{name} {v if isinstance(v, str) else f'{v:.6g}'}" for name, v in given.items())
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
