"""Folders in which output is made ready: hidden, locked while their process lives, and put in place at once."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any
from weakref import finalize

try:
    import fcntl
except ImportError:  # on Windows; what killed processes leave stays there
    fcntl = None

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextlib.contextmanager
def work_folder(parent: Path, prefix: str, suffix: str = "", mode: int = 0o777) -> Generator[Path]:
    """A new folder `<prefix><process>-<number><suffix>` in `parent`, removed with its files at the end of the block.

    Folders of such names that killed processes have left there are removed first: a folder whose lock is free belongs
    to no process. `mode` sets who may read it, as far as the process's mask allows it. Raises OSError.
    """
    remove_abandoned(parent, prefix, suffix)
    number = 0
    while True:
        work = parent / f"{prefix}{os.getpid()}-{number}{suffix}"
        number += 1
        try:
            work.mkdir(mode)
        except FileExistsError:  # of another thread
            continue
        lock = _locked(work)
        if lock is not None:
            break  # else another process has removed it before it was locked
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


@contextlib.contextmanager
def locked(folder: Path) -> Generator[None]:
    """Keeps other processes that do the same with this folder waiting until the end of the block."""
    handle = _locked(folder)
    try:
        yield
    finally:
        if handle is not None and handle >= 0:
            os.close(handle)


class Reading:
    """Keeps a folder from being removed by `locked_if_free` until `close`, or until nobody has this object.

    `there` is false for a folder that is gone.
    """

    def __init__(self, folder: Path):
        try:
            handle = _locked(folder, shared=True)
        except OSError:  # it may not be listed: only the files in it may be read
            handle = -1
        self.there = handle is not None
        self.close = finalize(self, _close, handle)
        """Lets the folder be removed."""


def _close(handle: int | None) -> None:
    if handle is not None and handle >= 0:
        os.close(handle)


@contextlib.contextmanager
def locked_if_free(folder: Path) -> Generator[bool]:
    """Locks a folder until the end of the block, unless it is taken; gives whether it was free."""
    handle = _locked(folder, wait=False) if fcntl is not None else -1
    try:
        yield handle is not None
    finally:
        _close(handle)


class FileLock:
    """The lock of a file that is made for it, until `close`, until nobody has this object, or until the process ends.

    `shared` locks exclude only those that are not. `taken` says that others have it. Where the system has no locks, all
    get it. The last one that closes removes the file. Raises OSError, also for what no lock has left: these are empty
    files.
    """

    def __init__(self, path: Path, *, shared: bool = False):
        handle = _file_handle(path, shared)
        self.taken = handle is None
        self.close = finalize(self, _free, path, handle)
        """Lets others have the lock."""


def _file_handle(path: Path, shared: bool) -> int | None:
    if fcntl is None:
        return -1
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        there = os.fstat(handle)
        if there.st_size or not stat.S_ISREG(there.st_mode):
            os.close(handle)
            raise OSError(errno.EEXIST, "it is there, and is no lock; move it away", str(path))
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as problem:
            if problem.errno in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(handle)
                return None
            return handle  # a file system without locks
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)  # who had it before has just removed the file


def _free(path: Path, handle: int | None) -> None:
    if handle is None or handle < 0 or fcntl is None:
        return
    with contextlib.suppress(OSError):  # others share it
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    os.close(handle)


def _locked(folder: Path, *, wait: bool = True, shared: bool = False) -> int | None:
    """A handle that holds the lock of a folder (-1 where there are no locks); None if it is taken, or is gone."""
    if fcntl is None:
        return -1 if wait else None
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        if os.path.samestat(os.fstat(handle), os.stat(folder)):
            return handle
    except FileNotFoundError:
        pass
    except OSError as problem:  # taken, or a file system without locks
        if wait and problem.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return handle
    os.close(handle)
    return None


def remove_abandoned(parent: Path, prefix: str, suffix: str = "") -> None:
    """Removes what killed processes have left in `parent` under names of work folders. Raises OSError.

    Between `prefix` and a process's number may stand other numbers.
    """
    left = re.compile(f"{re.escape(prefix)}[0-9.]+-[0-9]+{re.escape(suffix)}")
    with os.scandir(parent) as entries:
        folders = [
            Path(entry.path) for entry in entries if left.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    for folder in folders:
        with contextlib.suppress(OSError):  # of another user
            lock = _locked(folder, wait=False)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def exchange(one: Path, other: Path) -> bool:
    """Each takes the other's name, in one step of the file system; False where that can't be done."""
    rename = _renameat2()
    if rename is None:
        return False
    names = (os.fsencode(one), os.fsencode(other))
    return rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0


@cache
def _renameat2() -> Any:
    """The function of that name of the C library, None where it has none (it is Linux's)."""
    try:
        return ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):
        return None
