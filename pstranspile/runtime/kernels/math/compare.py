"""Kernels. Comparisons and logic."""

from __future__ import annotations

import numpy as np

from pstranspile.runtime.kernels.broadcasting import register_ufuncs
from pstranspile.runtime.kernels.kernel import plain_kernel
from pstranspile.runtime.kernels.numeric import formula
from pstranspile.runtime.values import Array

register_ufuncs(
    {
        "equal": "equal",
        "not_equal": "not_equal",
        "less_than": "less",
        "less_equal": "less_equal",
        "greater_than": "greater",
        "greater_equal": "greater_equal",
        **{name: name for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    }
)
formula("logical_and", "np.logical_and({X}, {Y})")
formula("logical_or", "np.logical_or({X}, {Y})")
formula("logical_xor", "np.logical_xor({X}, {Y})")
formula("logical_not", "np.logical_not({X})")
formula("bitwise_not", "np.bitwise_not({X})")


@plain_kernel("allclose", lod="none")
def _allclose_values(Input: Array, Other: Array, *, rtol: float, atol: float, equal_nan: bool) -> Array:
    return np.array([np.allclose(Input, Other, rtol, atol, equal_nan)])
