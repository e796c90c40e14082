"""Numbers of a stream for scattered rows, such as those of tables whose rows are created on first use.

`uniform(ScatteredRows(key, first, ids, width), 0, len(ids) * width)` gives for each id the numbers of the elements from
`first + id * width` on, bit for bit as `streams` gives them for the whole tensor. numpy's generator needs one call for
each run of numbers. Here the same generator (Philox, 4 words of 64 bits) is computed for all rows at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pstranspile.runtime.kernels.random.streams import Floats, fractions
from pstranspile.runtime.values import Array

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FACTORS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_FOUR = np.uint64(4)
_TWO, _THREE, _SIXTY_TWO = np.uint64(2), np.uint64(3), np.uint64(62)
_AT_ONCE = 1 << 13
"""Blocks calculated at a time, so that intermediate values stay in the processor's cache."""


def _product(factor: int, numbers: Array) -> tuple[Array, Array]:
    """The upper and the lower 64 bits of the products of a factor and numbers of 64 bits."""
    upper, lower = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    high, low = numbers >> _HALF, numbers & _LOW
    lows, cross, other = low * lower, high * lower, low * upper
    middle = (lows >> _HALF) + (cross & _LOW) + other
    return high * upper + (cross >> _HALF) + (middle >> _HALF), numbers * np.uint64(factor)


def block_words(key: int, blocks: Array, second: int = 0, third: Array | None = None) -> Array:
    """The four words of each of these blocks of a stream, uint64 [n, 4]; `blocks` is uint64 [n].

    `second` and `third`, uint64 [n], are the next words of the generator's counter. Other values of them give other
    streams of the same key.
    """
    out = np.empty((len(blocks), 4), np.uint64)
    for start in range(0, len(blocks), _AT_ONCE):
        part = blocks[start : start + _AT_ONCE]
        # the generator counts before it draws
        a, b = part + np.uint64(1), np.full(len(part), second, np.uint64)
        b += a == 0
        c = np.zeros(len(part), np.uint64) if third is None else third[start : start + _AT_ONCE]
        d = np.zeros(len(part), np.uint64)
        first, other = key & 0xFFFFFFFFFFFFFFFF, key >> 64
        for _ in range(_ROUNDS):
            high0, low0 = _product(_FACTORS[0], a)
            high1, low1 = _product(_FACTORS[1], c)
            a, b, c, d = high1 ^ b ^ np.uint64(first), low1, high0 ^ d ^ np.uint64(other), low0
            first, other = (first + _STEPS[0]) & 0xFFFFFFFFFFFFFFFF, (other + _STEPS[1]) & 0xFFFFFFFFFFFFFFFF
        out[start : start + len(part)] = np.stack([a, b, c, d], axis=1)
    return out


class ScatteredRows(NamedTuple):
    """A source of numbers for rows of `width` elements of a stream; the row of id i begins at `first + i * width`.

    `ids` is int64 [n], with the bits of uint64. Rows that begin beyond 64 bits have numbers of their own, too.
    """

    key: int
    first: int
    ids: Array
    width: int

    def words(self) -> Array:
        """The words of all rows one after another, uint64 [n * width]."""
        width, ids = self.width, self.ids.astype(np.uint64)
        upper, starts = _product(width, ids)
        if upper.any():
            return self._far(upper, starts)
        starts += np.uint64(self.first)
        skipped = (starts % _FOUR).astype(np.int64)
        count = (width + 3 + int(skipped.max(initial=0))) // 4
        blocks = (starts // _FOUR)[:, None] + np.arange(count, dtype=np.uint64)
        drawn = block_words(self.key, blocks.reshape(-1)).reshape(len(self.ids), count * 4)
        if skipped.any():
            drawn = np.take_along_axis(drawn, skipped[:, None] + np.arange(width), axis=1)
        return drawn[:, :width].reshape(-1)

    def _far(self, upper: Array, starts: Array) -> Array:
        """The words of all rows, some of which begin beyond 64 bits, where `upper` are the bits from the 65th on."""
        out = np.empty((len(starts), self.width), np.uint64)
        far = upper > 0
        out[~far] = self._replace(ids=self.ids[~far]).words().reshape(-1, self.width)
        first = starts[far] + np.uint64(self.first)
        upper = upper[far] + (first < starts[far])
        column = np.arange(self.width, dtype=np.uint64)
        places = first[:, None] + column
        above = upper[:, None] + (places < column)
        blocks, third = (places >> _TWO) | (above << _SIXTY_TWO), above >> _TWO
        words = block_words(self.key, blocks.reshape(-1), third=third.reshape(-1)).reshape(*places.shape, 4)
        out[far] = np.take_along_axis(words, (places & _THREE).astype(np.int64)[..., None], axis=2)[..., 0]
        return out.reshape(-1)


def chances(key: int, ids: Array, turn: int) -> Floats:
    """A number inside (0, 1) for each id, float64 [n]; other numbers for every `turn`."""
    return fractions(block_words(key, ids.astype(np.uint64), turn)[:, 0])
