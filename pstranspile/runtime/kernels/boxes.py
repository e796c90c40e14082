"""What kernels of boxes share: areas, overlaps, and codes relative to other boxes.

A box is four numbers: left, top, right, bottom. `edge` is added to the difference of two ends to give a side. It is 0
for boxes in shares of an image and 1 for boxes in pixels, which include both edges.
"""

from __future__ import annotations

from itertools import pairwise
from math import log
from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, real
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.values import Array, LoDTensor

LARGEST_LOG = log(1000 / 16)
"""The largest logarithm of the ratio of a decoded side to the anchor's side."""


def rounded(x: Array) -> Array:
    """The nearest whole number, halves away from 0."""
    return np.trunc(x + np.copysign(x.dtype.type(0.5), x))


def offsets_of(x: object, rows: int) -> list[int]:
    """The offsets of the sequences of the last level. Without LoD all rows are one sequence."""
    return x.lod[-1] if isinstance(x, LoDTensor) and x.lod else [0, rows]


def parts_of(x: object, slot: str) -> list[Array]:
    """The rows of each image. Raises ValueError for a value without LoD."""
    if not isinstance(x, LoDTensor) or not x.lod:
        raise ValueError(f"{slot} has no LoD, the rows of each image must be a sequence")
    ends = x.lod[-1]
    return [x.data[start:stop] for start, stop in pairwise(ends)]


def require_count(parts: list[Array], count: int, slot: str) -> None:
    """Raises ValueError unless there is one part for each image."""
    if len(parts) != count:
        raise ValueError(f"{slot} has {len(parts)} sequences for {count} images")


def joined(parts: list[Array]) -> LoDTensor:
    """The rows of all images as one ragged tensor, with a sequence for each image."""
    ends = [0, *np.cumsum([len(part) for part in parts]).tolist()]
    return LoDTensor(np.concatenate(parts), [ends])


def areas(boxes: Array, edge: int) -> Array:
    """The area of each box; 0 for a box whose corners are swapped."""
    sides = boxes[:, 2:] - boxes[:, :2]
    area = (sides[:, 0] + edge) * (sides[:, 1] + edge)
    return np.where((sides < 0).any(axis=1), boxes.dtype.type(0), area)


def common_areas(x: Array, y: Array, edge: int) -> Array:
    """The area that each box of x shares with each box of y: [boxes of x, boxes of y]."""
    low, high = np.maximum(x[:, None, :2], y[None, :, :2]), np.minimum(x[:, None, 2:], y[None, :, 2:])
    sides = np.maximum(high - low + edge, 0)
    return sides[..., 0] * sides[..., 1]


def overlaps(x: Array, y: Array, edge: int) -> Array:
    """The intersection over union of each box of x and each box of y; 0 for boxes that don't touch."""
    low, high = np.maximum(x[:, None, :2], y[None, :, :2]), np.minimum(x[:, None, 2:], y[None, :, 2:])
    apart = (high < low).any(axis=2)
    common = common_areas(x, y, edge)
    covered = areas(x, edge)[:, None] + areas(y, edge)[None, :] - common
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(apart, x.dtype.type(0), common / covered)


def pixel_overlaps(x: Array, y: Array) -> Array:
    """The overlaps of boxes in pixels, as `overlaps` gives them of others; 0 for boxes that share no pixel, whatever
    their areas are.
    """
    common = common_areas(x, y, 1)
    sizes = [(boxes[:, 2] - boxes[:, 0] + 1) * (boxes[:, 3] - boxes[:, 1] + 1) for boxes in (x, y)]
    covered = sizes[0][:, None] + sizes[1][None, :] - common
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(common == 0, x.dtype.type(0), common / covered)


def middles_and_sides(boxes: Array, edge: int) -> tuple[Array, Array]:
    """The middle and the sides of each box, both [..., 2]."""
    sides = boxes[..., 2:] - boxes[..., :2] + edge
    return boxes[..., :2] + sides / 2, sides


def decoded(priors: Array, codes: Array, variances: Array | float, edge: int, largest: float | None = None) -> Array:
    """The boxes with the codes `codes` relative to `priors`.

    A code is the distance of the middles divided by the prior's sides, and the logarithm of the ratio of the sides.
    Codes are multiplied by `variances` first. `largest` limits the logarithms.
    """
    middles, sides = middles_and_sides(priors, edge)
    scaled = codes * variances
    middles = scaled[..., :2] * sides + middles
    logs = scaled[..., 2:] if largest is None else np.minimum(scaled[..., 2:], codes.dtype.type(largest))
    sides = np.exp(logs) * sides
    return np.concatenate([middles - sides / 2, middles + sides / 2 - edge], axis=-1)


def deltas(priors: Array, boxes: Array, weights: Array | None) -> Array:
    """The codes of `boxes` [boxes, 4] in pixels relative to `priors`, row by row, divided by `weights`."""
    (middles, sides), (to, sizes) = middles_and_sides(priors, 1), middles_and_sides(boxes, 1)
    result = np.concatenate([(to - middles) / sides, np.log(sizes / sides)], axis=-1)
    return result if weights is None else result / weights


def clipped(boxes: Array, width: float, height: float) -> Array:
    """Boxes [..., 4] cut at the edges of an image whose size is given in pixels."""
    most = np.array([width - 1, height - 1] * 2, boxes.dtype)
    return np.maximum(np.minimum(boxes, most), boxes.dtype.type(0))


# What kernels share that select boxes by score and drop boxes that overlap a better one.


def likeliest(scores: Array, threshold: float, most: int) -> Array:
    """The indices of at most `most` (-1: all) scores above a threshold, largest first. Ties keep their order."""
    places = np.nonzero(scores > threshold)[0]
    order = places[np.argsort(-scores[places], kind="stable")]
    return order[:most] if most > -1 else order


def kept(boxes: Array, order: Array, threshold: float, eta: float, edge: int) -> Array:
    """Non-maximum suppression: the indices of `order`, in order, whose boxes overlap no box kept before by more than
    the threshold.

    While the threshold is above one half, each kept box multiplies it by `eta`.
    """
    result: list[int] = []
    shares = overlaps(boxes[order], boxes[order], edge)
    threshold = float(boxes.dtype.type(threshold))
    for place in range(len(order)):
        if (shares[place, result] <= threshold).all():
            result.append(place)
            if eta < 1 and threshold > 0.5:
                threshold = float(boxes.dtype.type(threshold * eta))
    return order[result]


def best_of(chosen: list[tuple[int, Array]], scores: list[Array], most: int) -> list[tuple[int, Array]]:
    """Indices per label, reduced to the `most` (-1: all) largest scores over all labels.

    The remaining indices of a label are sorted by score.
    """
    if most < 0 or sum(len(places) for _, places in chosen) <= most:
        return chosen
    labels = np.concatenate([np.full(len(places), number) for number, (_, places) in enumerate(chosen)])
    whole = np.concatenate([places for _, places in chosen])
    order = np.argsort(-np.concatenate(scores), kind="stable")[:most]
    return [(label, whole[order][labels[order] == number]) for number, (label, _) in enumerate(chosen)]


# What kernels of regions of interest share: the image of each region, and bilinear sampling.


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
    """The samples that `samples` gives, but points up to one pixel outside of the image are moved onto its edge.

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
