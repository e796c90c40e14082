"""The 64-bit xxHash (Y. Collet), which Fluid hashes rows of ids with, for many rows at once."""

from __future__ import annotations

import numpy as np

from pstranspile.runtime.values import Array

# the primes of xxHash64
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MASK = (1 << 64) - 1


def _turned(word: Array, bits: int) -> Array:
    return word << np.uint64(bits) | word >> np.uint64(64 - bits)


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
