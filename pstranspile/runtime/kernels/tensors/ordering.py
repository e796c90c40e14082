"""Kernels. Sorting, top-k and unique elements."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel, wanted
from pstranspile.runtime.kernels.numeric import first, numpy_dtype
from pstranspile.runtime.values import Array


@plain_kernel("top_k", "Out Indices")
def _top_k_values(X: Array, K: Array | None, *, op: Op) -> tuple[Array, Array]:
    k = int_attr(op, "k", 1) if K is None else first(K)
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
        if np.count_nonzero(wanted) == k * len(rows):  # no other element equals the smallest chosen one
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
    """The indices along `axis` that `find` (numpy's argmax or argmin) gives, as the op's attributes ask."""
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


@kernel("unique unique_with_counts", "Out Index Count", lod="none")
def _unique_values(op: Op) -> Run:
    made, counted = numpy_dtype(int_attr(op, "dtype")), wanted(op, "Count")

    def run(X: Array) -> tuple[Array, Array, Array | None]:
        _, starts, places = np.unique(X, return_index=True, return_inverse=True, equal_nan=False)
        order = np.argsort(starts)  # elements in order of first occurrence, not sorted
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        index = rank[places.reshape(-1)]
        count = np.bincount(index, minlength=len(order)).astype(made) if counted else None
        return X.reshape(-1)[starts[order]], index.astype(made), count

    return run
