"""Kernels. Reductions over dims, running sums, and logical tests of all elements."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr
from pstranspile.runtime.arithmetic import sum_over, total
from pstranspile.runtime.kernels.kernel import Run, has_output, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import (
    as_matrix,
    at_least_1d,
    formula,
    numpy_dtype,
    reduced_axes,
    sum_to,
    truncated_quotient,
)
from pstranspile.runtime.values import Array, LoDTensor, SelectedRows


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
    "reduce_mean": "add",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_prod": "multiply",
    "reduce_all": "logical_and",
    "reduce_any": "logical_or",
}


@kernel(" ".join(_UFUNCS), lod="own")
def _reduce_values(op: Op) -> Run:
    axes, keep, number = reduced_axes(op), flag(op, "keep_dim"), int_attr(op, "out_dtype", -1)
    reduce = getattr(np, _UFUNCS[op.type]).reduce
    result_type = numpy_dtype(number) if number >= 0 else None
    summed, mean = op.type in ("reduce_sum", "reduce_mean"), op.type == "reduce_mean"

    def run(X: Array | LoDTensor) -> Array | LoDTensor:
        if X.__class__ is LoDTensor:  # sequences are left where the rows of X are
            over = axes(X.data.ndim)
            return reduce_array(X.data) if 0 in over else LoDTensor(reduce_array(X.data), X.lod)
        return reduce_array(X)

    def reduce_array(X: Array) -> Array:
        x = X if result_type is None else X.astype(result_type)
        over = axes(x.ndim)
        if summed and len(over) == x.ndim:
            result = total(x).reshape((1,) * (x.ndim if keep else 1))
        else:
            result = at_least_1d(reduce(x, axis=over, dtype=x.dtype, keepdims=keep))
        if not mean:
            return result
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


# Kernels. Norms along dims and of whole tensors, and distances.

formula("squared_l2_norm", "np.dot({X}.reshape(-1), {X}.reshape(-1)).reshape(1)", lod="none")
formula("squared_l2_norm_grad", "2 * {Out_GRAD} * {X}", "X@GRAD", lod="none")


@plain_kernel("squared_l2_distance", "sub_result Out", lod="Out")
def _squared_l2_distance_values(X: Array, Y: Array) -> tuple[Array, Array]:
    difference = as_matrix(X) - as_matrix(Y)
    return difference, np.add.reduce(np.square(difference), axis=1, keepdims=True)


@plain_kernel("squared_l2_distance_grad", "X@GRAD Y@GRAD", lod="none")
def _squared_l2_distance_grad(X: Array, Y: Array, sub_result: Array, Out_GRAD: Array) -> tuple[Array, Array]:
    gradient = 2 * Out_GRAD * sub_result
    return gradient.reshape(X.shape), -sum_to(gradient, as_matrix(Y).shape, -1).reshape(Y.shape)


def _norms(x: Array) -> Array:
    """The norm of each row, at least 1e-4 as in Fluid, so that the cosine of a row of zeros is 0."""
    return np.sqrt(np.maximum(_row_sums(np.square(x)), 1e-8))


def _row_sums(x: Array) -> Array:
    return sum_over(x, (1,))[:, None]


def _partners(x: Array, y: Array) -> int:
    """The number of rows of y that are compared: all, or only the first if x has another number of rows."""
    return len(y) if len(x) == len(y) else 1


@plain_kernel("cos_sim", "Out XNorm YNorm", lod="Out")
def _cos_sim_values(X: Array, Y: Array) -> tuple[Array, Array, Array]:
    x, y = as_matrix(X), as_matrix(Y)
    x_norm, y_norm = _norms(x), _norms(y)
    count = _partners(x, y)
    return _row_sums(x * y[:count]) / (x_norm * y_norm[:count]), x_norm, y_norm


@kernel("cos_sim_grad", "X@GRAD Y@GRAD", lod="none")
def _cos_sim_grad(op: Op) -> Run:
    wants_x, wants_y = has_output(op, "X@GRAD"), has_output(op, "Y@GRAD")

    def of(a: Array, b: Array, cosine: Array, a_norm: Array, b_norm: Array) -> Array:
        return b * (1 / (a_norm * b_norm)) - cosine * a * (1 / (a_norm * a_norm))

    def run(
        X: Array, Y: Array, Out: Array, XNorm: Array, YNorm: Array, Out_GRAD: Array
    ) -> tuple[Array | None, Array | None]:
        x, rows = as_matrix(X), as_matrix(Y)
        count = _partners(x, rows)
        y, y_norm, y_grad = rows[:count], YNorm[:count], None
        x_grad = (Out_GRAD * of(x, y, Out, XNorm, y_norm)).reshape(X.shape) if wants_x else None
        if wants_y:
            y_grad = sum_to(Out_GRAD * of(y, x, Out, y_norm, XNorm), y.shape, -1)
            if count < len(rows):
                y_grad = np.concatenate([y_grad, np.zeros_like(rows[count:])])
        return x_grad, None if y_grad is None else y_grad.reshape(Y.shape)

    return run


@plain_kernel("norm", "Norm Out", lod="none")
def _norm_values(X: Array, *, axis: int, epsilon: float) -> tuple[Array, Array]:
    norm = np.sqrt(np.add.reduce(np.square(X), axis=axis, keepdims=True) + epsilon)
    return norm, X / norm


@plain_kernel("norm_grad", "X@GRAD", lod="none")
def _norm_grad(X: Array, Norm: Array, Out_GRAD: Array, *, axis: int) -> Array:
    along = np.add.reduce(X * Out_GRAD, axis=axis, keepdims=True)
    return (Out_GRAD - X * (along / np.square(Norm))) / Norm


def _power_norm(x: Array, p: float, axis: int | None, keep: bool) -> Array:
    """The p-norm along one dim, or of all elements if `axis` is None; for p = 0 the number of elements
    that are not 0.
    """
    size = np.abs(x)
    if np.isinf(p):
        reduce = np.maximum.reduce if p > 0 else np.minimum.reduce
        return reduce(size, axis=axis, keepdims=keep)
    if p == 0:
        return np.add.reduce((x != 0).astype(x.dtype), axis=axis, keepdims=keep)
    return np.add.reduce(size**p, axis=axis, keepdims=keep) ** (1 / p)


def _power_norm_slope(x: Array, norm: Array, p: float) -> Array:
    """The derivative of a p-norm by each element; 0 where the element or the norm is 0."""
    if p == 0:
        return np.zeros_like(x)
    sign, size = np.sign(x), np.abs(x)
    if np.isinf(p):
        return sign * (size == norm)
    if p == 1:
        return sign
    moves = (size > 0) & (norm > 0)
    share = np.where(moves, size, 1) / np.where(norm > 0, norm, 1)
    return np.where(moves, sign * share ** (p - 1), 0).astype(x.dtype)


@plain_kernel("p_norm", lod="none")
def _p_norm_values(X: Array, *, porder: float, axis: int = -1, keepdim: bool) -> Array:
    return at_least_1d(_power_norm(X, porder, axis, keepdim))


@plain_kernel("p_norm_grad", "X@GRAD", lod="none")
def _p_norm_grad(X: Array, Out: Array, Out_GRAD: Array, *, porder: float, axis: int = -1, keepdim: bool) -> Array:
    if keepdim or X.ndim == 1:
        return _power_norm_slope(X, Out, porder) * Out_GRAD
    return _power_norm_slope(X, np.expand_dims(Out, axis), porder) * np.expand_dims(Out_GRAD, axis)


formula("l1_norm", "np.add.reduce(np.abs({X}), axis=None).reshape(1)", lod="none")
formula("l1_norm_grad", "np.sign({X}) * {Out_GRAD}", "X@GRAD", lod="none")


@plain_kernel("frobenius_norm")
def _frobenius_norm_values(
    X: Array, *, axes: Callable[[int], tuple[int, ...]] = per_op(reduced_axes), keep_dim: bool
) -> Array:
    return at_least_1d(np.sqrt(np.add.reduce(np.square(X), axis=axes(X.ndim), keepdims=keep_dim)))


@plain_kernel("frobenius_norm_grad", "X@GRAD", lod="each")
def _frobenius_norm_grad(
    X: Array, Out: Array, Out_GRAD: Array, *, axes: Callable[[int], tuple[int, ...]] = per_op(reduced_axes)
) -> Array:
    gone = axes(X.ndim)
    kept = tuple([1 if at in gone else dim for at, dim in enumerate(X.shape)])
    return _power_norm_slope(X, Out.reshape(kept), 2) * Out_GRAD.reshape(kept)


@plain_kernel("dist", lod="none")
def _dist_values(X: Array, Y: Array, *, p: float) -> Array:
    return at_least_1d(_power_norm(X - Y, p, None, False))


@plain_kernel("dist_grad", "X@GRAD Y@GRAD", lod="none")
def _dist_grad(
    X: Array, Y: Array, Out: Array, Out_GRAD: Array, *, p: float, wants_X_GRAD: bool, wants_Y_GRAD: bool
) -> tuple[Array | None, Array | None]:
    gradient = _power_norm_slope(X - Y, Out, p) * Out_GRAD
    x_grad = sum_to(gradient, X.shape, -1) if wants_X_GRAD else None
    return x_grad, -sum_to(gradient, Y.shape, -1) if wants_Y_GRAD else None
