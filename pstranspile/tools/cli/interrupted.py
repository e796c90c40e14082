"""What is kept of a run that is interrupted."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager

_STATUSES = [128 + int(number) for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None]
"""Exit statuses of a process that a signal has told to end."""


@contextmanager
def telling_what_is_kept(options: argparse.Namespace) -> Generator[None]:
    """Prints on stderr which checkpoint a run with `--checkpoint` can go on from when it is interrupted."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        told = isinstance(stop, KeyboardInterrupt) or stop.code in _STATUSES
        if told and options.checkpoint:
            print(f"interrupted: {_kept(options.checkpoint)}", file=sys.stderr)
        raise


def _kept(folder: str) -> str:
    from pstranspile.cluster.checkpoint.runs import numbered

    try:
        there = [name for _, name in numbered(folder)]
    except (OSError, ValueError):
        there = []
    if there:
        return f"--resume {folder} goes on from the last checkpoint, {there[-1]}"
    return f"no checkpoint was saved in {folder}; one is saved at the end, and during the run with --checkpoint-every N"
