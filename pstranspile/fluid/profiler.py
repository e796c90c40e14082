"""Fluid's `profiler`: contexts that measure how long the block takes."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from pstranspile.fluid.missing import names_of_fluid

_BEGUN: list[float] = []


def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Begins to measure."""
    _BEGUN[:] = [time.perf_counter()]


def stop_profiler(sorted_key: str | None = None, profile_path: str = "/tmp/profile") -> None:
    """Prints how long it took since `start_profiler`."""
    if _BEGUN:
        print(f"profiler: {time.perf_counter() - _BEGUN.pop():.3f} s")


def reset_profiler() -> None:
    """Measures from now on."""
    if _BEGUN:
        _BEGUN[0] = time.perf_counter()


@contextmanager
def profiler(
    state: str, sorted_key: str | None = None, profile_path: str = "/tmp/profile", tracer_option: str = "Default"
) -> Generator[None]:
    """Prints how long the block took."""
    start_profiler(state)
    try:
        yield
    finally:
        stop_profiler()


@contextmanager
def cuda_profiler(output_file: str, output_mode: str | None = None, config: Any = None) -> Generator[None]:
    """Nothing: there is no GPU to look at."""
    yield


__getattr__ = names_of_fluid(__name__, globals())
