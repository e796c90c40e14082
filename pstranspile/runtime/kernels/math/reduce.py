"""Kernels. Reductions over dims, running sums, and questions about all elements."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr
from pstranspile.runtime.arithmetic import total
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import at_least_1d, formula, numpy_dtype, reduced_axes, truncated_quotient
from pstranspile.runtime.values import Array, SelectedRows


@plain_kernel("cumsum")
def _cumsum(X: Array, *, axis: int = -1, exclusive: bool, reverse: bool) -> Array:
    x = np.flip(X, axis) if reverse else X
    result = np.cumsum(x, axis, dtype=x.dtype)
    if exclusive:
        result -= x
    return np.ascontiguousarray(np.flip(result, axis) if reverse else result)


@kernel("isnan isinf", lod="none")
def _any_such(op: Op) -> Run:
    such = np.isnan if op.type == "isnan" else np.isinf

    def run(X: Array) -> Array:
        return np.array([such(X).any()])

    return run


formula("mean", "total({X}) / {X}.size", lod="none")
formula("mean_grad", "np.divide({Out_GRAD}, {X}.size, out=np.empty({X}.shape, {X}.dtype))", "X@GRAD")

_UFUNCS = {
    "reduce_sum": "add",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_prod": "multiply",
    "reduce_all": "logical_and",
    "reduce_any": "logical_or",
}


@kernel(" ".join(_UFUNCS))
def _reduce_values(op: Op) -> Run:
    axes, keep, number = reduced_axes(op), flag(op, "keep_dim"), int_attr(op, "out_dtype", -1)
    reduce = getattr(np, _UFUNCS[op.type]).reduce
    made = numpy_dtype(number) if number >= 0 else None
    summed = op.type == "reduce_sum"

    def run(X: Array) -> Array:
        x = X if made is None else X.astype(made)
        over = axes(x.ndim)
        if summed and len(over) == x.ndim:
            return total(x).reshape((1,) * (x.ndim if keep else 1))
        return at_least_1d(reduce(x, axis=over, dtype=x.dtype, keepdims=keep))

    return run


@kernel("reduce_mean")
def _mean(op: Op) -> Run:
    axes, keep, number = reduced_axes(op), flag(op, "keep_dim"), int_attr(op, "out_dtype", -1)
    made = numpy_dtype(number) if number >= 0 else None

    def run(X: Array) -> Array:
        x = X if made is None else X.astype(made)
        over = axes(x.ndim)
        if len(over) == x.ndim:
            result = total(x).reshape((1,) * (x.ndim if keep else 1))
        else:
            result = np.add.reduce(x, axis=over, dtype=x.dtype, keepdims=keep)
        count = prod(x.shape[axis] for axis in over)
        return truncated_quotient(result, count) if x.dtype.kind in "iu" else result / count

    return run


def _spread(op: Op) -> Callable[[Array, Array], Array]:
    """A function that broadcasts a value with the elements of Out to the dims of X, with or without keep_dim."""
    axes = reduced_axes(op)

    def spread(x: Array, value: Array) -> Array:
        gone = axes(x.ndim)
        dims = tuple([1 if at in gone else dim for at, dim in enumerate(x.shape)])
        result = np.empty(x.shape, value.dtype)
        result[...] = value.reshape(dims)
        return result

    return spread


@kernel("reduce_sum_grad reduce_mean_grad", "X@GRAD")
def _sum_grad(op: Op) -> Run:
    axes, spread, mean = reduced_axes(op), _spread(op), op.type == "reduce_mean_grad"

    def run(X: Array, Out_GRAD: Array) -> Array:
        share = Out_GRAD / prod(X.shape[axis] for axis in axes(X.ndim)) if mean else Out_GRAD
        return spread(X, share).astype(X.dtype, copy=False)

    return run


@plain_kernel("reduce_max_grad reduce_min_grad", "X@GRAD")
def _extreme_grad(
    X: Array, Out: Array, Out_GRAD: Array, *, spread: Callable[[Array, Array], Array] = per_op(_spread)
) -> Array:
    return spread(X, Out_GRAD) * (spread(X, Out) == X)


@kernel("reduce_prod_grad", "X@GRAD")
def _prod_grad(op: Op) -> Run:
    axes, spread = reduced_axes(op), _spread(op)

    def run(X: Array, Out: Array, Out_GRAD: Array) -> Array:
        zero = X == 0
        if not zero.any():
            return spread(X, Out_GRAD * Out) / X
        # The derivative is the product of the other elements: 0 if another element is 0
        others = np.where(zero, 1, X).astype(X.dtype)
        product = np.multiply.reduce(others, axis=axes(X.ndim), keepdims=True)
        zeros = np.add.reduce(zero, axis=axes(X.ndim), dtype="int64", keepdims=True)
        return spread(X, Out_GRAD) * np.where(zeros == zero, product / others, 0).astype(X.dtype)

    return run


@plain_kernel("isfinite", lod="none")
def _is_finite(X: Array | SelectedRows) -> Array:
    value = X.value if isinstance(X, SelectedRows) else X
    return np.array([np.isfinite(value).all()])
