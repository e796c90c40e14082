"""Kernels. Max pooling with indices, its inverse, and pyramid pooling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.images.pool_index import unpooled_dims
from pstranspile.runtime.kernels.images.pool import (
    Windows,
    average_of,
    gradient_of_average,
    gradient_of_largest,
    is_max,
    largest_of,
    plain_windows,
    windows_of,
)
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import as_matrix, check_ids
from pstranspile.runtime.values import Array


@plain_kernel("max_pool2d_with_index max_pool3d_with_index", "Out Mask")
def _max_pool_with_index_values(X: Array, *, op: Op) -> tuple[Array, Array]:
    """The first of equal elements is the maximum. Mask holds indices into an image without its padding."""
    dims = X.shape[2:]
    windows = windows_of(op, dims)
    numbers = np.arange(np.prod(dims), dtype="int32").reshape(1, 1, *dims)
    padded, numbers = windows.pad(X, 0), windows.pad(numbers, -1)
    result = np.zeros((*X.shape[:2], *windows.counts.shape), X.dtype)
    mask = np.full(result.shape, -1, "int32")
    for place in windows.places():
        part, number = padded[place], numbers[place]
        larger = (mask < 0) | (part > result) | (np.isnan(part) & ~np.isnan(result))
        larger &= number >= 0
        result, mask = np.where(larger, part, result), np.where(larger, number, mask)
    return result, mask


def _flat_places(numbers: Array, dims: tuple[int, ...], what: str) -> Array:
    """Indices into images, each relative to its image, as indices into the whole array."""
    size = int(np.prod(dims))
    check_ids(numbers, size, what)
    flat = numbers.reshape(numbers.shape[0] * numbers.shape[1], -1).astype("int64")
    return flat + np.arange(len(flat)).reshape(-1, 1) * size


@plain_kernel("max_pool2d_with_index_grad max_pool3d_with_index_grad", "X@GRAD", lod="none")
def _max_pool_with_index_grad(X: Array, Mask: Array, Out_GRAD: Array) -> Array:
    result = np.zeros(X.size, Out_GRAD.dtype)
    np.add.at(result, _flat_places(Mask, X.shape[2:], "Mask").reshape(-1), Out_GRAD.reshape(-1))
    return result.reshape(X.shape)


@plain_kernel("unpool")
def _unpool_values(X: Array, Indices: Array, *, op: Op) -> Array:
    dims = unpooled_dims(op, X.shape[2:])
    result = np.zeros((*X.shape[:2], *dims), X.dtype)
    result.reshape(-1)[_flat_places(Indices, dims, "the index")] = X.reshape(len(X) * X.shape[1], -1)
    return result


@plain_kernel("unpool_grad", "X@GRAD", lod="none")
def _unpool_grad(X: Array, Indices: Array, Out_GRAD: Array) -> Array:
    return Out_GRAD.reshape(-1)[_flat_places(Indices, Out_GRAD.shape[2:], "the index")].reshape(X.shape)


def _pyramid(op: Op, x: Array) -> Iterator[tuple[int, Windows]]:
    """For each level the number of windows along a dim, and the windows: 1, then 2, then 4 of equal size."""
    dims = x.shape[2:]
    for level in range(int_attr(op, "pyramid_height")):
        bins = 2**level
        size = tuple(-(-dim // bins) for dim in dims)
        before = tuple((k * bins - dim + 1) // 2 for k, dim in zip(size, dims, strict=True))
        if any(k <= padding for k, padding in zip(size, before, strict=True)):
            raise ValueError(f"X has images of {list(dims)}, too small for {bins} windows")
        padding = tuple((p, p) for p in before)
        yield bins, plain_windows(dims, size, size, padding, (bins, bins), exclusive=True)


@kernel("spp")
def _spp_values(op: Op) -> Run:
    pooled = largest_of if is_max(op) else average_of

    def run(X: Array) -> Array:
        return np.concatenate([as_matrix(pooled(windows, X)) for _, windows in _pyramid(op, X)], axis=1)

    return run


@kernel("spp_grad", "X@GRAD", lod="none")
def _spp_grad(op: Op) -> Run:
    largest = is_max(op)

    def run(X: Array, Out: Array, Out_GRAD: Array) -> Array:
        result, start = np.zeros_like(X), 0
        for bins, windows in _pyramid(op, X):
            dims = (*X.shape[:2], bins, bins)
            end = start + X.shape[1] * bins * bins
            out, gradient = (value[:, start:end].reshape(dims) for value in (Out, Out_GRAD))
            if largest:
                result += gradient_of_largest(windows, X, out, gradient)
            else:
                result += gradient_of_average(windows, X, gradient)
            start = end
        return result

    return run
