"""Rows of large tables in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.large.index import grown
from pstranspile.values import Array


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
