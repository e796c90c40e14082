"""Fluid's `profiler`: contexts that measure how long the ops of a block of the script take."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.running.watching import KEYS, Profiler, active
from pstranspile.ir.warned import warn


def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Begins to measure, op by op and on the CPU whatever the state says; does nothing if that has begun.

    The options of tracers, which ask for parts of ops, all give whole ops. Raises ValueError for an unknown state or
    option.
    """
    if state not in ("CPU", "GPU", "All"):
        raise ValueError(f"the state is CPU, GPU or All, not {state!r}")
    if tracer_option not in ("Default", "OpDetail", "AllOpDetail"):
        raise ValueError(f"the tracer option is Default, OpDetail or AllOpDetail, not {tracer_option!r}")
    if not active:
        active.append(Profiler())


def stop_profiler(sorted_key: str | None = None, profile_path: str = "/tmp/profile") -> None:
    """Prints the times of ops by their types, and writes all of them into a file, as Fluid's message `Profile`.

    `sorted_key` is calls, total, max, min or ave. Does nothing if nothing is measured. A file that can't be written is
    a warning. Raises ValueError for an unknown key.
    """
    if not active:
        return
    if sorted_key not in (None, *KEYS):
        raise ValueError(f"the sorted key is {', '.join(KEYS[1:])} or None, not {sorted_key!r}")
    measured = active.pop()
    print(measured.report(sorted_key or KEYS[0]))
    try:
        measured.write(Path(profile_path))
    except OSError as problem:
        warn(f"the profile was not written: {problem}")


def reset_profiler() -> None:
    """Forgets what was measured, and measures from now on."""
    if active:
        active[0] = Profiler()


@contextmanager
def profiler(
    state: str, sorted_key: str | None = None, profile_path: str = "/tmp/profile", tracer_option: str = "Default"
) -> Generator[None]:
    """Measures the ops that run in the block, as `start_profiler` and `stop_profiler` do. Raises ValueError."""
    start_profiler(state, tracer_option)
    try:
        yield
    finally:
        stop_profiler(sorted_key, profile_path)


@contextmanager
def cuda_profiler(output_file: str, output_mode: str | None = None, config: Any = None) -> Generator[None]:
    """A context without effect: there is no GPU to look at."""
    yield


__getattr__ = names_of_fluid(__name__, globals())
