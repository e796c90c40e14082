"""What kernels of boxes share: areas, overlaps, and codes relative to other boxes.

A box is four numbers: left, top, right, bottom. `edge` is added to the difference of two ends to give a side. It is 0
for boxes in shares of an image and 1 for boxes in pixels, which include both edges.
"""

from __future__ import annotations

from itertools import pairwise
from math import log

import numpy as np

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
    """As `overlaps`, for boxes in pixels; 0 for boxes that share no pixel, whatever their areas are."""
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
