"""The error function, which numpy does not have."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.values import Array

_END = 6
"""erf(6) is 1 - 2e-17, which is 1 in float64."""
_FINE = {"float64": (32, 8), "float32": (1024, 3)}
"""For each dtype the points of the table per unit, and the terms of the series around each point, for errors of about
1e-16 and 1e-10.
"""


@lru_cache(maxsize=2)
def _table(steps: int, terms: int) -> Array:
    """Taylor coefficients of erf at 0, 1/steps, ..., 6: `_table(...)[n, k]` is that of the power n around k/steps."""
    at = np.arange(_END * steps + 1) / steps
    coefficients = np.empty((terms, len(at)))
    coefficients[0] = [math.erf(point) for point in at]
    # erf' is 2 / sqrt(pi) * g with g = exp(-x^2), and g' = -2 x g gives the coefficients of g one from the other
    before, power = np.zeros(len(at)), np.exp(-at * at)
    for n in range(1, terms):
        coefficients[n] = power * 2 / math.sqrt(math.pi) / n
        before, power = power, -2 * (at * power + before) / n
    return coefficients


def erf(x: Array) -> Array:
    """The error function, element by element, in the precision of the dtype, which is kept."""
    steps, terms = _FINE.get(x.dtype.name, _FINE["float64"])
    table = _table(steps, terms)
    of_each = np.empty(x.shape, x.dtype)
    if loops.erf(x, of_each, table, steps):
        return of_each
    rest = np.abs(x, dtype="float64")
    np.minimum(rest, _END, out=rest)
    rest *= steps
    nearest = np.rint(rest)
    rest -= nearest
    rest /= steps
    np.fmax(nearest, 0, out=nearest)  # NaN needs a valid index into the table as well
    places = nearest.astype("int64")
    result = table[-1].take(places)
    for n in range(terms - 2, -1, -1):
        result *= rest
        result += table[n].take(places)
    return np.copysign(result, x, out=result).astype(x.dtype)
