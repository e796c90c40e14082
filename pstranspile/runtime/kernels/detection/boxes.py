"""Kernels. Boxes compared, encoded against others, decoded, and cut at the edges of images."""

from __future__ import annotations

from itertools import pairwise
from math import floor, sqrt

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real, reals_attr, text
from pstranspile.ops.detection.boxes import ENCODE, SAME_RATIO, expanded_ratios, positive
from pstranspile.runtime.kernels.boxes import (
    clipped,
    common_areas,
    decoded,
    middles_and_sides,
    offsets_of,
    require_count,
    rounded,
)
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.ragged import plain, with_lod
from pstranspile.runtime.values import Array


@kernel("iou_similarity")
def _iou_similarity_values(op: Op) -> Run:
    edge = 0 if flag(op, "box_normalized") else 1

    def run(X: Array, Y: Array) -> Array:
        common = common_areas(X, Y, edge)
        sizes = [(boxes[:, 2] - boxes[:, 0] + edge) * (boxes[:, 3] - boxes[:, 1] + edge) for boxes in (X, Y)]
        return common / (sizes[0][:, None] + sizes[1][None, :] - common)

    return run


@kernel("box_coder", "OutputBox")
def _box_coder_values(op: Op) -> Run:
    """Priors lie along the second dim of codes, or with `axis` 1 along the first."""
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
            return decoded(PriorBox[along], TargetBox, spread[along], edge)
        middles, sides = middles_and_sides(PriorBox, edge)
        to, sizes = (TargetBox[:, 2:] + TargetBox[:, :2]) / 2, TargetBox[:, 2:] - TargetBox[:, :2] + edge
        logs = np.log(np.abs(sizes[:, None] / sides[None]))
        return np.concatenate([(to[:, None] - middles[None]) / sides[None], logs], axis=2) / spread[None]

    return run


@plain_kernel("box_clip", "Output", lod="own")
def _box_clip_values(Input: object, ImInfo: object) -> object:
    """The last column of ImInfo is the scale of the image; dividing by it gives the size of the original image."""
    boxes, info = plain(Input), plain(ImInfo)
    ends = offsets_of(Input, len(boxes))
    require_count(ends[1:], len(info), "Input")
    result = np.empty_like(boxes)
    for image, (start, stop) in enumerate(pairwise(ends)):
        height, width = rounded(info[image, :2] / info[image, 2])
        result[start:stop] = clipped(boxes[start:stop], width, height)
    return with_lod(Input, result)


@plain_kernel("polygon_box_transform", "Output")
def _polygon_box_transform_values(Input: Array) -> Array:
    """Even channels hold distances along a row, channels 1, 3, ... distances along a column."""
    result = np.empty_like(Input)
    result[:, ::2] = 4 * np.arange(Input.shape[3]) - Input[:, ::2]
    result[:, 1::2] = 4 * np.arange(Input.shape[2])[:, None] - Input[:, 1::2]
    return result


@plain_kernel("box_decoder_and_assign", "DecodeBox OutputAssignBox")
def _box_decoder_and_assign_values(
    PriorBox: Array, PriorBoxVar: Array | None, TargetBox: Array, BoxScore: Array, *, box_clip: float
) -> tuple[Array, Array]:
    """The prior box itself is assigned if no class but the first has a score above -1."""
    rows, classes = BoxScore.shape
    spread = 1.0 if PriorBoxVar is None else PriorBoxVar.reshape(-1)
    boxes = decoded(PriorBox[:, None], TargetBox.reshape(rows, classes, 4), spread, 1, box_clip)
    scores = BoxScore[:, 1:]
    if not scores.shape[1]:
        return boxes.reshape(TargetBox.shape), PriorBox.copy()
    best = scores.argmax(axis=1)
    there = scores[np.arange(rows), best] > -1
    assigned = np.where(there[:, None], boxes[np.arange(rows), best + 1], PriorBox)
    return boxes.reshape(TargetBox.shape), assigned


# Kernels. Prior boxes and anchors on the grid of a feature map.


def _steps(op: Op, feature: Array, image: Array) -> tuple[float, float]:
    """The distance of neighbouring grid cells in pixels, along a row and along a column."""
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
    """Boxes, clipped to the image if wanted, and the variances of each."""
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
    """Boxes of one size form a square grid around the middle of a cell, at distances of whole pixels."""
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
    """An anchor as large as a grid cell has sides of whole pixels. Other sizes are multiples of it."""
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
