"""Convolutions of small images, with the images of the batch as the last dim of all arrays.

The rows of small images are too short for numpy to copy and add them fast. With the batch last, rows of the same place
in all images lie together, and one product takes all images.
"""

from __future__ import annotations

import math

import numpy as np

from pstranspile.runtime.kernels.conv_windows import Windows
from pstranspile.runtime.values import Array

_LONGEST, _FEWEST = 12, 8
"""Windows in a row at most, and images at least, for which this way is faster."""


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
