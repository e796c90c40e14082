"""f32 functions whose results equal those of Fluid 1.8.5 on a CPU bit for bit.

Elementwise ops go through Eigen, eight elements at a time: exp and log by the range reductions and polynomials of
Cephes' expf and logf, tanh by a quotient of polynomials, with every operation rounded separately. The elements after
the last whole eight are computed by the C library. Rows of a softmax are summed in eight lanes; their exponentials are
computed by the C library too, or in long rows by MKL, which uses a table (Tang 1989).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from functools import cache

import numpy as np

from pstranspile.runtime.values import Array

# expf, logf, sinf and cosf, bit for bit as the C library computes them: glibc 2.28 and later.
#
# The library computes them in f64, by tables and polynomials that are precise enough for a single rounding to f32 at
# the end (the "Arm Optimized Routines" explain how; their constants are used here). Results differ from the correctly
# rounded ones in the last bit: in about 1 of 1,000 exponentials, and 1 of 100 of the others.

_hex = float.fromhex

_LIBRARY_LOG2_E = _hex("0x1.71547652b82fep+0")
_LIBRARY_LN_2 = _hex("0x1.62e42fefa39efp-1")
_EXP_PARTS = 32
_LIBRARY_EXP = (_hex("0x1.c6af84b912394p-5"), _hex("0x1.ebfce50fac4f3p-3"), _hex("0x1.62e42ff0c52d6p-1"))
"""Coefficients of a polynomial for 2 to the power of x, the highest degree first; the constant term is 1."""
_LIBRARY_LEAST_EXPONENT = -110.0
"""The exponent below which the exponential is 0 in f32."""

_MOST_EXPONENT = 90.0
"""The exponent above which the exponential is infinite in f32."""

_LIBRARY_LOG = (_hex("-0x1.00ea348b88334p-2"), _hex("0x1.5575b0be00b6ap-2"), _hex("-0x1.ffffef20a4123p-2"))
_LOG_FROM = 0x3F330000
"""The bits of the f32 number 0.69921875, at which the 16 parts of a factor of 2 begin."""
_LOG_TABLE = (
    ("0x1.661ec79f8f3bep+0", "-0x1.57bf7808caadep-2"),
    ("0x1.571ed4aaf883dp+0", "-0x1.2bef0a7c06ddbp-2"),
    ("0x1.49539f0f010bp+0", "-0x1.01eae7f513a67p-2"),
    ("0x1.3c995b0b80385p+0", "-0x1.b31d8a68224e9p-3"),
    ("0x1.30d190c8864a5p+0", "-0x1.6574f0ac07758p-3"),
    ("0x1.25e227b0b8eap+0", "-0x1.1aa2bc79c81p-3"),
    ("0x1.1bb4a4a1a343fp+0", "-0x1.a4e76ce8c0e5ep-4"),
    ("0x1.12358f08ae5bap+0", "-0x1.1973c5a611cccp-4"),
    ("0x1.0953f419900a7p+0", "-0x1.252f438e10c1ep-5"),
    ("0x1p+0", "0x0p+0"),
    ("0x1.e608cfd9a47acp-1", "0x1.aa5aa5df25984p-5"),
    ("0x1.ca4b31f026aap-1", "0x1.c5e53aa362eb4p-4"),
    ("0x1.b2036576afce6p-1", "0x1.526e57720db08p-3"),
    ("0x1.9c2d163a1aa2dp-1", "0x1.bc2860d22477p-3"),
    ("0x1.886e6037841edp-1", "0x1.1058bc8a07ee1p-2"),
    ("0x1.767dcf5534862p-1", "0x1.4043057b6ee09p-2"),
)
"""For each of the 16 parts, the reciprocal of a number in the part, and the natural logarithm of this number."""

_HALF_PI = _hex("0x1.921fb54442d18p0")
_SIN = (_hex("-0x1.555545995a603p-3"), _hex("0x1.1107605230bc4p-7"), _hex("-0x1.994eb3774cf24p-13"))
_COS = (
    _hex("-0x1.ffffffd0c621cp-2"),
    _hex("0x1.55553e1068f19p-5"),
    _hex("-0x1.6c087e89a359dp-10"),
    _hex("0x1.99343027bf8c3p-16"),
)
_LARGE_ANGLE = 120.0
"""The angle from which on the library reduces angles in another way; the correctly rounded result replaces the
library's there.
"""


def library_exp(x: Array) -> Array:
    """expf of every element of an f32 array."""
    cubic, square, linear = (c / _EXP_PARTS**power for c, power in zip(_LIBRARY_EXP, (3, 2, 1), strict=True))
    with np.errstate(all="ignore"):  # NaN has no valid index into the table, but `found` passes it on
        steps = np.clip(x, _LIBRARY_LEAST_EXPONENT, _MOST_EXPONENT).astype(np.float64) * (_LIBRARY_LOG2_E * _EXP_PARTS)
        whole = np.rint(steps)
        rest = steps - whole
        result = (cubic * rest + square) * (rest * rest) + (linear * rest + 1)
        places = whole.astype(np.int32)
        result *= np.ldexp(_library_powers_of_2().take(places % _EXP_PARTS), places // _EXP_PARTS)
        return result.astype(np.float32)


@cache
def _library_powers_of_2() -> Array:
    return np.exp2(np.arange(_EXP_PARTS) / _EXP_PARTS)


def library_log(x: Array) -> Array:
    """logf of every element of an f32 array."""
    usual = (x >= np.float32(2.0**-126)) & (x < np.inf)
    bits = np.ascontiguousarray(np.where(usual, x, np.float32(1))).view(np.uint32)
    above = bits - np.uint32(_LOG_FROM)
    near = (bits - (above & np.uint32(0xFF800000))).view(np.float32).astype(np.float64)
    reciprocals, logarithms = _log_table()
    part = (above >> np.uint32(19)) & np.uint32(15)
    rest = near * reciprocals.take(part) - 1
    known = logarithms.take(part) + (above.view(np.int32) >> 23) * _LIBRARY_LN_2
    squared = rest * rest
    result = (_LIBRARY_LOG[0] * squared + (_LIBRARY_LOG[1] * rest + _LIBRARY_LOG[2])) * squared + (known + rest)
    with np.errstate(all="ignore"):
        return np.where(usual, result, np.log(x, dtype=np.float64)).astype(np.float32)


@cache
def _log_table() -> tuple[Array, Array]:
    both = np.array([[_hex(text) for text in row] for row in _LOG_TABLE])
    return both[:, 0], both[:, 1]


def sin(x: Array) -> Array:
    """sinf of every element of an f32 array."""
    return _of_angle(x, 0, np.sin)


def cos(x: Array) -> Array:
    """cosf of every element of an f32 array."""
    return _of_angle(x, 1, np.cos)


def _of_angle(x: Array, quarters: int, exact: Array) -> Array:
    usual = np.abs(x) < _LARGE_ANGLE
    angle = np.where(usual, x, np.float32(0)).astype(np.float64)
    turns = np.floor(angle / _HALF_PI + 0.5)
    rest = angle - turns * _HALF_PI
    squared = rest * rest
    quarter = turns.astype(np.int64) + quarters
    result = np.where(quarter & 1, _cos_near_0(squared), _sin_near_0(rest, squared))
    result = np.where(quarter & 2, -result, result)
    with np.errstate(all="ignore"):
        return np.where(usual, result, exact(x, dtype=np.float64)).astype(np.float32)


def _sin_near_0(x: Array, squared: Array) -> Array:
    cubed = x * squared
    return (x + cubed * _SIN[0]) + cubed * squared * (_SIN[1] + squared * _SIN[2])


def _cos_near_0(squared: Array) -> Array:
    fourth = squared * squared
    return (1 + squared * _COS[0] + fourth * _COS[1]) + fourth * squared * (_COS[2] + squared * _COS[3])


# Square roots of f32 arrays, bit for bit as Fluid 1.8.5 computes them on an AMD CPU.
#
# Eigen takes eight roots at a time, as x times an estimate of 1 / sqrt(x) that one step of Newton's method improves;
# often they differ from the true roots in the last bit. The estimate is the instruction rsqrtps, which each CPU maker
# implements differently. AMD's Zen CPUs use a table of 13 bits in two parts: a number by the upper 8 of the 12 leading
# bits of the mantissa (and whether the exponent is odd), minus a number by the first 4 and the last 4 of them. The
# table was derived from the instruction, and gives all of its values.

_UNIT = 1 / 8192
_FIRST = (8191, 5792)
"""The estimates of 1 and of 1 / sqrt(2), in units of the table."""
_FALLS = (
    "ggfggffgffffffeffefeeeeeeeeededededddddddcddcdcdcdcccccccbccbcbdbbcbbbbbbbbbbabbabababaaabaaaaaaaaaa"
    "9aa9a9a9a99a99a9999999998998998989898988988988888888888878888788787878787787777877777777777877677776"
    "7767767676767676676676676666667666666666666656666566656",
    "bbcbabbbbabbababaabaaaaa9aaa9a9aa99a9999999999998998989889889888888888888788787878787787778777777777"
    "7776777677676767676676676667666666666666665666566656566565655656556556555565555555555555555645555545"
    "5545545545455454545454454544544544454445444444544444444",
)
"""Steps by which the estimate falls between successive upper 8 bits of a mantissa: units, in base-36 digits."""
_FINE_FALLS = (
    "7f7f 77f7 6f7d 6ddd 376d 5b5b 356d 2b56 5555 2aaa 2a55 52a9 252a 2949 2529 1292",
    "5b6d 35b6 356a 3555 2aaa 4aa9 2952 294a 1494 2492 2492 4922 1224 1224 2222 2222",
)
"""For each value of the first four bits, 15 bits that mark at which of the 16 last parts the estimate falls by one more
unit.
"""

_SMALLEST = 2.0**-126
"""The smallest normal number; for smaller ones Eigen returns 0 as the root."""


@cache
def _estimates() -> Array:
    """The bits of the estimates of 1 / sqrt(x), for x from 2 to 4, then from 1 to 2, with 64 added to the exponent."""
    parts: list[Array] = []
    for first, falls, fine_falls in zip(_FIRST, _FALLS, _FINE_FALLS, strict=True):
        coarse = first - np.cumsum([0] + [int(fall, 36) for fall in falls])
        bits = [[0] + [int(bit) for bit in f"{int(word, 16):015b}"] for word in fine_falls.split()]
        fine = np.cumsum(np.array(bits), axis=1)
        parts.append((coarse.reshape(16, 16, 1) - fine.reshape(16, 1, 16)).reshape(-1))
    return (np.concatenate(parts[::-1]) * _UNIT).astype(np.float32).view(np.uint32) + np.uint32(64 << 23)


def reciprocal_estimate(x: Array) -> Array:
    """The estimate of 1 / sqrt(x) that the instruction gives, for an f32 array of positive normal numbers."""
    bits = x.view(np.uint32)
    halved_exponent = (bits + np.uint32(1 << 23)) >> 24  # half of the exponent, rounded down, plus 64
    halved_exponent <<= 23
    result = _estimates().take((bits >> 11) & 0x1FFF)  # by the last bit of the exponent, and 12 bits of the mantissa
    result -= halved_exponent
    return result.view(np.float32)


def root_of_eights(x: Array) -> Array:
    """The square roots of an f32 array whose elements are all in groups of eight."""
    normal = (x >= np.float32(_SMALLEST)) & (x < np.inf)
    kept = np.where(normal, x, np.float32(1))
    estimate = reciprocal_estimate(kept)
    estimate *= np.float32(1.5) - kept * np.float32(0.5) * (estimate * estimate)
    result = kept * estimate
    if normal.all():
        return result
    return np.where(normal, result, np.where((x >= 0) & (x < np.inf), np.float32(0), np.sqrt(x)))


_LANES = 8

_EXP_LIMIT = 88.3762626647949
_LOG2_E = 1.44269504088896341
_LN_2 = (0.693359375, -2.12194440e-4)
"""The natural logarithm of 2, split into a number with few digits and the remainder."""
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)

_LOG = (
    (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1),
    (-1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1),
    (2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
"""Coefficients of a polynomial of degree 8 in three parts of degree 2, which are joined by the third power."""
_ROOT_HALF = 0.707106781186547524

_LONG_ROW = 128
"""The length from which on MKL computes the exponentials in a row of a softmax."""
_TABLED = 128
"""The number of powers of 2 between 1 and 2 in the table of MKL's exponential."""
_LN_2_TABLED = (355 / 65536, -1.6577691e-06)
"""The natural logarithm of 2 divided by `_TABLED`, split into a number with ten binary digits and the remainder."""
_LEAST_EXPONENT = -110.0
"""The exponent below which the exponential is 0 in f32."""

_TANH_LIMIT = 9.0
_TANH_ABOVE = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_BELOW = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """The value of a polynomial by Horner's rule; the coefficient of the highest power comes first."""
    result = x * np.float32(coefficients[0])
    result += np.float32(coefficients[1])
    for coefficient in coefficients[2:]:
        result *= x
        result += np.float32(coefficient)
    return result


def exp(x: Array) -> Array:
    """exp of an f32 array, elementwise, as the op exp and those based on it compute it."""
    flat = x.reshape(-1)
    whole = flat.size - flat.size % _LANES
    result = np.empty(flat.shape, np.float32)
    result[:whole] = _exp_of_eights(flat[:whole])
    result[whole:] = library_exp(flat[whole:])
    return result.reshape(x.shape)


def _exp_of_eights(x: Array) -> Array:
    kept = np.clip(x, np.float32(-_EXP_LIMIT), np.float32(_EXP_LIMIT))
    powers = np.floor(kept * np.float32(_LOG2_E) + np.float32(0.5))
    for part in _LN_2:
        kept = kept - powers * np.float32(part)
    result = _polynomial(kept, _EXP)
    result *= kept * kept
    result += kept
    result += np.float32(1)
    result *= ((np.nan_to_num(powers).astype(np.int32) + 127) << 23).view(np.float32)  # 2 to the power, -127 giving 0
    result[x > np.float32(_EXP_LIMIT)] = np.inf
    return result


def log(x: Array) -> Array:
    """log of an f32 array, elementwise, as the op log computes it."""
    flat = x.reshape(-1)
    whole = flat.size - flat.size % _LANES
    result = library_log(flat)
    head = flat[:whole]
    usual = (head >= np.float32(2.0**-126)) & (head < np.inf)
    result[:whole] = np.where(usual, _log_of_eights(np.where(usual, head, np.float32(1))), result[:whole])
    return result.reshape(x.shape)


def _log_of_eights(x: Array) -> Array:
    mantissa, exponents = np.frexp(x)
    low = mantissa < np.float32(_ROOT_HALF)
    powers = exponents.astype(np.float32) - low
    rest = mantissa - np.float32(1) + np.where(low, mantissa, np.float32(0))
    squared = rest * rest
    cubed = squared * rest
    result = _polynomial(rest, _LOG[0])
    for part in _LOG[1:]:
        result *= cubed
        result += _polynomial(rest, part)
    result *= cubed
    result += powers * np.float32(_LN_2[1])
    return rest - squared * np.float32(0.5) + result + powers * np.float32(_LN_2[0])


def root(x: Array, out: Array | None = None) -> Array:
    """The square root of an f32 array, elementwise."""
    whole = x.size - x.size % _LANES
    if whole == x.size:
        return root_of_eights(x)
    result = np.sqrt(x.reshape(-1))
    result[:whole] = root_of_eights(x.reshape(-1)[:whole])
    return result.reshape(x.shape)


def tanh(x: Array) -> Array:
    """tanh of an f32 array, elementwise."""
    kept = np.clip(x, np.float32(-_TANH_LIMIT), np.float32(_TANH_LIMIT))
    squared = kept * kept
    return kept * _polynomial(squared, _TANH_ABOVE) / _polynomial(squared, _TANH_BELOW)


@cache
def _powers_of_2() -> tuple[Array, Array]:
    """2 to the powers 0/128 ... 127/128, each as the sum of two f32 numbers."""
    exact = [Decimal(2) ** (Decimal(place) / _TABLED) for place in range(_TABLED)]
    upper = np.array(exact, np.float32)
    return upper, np.array([power - Decimal(float(near)) for power, near in zip(exact, upper, strict=True)], np.float32)


def exp_by_table(x: Array) -> Array:
    """exp of an f32 array of numbers that are at most 0.

    P. T. P. Tang, "Table-driven implementation of the exponential function in IEEE floating-point arithmetic", ACM TOMS
    15 (1989): with x = (128 k + j) log(2) / 128 + r, exp(x) = 2^k (2^(j/128) (1 + r + r^2 / 2)).
    """
    x = np.maximum(x, np.float32(_LEAST_EXPONENT))
    steps = np.rint(x * np.float32(_TABLED / math.log(2)))
    much, little = map(np.float32, _LN_2_TABLED)
    rest = x - steps * much
    rest -= steps * little
    more = rest * rest
    more *= np.float32(0.5)
    more += rest
    with np.errstate(invalid="ignore"):  # NaN has no valid index into the table; `more` passes it on
        places = steps.astype(np.int32)
    upper, lower = (table.take(places & (_TABLED - 1)) for table in _powers_of_2())
    more *= upper
    more += lower
    more += upper
    return np.ldexp(more, places // _TABLED)


def shares_of_exp(x: Array) -> tuple[Array, Array]:
    """exp of an f32 array divided by its sum along the last axis, and this sum, kept as a dim."""
    result = library_exp(x) if x.shape[-1] < _LONG_ROW else exp_by_table(x)
    of_all = sum_of_lanes(result)
    result *= 1 / of_all
    return result, of_all


def sum_of_lanes(x: Array) -> Array:
    """The sum along the last axis, kept as a dim: eight lanes are summed and added up pair by pair, then the remaining
    elements are added one by one.
    """
    count = x.shape[-1]
    if not count:
        return np.zeros((*x.shape[:-1], 1), np.float32)
    whole = count - count % _LANES
    rest = range(whole, count)
    if whole:
        rows = math.prod(x.shape[:-1])
        lanes = _lane_sums(x[..., :whole].reshape(rows, whole)).reshape(*x.shape[:-1], _LANES)
        pairs = lanes[..., 0::2] + lanes[..., 1::2]
        halves = pairs[..., :2] + pairs[..., 2:]
        result = halves[..., 0] + halves[..., 1]
    else:
        result, rest = x[..., 0].copy(), range(1, count)
    for at in rest:
        result += x[..., at]
    return result[..., None]


def total(x: Array) -> Array:
    """The sum of all elements, as an f32 tensor with dims [1]: the sums of eight lanes are folded by halves, then added
    to the remaining elements' sum.
    """
    flat = x.reshape(-1)
    whole = flat.size - flat.size % _LANES
    rest = np.cumsum(flat[whole:], dtype=np.float32)[-1:] if whole < flat.size else np.zeros(1, np.float32)
    if not whole:
        return rest
    lanes = _lane_sums(flat[None, :whole])
    fours = lanes[:, :4] + lanes[:, 4:]
    twos = fours[:, :2] + fours[:, 2:]
    return rest + (twos[:, 0] + twos[:, 1])


def _lane_sums(x: Array) -> Array:
    """The sums of eight lanes, [rows, 8] from [rows, n] with n a multiple of 8: each adds every eighth element of a
    row, in order.
    """
    return np.add.reduce(
        np.ascontiguousarray(np.moveaxis(x.reshape(len(x), x.shape[1] // _LANES, _LANES), 1, 0)), axis=0
    )


def mean_of_lanes(x: Array) -> Array:
    """The mean of each row [rows, n >= 8], kept as a dim; the elements after the last whole eight are added to the last
    lanes.
    """
    count = x.shape[1]
    rest = count % _LANES
    lanes = _lane_sums(x[:, : count - rest])
    if rest:
        lanes[:, _LANES - rest :] += x[:, count - rest :]
    fours = lanes[:, :4] + lanes[:, 4:]
    result = (fours[:, 0] + fours[:, 1]) + (fours[:, 2] + fours[:, 3])
    return (result * (np.float32(1) / np.float32(count)))[:, None]


def sum_in_order(x: Array, axes: tuple[int, ...]) -> Array:
    """The sum of an f32 array over axes, added element by element, with the last axis fastest."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    dims = [x.shape[axis] for axis in kept]
    rows = np.ascontiguousarray(x.transpose(*axes, *kept)).reshape(math.prod(x.shape[axis] for axis in axes), *dims)
    if len(rows) and rows.size == len(rows):  # numpy sums a vector pairwise
        return np.cumsum(rows, dtype=np.float32)[-1:].reshape(rows.shape[1:])
    return np.add.reduce(rows, axis=0)


def sum_runs(x: Array, starts: Array, lengths: Array) -> Array:
    """The sums of runs of rows of an f32 array, added row by row; no run may be empty."""
    result = x[starts]
    for at in range(1, int(lengths.max())):
        longer = np.flatnonzero(lengths > at)
        result[longer] += x[starts[longer] + at]
    return result


def shares_of_runs(x: Array, starts: Array, lengths: Array) -> Array:
    """exp of an f32 array [n], divided by its sum in each of several runs, as sequence_softmax computes it: in f64,
    except that the sum is rounded to f32 after every addition.
    """
    powers = np.exp(x, dtype=np.float64)
    sums = powers[starts].astype(np.float32)
    for at in range(1, int(lengths.max())):
        longer = np.flatnonzero(lengths > at)
        sums[longer] = sums[longer] + powers[starts[longer] + at]
    return (powers / np.repeat(sums, lengths)).astype(np.float32)
