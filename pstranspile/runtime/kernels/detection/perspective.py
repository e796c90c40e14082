"""Kernels. Quadrilaterals of feature maps brought to one size.

The corners of a region are x and y, from the top left one clockwise. Numbers that differ by less than `_NEAR` are the
same, as in Fluid.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, real
from pstranspile.runtime.kernels.kernel import per_op, plain_kernel
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.kernels.regions import PooledSize, Samples, images_of, samples
from pstranspile.runtime.values import Array, LoDTensor

_NEAR = 1e-4


def _size(op: Op) -> PooledSize:
    return PooledSize(int_attr(op, "transformed_height"), int_attr(op, "transformed_width"), real(op, "spatial_scale"))


def _matrices(x: Array, y: Array, size: PooledSize) -> Array:
    """What takes places of a result to places of the feature map, for corners x and y [4, regions]: [9, regions]."""
    sides = np.sqrt((x - np.roll(x, -1, 0)) ** 2 + (y - np.roll(y, -1, 0)) ** 2)
    high, wide = (sides[1] + sides[3]) / 2, (sides[0] + sides[2]) / 2
    rows = max(2, size.height)
    with np.errstate(all="ignore"):
        columns = np.floor(wide * (rows - 1) / high + 0.5) + 1
    down, along = rows - 1, np.clip(np.nan_to_num(columns), 2, max(2, size.width)).astype(x.dtype) - 1
    (dx1, dx2), (dy1, dy2) = ((of[1] - of[2], of[3] - of[2]) for of in (x, y))
    dx3, dy3 = (of[0] - of[1] + of[2] - of[3] for of in (x, y))
    area = (dx1 * dy2 - dx2 * dy1).astype(np.float64) + 1e-5
    bent = (
        ((dx3 * dy2 - dx2 * dy3) / area / along).astype(x.dtype),
        ((dx1 * dy3 - dx3 * dy1) / area / down).astype(x.dtype),
    )
    made: list[Array] = []
    for of in (x, y):
        made.append((of[1] - of[0] + bent[0] * along * of[1]) / along)
        made.append((of[3] - of[0] + bent[1] * down * of[3]) / down)
        made.append(of[0])
    return np.stack([*made, *bent, np.ones_like(area)]).astype(x.dtype)


def _inside(along: Array, down: Array, x: Array, y: Array) -> Array:
    """Which places [regions, height, width] lie in their quadrilateral with corners x and y [4, regions], or on it."""
    on, crossed = np.zeros(along.shape, bool), np.zeros(along.shape, np.int64)
    for start in range(4):
        xs, ys, xe, ye = (of[at % 4][:, None, None] for at in (start, start + 1) for of in (x, y))
        flat = np.abs(ys - ye) < _NEAR
        low, high = np.minimum(ys, ye), np.maximum(ys, ye)
        left, right = np.minimum(xs, xe), np.maximum(xs, xe)
        with np.errstate(all="ignore"):
            cut = (down - ys) * (xe - xs) / (ye - ys) + xs
        beside = np.abs(cut - along) < _NEAR
        on |= flat & (np.abs(down - ys) < _NEAR) & (np.abs(down - ye) < _NEAR) & _between(along, left, right)
        on |= ~flat & beside & _between(down, low, high)
        spans = ~flat & ~((down < low) | (np.abs(down - low) < _NEAR)) & (down - high <= _NEAR)
        on |= spans & beside
        crossed += spans & (cut - along > _NEAR)
    return on | (crossed % 2 == 1)


def _between(value: Array, low: Array, high: Array) -> Array:
    return ((value > low) | (np.abs(value - low) < _NEAR)) & ((value < high) | (np.abs(value - high) < _NEAR))


class _Seen(NamedTuple):
    """The matrices [9, regions], which places are seen [regions, height, width], and the samples there."""

    matrices: Array
    seen: Array
    at: Samples


def _seen(rois: Array, size: PooledSize, dims: tuple[int, int]) -> _Seen:
    corners = (rois.reshape(-1, 4, 2) * rois.dtype.type(size.scale)).transpose(2, 1, 0)
    matrices = _matrices(corners[0], corners[1], size)
    down, along = np.arange(size.height, dtype=rois.dtype)[:, None], np.arange(size.width, dtype=rois.dtype)
    terms = [row[:, None, None] for row in matrices]
    u, v, w = (terms[at] * along + terms[at + 1] * down + terms[at + 2] for at in (0, 3, 6))
    with np.errstate(all="ignore"):
        x, y = u / w, v / w
    seen = _inside(x, y, corners[0], corners[1])
    for place, length in ((x, dims[1]), (y, dims[0])):
        seen &= (place > -0.5 + _NEAR) & (place < length - 0.5 - _NEAR)
    x, y = (np.where(seen, place, 0).clip(0, length - 1) for place, length in ((x, dims[1]), (y, dims[0])))
    at = samples(np.where(y < _NEAR, 0, y), np.where(x < _NEAR, 0, x), *dims)
    return _Seen(matrices, seen, at._replace(weights=(at.weights * seen).astype(rois.dtype)))


@plain_kernel("roi_perspective_transform", "Out Mask TransformMatrix", lod="new")
def _roi_perspective_transform(
    X: object, ROIs: object, *, size: PooledSize = per_op(_size)
) -> tuple[object, Array, Array]:
    x, rois = plain(X), plain(ROIs)
    found, flat = _seen(rois, size, x.shape[2:]), x.reshape(*x.shape[:2], -1)
    out = np.zeros((len(rois), x.shape[1], size.height, size.width), x.dtype)
    for region, image in enumerate(images_of(ROIs, None, len(x))):
        part = Samples(found.at.places[:, region], found.at.weights[:, region], found.at.slopes)
        out[region] = part.of(flat[image])
    made = LoDTensor(out, ROIs.lod) if isinstance(ROIs, LoDTensor) else out
    return made, found.seen[:, None].astype(np.int32), found.matrices.T.copy()


@plain_kernel("roi_perspective_transform_grad", "X@GRAD", lod="new")
def _roi_perspective_transform_grad(
    X: object, ROIs: object, Out_GRAD: object, *, size: PooledSize = per_op(_size)
) -> Array:
    x, rois, slopes = plain(X), plain(ROIs), plain(Out_GRAD)
    found = _seen(rois, size, x.shape[2:])
    result = np.zeros_like(x).reshape(*x.shape[:2], -1)
    for region, image in enumerate(images_of(ROIs, None, len(x))):
        for places, weights in zip(found.at.places[:, region], found.at.weights[:, region], strict=True):
            np.add.at(result[image], (slice(None), places), slopes[region] * weights)
    return result.reshape(x.shape)
