"""f32 functions whose results equal those of the C library bit for bit: expf, logf, sinf and cosf of glibc 2.28 and
later.

The library computes them in f64, by tables and polynomials that are precise enough for a single rounding to f32 at the
end (the "Arm Optimized Routines" explain how; their constants are used here). Results differ from the correctly rounded
ones in the last bit: in about 1 of 1,000 exponentials, and 1 of 100 of the others.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pstranspile.runtime.values import Array

_hex = float.fromhex

_LOG2_E = _hex("0x1.71547652b82fep+0")
_LN_2 = _hex("0x1.62e42fefa39efp-1")
_EXP_PARTS = 32
_EXP = (_hex("0x1.c6af84b912394p-5"), _hex("0x1.ebfce50fac4f3p-3"), _hex("0x1.62e42ff0c52d6p-1"))
"""Coefficients of a polynomial for 2 to the power of x, the highest degree first; the constant term is 1."""
_LEAST_EXPONENT = -110.0
"""The exponent below which the exponential is 0 in f32."""

_MOST_EXPONENT = 90.0
"""The exponent above which the exponential is infinite in f32."""

_LOG = (_hex("-0x1.00ea348b88334p-2"), _hex("0x1.5575b0be00b6ap-2"), _hex("-0x1.ffffef20a4123p-2"))
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


def exp(x: Array) -> Array:
    """expf of every element of an f32 array."""
    cubic, square, linear = (c / _EXP_PARTS**power for c, power in zip(_EXP, (3, 2, 1), strict=True))
    with np.errstate(all="ignore"):  # NaN has no valid index into the table, but `found` passes it on
        steps = np.clip(x, _LEAST_EXPONENT, _MOST_EXPONENT).astype(np.float64) * (_LOG2_E * _EXP_PARTS)
        whole = np.rint(steps)
        rest = steps - whole
        result = (cubic * rest + square) * (rest * rest) + (linear * rest + 1)
        places = whole.astype(np.int32)
        result *= np.ldexp(_powers_of_2().take(places % _EXP_PARTS), places // _EXP_PARTS)
        return result.astype(np.float32)


@cache
def _powers_of_2() -> Array:
    return np.exp2(np.arange(_EXP_PARTS) / _EXP_PARTS)


def log(x: Array) -> Array:
    """logf of every element of an f32 array."""
    usual = (x >= np.float32(2.0**-126)) & (x < np.inf)
    bits = np.ascontiguousarray(np.where(usual, x, np.float32(1))).view(np.uint32)
    above = bits - np.uint32(_LOG_FROM)
    near = (bits - (above & np.uint32(0xFF800000))).view(np.float32).astype(np.float64)
    reciprocals, logarithms = _log_table()
    part = (above >> np.uint32(19)) & np.uint32(15)
    rest = near * reciprocals.take(part) - 1
    known = logarithms.take(part) + (above.view(np.int32) >> 23) * _LN_2
    squared = rest * rest
    result = (_LOG[0] * squared + (_LOG[1] * rest + _LOG[2])) * squared + (known + rest)
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
