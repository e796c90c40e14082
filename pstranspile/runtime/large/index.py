"""The places of ids in arrays: a hash table of numbers in two arrays, for many ids at a time."""

from __future__ import annotations

import numpy as np

from pstranspile.ir.table_rules import most_rows
from pstranspile.runtime.values import Array

# Ids of tables that have a row for every id of 64 bits, which are numbers of their own on every server.
#
# Such a table has as many rows as there can be (`most_rows`), which is fewer than there are ids. Its ids, int64 with
# the bits of uint64, are spread over these rows to find the server that has each; there they keep their number. Two ids
# that come to lie beside the same row are on the same server, where each has a row of its own.

_ID_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


def beside(ids: Array, width: int) -> Array:
    """For each id, int64 of any shape, the row of the table beside which it lies; ids near each other lie apart."""
    mixed = ids.astype(np.int64, copy=False).view(np.uint64) * _ID_FACTOR
    mixed ^= mixed >> _HALF
    mixed *= _ID_FACTOR
    mixed >>= _ONE
    mixed //= np.uint64(width)
    return np.minimum(mixed.view(np.int64), most_rows(width) - 1)


def lie_within(ids: Array, width: int, start: int, rows: int) -> Array:
    """A mask of the ids that lie beside one of so many rows from `start` on (bool)."""
    row = beside(ids, width)
    return (row >= start) & (row < start + rows)


_FILLED = 0.6
"""The part of the hash table that may be in use: beyond, it is made twice as large."""

_LEAST = 1 << 10
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def grown(array: Array, length: int) -> Array:
    """The array with room for at least so many items, by a 32nd more than needed when it has to grow.

    It is made longer where it lies, which for large arrays moves no numbers on most systems. Nobody else may hold it.
    """
    if length > len(array):
        array.resize((max(length + length // 32, 64), *array.shape[1:]), refcheck=False)
    return array


class IdIndex:
    """Ids, each once, in the order in which they came: an id has the place in which it came, counted from 0.

    `ids[:count]` are the ids by place, int64. Besides them 4 bytes are kept for each place of the hash
    table, of which at most 60 in 100 are in use.
    """

    def __init__(self) -> None:
        self.ids = np.empty(0, np.int64)
        self.count = 0
        self._begin(_LEAST)

    def __len__(self) -> int:
        return self.count

    @property
    def held(self) -> Array:
        """The ids by place; not to be kept, since the memory behind them moves."""
        return self.ids[: self.count]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return int(self.ids.nbytes + self._places.nbytes)

    def _begin(self, size: int) -> None:
        self._places = np.full(size, -1, np.int32)
        self._shift = np.uint64(64 - size.bit_length() + 1)

    def _homes(self, ids: Array) -> Array:
        """The places in the hash table at which ids are looked for first."""
        return ((ids.view(np.uint64) * _SPREAD) >> self._shift).astype(np.int64)

    def find(self, ids: Array) -> Array:
        """The place of each id, int64 [n], -1 for one that is not there. `ids` is int64 [n]."""
        at = self._homes(np.ascontiguousarray(ids, np.int64))
        places = self._places.take(at).astype(np.int64)
        if not self.count:
            return places
        # a place that is not in use ends the search, which is what the id of another one does not
        wrong = (places >= 0).nonzero()[0]
        wrong = wrong[self.ids.take(places[wrong]) != ids[wrong]]
        last = len(self._places) - 1
        while len(wrong):
            at[wrong] = (at[wrong] + 1) & last
            places[wrong] = self._places.take(at[wrong])
            wrong = wrong[places[wrong] >= 0]
            wrong = wrong[self.ids.take(places[wrong]) != ids[wrong]]
        return places

    def add(self, new: Array) -> None:
        """Adds ids that are not there yet and that all differ, in order."""
        count, total = self.count, self.count + len(new)
        self.ids = grown(self.ids, total)
        self.ids[count:total] = new
        self.count = total
        if total > _FILLED * len(self._places):
            self.rebuild()
        else:
            self._enter(count, total)

    def keep(self, places: Array) -> None:
        """Keeps the ids of these places, which ascend, and forgets all others."""
        kept = self.ids[places]
        self.ids = np.empty(0, np.int64)
        self.ids = grown(self.ids, len(kept))
        self.ids[: len(kept)] = kept
        self.count = len(kept)
        self.rebuild()

    def exchange(self, ones: Array, others: Array) -> None:
        """Has the ids of places, each named once, change places with those of as many others."""
        at, other_at = self._entries(ones), self._entries(others)
        self._places[at], self._places[other_at] = others, ones
        self.ids[ones], self.ids[others] = self.ids[others], self.ids[ones]

    def _entries(self, places: Array) -> Array:
        """The entries of the hash table that hold these places."""
        at, last = self._homes(self.ids[places]), len(self._places) - 1
        wrong = (self._places.take(at) != places).nonzero()[0]
        while len(wrong):
            at[wrong] = (at[wrong] + 1) & last
            wrong = wrong[self._places.take(at[wrong]) != places[wrong]]
        return at

    def rebuild(self) -> None:
        """Makes the hash table anew, as large as the ids need it."""
        size = _LEAST
        while self.count > _FILLED * size:
            size *= 2
        self._places = np.empty(0, np.int32)
        self._begin(size)
        step = 1 << 16
        for start in range(0, self.count, step):
            self._enter(start, min(start + step, self.count))

    def _enter(self, start: int, stop: int) -> None:
        """Enters the ids of these places into the hash table."""
        places = np.arange(start, stop, dtype=np.int32)
        at = self._homes(self.ids[start:stop])
        last = len(self._places) - 1
        while len(places):
            free = self._places.take(at) < 0
            self._places[at[free]] = places[free]
            left = self._places.take(at) != places  # not free, or taken by another one at the same time
            places, at = places[left], (at[left] + 1) & last
