"""The 64-bit Mersenne Twister (M. Matsumoto, T. Nishimura, 2004), which Fluid's class samplers draw from.

A sampler with a seed makes the same numbers in Fluid and here. The parameters are those of C++'s `mt19937_64`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from pstranspile.runtime.values import Array

_SIZE = 312
_SHIFT = 156
_MASK = (1 << 64) - 1


def _start(seed: int) -> Array:
    state = [seed & _MASK]
    for at in range(1, _SIZE):
        state.append((6364136223846793005 * (state[-1] ^ state[-1] >> 62) + at) & _MASK)
    return np.array(state, "uint64")


def _mixed(upper: Array, lower: Array) -> Array:
    word = upper & np.uint64(0xFFFFFFFF80000000) | lower & np.uint64(0x7FFFFFFF)
    return word >> np.uint64(1) ^ (word & np.uint64(1)) * np.uint64(0xB5026F5AA96619E9)


def _next(old: Array) -> Array:
    new = np.empty_like(old)
    new[:_SHIFT] = old[_SHIFT:] ^ _mixed(old[:_SHIFT], old[1 : _SHIFT + 1])
    new[_SHIFT:-1] = new[: _SHIFT - 1] ^ _mixed(old[_SHIFT:-1], old[_SHIFT + 1 :])
    new[-1:] = new[_SHIFT - 1 : _SHIFT] ^ _mixed(old[-1:], new[:1])
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
