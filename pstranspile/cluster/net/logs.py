"""Folders of logs: those of an earlier run are set apart, and two runs never write into one folder at once."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None


class LogsTaken(OSError):
    """Another run writes its logs into the folder."""


@contextmanager
def log_folder(folder: Path, names: re.Pattern[str]) -> Generator[Path | None]:
    """Makes a folder for logs, and keeps other runs out of it until the end of the block.

    Files in it whose names match are logs of an earlier run: they are moved into a new folder within, `earlier_1` or
    the next number, which is given; None if there are none. Raises LogsTaken, OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = _lock(folder)
    try:
        yield _set_apart(folder, names)
    finally:
        if handle is not None:
            os.close(handle)


def _lock(folder: Path) -> int | None:
    """A handle that holds the lock of a folder; None where there are no locks."""
    if fcntl is None:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(handle)
        if problem.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise LogsTaken(errno.EBUSY, "another run writes its logs there", str(folder)) from None
        return None  # a file system without locks
    return handle


def _set_apart(folder: Path, names: re.Pattern[str]) -> Path | None:
    old = sorted(path for path in folder.iterdir() if names.fullmatch(path.name) and path.is_file())
    if not old:
        return None
    number = 1
    while (kept := folder / f"earlier_{number}").exists():
        number += 1
    kept.mkdir()
    for path in old:
        path.rename(kept / path.name)
    return kept
