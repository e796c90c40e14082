"""Sums over the elements of each channel, in the order of Fluid's batch_norm on a CPU.

Each image's elements of a channel are summed by Eigen: eight lanes twice, which take turns, are added to each other and
folded by halves; then come the elements before the first aligned eight, if the terms lie in memory as they are, and
those after the last. The sums of the images are added one after the other.
"""

from __future__ import annotations

import numpy as np

from pstranspile.runtime.values import Array

_LANES = 8


def sum_of_channels(x: Array, in_memory: bool) -> Array:
    """The sums of an f32 array [images, channels, elements] over images and elements: [channels].

    `in_memory`: whether the terms are an array of Fluid's (which begins aligned), not the result of an expression.
    """
    images, channels, elements = x.shape
    if not elements:
        return np.zeros(channels, np.float32)
    rows = x.reshape(images * channels, elements)
    before = -np.arange(len(rows)) * elements % _LANES if in_memory else np.zeros(len(rows), np.int64)
    sums = np.empty(len(rows), np.float32)
    for first in sorted(set(before.tolist())):
        at = np.flatnonzero(before == first)
        sums[at] = _sums(rows[at], min(first, elements))
    result = np.zeros(channels, np.float32)
    for image in sums.reshape(images, channels):
        result += image
    return result


def _sums(x: Array, first: int) -> Array:
    """The sum of each row of [rows, n] whose first aligned element is `first`."""
    eights = (x.shape[1] - first) // _LANES
    if not eights:
        return _in_order(x)
    stop = first + eights * _LANES
    lanes = np.ascontiguousarray(np.moveaxis(x[:, first:stop].reshape(len(x), eights, _LANES), 1, 0))
    pairs = eights - eights % 2
    result = np.add.reduce(lanes[:pairs:2], axis=0) + np.add.reduce(lanes[1:pairs:2], axis=0) if pairs else lanes[0]
    if pairs and pairs < eights:
        result = result + lanes[-1]
    fours = result[:, :4] + result[:, 4:]
    sums = (fours[:, 0] + fours[:, 2]) + (fours[:, 1] + fours[:, 3])
    for place in (*range(first), *range(stop, x.shape[1])):
        sums = sums + x[:, place]
    return sums


def _in_order(x: Array) -> Array:
    result = x[:, 0].copy()
    for place in range(1, x.shape[1]):
        result += x[:, place]
    return result
