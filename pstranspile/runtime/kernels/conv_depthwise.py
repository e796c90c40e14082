"""The gradient of a convolution whose groups are single channels, without the matrix of windows.

With the channels last, each element of the filter multiplies a shifted part of the padded images. So the gradient is a
sum of products of whole arrays, one for each element of the filter.
"""

from __future__ import annotations

import math

import numpy as np

from pstranspile.runtime.kernels.conv_windows import Windows
from pstranspile.runtime.values import Array


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
