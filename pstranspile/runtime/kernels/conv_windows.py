"""The windows of a convolution, and conversions between images and matrices of windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pstranspile.ops.shapes import Dims, Padding
from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.values import Array

_ELEMENTS = 1 << 17
"""Elements in the windows of the images that are taken at a time."""


class Windows(NamedTuple):
    """The windows of a convolution over images of the dims `shape`, with the channels first.

    `counts` is the number of windows along each spatial dim, of which there may be any number. As columns of matrices
    the windows are [images, groups, channels of a group * size, windows].
    """

    shape: Dims
    size: Dims
    groups: int
    strides: Dims
    dilations: Dims
    padding: Padding
    counts: Dims

    def columns(self, x: Array) -> Array:
        """The windows of images."""
        terms = x.shape[1] // self.groups * math.prod(self.size)
        if len(self.counts) == 2:
            result = np.empty((x.shape[0], self.groups, terms, math.prod(self.counts)), x.dtype)
            if loops.unfold(x, result, _geometry(self)):
                return result
        padded = self._padded(x) if any(map(any, self.padding)) else x
        images, channels, *spatial = padded.strides
        in_window = (stride * dilation for stride, dilation in zip(spatial, self.dilations, strict=True))
        to_next = (stride * step for stride, step in zip(spatial, self.strides, strict=True))
        windows = np.lib.stride_tricks.as_strided(
            padded,
            (*x.shape[:2], *self.size, *self.counts),
            (images, channels, *in_window, *to_next),
            writeable=False,
        )
        return windows.reshape(x.shape[0], self.groups, terms, math.prod(self.counts))

    def _padded(self, x: Array) -> Array:
        result = np.zeros((*x.shape[:2], *self.padded_dims()), x.dtype)
        result[(..., *self.inner())] = x
        return result

    def pieces(self) -> Iterator[tuple[slice, Windows]]:
        """Runs of images whose windows stay in the processor's cache, each with the windows of these images alone."""
        images, channels = self.shape[:2]
        count = max(_ELEMENTS // max(channels * math.prod(self.size) * math.prod(self.counts), 1), 1)
        for at in range(0, images, count):
            yield slice(at, at + count), self._replace(shape=(min(count, images - at), *self.shape[1:]))

    def images(self, columns: Array) -> Array:
        """Images in which every element is the sum of all its occurrences in the windows."""
        if len(self.counts) == 2:
            result = np.empty(self.shape, columns.dtype)
            if loops.fold(result, columns, _geometry(self)):
                return result
        whole = np.zeros((*self.shape[:2], *self.padded_dims()), columns.dtype)
        parts = columns.reshape(*self.shape[:2], *self.size, *self.counts)
        for element, place in self.places():
            whole[(..., *place)] += parts[(slice(None), slice(None), *element)]
        return whole[(..., *self.inner())]

    def places(self) -> Iterator[tuple[Dims, tuple[slice, ...]]]:
        """The elements of the filter, each with the slice of the padded images that it is multiplied with."""
        for element in itertools.product(*map(range, self.size)):
            yield (
                element,
                tuple(
                    slice(at * dilation, at * dilation + (count - 1) * stride + 1, stride)
                    for at, dilation, count, stride in zip(
                        element, self.dilations, self.counts, self.strides, strict=True
                    )
                ),
            )

    def inner(self) -> tuple[slice, ...]:
        """The slice of the padded images that holds the images."""
        return tuple(slice(b, b + dim) for dim, (b, _) in zip(self.shape[2:], self.padding, strict=True))

    def padded_dims(self) -> Dims:
        """The spatial dims of the images with their padding."""
        return tuple(b + dim + a for dim, (b, a) in zip(self.shape[2:], self.padding, strict=True))


@lru_cache(256)
def _geometry(windows: Windows) -> Array:
    """The numbers that `loops.unfold` and `loops.fold` take."""
    before = [padding[0] for padding in windows.padding]
    numbers = (*windows.shape, *windows.size, *windows.counts, *windows.strides, *windows.dilations, *before)
    return np.array(numbers, np.int64)


# The gradient of a convolution whose groups are single channels, without the matrix of windows.
#
# With the channels last, each element of the filter multiplies a shifted part of the padded images. So the gradient is
# a sum of products of whole arrays, one for each element of the filter.


def depthwise_gradients(
    windows: Windows, x: Array, filters: Array, gradient: Array, wants_input: bool, wants_filter: bool
) -> tuple[Array | None, Array | None]:
    """The gradients of images and filters, where every channel has one filter; None for a gradient that is not wanted.

    `x` and `gradient` have the channels before the spatial dims.
    """
    images, channels = x.shape[:2]
    of_windows = _channels_last(gradient)
    taps = filters.reshape(channels, -1).T
    weights = np.tile(taps, (1, images))
    padded = _padded(windows, x) if wants_filter else None
    whole = np.zeros((*windows.padded_dims(), images * channels), of_windows.dtype) if wants_input else None
    terms, sums = np.empty_like(of_windows), np.empty(weights.shape, of_windows.dtype)
    for element, (_, place) in enumerate(windows.places()):
        if whole is not None:
            np.multiply(of_windows, weights[element], out=terms)
            whole[place] += terms
        if padded is not None:
            np.multiply(of_windows, padded[place], out=terms)
            np.add.reduce(terms.reshape(-1, terms.shape[-1]), axis=0, out=sums[element])
    input_grad = None if whole is None else _channels_first(whole[windows.inner()], x.shape)
    filter_grad = np.add.reduce(sums.reshape(len(taps), images, channels), axis=1).T.reshape(filters.shape)
    return input_grad, filter_grad if wants_filter else None


def _channels_last(x: Array) -> Array:
    """Images [n, channels, ...] as [..., n * channels]."""
    return np.ascontiguousarray(np.moveaxis(x.reshape(math.prod(x.shape[:2]), *x.shape[2:]), 0, -1))


def _channels_first(x: Array, dims: tuple[int, ...]) -> Array:
    """The inverse of `_channels_last`, to images of these dims."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 0)).reshape(dims)


def _padded(windows: Windows, x: Array) -> Array:
    result = np.zeros((*windows.padded_dims(), math.prod(x.shape[:2])), x.dtype)
    result[windows.inner()] = np.moveaxis(x.reshape(-1, *x.shape[2:]), 0, -1)
    return result


# Convolutions of small images, with the images of the batch as the last dim of all arrays.
#
# The rows of small images are too short for numpy to copy and add them fast. With the batch last, rows of the same
# place in all images lie together, and one product takes all images.

_LONGEST = 12
"""The most windows in a row for which this way is faster."""

_FEWEST = 8
"""The fewest images for which this way is faster."""


def is_faster(windows: Windows) -> bool:
    """Whether images are small enough, and enough of them, for the functions of this module."""
    return (
        windows.groups == 1
        and math.prod(windows.size) > 1
        and set(windows.strides) == {1}
        and windows.counts[-1] <= _LONGEST
        and windows.shape[0] >= _FEWEST
    )


def values(windows: Windows, x: Array, filters: Array) -> Array:
    """The filters' products with the windows of images: [images, filters, windows...]."""
    product = np.dot(filters.reshape(len(filters), -1), _columns(windows, x))
    return _images_first(product.reshape(len(filters), *windows.counts, len(x)))


def gradients(
    windows: Windows, x: Array, filters: Array, gradient: Array, wants_input: bool, wants_filter: bool
) -> tuple[Array | None, Array | None]:
    """The gradients of images and filters; None for one that is not wanted."""
    of_windows = _images_last(gradient).reshape(len(filters), -1)
    matrix = filters.reshape(len(filters), -1)
    input_grad = _sums(windows, np.dot(matrix.T, of_windows)) if wants_input else None
    # the transposed product is faster than that with transposed columns
    filter_grad = np.dot(_columns(windows, x), of_windows.T).T.reshape(filters.shape) if wants_filter else None
    return input_grad, filter_grad


def _images_last(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, 0, -1))


def _images_first(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, -1, 0))


def _columns(windows: Windows, x: Array) -> Array:
    """The windows as columns of a matrix: [channels * size, windows * images]."""
    padded = np.zeros((x.shape[1], *windows.padded_dims(), len(x)), x.dtype)
    padded[(slice(None), *windows.inner())] = np.moveaxis(x, 0, -1)
    channel, *spatial, image = padded.strides
    in_window = (stride * dilation for stride, dilation in zip(spatial, windows.dilations, strict=True))
    view = np.lib.stride_tricks.as_strided(
        padded,
        (x.shape[1], *windows.size, *windows.counts, len(x)),
        (channel, *in_window, *spatial, image),
        writeable=False,
    )
    return view.reshape(x.shape[1] * math.prod(windows.size), -1)


def _sums(windows: Windows, columns: Array) -> Array:
    """Images in which every element is the sum of all its occurrences in the windows."""
    images, channels = windows.shape[:2]
    whole = np.zeros((channels, *windows.padded_dims(), images), columns.dtype)
    parts = columns.reshape(channels, *windows.size, *windows.counts, images)
    for element, place in windows.places():
        whole[(slice(None), *place)] += parts[(slice(None), *element)]
    return _images_first(whole[(slice(None), *windows.inner())])
