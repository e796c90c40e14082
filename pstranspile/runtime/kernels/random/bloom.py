"""Filters of sets of words (B. Bloom), hashed with the 128-bit MurmurHash3 (A. Appleby), as Fluid reads them.

A filter is a parameter whose bytes are four 64-bit numbers (a mark, how many bits, how many hashes, how many words) and
the bits. Each hash gives two bits. A group of words is in the set if all its bits are set.
"""

from __future__ import annotations

import numpy as np

from pstranspile.runtime.values import Array

MARK = 17070416
_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)


def _turned(word: Array, bits: int) -> Array:
    return word << np.uint64(bits) | word >> np.uint64(64 - bits)


def _first(lane: Array) -> Array:
    return _turned(lane * _C1, 31) * _C2


def _second(lane: Array) -> Array:
    return _turned(lane * _C2, 33) * _C1


def _finished(state: Array) -> Array:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        state = (state ^ state >> np.uint64(33)) * np.uint64(factor)
    return state ^ state >> np.uint64(33)


def murmur_hashes(rows: Array, seed: int) -> tuple[Array, Array]:
    """The two halves of MurmurHash3 of the bytes of every row, each uint64 [n]. Rows are uint32 [n, words]."""
    count, words = rows.shape
    padded = np.zeros((count, -(-words // 4) * 4), np.uint64)
    padded[:, :words] = rows
    lanes = padded[:, 0::2] | padded[:, 1::2] << np.uint64(32)
    one, two = (np.full(count, seed, np.uint64) for _ in range(2))
    for at in range(0, words // 4 * 2, 2):
        one = (_turned(one ^ _first(lanes[:, at]), 27) + two) * np.uint64(5) + np.uint64(0x52DCE729)
        two = (_turned(two ^ _second(lanes[:, at + 1]), 31) + one) * np.uint64(5) + np.uint64(0x38495AB5)
    if words % 4:
        one, two = one ^ _first(lanes[:, -2]), two ^ _second(lanes[:, -1])
    one, two = one ^ np.uint64(words * 4), two ^ np.uint64(words * 4)
    one = one + two
    two = two + one
    one, two = _finished(one), _finished(two)
    return one + two, two + one + two


def filtered(table: Array, rows: Array) -> Array:
    """A mask [n] of the rows, uint32 [n, words], that are in the set of a filter. Raises ValueError for another
    parameter.
    """
    held = np.ascontiguousarray(table).view(np.uint8).reshape(-1)
    header = held[:32].view("<u8")
    if len(held) < 32 or header[0] != MARK:
        raise ValueError("the parameter of a filter holds no filter: the mark at its beginning is missing")
    bits = held[32:]
    inside = np.ones(len(rows), bool)
    for seed in range(int(header[2])):
        for half in murmur_hashes(rows, seed):
            at = (half % header[1]).astype(np.int64)
            inside &= bits[at >> 3] >> (7 - (at & 7)).astype(np.uint8) & 1 != 0
    return inside
