"""Square roots of f32 arrays to the bit as Fluid 1.8.5 computes them on an AMD CPU.

Eigen takes eight roots at a time as x times an estimate of 1 / sqrt(x), which one step of Newton's method betters; they
are often a last bit off the true roots. The estimate is the instruction rsqrtps, of which every maker has its own. That
of AMD's Zen CPUs is a table of 13 bits in two parts: a number by the upper 8 of the 12 leading bits of the mantissa
(and whether the exponent is odd), less one by the first 4 and the last 4 of them. It was read off the instruction, all
of whose values the table gives.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pstranspile.runtime.values import Array

_UNIT = 1 / 8192
_FIRST = (8191, 5792)
"""The estimates of 1 and of 1 / sqrt(2), in units."""
_FALLS = (
    "ggfggffgffffffeffefeeeeeeeeededededddddddcddcdcdcdcccccccbccbcbdbbcbbbbbbbbbbabbabababaaabaaaaaaaaaa"
    "9aa9a9a9a99a99a9999999998998998989898988988988888888888878888788787878787787777877777777777877677776"
    "7767767676767676676676676666667666666666666656666566656",
    "bbcbabbbbabbababaabaaaaa9aaa9a9aa99a9999999999998998989889889888888888888788787878787787778777777777"
    "7776777677676767676676676667666666666666665666566656566565655656556556555565555555555555555645555545"
    "5545545545455454545454454544544544454445444444544444444",
)
"""By how many units (base 36) the number falls from each of the 256 upper parts of a mantissa to the next."""
_FINE_FALLS = (
    "7f7f 77f7 6f7d 6ddd 376d 5b5b 356d 2b56 5555 2aaa 2a55 52a9 252a 2949 2529 1292",
    "5b6d 35b6 356a 3555 2aaa 4aa9 2952 294a 1494 2492 2492 4922 1224 1224 2222 2222",
)
"""For each of the first four bits, where it falls by one more unit among the 16 last parts: 15 bits."""

_SMALLEST = 2.0**-126
"""The smallest normal number; Eigen takes roots of smaller ones for 0."""


@cache
def _estimates() -> Array:
    """The bits of the estimates of 1 / sqrt(x), for x from 2 to 4, then from 1 to 2, with 64 more in the exponent."""
    parts: list[Array] = []
    for first, falls, fine_falls in zip(_FIRST, _FALLS, _FINE_FALLS, strict=True):
        coarse = first - np.cumsum([0] + [int(fall, 36) for fall in falls])
        bits = [[0] + [int(bit) for bit in f"{int(word, 16):015b}"] for word in fine_falls.split()]
        fine = np.cumsum(np.array(bits), axis=1)
        parts.append((coarse.reshape(16, 16, 1) - fine.reshape(16, 1, 16)).reshape(-1))
    return (np.concatenate(parts[::-1]) * _UNIT).astype(np.float32).view(np.uint32) + np.uint32(64 << 23)


def reciprocal_estimate(x: Array) -> Array:
    """The instruction's estimate of 1 / sqrt(x), for an f32 array of positive normal numbers."""
    bits = x.view(np.uint32)
    halved_exponent = (bits + np.uint32(1 << 23)) >> 24  # 64 more than half of it, rounded down
    halved_exponent <<= 23
    result = _estimates().take((bits >> 11) & 0x1FFF)  # by the last bit of the exponent, and 12 bits of the mantissa
    result -= halved_exponent
    return result.view(np.float32)


def root_of_eights(x: Array) -> Array:
    """The square roots of an f32 array that is taken eight at a time."""
    normal = (x >= np.float32(_SMALLEST)) & (x < np.inf)
    kept = np.where(normal, x, np.float32(1))
    estimate = reciprocal_estimate(kept)
    estimate *= np.float32(1.5) - kept * np.float32(0.5) * (estimate * estimate)
    result = kept * estimate
    if normal.all():
        return result
    return np.where(normal, result, np.where((x >= 0) & (x < np.inf), np.float32(0), np.sqrt(x)))
