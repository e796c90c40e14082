"""Kernels. Boxes compared, encoded against others, decoded, and cut at the edges of images."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import floor, log, sqrt
from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real, reals_attr, text
from pstranspile.ops.detection.boxes import ENCODE, SAME_RATIO, expanded_ratios, positive
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import plain, with_lod
from pstranspile.runtime.values import Array, LoDTensor

# Functions that kernels of boxes share: areas, overlaps, and codes relative to other boxes.
#
# A box is four numbers: left, top, right, bottom. `edge` is added to the difference of two ends to give a side. It is 0
# for boxes in shares of an image and 1 for boxes in pixels, which include both edges.

LARGEST_LOG = log(1000 / 16)
"""The largest logarithm of the ratio of a decoded side to the anchor's side."""


def round_half_away(x: Array) -> Array:
    """Every element rounded to the nearest whole number, halves away from 0."""
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


def ragged_from_parts(parts: list[Array]) -> LoDTensor:
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
    """(the middle of each box, its sides), both [..., 2]."""
    sides = boxes[..., 2:] - boxes[..., :2] + edge
    return boxes[..., :2] + sides / 2, sides


def decode_boxes(
    priors: Array, codes: Array, variances: Array | float, edge: int, largest: float | None = None
) -> Array:
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


def clip_boxes(boxes: Array, width: float, height: float) -> Array:
    """Boxes [..., 4] cut at the edges of an image whose size is given in pixels."""
    most = np.array([width - 1, height - 1] * 2, boxes.dtype)
    return np.maximum(np.minimum(boxes, most), boxes.dtype.type(0))


# Functions for kernels that select boxes by score and drop boxes that overlap a better one.


def likeliest(scores: Array, threshold: float, most: int) -> Array:
    """The indices of the largest scores above a threshold, at most `most` (-1: all), largest first. Ties keep their
    order.
    """
    places = np.nonzero(scores > threshold)[0]
    order = places[np.argsort(-scores[places], kind="stable")]
    return order[:most] if most > -1 else order


def non_maximum_suppression(boxes: Array, order: Array, threshold: float, eta: float, edge: int) -> Array:
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


# Functions that kernels of regions of interest share: the image of each region, and bilinear sampling.


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


_AT_A_TIME = 1 << 20
"""About as many elements as a temporary array of samples may have: those of some MB."""


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
        result = np.empty((len(images), *self.places.shape[1:]), np.result_type(images, self.weights))
        for group in self.groups(len(images)):
            result[group] = (images[group, self.places] * self.weights).sum(axis=1)
        return result

    def groups(self, channels: int) -> Iterator[slice]:
        """The channels in groups whose values at the four pixels of all points take little memory at a time."""
        step = max(_AT_A_TIME // max(self.places.size, 1), 1)
        return (slice(start, start + step) for start in range(0, channels, step))


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


def scatter_samples(at: Samples, values: Array, pixels: int) -> Array:
    """The adjoint of sampling: values [channels, ...] added to the pixels they come from: [channels, pixels]."""
    channels = len(values)
    result = np.zeros((pixels, channels), values.dtype)
    places = at.places.reshape(-1)
    for group in at.groups(channels):
        weighted = (at.weights[None] * values[group, None]).reshape(-1, len(places)).T
        np.add.at(result[:, group], places, weighted)
    return result.T


@plain_kernel("iou_similarity")
def _iou_similarity_values(
    X: Array, Y: Array, *, edge: int = per_op(lambda op: 0 if flag(op, "box_normalized") else 1)
) -> Array:
    common = common_areas(X, Y, edge)
    sizes = [(boxes[:, 2] - boxes[:, 0] + edge) * (boxes[:, 3] - boxes[:, 1] + edge) for boxes in (X, Y)]
    return common / (sizes[0][:, None] + sizes[1][None, :] - common)


@kernel("box_coder", "OutputBox")
def _box_coder_values(op: Op) -> Run:
    """Kernel of box_coder. Priors lie along the second dim of codes, or with `axis` 1 along the first."""
    edge = 0 if flag(op, "box_normalized") else 1
    encodes, axis, variance = text(op, "code_type") == ENCODE, int_attr(op, "axis"), reals_attr(op, "variance")

    def run(PriorBox: Array, PriorBoxVar: Array | None, TargetBox: Array) -> Array:
        kind = TargetBox.dtype
        spread = np.ones((1, 4), kind)
        if PriorBoxVar is not None:
            spread = PriorBoxVar
        elif variance:
            spread = np.array([variance], kind)
        if not encodes:
            if TargetBox.shape[1 - axis] != len(PriorBox):
                raise ValueError(f"PriorBox has {len(PriorBox)} boxes, TargetBox {TargetBox.shape[1 - axis]}")
            along = (slice(None), None) if axis else (None, slice(None))
            return decode_boxes(PriorBox[along], TargetBox, spread[along], edge)
        middles, sides = middles_and_sides(PriorBox, edge)
        to, sizes = (TargetBox[:, 2:] + TargetBox[:, :2]) / 2, TargetBox[:, 2:] - TargetBox[:, :2] + edge
        logs = np.log(np.abs(sizes[:, None] / sides[None]))
        return np.concatenate([(to[:, None] - middles[None]) / sides[None], logs], axis=2) / spread[None]

    return run


@plain_kernel("box_clip", "Output", lod="own")
def _box_clip_values(Input: object, ImInfo: object) -> object:
    """Kernel of box_clip. The last column of ImInfo is the scale of the image; dividing by it gives the size of the
    original image.
    """
    boxes, info = plain(Input), plain(ImInfo)
    ends = offsets_of(Input, len(boxes))
    require_count(ends[1:], len(info), "Input")
    result = np.empty_like(boxes)
    for image, (start, stop) in enumerate(pairwise(ends)):
        height, width = round_half_away(info[image, :2] / info[image, 2])
        result[start:stop] = clip_boxes(boxes[start:stop], width, height)
    return with_lod(Input, result)


@plain_kernel("polygon_box_transform", "Output")
def _polygon_box_transform_values(Input: Array) -> Array:
    """Kernel of polygon_box_transform. Channels 0, 2, ... hold distances along a row, channels 1, 3, ... distances
    along a column.
    """
    result = np.empty_like(Input)
    result[:, ::2] = 4 * np.arange(Input.shape[3]) - Input[:, ::2]
    result[:, 1::2] = 4 * np.arange(Input.shape[2])[:, None] - Input[:, 1::2]
    return result


@plain_kernel("box_decoder_and_assign", "DecodeBox OutputAssignBox")
def _box_decoder_and_assign_values(
    PriorBox: Array, PriorBoxVar: Array | None, TargetBox: Array, BoxScore: Array, *, box_clip: float
) -> tuple[Array, Array]:
    """Kernel of box_decoder_and_assign. The prior box itself is assigned if no class but the first has a score above
    -1.
    """
    rows, classes = BoxScore.shape
    spread = 1.0 if PriorBoxVar is None else PriorBoxVar.reshape(-1)
    boxes = decode_boxes(PriorBox[:, None], TargetBox.reshape(rows, classes, 4), spread, 1, box_clip)
    scores = BoxScore[:, 1:]
    if not scores.shape[1]:
        return boxes.reshape(TargetBox.shape), PriorBox.copy()
    best = scores.argmax(axis=1)
    there = scores[np.arange(rows), best] > -1
    assigned = np.where(there[:, None], boxes[np.arange(rows), best + 1], PriorBox)
    return boxes.reshape(TargetBox.shape), assigned


# Kernels. Prior boxes and anchors on the grid of a feature map.


def _steps(op: Op, feature: Array, image: Array) -> tuple[float, float]:
    """(distance of neighbouring grid cells in pixels along a row, along a column)."""
    across, down = real(op, "step_w"), real(op, "step_h")
    if not across or not down:
        return image.shape[3] / feature.shape[3], image.shape[2] / feature.shape[2]
    return across, down


def _centers(op: Op, count: int, step: float, kind: object) -> Array:
    """The middles of the grid cells in pixels."""
    return ((np.arange(count) + real(op, "offset")) * step).astype(kind)


def _half_sizes(op: Op) -> Array:
    """Half the width and half the height of each box of a grid cell [boxes, 2], in their order."""
    result: list[tuple[float, float]] = []
    most = reals_attr(op, "max_sizes")
    for number, least in enumerate(positive(op, "min_sizes")):
        ratios: list[tuple[float, float]] = [
            (least * sqrt(ratio) / 2, least / sqrt(ratio) / 2) for ratio in expanded_ratios(op)
        ]
        side = sqrt(least * most[number]) / 2 if most else 0.0
        between = [(side, side)] if most else []
        if flag(op, "min_max_aspect_ratios_order"):
            others = [size for size, ratio in zip(ratios, expanded_ratios(op), strict=True) if _differs(ratio)]
            result += [(least / 2, least / 2), *between, *others]
        else:
            result += [*ratios, *between]
    return np.array(result)


def _differs(ratio: float) -> bool:
    return abs(ratio - 1) >= SAME_RATIO


def _spread(op: Op, boxes: Array) -> tuple[Array, Array]:
    """(boxes, clipped to the image if the op's attribute `clip` is set; the variances of each box)."""
    if flag(op, "clip"):
        boxes = boxes.clip(0, 1)
    return boxes, np.broadcast_to(np.array(reals_attr(op, "variances"), boxes.dtype), boxes.shape).copy()


@plain_kernel("prior_box", "Boxes Variances", lod="none")
def _prior_box_values(
    Input: Array, Image: Array, *, op: Op, halves: Array = per_op(_half_sizes)
) -> tuple[Array, Array]:
    across, down = _steps(op, Input, Image)
    height, width = Input.shape[2:]
    middles = np.empty((height, width, 1, 2), Input.dtype)
    middles[..., 0] = _centers(op, width, across, Input.dtype)[:, None]
    middles[..., 1] = _centers(op, height, down, Input.dtype)[:, None, None]
    image = np.array([Image.shape[3], Image.shape[2]], Input.dtype)
    half = halves.astype(Input.dtype)
    return _spread(op, np.concatenate([(middles - half) / image, (middles + half) / image], axis=3))


@kernel("density_prior_box", "Boxes Variances", lod="none")
def _density_prior_box_values(op: Op) -> Run:
    """Kernel of density_prior_box. Boxes of one size form a square grid around the middle of a cell, at distances of
    whole pixels.
    """
    sizes, ratios = reals_attr(op, "fixed_sizes"), positive(op, "fixed_ratios")
    densities = ints_attr(op, "densities")

    def run(Input: Array, Image: Array) -> tuple[Array, Array]:
        across, down = _steps(op, Input, Image)
        step = int((across + down) / 2)
        shifts: list[tuple[float, float]] = []
        halves: list[tuple[float, float]] = []
        for size, density in zip(sizes, densities, strict=True):
            apart = step // density
            first = apart / 2 - step / 2
            grid = [
                (first + column * apart, first + row * apart) for row in range(density) for column in range(density)
            ]
            for ratio in ratios:
                shifts += grid
                halves += [(size * sqrt(ratio) / 2, size / sqrt(ratio) / 2)] * len(grid)
        height, width = Input.shape[2:]
        middles = np.empty((height, width, len(shifts), 2), Input.dtype)
        moved = np.array(shifts, Input.dtype).reshape(-1, 2)
        middles[..., 0] = _centers(op, width, across, Input.dtype)[:, None] + moved[:, 0]
        middles[..., 1] = _centers(op, height, down, Input.dtype)[:, None, None] + moved[:, 1]
        image = np.array([Image.shape[3], Image.shape[2]], Input.dtype)
        half = np.array(halves, Input.dtype).reshape(-1, 2)
        low, high = np.maximum((middles - half) / image, 0), np.minimum((middles + half) / image, 1)
        boxes, variances = _spread(op, np.concatenate([low, high], axis=3))
        if flag(op, "flatten_to_2d"):
            return boxes.reshape(-1, 4), variances.reshape(-1, 4)
        return boxes, variances

    return run


@kernel("anchor_generator", "Anchors Variances", lod="none")
def _anchor_generator_values(op: Op) -> Run:
    """Kernel of anchor_generator. An anchor as large as a grid cell has sides of whole pixels; other sizes are
    multiples of it.
    """
    across, down = positive(op, "stride")
    sides: list[tuple[float, float]] = []
    for ratio in positive(op, "aspect_ratios"):
        width = floor(sqrt(across * down / ratio) + 0.5)
        height = floor(width * ratio + 0.5)
        sides += [(size / across * width, size / down * height) for size in reals_attr(op, "anchor_sizes")]

    def run(Input: Array) -> tuple[Array, Array]:
        kind = Input.dtype
        height, width = Input.shape[2:]
        half = (np.array(sides, kind).reshape(-1, 2) - 1) / 2
        middles = np.empty((height, width, 1, 2), kind)
        middles[..., 0] = (np.arange(width) * across + real(op, "offset") * (across - 1))[:, None].astype(kind)
        middles[..., 1] = (np.arange(height) * down + real(op, "offset") * (down - 1))[:, None, None].astype(kind)
        boxes = np.concatenate([middles - half, middles + half], axis=3)
        return boxes, np.broadcast_to(np.array(reals_attr(op, "variances"), kind), boxes.shape).copy()

    return run
