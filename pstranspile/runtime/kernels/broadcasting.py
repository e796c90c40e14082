"""Fluid's axis broadcasting in terms of numpy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr
from pstranspile.runtime.arithmetic import sum_over
from pstranspile.runtime.kernels.kernel import OVER, Run, kernel
from pstranspile.runtime.values import Array


def align(x: Array, y: Array, axis: int) -> tuple[Array, Array]:
    """x and y with trailing dims of size 1 appended to the one of lower rank, so that numpy aligns it at dim `axis`.

    With axis -1 the last dims are aligned, as numpy does by itself.
    """
    if axis >= 0 and x.ndim != y.ndim:
        if x.ndim < y.ndim:
            return x.reshape(x.shape + (1,) * (y.ndim - axis - x.ndim)), y
        return x, y.reshape(y.shape + (1,) * (x.ndim - axis - y.ndim))
    return x, y


def aligned(op: Op, function: Callable[[Array, Array], Array]) -> Run:
    """The kernel of an op that is a function of X and Y, aligned at the op's attribute `axis`."""
    axis = int_attr(op, "axis", -1)

    def run(X: Array, Y: Array) -> Array:
        return function(X, Y)

    def run_aligned(X: Array, Y: Array) -> Array:
        if X.ndim - Y.ndim == axis:  # the usual case: numpy broadcasts the same way
            return function(X, Y)
        return function(*align(X, Y, axis))

    return run if axis < 0 else run_aligned


def register_ufuncs(names: Mapping[str, str]) -> None:
    """Registers kernels for ops that are ufuncs of X and Y: op type -> name of the ufunc."""

    def inline(op: Op) -> str | None:
        # With axis -1 numpy's own broadcasting is Fluid's
        plain = int_attr(op, "axis", -1) < 0 and OVER not in op.attrs
        return f"np.{names[op.type]}({{X}}, {{Y}})" if plain else None

    def make(op: Op) -> Run:
        ufunc = getattr(np, names[op.type])
        return aligned(op, partial(_over_first, ufunc) if OVER in op.attrs else ufunc)

    kernel(" ".join(names), inline=inline, new=True, reuses=True)(make)


def _over_first(ufunc: Callable[..., Array], x: Array, y: Array) -> Array:
    """The result in the memory of x, if it has its dims and type."""
    if x.__class__ is y.__class__ is np.ndarray and x.dtype == y.dtype and _fits_in(y.shape, x.shape):
        return ufunc(x, y, out=x if x.flags.writeable else None)
    return ufunc(x, y)


@lru_cache(maxsize=1024)
def _fits_in(narrow: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    """Whether broadcasting the one shape with the other gives the other."""
    start = len(wide) - len(narrow)
    return start >= 0 and all(n in (1, w) for n, w in zip(narrow, wide[start:], strict=True))


def sum_to(gradient: Array, shape: tuple[int, ...], axis: int) -> Array:
    """A gradient of the broadcast shape, summed over the dims that were broadcast from `shape`."""
    if gradient.shape == shape:
        return gradient
    repeated = _repeated(gradient.shape, shape, axis)
    return sum_over(gradient, repeated).reshape(shape)


@lru_cache(maxsize=1024)
def _repeated(wide: tuple[int, ...], narrow: tuple[int, ...], axis: int) -> tuple[int, ...]:
    start = axis if axis >= 0 and len(wide) != len(narrow) else len(wide) - len(narrow)
    end = start + len(narrow)
    return tuple(at for at in range(len(wide)) if not start <= at < end or narrow[at - start] == 1)
