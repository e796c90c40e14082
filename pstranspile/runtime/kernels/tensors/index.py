"""Kernels. Elements and rows gathered and scattered by index."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import check_ids, first_number, numpy_dtype
from pstranspile.runtime.kernels.rows import add_rows
from pstranspile.runtime.values import Array


def _row_numbers(index: Array, rows: int, slot: str) -> Array:
    numbers = index.reshape(-1)
    check_ids(numbers, rows, slot)
    return numbers


@plain_kernel("gather", lod="none")
def _gather_values(X: Array, Index: Array) -> Array:
    return X[_row_numbers(Index, len(X), "Index")]


@plain_kernel("gather_grad", "X@GRAD")
def _gather_grad(X: Array, Index: Array, Out_GRAD: Array, *, overwrite: bool) -> Array:
    result = np.zeros(X.shape, Out_GRAD.dtype)
    numbers = _row_numbers(Index, len(X), "Index")
    if overwrite:
        result[numbers] = Out_GRAD  # if indices repeat, the last update remains
    else:
        add_rows(result, numbers, Out_GRAD)
    return result


@plain_kernel("scatter", lod="none")
def _scatter_values(X: Array, Ids: Array, Updates: Array, *, overwrite: bool) -> Array:
    result, numbers = X.copy(), _row_numbers(Ids, len(X), "Ids")
    if overwrite:
        result[numbers] = Updates
    else:
        result[numbers] = 0
        add_rows(result, numbers, Updates)
    return result


@plain_kernel("scatter_grad", "X@GRAD Updates@GRAD")
def _scatter_grad_values(
    Ids: Array, Out_GRAD: Array, *, wants_X_GRAD: bool, wants_Updates_GRAD: bool
) -> tuple[Array | None, Array | None]:
    numbers, x_grad = _row_numbers(Ids, len(Out_GRAD), "Ids"), None
    if wants_X_GRAD:
        x_grad = Out_GRAD.copy()
        x_grad[numbers] = 0
    return x_grad, Out_GRAD[numbers] if wants_Updates_GRAD else None


@kernel("one_hot one_hot_v2")
def _one_hot_values(op: Op) -> Run:
    result_type, lenient = numpy_dtype(int_attr(op, "dtype", 5)), flag(op, "allow_out_of_range")
    drops_last = op.type == "one_hot"

    def run(X: Array, depth_tensor: Array | None) -> Array:
        depth = int_attr(op, "depth", -1) if depth_tensor is None else first_number(depth_tensor)
        if not lenient:
            check_ids(X, depth, "the id")
        ids = X.reshape(X.shape[:-1]) if drops_last else X
        return (ids[..., None] == np.arange(depth)).astype(result_type)

    return run


def _places(index: Array, dims: tuple[int, ...]) -> tuple[Array, ...]:
    """The last dim of `index` as one array of positions for each of the leading dims of the target."""
    if index.ndim < 2:
        raise ValueError(f"Index has dims {list(index.shape)}, it must have at least two")
    if index.shape[-1] > len(dims):
        raise ValueError(f"the positions in Index have {index.shape[-1]} numbers, X has {len(dims)} dims")
    for axis, dim in enumerate(dims[: index.shape[-1]]):
        check_ids(index[..., axis], dim, f"Index of dim {axis}")
    return tuple(np.moveaxis(index, -1, 0))


def _scatter_add(target: Array, index: Array, values: Array) -> Array:
    """Adds the values at the positions of `index` to `target`, in place and in order. Positions may repeat."""
    places, depth = _places(index, target.shape), index.shape[-1]
    picked = (*index.shape[:-1], *target.shape[depth:])
    if values.shape != picked:
        raise ValueError(f"dims {list(values.shape)} can't be added at positions that pick {list(picked)}")
    if depth and values.size:
        numbers = np.ravel_multi_index(places, target.shape[:depth]).reshape(-1)
        flat = target.reshape(-1, *target.shape[depth:])
        add_rows(flat, numbers, values.reshape(len(numbers), *target.shape[depth:]))
    elif values.size:
        target += values.reshape(-1, *target.shape).sum(0)
    return target


@plain_kernel("gather_nd")
def _gather_nd_values(X: Array, Index: Array) -> Array:
    places = _places(Index, X.shape)
    if not places:
        return np.broadcast_to(X, (*Index.shape[:-1], *X.shape)).copy()
    return X[places]


@plain_kernel("gather_nd_grad", "X@GRAD", lod="each")
def _gather_nd_grad(X: Array, Index: Array, Out_GRAD: Array) -> Array:
    return _scatter_add(np.zeros(X.shape, Out_GRAD.dtype), Index, Out_GRAD)


@plain_kernel("scatter_nd_add", lod="none")
def _scatter_nd_add_values(X: Array, Index: Array, Updates: Array) -> Array:
    return _scatter_add(X.copy(), Index, Updates)


@plain_kernel("scatter_nd_add_grad", "X@GRAD Updates@GRAD", lod="none")
def _scatter_nd_add_grad_values(
    Index: Array, Out_GRAD: Array, *, wants_Updates_GRAD: bool
) -> tuple[Array, Array | None]:
    return Out_GRAD.copy(), Out_GRAD[_places(Index, Out_GRAD.shape)] if wants_Updates_GRAD else None


@plain_kernel("index_select")
def _index_select_values(X: Array, Index: Array, *, dim: int) -> Array:
    check_ids(Index, X.shape[dim], "Index")
    return np.take(X, Index.reshape(-1), axis=dim)


@plain_kernel("index_select_grad", "X@GRAD", lod="none")
def _index_select_grad(X: Array, Index: Array, Out_GRAD: Array, *, dim: int) -> Array:
    check_ids(Index, X.shape[dim], "Index")
    rows = np.moveaxis(X, dim, 0).shape
    result = np.zeros(rows, Out_GRAD.dtype)
    add_rows(result, Index.reshape(-1), np.moveaxis(Out_GRAD, dim, 0))
    return np.ascontiguousarray(np.moveaxis(result, 0, dim))


@plain_kernel("index_sample", lod="none")
def _index_sample_values(X: Array, Index: Array) -> Array:
    if X.ndim != 2 or Index.ndim != 2 or len(X) != len(Index):
        dims = f"{list(X.shape)} and {list(Index.shape)}"
        raise ValueError(f"X and Index have dims {dims}, they must be matrices with as many rows")
    check_ids(Index, X.shape[1], "Index")
    return np.take_along_axis(X, Index, axis=1)


@plain_kernel("index_sample_grad", "X@GRAD", lod="none")
def _index_sample_grad(X: Array, Index: Array, Out_GRAD: Array) -> Array:
    check_ids(Index, X.shape[1], "Index")
    result = np.zeros(X.shape, Out_GRAD.dtype)
    np.add.at(result, (np.arange(len(X))[:, None], Index), Out_GRAD)
    return result


@plain_kernel("multiplex", lod="none")
def _multiplex_values(Ids: Array, X: list[Array]) -> Array:
    ids = _sources(Ids, len(X), len(X[0]))
    result = np.empty(X[0].shape, X[0].dtype)
    for number, part in enumerate(X):
        rows = np.flatnonzero(ids == number)
        result[rows] = part[rows]
    return result


def _sources(ids: Array, parts: int, rows: int) -> Array:
    """The part that each row comes from. Raises ValueError unless there is one for every row."""
    check_ids(ids, parts, "Ids")
    if ids.size != rows:
        raise ValueError(f"Ids has {ids.size} elements, but there are {rows} rows")
    return ids.reshape(-1)


@plain_kernel("multiplex_grad", "X@GRAD", lod="none")
def _multiplex_grad_values(
    Ids: Array, Out_GRAD: Array, *, count: int = per_op(lambda op: len(op.outputs["X@GRAD"]))
) -> list[Array]:
    ids = _sources(Ids, count, len(Out_GRAD))
    chosen = (ids == number for number in range(count))
    return [Out_GRAD * mask.reshape(-1, *[1] * (Out_GRAD.ndim - 1)) for mask in chosen]


@plain_kernel("where", inline="np.where({Condition}, {X}, {Y})")
def _where_values(Condition: Array, X: Array, Y: Array) -> Array:
    return np.where(Condition, X, Y)


@plain_kernel("where_grad", "X@GRAD Y@GRAD", lod="none")
def _where_grad(Condition: Array, Out_GRAD: Array) -> tuple[Array, Array]:
    zero = Out_GRAD.dtype.type(0)
    return np.where(Condition, Out_GRAD, zero), np.where(Condition, zero, Out_GRAD)


@plain_kernel("where_index", lod="none")
def _where_index_values(Condition: Array) -> Array:
    return np.argwhere(Condition)


@kernel("shard_index")
def _shard_index_values(op: Op) -> Run:
    count, shards, shard = int_attr(op, "index_num"), int_attr(op, "nshards"), int_attr(op, "shard_id")
    ignored = int_attr(op, "ignore_value", -1)
    if count <= 0 or shards <= 0 or not 0 <= shard < shards:
        raise ValueError(f"there is no shard {shard} of {shards} shards of {count} ids")
    size = (count + shards - 1) // shards

    def run(X: Array) -> Array:
        check_ids(X, count, "the id")
        return np.where(X // size == shard, X % size, ignored).astype(X.dtype, copy=False)

    return run


# Kernels. Sorting, top-k and unique elements.


@plain_kernel("top_k", "Out Indices")
def _top_k_values(X: Array, K: Array | None, *, op: Op) -> tuple[Array, Array]:
    k = int_attr(op, "k", 1) if K is None else first_number(K)
    if not 1 <= k <= X.shape[-1]:
        raise ValueError(f"k is {k}, but the rows of X have {X.shape[-1]} elements")
    rows = X.reshape(prod(X.shape[:-1]), X.shape[-1])
    places = rows.argmax(axis=1)[:, None] if k == 1 else _largest(rows, k)
    dims = (*X.shape[:-1], k)
    return rows[np.arange(len(rows))[:, None], places].reshape(dims), places.astype("int64").reshape(dims)


def _largest(rows: Array, k: int) -> Array:
    """The indices of the k largest elements of each row, largest first. Ties keep their order."""
    width = rows.shape[1]
    if k * _FEW < width and rows.dtype.kind == "f" and not np.isnan(rows).any():
        least = np.partition(rows, width - k, axis=1)[:, width - k]
        wanted = rows >= least[:, None]
        if np.count_nonzero(wanted) == k * len(rows):  # no other element equals the smallest selected one
            flat = wanted.reshape(-1).nonzero()[0].reshape(-1, k)  # faster than places in two dims
            order = np.argsort(-rows.take(flat), axis=1, kind="stable")
            return np.take_along_axis(flat, order, axis=1) - np.arange(0, rows.size, width)[:, None]
    return np.argsort(-rows, axis=1, kind="stable")[:, :k]


_FEW = 8
"""Sorting whole rows is faster if more than one of this many elements is wanted."""


@plain_kernel("top_k_grad", "X@GRAD", lod="none")
def _top_k_grad(X: Array, Indices: Array, Out_GRAD: Array) -> Array:
    result = np.zeros(X.shape, Out_GRAD.dtype)
    np.put_along_axis(result, Indices, Out_GRAD, axis=-1)
    return result


@kernel("arg_max", lod="none")
def _arg_max_values(op: Op) -> Run:
    return places_along(op, np.argmax)


def places_along(op: Op, find: Callable[..., Array]) -> Run:
    """The kernel of arg_max or arg_min: the indices along `axis` that `find` (numpy's argmax or argmin) gives, in the
    form that the op's attributes request.
    """
    axis, keep, number = int_attr(op, "axis"), flag(op, "keepdims"), int_attr(op, "dtype", -1)
    made = numpy_dtype(number) if number >= 0 else "int64"

    def run(X: Array) -> Array:
        result = find(X, axis=axis, keepdims=keep).astype(made)
        return result.reshape(1) if result.ndim == 0 else result

    return run


@kernel("arg_min", lod="none")
def _arg_min_values(op: Op) -> Run:
    return places_along(op, np.argmin)


def sorting_order(x: Array, axis: int, descending: bool) -> Array:
    """The indices that sort x along `axis`. Ties keep their order; NaN is the largest."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # ascending on the reversed rows, so that ties keep their order after the final reversal
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


@plain_kernel("argsort", "Out Indices")
def _argsort_values(X: Array, *, axis: int = -1, descending: bool) -> tuple[Array, Array]:
    places = sorting_order(X, axis, descending)
    return np.take_along_axis(X, places, axis=axis), places.astype("int64", copy=False)


@plain_kernel("argsort_grad", "X@GRAD")
def _argsort_grad(X: Array, Indices: Array, Out_GRAD: Array, *, axis: int = -1) -> Array:
    result = np.empty(X.shape, Out_GRAD.dtype)
    np.put_along_axis(result, Indices, Out_GRAD, axis=axis)
    return result


@plain_kernel("unique unique_with_counts", "Out Index Count", lod="none")
def _unique_values(
    X: Array, *, index_dtype: str = per_op(lambda op: numpy_dtype(int_attr(op, "dtype"))), wants_Count: bool
) -> tuple[Array, Array, Array | None]:
    _, starts, places = np.unique(X, return_index=True, return_inverse=True, equal_nan=False)
    order = np.argsort(starts)  # elements in order of first occurrence, not sorted
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    index = rank[places.reshape(-1)]
    count = np.bincount(index, minlength=len(order)).astype(index_dtype) if wants_Count else None
    return X.reshape(-1)[starts[order]], index.astype(index_dtype), count
