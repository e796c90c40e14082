"""Random numbers that belong to rows of a batch: a row draws the same ones whichever machine has it, in whatever order.

A number is addressed by the row's place in the whole batch and by the element's place within the row. So a trainer that
has some rows of a batch draws for them what a single machine draws for them. Rows need not be equally large: a sequence
draws the same numbers whatever else is in the batch, and however far it is padded.

Numbers come from hashing addresses: 64 bits of each row, made of the stream's key and the row's place, are mixed with
the element's place by multiplications and shifts of 32-bit words (the mixing of C. Wellons' `lowbias32`).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from pstranspile.values import Array

_CHUNK = 1 << 15
"""Elements mixed at a time, so that intermediate values stay in the processor's cache."""

_GOLDEN64 = 0x9E3779B97F4A7C15
_GOLDEN32 = 0x9E3779B9


class Rows(NamedTuple):
    """Which rows of the whole batch the elements of a tensor belong to.

    `places` are the rows' places, `sizes` the elements of each (one number if they are alike, else an array). Elements
    lie row after row, or, if `outer` is not 1, in so many blocks that hold a part of every row. `whole` says where the
    rows lie on a machine that has the whole batch: how many rows it has where they are alike, else the element that
    each row begins with; None where that is not known.
    """

    places: Array
    sizes: int | Array
    outer: int = 1
    whole: int | Array | None = None

    @staticmethod
    def one(count: int) -> Rows:
        """The rows of a tensor that has nothing to do with the batch: all its elements are one row."""
        return Rows(np.zeros(1, "int64"), count)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return self.sizes * len(self.places) if isinstance(self.sizes, int) else int(self.sizes.sum())

    def arranged(self, numbers: Array) -> Array:
        """Numbers that come row after row, in the order of the tensor's elements; flat."""
        if self.outer == 1:
            return numbers.reshape(-1)
        return numbers.reshape(len(self.places), self.outer, -1).swapaxes(0, 1).reshape(-1)

    def whole_elements(self) -> int:
        """How many elements the tensor of the whole batch has; of this one, if that is not known."""
        if not isinstance(self.whole, int) or not isinstance(self.sizes, int):
            return self.elements
        return self.whole * self.sizes

    def positions(self) -> Array:
        """The place that each element has in the tensor of the whole batch (in this tensor, if that is not known)."""
        if not self.elements or self.whole is None:
            return np.arange(self.elements)
        if isinstance(self.sizes, int) and isinstance(self.whole, int):
            inner = self.sizes // self.outer
            blocks = self.places * inner + np.arange(self.outer)[:, None] * (self.whole * inner)
            return (blocks[:, :, None] + np.arange(inner)).reshape(-1)
        starts = np.asarray(self.whole)
        return np.repeat(starts, self.sizes) + _within(np.asarray(self.sizes))


def _within(sizes: Array) -> Array:
    """The place of each element within its row."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


class RowStream(NamedTuple):
    """A stream of numbers for the elements of one tensor. `key`: as `pstranspile.kernels.random.streams` makes them."""

    key: int
    rows: Rows

    def words32(self) -> Array:
        """A 32-bit word for every element; flat."""
        low, high = _row_words(self.key, self.rows.places)
        sizes = self.rows.sizes
        if isinstance(sizes, int):
            return self.rows.arranged(_table(low, high, sizes))
        if len(sizes) and (sizes == sizes[0]).all():
            return _table(low, high, int(sizes[0])).reshape(-1)
        within = _within(sizes).astype("uint32") * np.uint32(_GOLDEN32)
        return _mixed(np.repeat(low, sizes), np.repeat(high, sizes), within)

    def words(self) -> Array:
        """A 64-bit word for every element; flat."""
        high = self._replace(key=self.key ^ _GOLDEN64).words32().astype("uint64")
        return (high << np.uint64(32)) | self.words32()

    def reaches(self, rate: float) -> Array:
        """For every element, whether its number of [0, 1) is not below `rate`; flat."""
        bound = round(rate * 2**32)
        return np.zeros(self.rows.elements, bool) if bound >> 32 else self.words32() >= np.uint32(bound)


@cache
def _numbers(kind: str, *values: int) -> tuple[Array, ...]:
    """Whole numbers as arrays without dims, which numpy takes faster than others."""
    return tuple(np.array(value, kind) for value in values)


_SINGLY = 12
"""Up to so many rows, Python's own numbers cost less than an array of them."""


def _row_words(key: int, places: Array) -> tuple[Array, Array]:
    """Two 32-bit words for every row."""
    if len(places) <= _SINGLY:
        mixed = [_mixed64(_mixed64(place ^ (key >> 64)) ^ (key & _ALL64)) for place in places.tolist()]
        word = np.array(mixed, "uint64")
    else:
        word = places.astype("uint64")
        word ^= np.uint64(key >> 64)
        _mix64(word)
        word ^= np.uint64(key & _ALL64)
        _mix64(word)
    low = word.astype("uint32")
    word >>= _numbers("uint64", 32)[0]
    return low, word.astype("uint32")


_ALL64 = 2**64 - 1


def _mixed64(x: int) -> int:
    """What `_mix64` makes of an element."""
    x = (x + _GOLDEN64) & _ALL64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _ALL64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _ALL64
    return x ^ (x >> 31)


def _mix64(x: Array) -> None:
    """The finalizer of SplitMix64, of every element, in place."""
    golden, first, factor1, second, factor2, third = _numbers(
        "uint64", _GOLDEN64, 30, 0xBF58476D1CE4E5B9, 27, 0x94D049BB133111EB, 31
    )
    x += golden
    shifted = x >> first
    x ^= shifted
    x *= factor1
    np.right_shift(x, second, shifted)
    x ^= shifted
    x *= factor2
    np.right_shift(x, third, shifted)
    x ^= shifted


_FEW = 1 << 12


def _steps(size: int) -> Array:
    """What tells the elements of a row apart."""
    return np.arange(size, dtype="uint32") * np.uint32(_GOLDEN32)


@cache
def _first() -> Array:
    """The same of the first elements of any row."""
    return _steps(_FEW)


def _table(low: Array, high: Array, size: int) -> Array:
    """A row of `size` words for each pair of words."""
    out = np.empty((len(low), size), "uint32")
    within = _first()[:size] if size <= _FEW else _steps(size)
    step = max(1, _CHUNK // max(size, 1))
    for at in range(0, len(low), step):
        _mixed(low[at : at + step, None], high[at : at + step, None], within, out[at : at + step])
    return out


def _mixed(low: Array, high: Array, within: Array, out: Array | None = None) -> Array:
    half, factor1, shift, factor2 = _numbers("uint32", 16, 0x7FEB352D, 15, 0x846CA68B)
    x = np.bitwise_xor(low, within, out=out)
    shifted = x >> half
    x ^= shifted
    x *= factor1
    x += high
    np.right_shift(x, shift, out=shifted)
    x ^= shifted
    x *= factor2
    np.right_shift(x, half, out=shifted)
    x ^= shifted
    return x
