"""Kernels. Boxes compared, encoded against others, decoded, and cut at the edges of images."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, reals_attr, text
from pstranspile.ops.detection.boxes import ENCODE
from pstranspile.runtime.kernels.boxes import (
    clipped,
    common_areas,
    decoded,
    middles_and_sides,
    offsets_of,
    require_count,
    rounded,
)
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
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
