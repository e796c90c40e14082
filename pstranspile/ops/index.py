"""Choosing by index: rows gathered and scattered, the largest elements, one-hot rows, ranges."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.numeric import check_ids, first, flag, numpy_dtype
from pstranspile.ops.rows import add_rows
from pstranspile.ops.schema import LONG, UNSCOPED, declare, declare_gradient
from pstranspile.ops.select import axis_of
from pstranspile.ops.shapes import ShapeError, Types, describe, dtype_attr, int_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare("gather", "X Index -> Out", {"overwrite": True}, doc="Out = the rows of X at Index")
declare_gradient("gather", "X Index Out@GRAD -> X@GRAD")
declare(
    "scatter",
    "X Ids Updates -> Out",
    {"overwrite": True},
    doc="Out = X with the rows at Ids replaced by Updates, or Updates added to them",
)
declare_gradient("scatter", "Ids Updates Out@GRAD -> X@GRAD Updates@GRAD")
declare(
    "top_k", "X K? -> Out Indices", {"k": 1}, doc="Out = the k largest elements of each row, Indices = where they were"
)
declare_gradient("top_k", "X Indices Out@GRAD -> X@GRAD", UNSCOPED)
declare(
    "arg_max",
    "X -> Out",
    {"axis": LONG, "keepdims": False, "dtype": -1},
    doc="Out = the index of the largest element along `axis`",
)
declare(
    "one_hot",
    "X depth_tensor? -> Out",
    {"depth": -1, "dtype": 5, "allow_out_of_range": False},
    doc="Out = a row of `depth` elements for each id of X (whose last dim is 1), 1 at the id and 0 elsewhere",
)
declare(
    "one_hot_v2",
    "X depth_tensor? -> Out",
    {"depth": -1, "dtype": 5, "allow_out_of_range": False},
    doc="as one_hot, for X of any shape",
)
declare("range", "Start End Step -> Out", doc="Out = Start, Start + Step, ... up to and without End")


@shape_rule("gather")
def _gather(_op: Op, types: Types) -> Types:
    x, index = one(types, "X"), one(types, "Index")
    return {"Out": (TensorType(x.dtype, (index.shape[0], *x.shape[1:])),)}


@shape_rule("scatter")
def _scatter(_op: Op, types: Types) -> Types:
    return {"Out": (one(types, "X")._replace(lod_level=0),)}


@shape_rule("scatter_grad")
def _scatter_grad(_op: Op, types: Types) -> Types:
    return {"X@GRAD": types.get("Out@GRAD", ()), "Updates@GRAD": types.get("Updates", ())}


@shape_rule("top_k")
def _top_k(op: Op, types: Types) -> Types:
    x = one(types, "X")
    dims = (*x.shape[:-1], -1 if "K" in types else int_attr(op, "k"))
    if 0 <= x.shape[-1] < dims[-1]:
        raise ShapeError(f"k is {dims[-1]}, but X is {describe(x)}", "X")
    return {
        "Out": (TensorType(x.dtype, dims, x.lod_level),),
        "Indices": (TensorType(DType.INT64, dims, x.lod_level),),
    }


@shape_rule("arg_max")
def _arg_max(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axis = axis_of(op, x)
    kept = (1,) if op.attrs.get("keepdims") else ()
    dims = (*x.shape[:axis], *kept, *x.shape[axis + 1 :])
    return {"Out": (TensorType(dtype_attr(op, "dtype", DType.INT64), dims or (1,)),)}


@shape_rule("one_hot", "one_hot_v2")
def _one_hot(op: Op, types: Types) -> Types:
    x = one(types, "X")
    leading = x.shape[:-1] if op.type == "one_hot" else x.shape
    depth = -1 if "depth_tensor" in types else int_attr(op, "depth")
    return {"Out": (TensorType(dtype_attr(op), (*leading, depth), x.lod_level),)}


@shape_rule("range")
def _range(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(one(types, "Start").dtype, (-1,)),)}


# Kernels


def _row_numbers(index: Array, rows: int, slot: str) -> Array:
    numbers = index.reshape(-1)
    check_ids(numbers, rows, slot)
    return numbers


@kernel("gather", lod="none")
def _gather_values(_op: Op) -> Run:
    def run(X: Array, Index: Array) -> Array:
        return X[_row_numbers(Index, len(X), "Index")]

    return run


@kernel("gather_grad", "X@GRAD")
def _gather_grad(op: Op) -> Run:
    overwrite = flag(op, "overwrite")

    def run(X: Array, Index: Array, Out_GRAD: Array) -> Array:
        found = np.zeros(X.shape, Out_GRAD.dtype)
        numbers = _row_numbers(Index, len(X), "Index")
        if overwrite:
            found[numbers] = Out_GRAD  # the last one stays where numbers repeat
        else:
            add_rows(found, numbers, Out_GRAD)
        return found

    return run


@kernel("scatter", lod="none")
def _scatter_values(op: Op) -> Run:
    overwrite = flag(op, "overwrite")

    def run(X: Array, Ids: Array, Updates: Array) -> Array:
        found, numbers = X.copy(), _row_numbers(Ids, len(X), "Ids")
        if overwrite:
            found[numbers] = Updates
        else:
            found[numbers] = 0
            add_rows(found, numbers, Updates)
        return found

    return run


@kernel("scatter_grad", "X@GRAD Updates@GRAD")
def _scatter_grad_values(op: Op) -> Run:
    wants_x, wants_updates = wanted(op, "X@GRAD"), wanted(op, "Updates@GRAD")

    def run(Ids: Array, Out_GRAD: Array) -> tuple[Array | None, Array | None]:
        numbers, x_grad = _row_numbers(Ids, len(Out_GRAD), "Ids"), None
        if wants_x:
            x_grad = Out_GRAD.copy()
            x_grad[numbers] = 0
        return x_grad, Out_GRAD[numbers] if wants_updates else None

    return run


@kernel("top_k", "Out Indices")
def _top_k_values(op: Op) -> Run:
    def run(X: Array, K: Array | None) -> tuple[Array, Array]:
        k = int_attr(op, "k", 1) if K is None else first(K)
        if not 1 <= k <= X.shape[-1]:
            raise ValueError(f"k is {k}, but the rows of X have {X.shape[-1]} elements")
        rows = X.reshape(prod(X.shape[:-1]), X.shape[-1])
        places = rows.argmax(axis=1)[:, None] if k == 1 else _largest(rows, k)
        dims = (*X.shape[:-1], k)
        return rows[np.arange(len(rows))[:, None], places].reshape(dims), places.astype("int64").reshape(dims)

    return run


def _largest(rows: Array, k: int) -> Array:
    """Where the k largest elements of each row are, from the largest down; of equal ones the first come first."""
    width = rows.shape[1]
    if k * _FEW < width and rows.dtype.kind == "f" and not np.isnan(rows).any():
        least = np.partition(rows, width - k, axis=1)[:, width - k]
        wanted = rows >= least[:, None]
        if np.count_nonzero(wanted) == k * len(rows):  # no other element equals the last one wanted
            places = wanted.nonzero()[1].reshape(-1, k)
            order = np.argsort(-rows[np.arange(len(rows))[:, None], places], axis=1, kind="stable")
            return np.take_along_axis(places, order, axis=1)
    return np.argsort(-rows, axis=1, kind="stable")[:, :k]


_FEW = 8
"""Sorting whole rows costs less where more than one element in so many is wanted."""


@kernel("top_k_grad", "X@GRAD", lod="none")
def _top_k_grad(_op: Op) -> Run:
    def run(X: Array, Indices: Array, Out_GRAD: Array) -> Array:
        found = np.zeros(X.shape, Out_GRAD.dtype)
        np.put_along_axis(found, Indices, Out_GRAD, axis=-1)
        return found

    return run


@kernel("arg_max", lod="none")
def _arg_max_values(op: Op) -> Run:
    return places_found(op, np.argmax)


def places_found(op: Op, find: Callable[..., Array]) -> Run:
    """The places along `axis` that `find` (numpy's argmax or argmin) gives, as the attributes of the op say."""
    axis, keep, number = int_attr(op, "axis"), flag(op, "keepdims"), int_attr(op, "dtype", -1)
    made = numpy_dtype(number) if number >= 0 else "int64"

    def run(X: Array) -> Array:
        found = find(X, axis=axis, keepdims=keep).astype(made)
        return found.reshape(1) if found.ndim == 0 else found

    return run


@kernel("one_hot one_hot_v2")
def _one_hot_values(op: Op) -> Run:
    made, lenient = numpy_dtype(int_attr(op, "dtype", 5)), flag(op, "allow_out_of_range")
    drops_last = op.type == "one_hot"

    def run(X: Array, depth_tensor: Array | None) -> Array:
        depth = int_attr(op, "depth", -1) if depth_tensor is None else first(depth_tensor)
        if not lenient:
            check_ids(X, depth, "the id")
        ids = X.reshape(X.shape[:-1]) if drops_last else X
        return (ids[..., None] == np.arange(depth)).astype(made)

    return run


@kernel("range", lod="none")
def _range_values(_op: Op) -> Run:
    def run(Start: Array, End: Array, Step: Array) -> Array:
        start, end, step = first(Start), first(End), first(Step)
        if step == 0:
            raise ValueError("Step is 0")
        return np.arange(start, end, step).astype(Start.dtype)

    return run
