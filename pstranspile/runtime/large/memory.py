"""Rows of large tables in memory."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from pstranspile.runtime.large.index import grown
from pstranspile.runtime.values import Array


class MemoryRows:
    """Rows of numbers in an array that grows where it lies; `dims` are those of a row."""

    def __init__(self, dims: tuple[int, ...], dtype: Any):
        self.array: Array = np.empty((0, *dims), dtype)
        """[n, *dims]; not to be kept, since the memory behind it moves."""

    def require(self, length: int) -> None:
        """Has room for at least so many rows."""
        self.array = grown(self.array, length)

    def take(self, places: Array) -> Array:
        """Rows by place, in new memory."""
        return self.array.take(places, axis=0)

    def values(self, places: Array) -> Array:
        """The parameters of rows by place, without their states, in new memory."""
        return self.array.reshape(-1, *self.array.shape[2:]).take(places * self.array.shape[1], axis=0)

    def cut(self, length: int) -> None:
        """Gives back the room beyond so many rows."""
        self.array.resize((length, *self.array.shape[1:]), refcheck=False)


_MMAP_THRESHOLD, _LARGEST_KEPT = -3, 4 << 20


def return_freed_arrays() -> None:
    """Makes the C library return freed arrays of 4 MiB and more to the system, for the rest of the process.

    By default glibc keeps freed arrays of up to 32 MiB for later use. A server with a large table has no use for them:
    updates of many rows allocate such arrays, later updates of fewer rows do not. Only glibc needs this.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            library.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
