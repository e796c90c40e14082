"""The error function, which numpy does not have."""

from __future__ import annotations

import math
from functools import lru_cache

from pstranspile.lazy import lazy_import
from pstranspile.ops.values import Array

np = lazy_import("numpy")

_STEPS = 32
"""Points of the table per unit."""
_END = 6
"""erf(6) is 1 - 2e-17, which is 1 in float64."""
_TERMS = 8


@lru_cache(maxsize=1)
def _table() -> Array:
    """Taylor coefficients of erf at 0, 1/32, ..., 6: `_table()[n, k]` is that of the power n around k/32."""
    at = np.arange(_END * _STEPS + 1) / _STEPS
    coefficients = np.empty((_TERMS, len(at)))
    coefficients[0] = [math.erf(point) for point in at]
    # erf' is 2 / sqrt(pi) * g with g = exp(-x^2), and g' = -2 x g gives the coefficients of g one from the other
    before, power = np.zeros(len(at)), np.exp(-at * at)
    for n in range(1, _TERMS):
        coefficients[n] = power * 2 / math.sqrt(math.pi) / n
        before, power = power, -2 * (at * power + before) / n
    return coefficients


def erf(x: Array) -> Array:
    """The error function, element by element, to about 1e-16; the element type stays."""
    size = np.minimum(np.abs(x.astype("float64")), _END)
    nearest = np.rint(size * _STEPS)
    rest = size - nearest / _STEPS
    columns = _table()[:, np.nan_to_num(nearest).astype("int64")]
    found = columns[-1]
    for n in range(_TERMS - 2, -1, -1):
        found = found * rest + columns[n]
    return np.copysign(found, x).astype(x.dtype)
