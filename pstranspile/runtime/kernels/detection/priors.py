"""Kernels. Prior boxes and anchors on the grid of a feature map."""

from __future__ import annotations

from math import floor, sqrt

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, ints_attr, real, reals_attr
from pstranspile.ops.detection.priors import SAME_RATIO, expanded_ratios, positive
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.values import Array


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
