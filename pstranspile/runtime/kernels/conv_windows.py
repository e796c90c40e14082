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
