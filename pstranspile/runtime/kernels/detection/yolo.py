"""Kernels. YOLOv3: the loss of a grid of predictions, and the predicted boxes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real
from pstranspile.ops.detection.yolo import anchors_of, mask_of
from pstranspile.runtime.kernels.kernel import Run, kernel
from pstranspile.runtime.kernels.numeric import check_ids
from pstranspile.runtime.values import Array

_NO_SIDE = 1e-6
"""Objects with a side no longer than this are padding of the batch."""

_OBJECT = 1e-5
"""Grid cells whose mask is larger have an object; those with -1 are ignored."""


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _cross_entropy(x: Array, label: Array | float) -> Array:
    """The cross entropy of sigmoid(x) with a label."""
    return np.maximum(x, 0) - x * label + np.log1p(np.exp(-np.abs(x)))


def _shares(one: Array, other: Array) -> Array:
    """The intersection over union of boxes [..., 4] given as middle and sides."""
    low = np.maximum(one[..., :2] - one[..., 2:] / 2, other[..., :2] - other[..., 2:] / 2)
    high = np.minimum(one[..., :2] + one[..., 2:] / 2, other[..., :2] + other[..., 2:] / 2)
    sides = high - low
    common = np.where((sides < 0).any(axis=-1), 0, sides[..., 0] * sides[..., 1])
    covered = one[..., 2] * one[..., 3] + other[..., 2] * other[..., 3] - common
    return common / covered


class _Grid(NamedTuple):
    """The settings of an op's grid."""

    classes: int
    anchors: tuple[tuple[int, int], ...]
    mask: tuple[int, ...]
    stride: int
    scale: float

    def parts(self, x: Array) -> Array:
        """X as [images, anchors of the mask, 5 + classes, height, width]."""
        return x.reshape(len(x), len(self.mask), 5 + self.classes, *x.shape[2:])

    def boxes(self, parts: Array) -> Array:
        """The box of each cell as middle and sides, in shares of the image: [images, anchors, height, width, 4]."""
        height, width = parts.shape[3:]
        kind, size = parts.dtype, height * self.stride
        bias = -0.5 * (self.scale - 1)
        result = np.empty((*parts.shape[:2], height, width, 4), kind)
        result[..., 0] = (np.arange(width, dtype=kind) + _sigmoid(parts[:, :, 0]) * self.scale + bias) / height
        result[..., 1] = (
            np.arange(height, dtype=kind)[:, None] + _sigmoid(parts[:, :, 1]) * self.scale + bias
        ) / height
        sides = np.array([self.anchors[number] for number in self.mask], kind)[:, :, None, None] / size
        result[..., 2] = np.exp(parts[:, :, 2]) * sides[:, 0]
        result[..., 3] = np.exp(parts[:, :, 3]) * sides[:, 1]
        return result


def _grid(op: Op) -> _Grid:
    return _Grid(
        int_attr(op, "class_num"), anchors_of(op), mask_of(op), int_attr(op, "downsample_ratio"), real(op, "scale_x_y")
    )


def _labels(op: Op) -> tuple[float, float]:
    """The targets of an object's class and of the other classes, smoothed if `use_label_smooth` is set."""
    smooth = min(1 / int_attr(op, "class_num"), 1 / 40) if flag(op, "use_label_smooth") else 0.0
    return 1 - smooth, smooth


class _Objects(NamedTuple):
    """The objects whose best anchor is in the mask, one entry for each.

    `image`, `anchor` (index in the mask), `row` and `column` are its cell. `targets` [objects, 4] are the box's
    targets, `weight` the weight of its loss, `label` the class, `score` the confidence.
    """

    image: Array
    anchor: Array
    row: Array
    column: Array
    targets: Array
    weight: Array
    label: Array
    score: Array


def _best_anchors(grid: _Grid, boxes: Array, side: int) -> Array:
    """For each object the anchor with the largest overlap, both centred at one point."""
    sides = np.array(grid.anchors, boxes.dtype) / (side * grid.stride)
    at = np.zeros_like(boxes)
    at[..., 2:] = boxes[..., 2:]
    anchors = np.zeros((len(sides), 4), boxes.dtype)
    anchors[:, 2:] = sides
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(_shares(at[..., None, :], anchors)).argmax(axis=-1)


def _objects(grid: _Grid, x: Array, boxes: Array, labels: Array, scores: Array, matched: Array) -> _Objects:
    """The objects whose best anchor is in the mask (`matched` is its index there, or -1)."""
    side, kind = x.shape[2], x.dtype
    image, place = np.nonzero(matched >= 0)
    box, anchor = boxes[image, place], matched[image, place]
    label = labels[image, place]
    check_ids(label, grid.classes, "the label")
    column, row = (np.trunc(box[:, axis] * side).astype("int64") for axis in (0, 1))
    check_ids(np.stack([row, column]), side, "the middle of a box lies in the place")
    sides = np.array([grid.anchors[number] for number in grid.mask], kind)[anchor]
    targets = np.empty((len(box), 4), kind)
    targets[:, 0], targets[:, 1] = box[:, 0] * side - column, box[:, 1] * side - row
    targets[:, 2:] = np.log(box[:, 2:] * (side * grid.stride) / sides)
    score = scores[image, place]
    return _Objects(image, anchor, row, column, targets, (2 - box[:, 2] * box[:, 3]) * score, label, score)


@kernel("yolov3_loss", "Loss ObjectnessMask GTMatchMask", lod="none")
def _yolov3_loss_values(op: Op) -> Run:
    grid, ignored, (right, wrong) = _grid(op), real(op, "ignore_thresh"), _labels(op)

    def masks(parts: Array, boxes: Array, scores: Array) -> tuple[Array, Array]:
        """Cells with an object (its score), ignored cells (-1), and the anchor of each object."""
        there = (boxes[..., 2:] > _NO_SIDE).all(axis=-1)
        predicted = grid.boxes(parts)
        mask = np.zeros(predicted.shape[:-1], parts.dtype)
        for number in range(boxes.shape[1]):
            shares = _shares(predicted, boxes[:, number, None, None, None])
            mask[(shares > ignored) & there[:, number, None, None, None]] = -1
        places = np.full(len(grid.anchors) + 1, -1, "int32")
        for number, anchor in reversed(list(enumerate(grid.mask))):
            places[anchor] = number
        matched = places[np.where(there, _best_anchors(grid, boxes, parts.shape[3]), -1)]
        return mask, matched

    def run(X: Array, GTBox: Array, GTLabel: Array, GTScore: Array | None) -> tuple[Array, Array, Array]:
        scores = np.ones(GTLabel.shape, X.dtype) if GTScore is None else GTScore
        parts = grid.parts(X)
        mask, matched = masks(parts, GTBox, scores)
        of = _objects(grid, X, GTBox, GTLabel, scores, matched)
        predicted = parts[of.image, of.anchor, :, of.row, of.column]
        losses = _cross_entropy(predicted[:, :2], of.targets[:, :2]).sum(axis=1)
        losses += np.abs(predicted[:, 2:4] - of.targets[:, 2:]).sum(axis=1)
        hot = np.where(np.arange(grid.classes) == of.label[:, None], X.dtype.type(right), X.dtype.type(wrong))
        losses = losses * of.weight + _cross_entropy(predicted[:, 5:], hot).sum(axis=1) * of.score
        mask[of.image, of.anchor, of.row, of.column] = of.score  # if several objects share a cell, the last one counts
        loss = np.zeros(len(X), X.dtype)
        np.add.at(loss, of.image, losses)
        there = parts[:, :, 4]
        unsure = np.where(mask > _OBJECT, _cross_entropy(there, 1.0) * mask, _cross_entropy(there, 0.0) * (mask > -0.5))
        return loss + unsure.sum(axis=(1, 2, 3)), mask, matched

    return run


@kernel("yolov3_loss_grad", "X@GRAD", lod="none")
def _yolov3_loss_grad(op: Op) -> Run:
    grid, (right, wrong) = _grid(op), _labels(op)

    def run(
        X: Array,
        GTBox: Array,
        GTLabel: Array,
        GTScore: Array | None,
        Loss_GRAD: Array,
        ObjectnessMask: Array,
        GTMatchMask: Array,
    ) -> Array:
        scores = np.ones(GTLabel.shape, X.dtype) if GTScore is None else GTScore
        parts = grid.parts(X)
        of = _objects(grid, X, GTBox, GTLabel, scores, GTMatchMask)
        predicted = parts[of.image, of.anchor, :, of.row, of.column]
        slope = np.zeros_like(predicted)
        slope[:, :2] = (_sigmoid(predicted[:, :2]) - of.targets[:, :2]) * of.weight[:, None]
        slope[:, 2:4] = np.where(predicted[:, 2:4] > of.targets[:, 2:], of.weight[:, None], -of.weight[:, None])
        hot = np.where(np.arange(grid.classes) == of.label[:, None], X.dtype.type(right), X.dtype.type(wrong))
        slope[:, 5:] = (_sigmoid(predicted[:, 5:]) - hot) * of.score[:, None]
        result = np.zeros_like(parts)
        # objects that share a cell add up their classes; only the last one's box counts
        places = (of.image, of.anchor, slice(None), of.row, of.column)
        result[places] = slope
        mask, share = ObjectnessMask, _sigmoid(parts[:, :, 4])
        result[:, :, 4] = np.where(mask > _OBJECT, (share - 1) * mask, share * (mask > -0.5))
        return (result * Loss_GRAD.reshape(-1, 1, 1, 1, 1)).reshape(X.shape)

    return run


@kernel("yolo_box", "Boxes Scores", lod="none")
def _yolo_box_values(op: Op) -> Run:
    """Cells with too little confidence have the box and the scores 0."""
    anchors = anchors_of(op)
    mask = tuple(range(len(anchors)))
    grid = _Grid(int_attr(op, "class_num"), anchors, mask, int_attr(op, "downsample_ratio"), real(op, "scale_x_y"))
    threshold, clips = real(op, "conf_thresh"), flag(op, "clip_bbox")

    def run(X: Array, ImgSize: Array) -> tuple[Array, Array]:
        parts, kind = grid.parts(X), X.dtype
        sure = _sigmoid(parts[:, :, 4])
        there = sure >= threshold
        size = ImgSize[:, None, None, None, ::-1].astype(kind)
        boxes = grid.boxes(parts)
        middles, halves = boxes[..., :2] * size, boxes[..., 2:] * size / 2
        low, high = middles - halves, middles + halves
        if clips:
            low, high = np.maximum(low, 0), np.minimum(high, size - 1)
        result = np.where(there[..., None], np.concatenate([low, high], axis=-1), kind.type(0))
        scores = np.where(there[:, :, None], sure[:, :, None] * _sigmoid(parts[:, :, 5:]), kind.type(0))
        scores = np.moveaxis(scores, 2, -1)
        return result.reshape(len(X), -1, 4), scores.reshape(len(X), -1, grid.classes)

    return run
