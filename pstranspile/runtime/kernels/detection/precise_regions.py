"""Kernels. Regions of feature maps pooled by exact integration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.kernels.regions import PooledSize, images_of, pooled_size
from pstranspile.runtime.values import Array


class _Integrals(NamedTuple):
    """The integrals of a feature map over the parts of a region, which are products of integrals along each dim.

    `down` [rows of the result, height] and `along` [columns, width] are the integrals of each pixel's weight over
    parts. `area` is the area of a part (0 for an empty one).
    """

    down: Array
    along: Array
    area: Array


def _ramp(x: Array) -> Array:
    """The integral up to x of the weight of a pixel at 0, which falls linearly to 0 at its neighbours."""
    x = x.clip(-1, 1)
    return np.where(x < 0, (1 + x) ** 2 / 2, 0.5 + x - x**2 / 2)


def _weight(x: Array) -> Array:
    return np.maximum(1 - np.abs(x), 0)


def _bounds(start: Array, stop: Array, count: int) -> tuple[Array, Array]:
    """Where the parts of a side begin and end."""
    step = max(stop - start, start.dtype.type(0)) / count
    low = start + np.arange(count, dtype=start.dtype) * step
    return low, low + step


class _Region(NamedTuple):
    """Where the parts of a region begin and end, down a column and along a row."""

    top: Array
    bottom: Array
    left: Array
    right: Array

    def integrals(self, dims: tuple[int, int]) -> _Integrals:
        """The integrals over the parts of a feature map of these dims."""
        rows, columns = (np.arange(dim, dtype=self.top.dtype) for dim in dims)
        down = _ramp(self.bottom[:, None] - rows) - _ramp(self.top[:, None] - rows)
        along = _ramp(self.right[:, None] - columns) - _ramp(self.left[:, None] - columns)
        return _Integrals(down, along, (self.bottom - self.top)[:, None] * (self.right - self.left))


def _precise_regions(rois: Array, size: PooledSize) -> list[_Region]:
    scaled = rois * rois.dtype.type(size.scale)
    return [_Region(*_bounds(roi[1], roi[3], size.height), *_bounds(roi[0], roi[2], size.width)) for roi in scaled]


def _ends_of(counts: Array | None) -> Array | None:
    """The offsets of each image's regions, from the number of regions in each image."""
    return None if counts is None else np.concatenate([[0], np.cumsum(plain(counts).reshape(-1))])


@plain_kernel("prroi_pool", lod="new")
def _prroi_pool_values(
    X: object, ROIs: object, BatchRoINums: Array | None, *, size: PooledSize = per_op(pooled_size)
) -> Array:
    """X is interpolated bilinearly between pixels, and is 0 outside. Empty parts are 0."""
    x, rois = plain(X), plain(ROIs)
    images = images_of(ROIs, _ends_of(BatchRoINums), len(x))
    out = np.zeros((len(rois), x.shape[1], size.height, size.width), x.dtype)
    for number, region in enumerate(_precise_regions(rois, size)):
        of = region.integrals(x.shape[2:])
        there = of.area > 0
        total = of.down @ x[images[number]] @ of.along.T
        out[number] = np.where(there, total / np.where(there, of.area, 1), 0)
    return out


@kernel("prroi_pool_grad", "X@GRAD ROIs@GRAD", lod="new")
def _prroi_pool_grad(op: Op) -> Run:
    """An edge of a region moves the edges of all its parts, the nearer ones more."""
    size = pooled_size(op)

    def of_edges(region: _Region, x: Array, of: _Integrals, slope: Array, out: Array) -> Array:
        """The gradient of the four edges of a region."""
        rows, columns = (np.arange(dim, dtype=x.dtype) for dim in x.shape[1:])
        scaled = np.where(of.area > 0, slope / np.where(of.area > 0, of.area, 1), 0)
        tall, wide = (region.bottom - region.top)[:, None], (region.right - region.left)[None]
        sums: list[Array] = []
        for edge, sign in ((region.top, -1), (region.bottom, 1)):
            line = _weight(edge[:, None] - rows) @ x @ of.along.T
            sums.append((scaled * sign * (line - out * wide)).sum(axis=(0, 2)))
        for edge, sign in ((region.left, -1), (region.right, 1)):
            line = of.down @ x @ _weight(edge[:, None] - columns).T
            sums.append((scaled * sign * (line - out * tall)).sum(axis=(0, 1)))
        near = [np.arange(count, dtype=x.dtype) / count for count in (size.height, size.width)]
        after = [part + 1 / count for part, count in zip(near, (size.height, size.width), strict=True)]
        top, bottom, left, right = sums
        return size.scale * np.array(
            [
                (left * (1 - near[1]) + right * (1 - after[1])).sum(),
                (top * (1 - near[0]) + bottom * (1 - after[0])).sum(),
                (left * near[1] + right * after[1]).sum(),
                (top * near[0] + bottom * after[0]).sum(),
            ]
        )

    def run(X: object, ROIs: object, BatchRoINums: Array | None, Out: object, Out_GRAD: object) -> tuple[Array, Array]:
        x, rois, out, slope = plain(X), plain(ROIs), plain(Out), plain(Out_GRAD)
        images = images_of(ROIs, _ends_of(BatchRoINums), len(x))
        result, moved = np.zeros_like(x), np.zeros_like(rois)
        for number, region in enumerate(_precise_regions(rois, size)):
            of = region.integrals(x.shape[2:])
            scaled = np.where(of.area > 0, slope[number] / np.where(of.area > 0, of.area, 1), 0)
            result[images[number]] += of.down.T @ scaled @ of.along
            moved[number] = of_edges(region, x[images[number]], of, slope[number], out[number])
        return result, moved

    return run
