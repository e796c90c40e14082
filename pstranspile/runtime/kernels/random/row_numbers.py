"""Random numbers that belong to rows of a batch: a row draws the same numbers on every machine and in every order.

A number is addressed by the row's position in the whole batch and the element's position within the row. So a trainer
with some rows of a batch draws for them the numbers that a single machine draws. Rows may differ in size. A sequence
draws the same numbers whatever else is in the batch, and however far it is padded.

Numbers are hashes of addresses. 64 bits for each row, made from the stream's key and the row's position, are mixed with
the element's position by multiplications and shifts of 32-bit words (the mixing function of C. Wellons' `lowbias32`).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from pstranspile.runtime.values import Array

_CHUNK = 1 << 15
"""Elements mixed at a time, so that intermediate values stay in the processor's cache."""

_GOLDEN64 = 0x9E3779B97F4A7C15
_GOLDEN32 = 0x9E3779B9


class Rows(NamedTuple):
    """The rows of the whole batch to which the elements of a tensor belong.

    `places` are the rows' positions. `sizes` is the number of elements of each row, or one number if all rows have the
    same. Elements are stored row after row, or, if `outer` is not 1, in that many blocks that hold a part of every row.
    `whole` locates the rows on a machine with the whole batch: it is the number of rows if they have one size, else the
    offset of each row's first element. It is None if that is not known.
    """

    places: Array
    sizes: int | Array
    outer: int = 1
    whole: int | Array | None = None

    @staticmethod
    def one(count: int) -> Rows:
        """The rows of a tensor that is independent of the batch: all its elements form one row."""
        return Rows(np.zeros(1, "int64"), count)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return self.sizes * len(self.places) if isinstance(self.sizes, int) else int(self.sizes.sum())

    def arranged(self, numbers: Array) -> Array:
        """Numbers given row after row, reordered to the tensor's elements; flat."""
        if self.outer == 1:
            return numbers.reshape(-1)
        return numbers.reshape(len(self.places), self.outer, -1).swapaxes(0, 1).reshape(-1)

    def whole_elements(self) -> int:
        """The number of elements of the tensor of the whole batch, or of this tensor if that is not known."""
        if not isinstance(self.whole, int) or not isinstance(self.sizes, int):
            return self.elements
        return self.whole * self.sizes

    def positions(self) -> Array:
        """The position of each element in the tensor of the whole batch, or in this tensor if that is not known."""
        if not self.elements or self.whole is None:
            return np.arange(self.elements)
        if isinstance(self.sizes, int) and isinstance(self.whole, int):
            inner = self.sizes // self.outer
            blocks = self.places * inner + np.arange(self.outer)[:, None] * (self.whole * inner)
            return (blocks[:, :, None] + np.arange(inner)).reshape(-1)
        starts = np.asarray(self.whole)
        return np.repeat(starts, self.sizes) + _within(np.asarray(self.sizes))


def _within(sizes: Array) -> Array:
    """The position of each element within its row."""
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


class RowStream(NamedTuple):
    """A stream of numbers for the elements of one tensor. `key`: as `pstranspile.runtime.kernels.random.streams` makes
    them.
    """

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
        """For every element, whether its number in [0, 1) is at least `rate`; flat."""
        bound = round(rate * 2**32)
        return np.zeros(self.rows.elements, bool) if bound >> 32 else self.words32() >= np.uint32(bound)


@cache
def _numbers(kind: str, *values: int) -> tuple[Array, ...]:
    """Integers as 0-d arrays, which numpy handles faster than Python numbers."""
    return tuple(np.array(value, kind) for value in values)


_SINGLY = 12
"""Up to this many rows, Python integers are faster than an array of them."""


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
    """`_mix64` for one Python integer."""
    x = (x + _GOLDEN64) & _ALL64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _ALL64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _ALL64
    return x ^ (x >> 31)


def _mix64(x: Array) -> None:
    """The finalizer of SplitMix64, applied to every element in place."""
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
