"""What kernels of regions of interest share: the image of each region, and bilinear sampling."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, real
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.values import Array, LoDTensor


def images_of(rois: object, ends: Array | None, images: int) -> Array:
    """The image of each region. `ends` are the offsets of each image's regions, if `rois` has no LoD.

    Raises ValueError if there are no offsets, or if they don't fit.
    """
    rows = len(plain(rois))
    if ends is not None:
        offsets = [int(end) for end in plain(ends).reshape(-1)]
    elif isinstance(rois, LoDTensor) and rois.lod:
        offsets = rois.lod[-1]
    else:
        raise ValueError("ROIs has no LoD, the regions of each image must be a sequence")
    counts = np.diff(offsets)
    if len(counts) != images or not len(offsets) or offsets[0] != 0 or offsets[-1] != rows or (counts < 0).any():
        raise ValueError(f"ROIs has the offsets {offsets} for {images} images and {rows} regions")
    return np.repeat(np.arange(images), counts)


class PooledSize(NamedTuple):
    """Height and width of the pooled regions, and the scale from image coordinates to the feature map."""

    height: int
    width: int
    scale: float


def pooled_size(op: Op) -> PooledSize:
    """The size that the attributes of a region pooling ask for."""
    return PooledSize(int_attr(op, "pooled_height"), int_attr(op, "pooled_width"), real(op, "spatial_scale"))


class Samples(NamedTuple):
    """Points between pixels, each with the four surrounding pixels and their weights.

    `places` and `weights` are [4, ...]. A place is row * width + column. `slopes` are the derivatives of the weights
    down a column and along a row, both [4, ...].
    """

    places: Array
    weights: Array
    slopes: tuple[Array, Array]

    def of(self, images: Array) -> Array:
        """The values at the points, of one image [channels, pixels]: [channels, ...]."""
        return (images[:, self.places] * self.weights).sum(axis=1)


def samples(down: Array, along: Array, height: int, width: int) -> Samples:
    """Bilinear samples at points (row, column) of the same dims. Pixels outside of the image are 0."""
    top, left = np.floor(down), np.floor(along)
    rows, columns = top.astype("int64"), left.astype("int64")
    low, right = down - top, along - left
    places: list[Array] = []
    weights: list[Array] = []
    slopes: tuple[list[Array], list[Array]] = ([], [])
    for row, column, by_row, by_column, sign_row, sign_column in (
        (rows, columns, 1 - low, 1 - right, -1, -1),
        (rows, columns + 1, 1 - low, right, -1, 1),
        (rows + 1, columns, low, 1 - right, 1, -1),
        (rows + 1, columns + 1, low, right, 1, 1),
    ):
        there = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        places.append(np.where(there, row * width + column, 0))
        weights.append(there * by_row * by_column)
        slopes[0].append(there * sign_row * by_column)
        slopes[1].append(there * sign_column * by_row)
    kind = down.dtype
    return Samples(
        np.stack(places),
        np.stack(weights).astype(kind),
        (np.stack(slopes[0]).astype(kind), np.stack(slopes[1]).astype(kind)),
    )


def edge_samples(down: Array, along: Array, height: int, width: int) -> Samples:
    """As `samples`, but points up to one pixel outside of the image are moved onto its edge.

    Points further outside are 0.
    """
    there = (down >= -1) & (down <= height) & (along >= -1) & (along <= width)
    made = samples(down.clip(0, height - 1), along.clip(0, width - 1), height, width)
    return made._replace(weights=made.weights * there)


def scattered(at: Samples, values: Array, pixels: int) -> Array:
    """The adjoint of sampling: values [channels, ...] added to the pixels they come from: [channels, pixels]."""
    channels = len(values)
    result = np.zeros((pixels, channels), values.dtype)
    weighted = (at.weights[None] * values[:, None]).reshape(channels, -1).T
    np.add.at(result, at.places.reshape(-1), weighted)
    return result.T
