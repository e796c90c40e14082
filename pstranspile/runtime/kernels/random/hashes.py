"""Hashes and generators of others, to the bit: Bloom filters with MurmurHash3, xxHash, the Mersenne Twister."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pstranspile.runtime.values import Array

# Filters of sets of words (B. Bloom), hashed with the 128-bit MurmurHash3 (A. Appleby), as Fluid reads them.
#
# A filter is a parameter whose bytes are four 64-bit numbers (a mark, how many bits, how many hashes, how many words)
# and the bits. Each hash gives two bits. A group of words is in the set if all its bits are set.

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


# The 64-bit xxHash (Y. Collet), which Fluid hashes rows of ids with, for many rows at once.

# the primes of xxHash64
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MASK = (1 << 64) - 1


def _mixed(state: Array, lane: Array) -> Array:
    return _turned(state + lane * np.uint64(_P2), 31) * np.uint64(_P1)


def row_hashes(rows: Array, seed: int) -> Array:
    """xxHash64 of the bytes of every row, as uint64 [n]. Rows are 32-bit words, uint32 [n, words]."""
    count, words = rows.shape
    lanes = rows[:, : words // 2 * 2].astype("uint64")
    lanes = lanes[:, 0::2] | lanes[:, 1::2] << np.uint64(32)  # little-endian, on any machine
    stripes = words // 8 * 4
    if stripes:
        starts = (seed + _P1 + _P2, seed + _P2, seed, seed - _P1)
        states = [np.full(count, start & _MASK, "uint64") for start in starts]
        for at in range(stripes):
            states[at % 4] = _mixed(states[at % 4], lanes[:, at])
        turned = [_turned(state, bits) for state, bits in zip(states, (1, 7, 12, 18), strict=True)]
        result = turned[0] + turned[1] + turned[2] + turned[3]
        for state in states:
            result = (result ^ _mixed(np.zeros_like(state), state)) * np.uint64(_P1) + np.uint64(_P4)
    else:
        result = np.full(count, (seed + _P5) & _MASK, "uint64")
    result += np.uint64(words * 4)
    for at in range(stripes, lanes.shape[1]):
        result ^= _mixed(np.zeros_like(result), lanes[:, at])
        result = _turned(result, 27) * np.uint64(_P1) + np.uint64(_P4)
    if words % 2:
        result ^= rows[:, -1].astype("uint64") * np.uint64(_P1)
        result = _turned(result, 23) * np.uint64(_P2) + np.uint64(_P3)
    result = (result ^ result >> np.uint64(33)) * np.uint64(_P2)
    result = (result ^ result >> np.uint64(29)) * np.uint64(_P3)
    return result ^ result >> np.uint64(32)


def _turned_32(word: Array, bits: int) -> Array:
    return word << np.uint32(bits) | word >> np.uint32(32 - bits)


# the primes of xxHash32
_Q1, _Q2, _Q3, _Q4, _Q5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1


def row_hashes_32(rows: Array, seed: int) -> Array:
    """xxHash32 of the bytes of every row, as uint32 [n]. Rows are 32-bit words, uint32 [n, words]."""
    count, words = rows.shape
    stripes = words // 4 * 4
    if stripes:
        starts = (seed + _Q1 + _Q2, seed + _Q2, seed, seed - _Q1)
        states = [np.full(count, start & 0xFFFFFFFF, "uint32") for start in starts]
        for at in range(stripes):
            states[at % 4] = _turned_32(states[at % 4] + rows[:, at] * np.uint32(_Q2), 13) * np.uint32(_Q1)
        turned = [_turned_32(state, bits) for state, bits in zip(states, (1, 7, 12, 18), strict=True)]
        result = turned[0] + turned[1] + turned[2] + turned[3]
    else:
        result = np.full(count, (seed + _Q5) & 0xFFFFFFFF, "uint32")
    result += np.uint32(words * 4)
    for at in range(stripes, words):
        result = _turned_32(result + rows[:, at] * np.uint32(_Q3), 17) * np.uint32(_Q4)
    result = (result ^ result >> np.uint32(15)) * np.uint32(_Q2)
    result = (result ^ result >> np.uint32(13)) * np.uint32(_Q3)
    return result ^ result >> np.uint32(16)


# The 64-bit Mersenne Twister (M. Matsumoto, T. Nishimura, 2004), which Fluid's class samplers draw from.
#
# A sampler with a seed makes the same numbers in Fluid and here. The parameters are those of C++'s `mt19937_64`.

_SIZE = 312
_SHIFT = 156


def _start(seed: int) -> Array:
    state = [seed & _MASK]
    for at in range(1, _SIZE):
        state.append((6364136223846793005 * (state[-1] ^ state[-1] >> 62) + at) & _MASK)
    return np.array(state, "uint64")


def _twisted(upper: Array, lower: Array) -> Array:
    word = upper & np.uint64(0xFFFFFFFF80000000) | lower & np.uint64(0x7FFFFFFF)
    return word >> np.uint64(1) ^ (word & np.uint64(1)) * np.uint64(0xB5026F5AA96619E9)


def _next(old: Array) -> Array:
    new = np.empty_like(old)
    new[:_SHIFT] = old[_SHIFT:] ^ _twisted(old[:_SHIFT], old[1 : _SHIFT + 1])
    new[_SHIFT:-1] = new[: _SHIFT - 1] ^ _twisted(old[_SHIFT:-1], old[_SHIFT + 1 :])
    new[-1:] = new[_SHIFT - 1 : _SHIFT] ^ _twisted(old[-1:], new[:1])
    return new


@lru_cache(maxsize=16)
def mersenne_words(seed: int, count: int) -> Array:
    """The first `count` 64-bit words after seeding. The result is cached, so it must not be changed."""
    state, blocks = _start(seed), [np.empty(0, "uint64")]
    for _ in range(0, count, _SIZE):
        state = _next(state)
        blocks.append(state)
    word = np.concatenate(blocks)[:count]
    word ^= word >> np.uint64(29) & np.uint64(0x5555555555555555)
    word ^= word << np.uint64(17) & np.uint64(0x71D67FFFEDA60000)
    word ^= word << np.uint64(37) & np.uint64(0xFFF7EEE000000000)
    return word ^ word >> np.uint64(43)
