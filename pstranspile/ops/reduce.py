"""Reductions over dims."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from pstranspile.arithmetic import total
from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import flag, numpy_dtype, truncated_quotient
from pstranspile.ops.schema import declare, declare_gradient, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, dtype_attr, int_attr, ints_attr, one, shape_rule
from pstranspile.ops.values import Array, SelectedRows

np = lazy_import("numpy")

_REDUCE = {"dim": ints(0), "keep_dim": False, "reduce_all": False, "in_dtype": -1, "out_dtype": -1}

declare("reduce_sum", "X -> Out", _REDUCE, doc="Out = X summed over `dim`, or over all dims")
declare_gradient("reduce_sum", "X Out@GRAD -> X@GRAD")
declare("reduce_mean", "X -> Out", _REDUCE, doc="Out = the mean of X over `dim`")
declare_gradient("reduce_mean", "X Out@GRAD -> X@GRAD")
declare("reduce_max", "X -> Out", _REDUCE, doc="Out = the largest elements of X over `dim`")
declare_gradient("reduce_max", "X Out Out@GRAD -> X@GRAD")
declare("reduce_min", "X -> Out", _REDUCE, doc="Out = the smallest elements of X over `dim`")
declare_gradient("reduce_min", "X Out Out@GRAD -> X@GRAD")
declare("reduce_prod", "X -> Out", _REDUCE, doc="Out = the product of X over `dim`")
declare_gradient("reduce_prod", "X Out Out@GRAD -> X@GRAD")
declare("reduce_all", "X -> Out", _REDUCE, doc="Out = whether all elements of X over `dim` are true")
declare("reduce_any", "X -> Out", _REDUCE, doc="Out = whether any element of X over `dim` is true")
declare("isfinite", "X -> Out", doc="Out = whether no element of X is infinite or not a number")


@shape_rule("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_all", "reduce_any")
def _reduce(op: Op, types: Types) -> Types:
    x = one(types, "X")
    rank = len(x.shape)
    asked = ints_attr(op, "dim")
    for dim in asked:
        if not -rank <= dim < rank:
            raise ShapeError(f"dim {dim} is not a dim of X, which is {describe(x)}", "X")
    gone = set(range(rank)) if op.attrs.get("reduce_all") else {dim % rank for dim in asked}
    if op.attrs.get("keep_dim"):
        dims = tuple(1 if at in gone else dim for at, dim in enumerate(x.shape))
    else:
        dims = tuple(dim for at, dim in enumerate(x.shape) if at not in gone)
    return {"Out": (TensorType(dtype_attr(op, "out_dtype", x.dtype), dims or (1,), 0 if 0 in gone else x.lod_level),)}


@shape_rule("isfinite")
def _isfinite(_op: Op, types: Types) -> Types:
    one(types, "X")
    return {"Out": (TensorType(DType.BOOL, (1,)),)}


# Kernels

_UFUNCS = {
    "reduce_sum": "add",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    "reduce_prod": "multiply",
    "reduce_all": "logical_and",
    "reduce_any": "logical_or",
}


def _axes(op: Op) -> Callable[[int], tuple[int, ...]]:
    """From the number of dims to the dims that the op reduces, counted from 0."""
    dims = None if flag(op, "reduce_all") else ints_attr(op, "dim")

    @lru_cache(8)
    def axes(rank: int) -> tuple[int, ...]:
        return tuple(range(rank)) if dims is None else tuple([dim % rank for dim in dims])

    return axes


def _at_least_1d(value: Array) -> Array:
    """Fluid has no tensors without dims: a full reduction has one."""
    return np.asarray(value).reshape(-1) if np.ndim(value) == 0 else value


@kernel(" ".join(_UFUNCS))
def _reduce_values(op: Op) -> Run:
    axes, keep, number = _axes(op), flag(op, "keep_dim"), int_attr(op, "out_dtype", -1)
    reduce = getattr(np, _UFUNCS[op.type]).reduce
    made = numpy_dtype(number) if number >= 0 else None
    summed = op.type == "reduce_sum"

    def run(X: Array) -> Array:
        x = X if made is None else X.astype(made)
        over = axes(x.ndim)
        if summed and len(over) == x.ndim:
            return total(x).reshape((1,) * (x.ndim if keep else 1))
        return _at_least_1d(reduce(x, axis=over, dtype=x.dtype, keepdims=keep))

    return run


@kernel("reduce_mean")
def _mean(op: Op) -> Run:
    axes, keep, number = _axes(op), flag(op, "keep_dim"), int_attr(op, "out_dtype", -1)
    made = numpy_dtype(number) if number >= 0 else None

    def run(X: Array) -> Array:
        x = X if made is None else X.astype(made)
        over = axes(x.ndim)
        if len(over) == x.ndim:
            found = total(x).reshape((1,) * (x.ndim if keep else 1))
        else:
            found = np.add.reduce(x, axis=over, dtype=x.dtype, keepdims=keep)
        count = _count(x.shape, over)
        return truncated_quotient(found, count) if x.dtype.kind in "iu" else found / count

    return run


def _count(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    count = 1
    for axis in axes:
        count *= shape[axis]
    return count


def _spread(op: Op) -> Callable[[Array, Array], Array]:
    """From X and something of the shape of Out (in memory order, so keep_dim makes no difference) to the shape of X."""
    axes = _axes(op)

    def spread(x: Array, value: Array) -> Array:
        gone = axes(x.ndim)
        dims = tuple([1 if at in gone else dim for at, dim in enumerate(x.shape)])
        found = np.empty(x.shape, value.dtype)
        found[...] = value.reshape(dims)
        return found

    return spread


@kernel("reduce_sum_grad reduce_mean_grad", "X@GRAD")
def _sum_grad(op: Op) -> Run:
    axes, spread, mean = _axes(op), _spread(op), op.type == "reduce_mean_grad"

    def run(X: Array, Out_GRAD: Array) -> Array:
        share = Out_GRAD / _count(X.shape, axes(X.ndim)) if mean else Out_GRAD
        return spread(X, share).astype(X.dtype, copy=False)

    return run


@kernel("reduce_max_grad reduce_min_grad", "X@GRAD")
def _extreme_grad(op: Op) -> Run:
    spread = _spread(op)

    def run(X: Array, Out: Array, Out_GRAD: Array) -> Array:
        return spread(X, Out_GRAD) * (spread(X, Out) == X)

    return run


@kernel("reduce_prod_grad", "X@GRAD")
def _prod_grad(op: Op) -> Run:
    axes, spread = _axes(op), _spread(op)

    def run(X: Array, Out: Array, Out_GRAD: Array) -> Array:
        zero = X == 0
        if not zero.any():
            return spread(X, Out_GRAD * Out) / X
        # The product of the others: at the only zero that of all but itself, beside a zero 0
        others = np.where(zero, 1, X).astype(X.dtype)
        product = np.multiply.reduce(others, axis=axes(X.ndim), keepdims=True)
        zeros = np.add.reduce(zero, axis=axes(X.ndim), dtype="int64", keepdims=True)
        return spread(X, Out_GRAD) * np.where(zeros == zero, product / others, 0).astype(X.dtype)

    return run


@kernel("isfinite", lod="none")
def _is_finite(_op: Op) -> Run:
    def run(X: Array | SelectedRows) -> Array:
        value = X.value if isinstance(X, SelectedRows) else X
        return np.array([np.isfinite(value).all()])

    return run
