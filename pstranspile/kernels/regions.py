"""What kernels of regions and of moved samples share: which image a region is in, and samples between pixels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.kernels.ragged import plain
from pstranspile.ops.attributes import int_attr, real
from pstranspile.values import Array, LoDTensor


def images_of(rois: object, ends: Array | None, images: int) -> Array:
    """The image of each region. `ends` are where the regions of each image begin and end, if they are no sequences.

    Raises ValueError where they are neither, and where they don't fit.
    """
    rows = len(plain(rois))
    if ends is not None:
        held = [int(end) for end in plain(ends).reshape(-1)]
    elif isinstance(rois, LoDTensor) and rois.lod:
        held = rois.lod[-1]
    else:
        raise ValueError("ROIs has no LoD, the regions of each image must be a sequence")
    counts = np.diff(held)
    if len(counts) != images or not len(held) or held[0] != 0 or held[-1] != rows or (counts < 0).any():
        raise ValueError(f"ROIs has the offsets {held} for {images} images and {rows} regions")
    return np.repeat(np.arange(images), counts)


class PooledSize(NamedTuple):
    """Height and width of what regions are brought to, and what pixels of the image are multiplied by."""

    height: int
    width: int
    scale: float


def pooled_size(op: Op) -> PooledSize:
    """What the attributes of a pooling of regions say of its results."""
    return PooledSize(int_attr(op, "pooled_height"), int_attr(op, "pooled_width"), real(op, "spatial_scale"))


class Samples(NamedTuple):
    """Points between pixels: for each the four pixels around it and their weights.

    `places` and `weights` are [4, ...]; places count rows times width and columns. `slopes` are how much the weights
    grow down a column and along a row, each [4, ...].
    """

    places: Array
    weights: Array
    slopes: tuple[Array, Array]

    def of(self, images: Array) -> Array:
        """The values at the points of one image [channels, pixels]: [channels, ...]."""
        return (images[:, self.places] * self.weights).sum(axis=1)


def samples(down: Array, along: Array, height: int, width: int) -> Samples:
    """Bilinear samples at points (row, column) of the same dims; pixels outside of the image are 0."""
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
    """As `samples`, of points that are moved onto the image if they are no further than a pixel beyond its edges.

    Points further away are 0.
    """
    there = (down >= -1) & (down <= height) & (along >= -1) & (along <= width)
    made = samples(down.clip(0, height - 1), along.clip(0, width - 1), height, width)
    return made._replace(weights=made.weights * there)


def scattered(at: Samples, values: Array, pixels: int) -> Array:
    """The sums [channels, pixels] of values [channels, ...] put where they were sampled, by their weights."""
    channels = len(values)
    result = np.zeros((pixels, channels), values.dtype)
    weighted = (at.weights[None] * values[:, None]).reshape(channels, -1).T
    np.add.at(result, at.places.reshape(-1), weighted)
    return result.T
