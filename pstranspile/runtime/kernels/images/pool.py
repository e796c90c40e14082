"""Kernels. Pooling: the maximum or average of windows of images and volumes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr, text
from pstranspile.ops.images.conv import padding_of, window_counts
from pstranspile.ops.images.pool import unpooled_dims
from pstranspile.ops.shapes import Padding
from pstranspile.runtime.kernels.images.conv import as_asked, channels_first, padding_to_last
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import as_matrix, check_ids
from pstranspile.runtime.values import Array

LEAST = -3.4028234663852886e38
"""The maximum of an empty window, for every element type: the smallest float32."""


class Windows(NamedTuple):
    """The windows of a pooling. `choices[d]` are, for each element of a window along dim d, the indices of this element
    of all windows in the padded images.

    The windows of adaptive pooling differ in size; smaller ones repeat their last element. `counts` is the divisor of
    the average of each window.
    """

    padding: Padding
    choices: list[list[Any]]
    counts: Array

    def pad(self, x: Array, value: float) -> Array:
        """The images with their padding, filled with `value`."""
        if not any(map(any, self.padding)):
            return x
        return np.pad(x, ((0, 0), (0, 0), *self.padding), constant_values=value)

    def places(self) -> Iterator[tuple[Any, ...]]:
        """Yields, for each element of a window in row-major order, its index in padded images, for all windows."""
        for place in itertools.product(*self.choices):
            yield (..., *(place if isinstance(place[0], slice) else np.ix_(*place)))

    @property
    def are_disjoint(self) -> bool:
        """Whether windows don't overlap."""
        return all(getattr(choice[0], "step", 0) >= len(choice) for choice in self.choices)

    def crop_padding(self, padded: Array, dims: tuple[int, ...]) -> Array:
        """Padded images without their padding; `dims` are their spatial dims then."""
        return padded[
            (..., *(slice(before, before + dim) for dim, (before, _) in zip(dims, self.padding, strict=True)))
        ]


def _adaptive_bounds(dim: int, count: int) -> tuple[Array, Array]:
    """(start, end) of each window of adaptive pooling along a dim."""
    at = np.arange(count)
    return at * dim // count, -(-(at + 1) * dim // count)


def _adaptive_counts(op: Op, dims: tuple[int, ...]) -> tuple[int, ...]:
    """The number of windows of adaptive pooling along each dim; with global_pooling one for each element."""
    return dims if flag(op, "global_pooling") else ints_attr(op, "ksize")


def windows_of(op: Op, dims: tuple[int, ...]) -> Windows:
    """The windows of an op over images of these spatial dims."""
    if flag(op, "adaptive"):
        return _adaptive_windows(dims, _adaptive_counts(op, dims))
    ones = (1,) * len(dims)
    if flag(op, "global_pooling"):
        return plain_windows(dims, dims, ones, ((0, 0),) * len(dims), ones, exclusive=flag(op, "exclusive"))
    size = ints_attr(op, "ksize")
    result = window_counts(op, dims, size, ones)
    padding, strides = padding_of(op, dims, size), ints_attr(op, "strides")
    return plain_windows(dims, size, strides, padding, result, exclusive=flag(op, "exclusive"))


def _adaptive_windows(dims: tuple[int, ...], counts: tuple[int, ...]) -> Windows:
    bounds = [_adaptive_bounds(dim, count) for dim, count in zip(dims, counts, strict=True)]
    choices = [
        [np.minimum(starts + at, ends - 1) for at in range(int((ends - starts).max()))] for starts, ends in bounds
    ]
    return Windows(((0, 0),) * len(dims), choices, _product([ends - starts for starts, ends in bounds]))


def _product(sizes: list[Array]) -> Array:
    """The number of elements of each window, from those along each dim."""
    return functools.reduce(np.multiply.outer, sizes)


def plain_windows(
    dims: tuple[int, ...],
    size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: Padding,
    result: tuple[int, ...],
    *,
    exclusive: bool,
) -> Windows:
    """Windows of one size at equal distances, `result` of them along each dim. `exclusive`: averages leave the padding
    out.
    """
    choices: list[list[slice]] = []
    real: list[Array] = []
    for dim, k, stride, count, (before, _) in zip(dims, size, strides, result, padding, strict=True):
        last = (count - 1) * stride
        choices.append([slice(at, at + last + 1, stride) for at in range(k)])
        starts = np.arange(count) * stride - before
        real.append(np.minimum(starts + k, dim) - np.maximum(starts, 0))
    reached = padding_to_last(padding, dims, size, strides, result)
    return Windows(reached, choices, _product(real) if exclusive else np.full(result, math.prod(size)))


def largest_of(windows: Windows, x: Array) -> Array:
    """The maximum of each window of images."""
    padded, result = windows.pad(x, LEAST), None
    for place in windows.places():
        part = padded[place]
        result = part.copy() if result is None else np.maximum(result, part, out=result)
    return result


def average_of(windows: Windows, x: Array) -> Array:
    """The average of each window of images."""
    padded, total = windows.pad(x, 0), np.zeros((*x.shape[:2], *windows.counts.shape), x.dtype)
    for place in windows.places():
        total += padded[place]
    return total / windows.counts.astype(x.dtype)


def gradient_of_largest(windows: Windows, x: Array, out: Array, gradient: Array) -> Array:
    """The gradient of images from that of the maxima. The first of equal elements gets the whole gradient."""
    padded = windows.pad(x, LEAST)
    result, taken = np.zeros_like(padded), np.zeros(out.shape, bool)
    for place in windows.places():
        hit = padded[place] == out
        np.greater(hit, taken, out=hit)
        taken |= hit
        if windows.are_disjoint:
            np.multiply(gradient, hit, out=result[place])
        elif isinstance(place[1], slice):
            result[place] += gradient * hit
        else:  # windows of adaptive pooling overlap
            np.add.at(result, (slice(None), slice(None), *place[1:]), gradient * hit)
    return windows.crop_padding(result, x.shape[2:])


def gradient_of_average(windows: Windows, x: Array, gradient: Array) -> Array:
    """The gradient of images from that of the averages."""
    share = gradient / windows.counts.astype(x.dtype)
    result = np.zeros_like(windows.pad(x, 0))
    for place in windows.places():
        result[place] += share
    return windows.crop_padding(result, x.shape[2:])


@kernel("pool2d pool3d")
def _pool_values(op: Op) -> Run:
    def largest(X: Array) -> Array:
        x = channels_first(op, X)
        return as_asked(op, largest_of(windows_of(op, x.shape[2:]), x))

    def average(X: Array) -> Array:
        x = channels_first(op, X)
        windows = windows_of(op, x.shape[2:])
        if flag(op, "adaptive"):
            return as_asked(op, _multiply_spatial_dims(x, _members(op, x)) / windows.counts.astype(x.dtype))
        return as_asked(op, average_of(windows, x))

    return largest if is_max(op) else average


def is_max(op: Op) -> bool:
    """Whether `pooling_type` is max. Raises ValueError unless it is max or avg."""
    kind = text(op, "pooling_type")
    if kind not in ("max", "avg"):
        raise ValueError(f"pooling_type is {kind!r}, not max or avg")
    return kind == "max"


def _members(op: Op, x: Array) -> list[Array]:
    """For each dim, a matrix [windows, elements] that is 1 where a window of adaptive pooling covers an element, else
    0.
    """
    result: list[Array] = []
    dims = x.shape[2:]
    for dim, count in zip(dims, _adaptive_counts(op, dims), strict=True):
        starts, ends = _adaptive_bounds(dim, count)
        at = np.arange(dim)
        result.append(((at >= starts[:, None]) & (at < ends[:, None])).astype(x.dtype))
    return result


def _multiply_spatial_dims(x: Array, matrices: list[Array]) -> Array:
    """Images multiplied by a matrix along each of their spatial dims."""
    for axis, matrix in enumerate(matrices, 2):
        x = np.moveaxis(np.moveaxis(x, axis, -1) @ matrix.T, -1, axis)
    return x


@kernel("pool2d_grad pool3d_grad", "X@GRAD", lod="none")
def _pool_grad(op: Op) -> Run:
    def of_largest(X: Array, Out: Array, Out_GRAD: Array) -> Array:
        x, out, gradient = (channels_first(op, value) for value in (X, Out, Out_GRAD))
        return as_asked(op, gradient_of_largest(windows_of(op, x.shape[2:]), x, out, gradient))

    def of_average(X: Array, Out_GRAD: Array) -> Array:
        x, gradient = channels_first(op, X), channels_first(op, Out_GRAD)
        windows = windows_of(op, x.shape[2:])
        if flag(op, "adaptive"):
            share = gradient / windows.counts.astype(x.dtype)
            return as_asked(op, _multiply_spatial_dims(share, [matrix.T for matrix in _members(op, x)]))
        return as_asked(op, gradient_of_average(windows, x, gradient))

    return of_largest if is_max(op) else of_average


# Kernels. Max pooling with indices, its inverse, and pyramid pooling.


@plain_kernel("max_pool2d_with_index max_pool3d_with_index", "Out Mask")
def _max_pool_with_index_values(X: Array, *, op: Op) -> tuple[Array, Array]:
    """Kernel of max pooling with index. Of equal elements, the first is the maximum. Mask holds indices into an image
    without its padding.
    """
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
    """Yields, for each level of pyramid pooling, the number of windows along a dim (1, 2, 4, ...), and the windows, of
    equal size.
    """
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


@plain_kernel("spp_grad", "X@GRAD", lod="none")
def _spp_grad(X: Array, Out: Array, Out_GRAD: Array, *, largest: bool = per_op(is_max), op: Op) -> Array:
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
