"""Rows of large tables on disk: an array in a file, of which the system keeps in memory what is used.

A file has no name, so that nothing of it is left when its process ends, whatever ends it. Its room on the disk is taken
before it is used: memory that stands for a file whose disk is full can't be written to, which would end the process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, cached_property
from typing import Any

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.runtime.values import Array

_AT_ONCE = 1 << 20
_READERS = 8
_FEW = 64


@cache
def _readers() -> Executor:
    return ThreadPoolExecutor(_READERS, "rows-on-disk")


def require_usable(folder: str) -> None:
    """Makes the folder if there is none. Raises DiagnosticError (`table-folder`) if rows can't be kept there."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            _take_room(file.fileno(), 0, mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE).close()
    except (OSError, ValueError) as problem:
        raise _refused(folder, problem) from None


def _refused(folder: str, problem: Exception) -> DiagnosticError:
    reason = (problem.strerror if isinstance(problem, OSError) else "") or str(problem)
    return DiagnosticError([error("table-folder", f"can't hold rows of large tables: {reason}", Location(folder))])


def _take_room(file: int, start: int, stop: int) -> None:
    """Takes the disk's room for these bytes of a file. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, start, stop - start)
        return
    for at in range(start, stop, _AT_ONCE):
        os.pwrite(file, bytes(min(_AT_ONCE, stop - at)), at)


def _taken(array: Array, places: Array) -> Array:
    """Items of an array in a file, in new memory.

    What is not in memory is read by several threads, as disks take many requests at a time.
    """
    count, part = len(places), -(-len(places) // _READERS)
    if count < _FEW:
        return array.take(places, axis=0)
    out = np.empty((count, *array.shape[1:]), array.dtype)

    def read(at: int) -> None:
        array.take(places[at : at + part], axis=0, out=out[at : at + part], mode="clip")  # "raise" would copy

    list(_readers().map(read, range(0, count, part)))
    return out


class DiskRows:
    """Rows of numbers in a file in `folder`; `dims` are those of a row."""

    def __init__(self, folder: str, dims: tuple[int, ...], dtype: Any):
        self.folder = folder
        self.array: Array = np.empty((0, *dims), dtype)
        """[n, *dims]; not to be kept, since the memory behind it moves."""
        self._row = int(np.prod(dims)) * self.array.itemsize
        self._map: mmap.mmap | None = None

    @cached_property
    def _file(self) -> Any:
        try:
            return tempfile.TemporaryFile(dir=self.folder)
        except OSError as problem:
            raise _refused(self.folder, problem) from None

    def require(self, length: int) -> None:
        """Has room for at least so many rows. Raises DiagnosticError if the disk has none, and is as before then."""
        have = len(self.array)
        if length > have:
            room = max(length + length // 32, 64)
            try:
                _take_room(self._file.fileno(), have * self._row, room * self._row)
            except OSError as problem:
                os.ftruncate(self._file.fileno(), have * self._row)
                raise _refused(self.folder, problem) from None
            self._show(room)

    def take(self, places: Array) -> Array:
        """Rows by place, in new memory."""
        return _taken(self.array, places)

    def values(self, places: Array) -> Array:
        """The parameters of rows by place, without their states, in new memory."""
        return _taken(self.array.reshape(-1, *self.array.shape[2:]), places * self.array.shape[1])

    def cut(self, length: int) -> None:
        """Gives back the room beyond so many rows."""
        self._show(length)
        os.ftruncate(self._file.fileno(), length * self._row)

    def _show(self, length: int) -> None:
        """Has the array be so many rows of the file."""
        dims, dtype = self.array.shape[1:], self.array.dtype
        self.array, self._map = np.empty((0, *dims), dtype), None
        if length:
            try:
                self._map = mmap.mmap(self._file.fileno(), length * self._row)
            except OSError as problem:
                raise _refused(self.folder, problem) from None
            if hasattr(mmap, "MADV_RANDOM"):
                self._map.madvise(mmap.MADV_RANDOM)  # rows beside one that is asked for are no likelier than others
            self.array = np.frombuffer(self._map, dtype).reshape(length, *dims)

    def let_go(self, first: int) -> None:
        """The rows from this one on will not be used soon: they need not be in the memory of the process."""
        start = -(-first * self._row // mmap.PAGESIZE) * mmap.PAGESIZE
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED") and start < len(self._map):
            self._map.madvise(mmap.MADV_DONTNEED, start)
