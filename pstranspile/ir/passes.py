"""Runs the passes of a compile by name, so that callers can time and print them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Observer(Protocol):
    """A callback for every pass: its name, its result, and its duration in seconds."""

    def __call__(self, name: str, result: object, seconds: float) -> None:
        """Called when a pass has ended."""
        ...


class Steps:
    """Runs passes by name and notifies an observer."""

    def __init__(self, observer: Observer | None = None):
        self._observer = observer

    def run(self, name: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Returns `function(*args)`, run as the pass called `name`."""
        if self._observer is None:
            return function(*args, **kwargs)
        start = time.perf_counter()
        result = function(*args, **kwargs)
        self._observer(name, result, time.perf_counter() - start)
        return result
