"""Fluid's `profiler`: measures how long the ops in a part of the script take."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pstranspile.fluid.missing import names_of_fluid
from pstranspile.fluid.running.watchers import KEYS, Profiler, active
from pstranspile.ir.user_warnings import warn


def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Starts to measure, op by op and on the CPU whatever the state is; does nothing if a measurement is under way.

    The options of tracers, which select parts of ops, all measure whole ops. Raises ValueError for an unknown state or
    option.
    """
    if state not in ("CPU", "GPU", "All"):
        raise ValueError(f"the state is CPU, GPU or All, not {state!r}")
    if tracer_option not in ("Default", "OpDetail", "AllOpDetail"):
        raise ValueError(f"the tracer option is Default, OpDetail or AllOpDetail, not {tracer_option!r}")
    if not active:
        active.append(Profiler())


def stop_profiler(sorted_key: str | None = None, profile_path: str = "/tmp/profile") -> None:
    """Stops to measure: prints the times of ops by type, and writes all of them to a file, as Fluid's message
    `Profile`.

    `sorted_key` is calls, total, max, min or ave. Does nothing if no measurement is under way. Warns about a file that
    can't be written. Raises ValueError for an unknown key.
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
    """Drops all measured times, and starts to measure again."""
    if active:
        active[0] = Profiler()


@contextmanager
def profiler(
    state: str, sorted_key: str | None = None, profile_path: str = "/tmp/profile", tracer_option: str = "Default"
) -> Generator[None]:
    """A context manager that measures the ops run in its block, as `start_profiler` and `stop_profiler` do. Raises
    ValueError.
    """
    start_profiler(state, tracer_option)
    try:
        yield
    finally:
        stop_profiler(sorted_key, profile_path)


@contextmanager
def cuda_profiler(output_file: str, output_mode: str | None = None, config: Any = None) -> Generator[None]:
    """A context manager without effect, because there is no GPU to measure."""
    yield


__getattr__ = names_of_fluid(__name__, globals())
