"""Fluid's axis broadcasting in numpy's terms."""

from __future__ import annotations

from functools import lru_cache

from pstranspile.arithmetic import sum_over
from pstranspile.ops.values import Array


def align(x: Array, y: Array, axis: int) -> tuple[Array, Array]:
    """x and y, the one of fewer dims with dims of size 1 appended, so that numpy lays it on the other from `axis` on.

    With axis -1 the last dims lie on each other, which is what numpy does by itself.
    """
    if axis >= 0 and x.ndim != y.ndim:
        if x.ndim < y.ndim:
            return x.reshape(x.shape + (1,) * (y.ndim - axis - x.ndim)), y
        return x, y.reshape(y.shape + (1,) * (x.ndim - axis - y.ndim))
    return x, y


def sum_to(gradient: Array, shape: tuple[int, ...], axis: int) -> Array:
    """A gradient of the broadcast shape, summed over what was repeated of an input of this shape."""
    if gradient.shape == shape:
        return gradient
    repeated = _repeated(gradient.shape, shape, axis)
    return sum_over(gradient, repeated).reshape(shape)


@lru_cache(maxsize=1024)
def _repeated(wide: tuple[int, ...], narrow: tuple[int, ...], axis: int) -> tuple[int, ...]:
    start = axis if axis >= 0 and len(wide) != len(narrow) else len(wide) - len(narrow)
    end = start + len(narrow)
    return tuple(at for at in range(len(wide)) if not start <= at < end or narrow[at - start] == 1)
