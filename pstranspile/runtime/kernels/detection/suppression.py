"""Kernels. Non-maximum suppression of detected boxes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real
from pstranspile.ops.detection.proposals import one_of
from pstranspile.ops.detection.suppression import AP_TYPES, anchors_of, mask_of
from pstranspile.runtime.kernels.detection.boxes import (
    best_of,
    decode_boxes,
    likeliest,
    non_maximum_suppression,
    offsets_of,
    overlaps,
    parts_of,
    ragged_from_parts,
    require_count,
    round_half_away,
)
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import check_ids, plain
from pstranspile.runtime.values import Array, LoDTensor


class _Image(NamedTuple):
    """The scores [classes, boxes] of an image, its boxes [classes or 1, boxes, 4], and the number of each box."""

    scores: Array
    boxes: Array
    numbers: Array

    def of_class(self, label: int) -> Array:
        """The boxes of a class."""
        return self.boxes[label if len(self.boxes) > 1 else 0]


class _Settings(NamedTuple):
    background: int
    threshold: float
    overlap: float
    eta: float
    first: int
    max_boxes: int
    edge: int


def _settings(op: Op) -> _Settings:
    return _Settings(
        int_attr(op, "background_label"),
        real(op, "score_threshold"),
        real(op, "nms_threshold"),
        real(op, "nms_eta"),
        int_attr(op, "nms_top_k"),
        int_attr(op, "keep_top_k"),
        0 if flag(op, "normalized") else 1,
    )


def _images(boxes: object, scores: object, shared: bool = False) -> Iterable[tuple[bool, _Image]]:
    """Yields the images of a batch, each with whether each class has boxes of its own. `shared`: classes must share
    boxes.

    Raises ValueError for polygons, and for dims that don't fit.
    """
    values, class_scores = plain(boxes), plain(scores)
    if shared and class_scores.ndim != 3:
        raise ValueError("Scores must have 3 dims: images, classes and boxes")
    if values.shape[-1] != 4:
        raise ValueError(f"boxes of {values.shape[-1]} numbers are polygons, which are not supported")
    if class_scores.ndim == 3:
        require_count(list(values), len(class_scores), "BBoxes")
        for image, (own_boxes, part) in enumerate(zip(values, class_scores, strict=True)):
            numbers = np.broadcast_to(np.arange(len(own_boxes)) + image * len(own_boxes), part.shape)
            yield False, _Image(part, own_boxes[None], numbers)
        return
    ends, classes = offsets_of(boxes, len(values)), class_scores.shape[1]
    for start, stop in pairwise(ends):
        numbers = np.arange(start * classes, stop * classes).reshape(-1, classes).T
        yield True, _Image(class_scores[start:stop].T, values[start:stop].transpose(1, 0, 2), numbers)


def _rows(image: _Image, chosen: list[tuple[int, Array]]) -> tuple[Array, Array]:
    """(rows of label, score and box; the number of each box)."""
    kind = image.boxes.dtype
    rows = [np.empty((0, 6), kind)]
    numbers = [np.empty((0, 1), "int32")]
    for label, places in chosen:
        labels = np.full((len(places), 1), label, kind)
        rows.append(np.hstack([labels, image.scores[label, places, None], image.of_class(label)[places]]))
        numbers.append(image.numbers[label, places, None].astype("int32"))
    return np.concatenate(rows), np.concatenate(numbers)


def _select_boxes(image: _Image, by_class: bool, settings: _Settings) -> list[tuple[int, Array]]:
    """The indices of the selected boxes, per label."""
    chosen: list[tuple[int, Array]] = []
    for label, scores in enumerate(image.scores):
        if label == settings.background:
            continue
        order = likeliest(scores, settings.threshold, settings.first)
        places = non_maximum_suppression(image.of_class(label), order, settings.overlap, settings.eta, settings.edge)
        chosen.append((label, np.sort(places) if by_class else places))
    best = best_of(chosen, [image.scores[label, places] for label, places in chosen], settings.max_boxes)
    return [(label, np.sort(places) if by_class else places) for label, places in best]


def _or_none(rows: list[Array]) -> LoDTensor:
    """The rows of all images. If there are none, the result is a single -1, as in Fluid."""
    result = ragged_from_parts(rows)
    if len(result.data):
        return result
    return LoDTensor(np.full((1, 1), -1, result.data.dtype), [[0, 1]])


@plain_kernel("multiclass_nms", lod="new")
def _multiclass_nms_values(BBoxes: object, Scores: object, *, settings: _Settings = per_op(_settings)) -> LoDTensor:
    images = _images(BBoxes, Scores)
    return _or_none([_rows(image, _select_boxes(image, by_class, settings))[0] for by_class, image in images])


@plain_kernel("multiclass_nms2", "Out Index", lod="new")
def _multiclass_nms2_values(
    BBoxes: object, Scores: object, *, settings: _Settings = per_op(_settings)
) -> tuple[LoDTensor, LoDTensor]:
    chosen = [_rows(image, _select_boxes(image, by_class, settings)) for by_class, image in _images(BBoxes, Scores)]
    return ragged_from_parts([rows for rows, _ in chosen]), ragged_from_parts([numbers for _, numbers in chosen])


def _merge_boxes(boxes: Array, scores: Array, overlap: float, edge: int) -> Array:
    """Merges each box with the previous one if they overlap enough, in place, and returns the remaining indices.

    A merged box is the mean of both weighted by their scores, and its score is the sum.
    """
    left: list[int] = []
    for place in range(len(boxes)):
        if left:
            last = left[-1]
            if overlaps(boxes[place, None], boxes[last, None], edge)[0, 0] > overlap:
                total = scores[place] + scores[last]
                boxes[last] = (boxes[place] * scores[place] + boxes[last] * scores[last]) / total
                scores[last] = total
                continue
        left.append(place)
    return np.array(left, "int64")


@kernel("locality_aware_nms", lod="new")
def _locality_aware_nms_values(op: Op) -> Run:
    """Kernel of locality_aware_nms. As in Fluid, boxes merged for one class are the input of the next class."""
    settings = _settings(op)

    def of(image: _Image) -> Array:
        own = _Image(image.scores.copy(), image.boxes.copy(), image.numbers)
        boxes = own.boxes[0]
        chosen: list[tuple[int, Array]] = []
        for label, scores in enumerate(own.scores):
            if label == settings.background:
                continue
            left = _merge_boxes(boxes, scores, settings.overlap, settings.edge)
            order = left[likeliest(scores[left], settings.threshold, settings.first)]
            chosen.append((label, non_maximum_suppression(boxes, order, settings.overlap, settings.eta, settings.edge)))
        best = best_of(chosen, [own.scores[label, places] for label, places in chosen], settings.max_boxes)
        return _rows(own, best)[0]

    def run(BBoxes: object, Scores: object) -> LoDTensor:
        return _or_none([of(image) for _, image in _images(BBoxes, Scores, shared=True)])

    return run


@kernel("matrix_nms", "Out Index", lod="new")
def _matrix_nms_values(op: Op) -> Run:
    """Kernel of matrix_nms. The decay of a score is the largest decay by any box of a higher score, compensated by that
    box's own overlap.
    """
    settings = _settings(op._replace(attrs=op.attrs | {"nms_threshold": 0.0, "nms_eta": 1.0}))
    gaussian, sigma, least = flag(op, "use_gaussian"), real(op, "gaussian_sigma"), real(op, "post_threshold")

    def decay_scores(boxes: Array, scores: Array) -> Array:
        shares = np.tril(overlaps(boxes, boxes, settings.edge), -1)
        most = shares.max(axis=1, initial=0)
        if gaussian:
            decay = np.exp((most**2 - shares**2) * sigma)
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                decay = (1 - shares) / (1 - most)
        decay[np.triu_indices(len(boxes))] = 1
        return scores * decay.min(axis=1, initial=1)

    def of(image: _Image) -> tuple[Array, Array]:
        rows, numbers = [np.empty((0, 6), image.boxes.dtype)], [np.empty((0, 1), "int32")]
        for label, scores in enumerate(image.scores):
            if label == settings.background:
                continue
            order = likeliest(scores, settings.threshold, settings.first)
            boxes = image.of_class(label)[order]
            values = decay_scores(boxes, scores[order])
            there = values > least
            labels = np.full(len(order), label, boxes.dtype)
            rows.append(np.column_stack([labels, values, boxes])[there].astype(boxes.dtype))
            numbers.append(image.numbers[label, order[there], None].astype("int32"))
        chosen, places = np.concatenate(rows), np.concatenate(numbers)
        order = np.argsort(-chosen[:, 1], kind="stable")
        order = order[: settings.max_boxes] if settings.max_boxes > -1 else order
        return chosen[order], places[order]

    def run(BBoxes: object, Scores: object) -> tuple[LoDTensor, LoDTensor]:
        chosen = [of(image) for _, image in _images(BBoxes, Scores, shared=True)]
        return ragged_from_parts([rows for rows, _ in chosen]), ragged_from_parts([numbers for _, numbers in chosen])

    return run


@kernel("retinanet_detection_output", lod="new")
def _retinanet_detection_output_values(op: Op) -> Run:
    """Kernel of retinanet_detection_output. On the last level every score above 0 counts. Boxes are in pixels of the
    original images.
    """
    threshold, first, most = real(op, "score_threshold"), int_attr(op, "nms_top_k"), int_attr(op, "keep_top_k")
    overlap, eta = real(op, "nms_threshold"), real(op, "nms_eta")

    def of(boxes: list[Array], scores: list[Array], anchors: list[Array], info: Array) -> Array:
        classes = scores[0].shape[1]
        rows: list[Array] = []
        height, width = round_half_away(info[:2] / info[2])
        edges = np.array([width - 1, height - 1] * 2, boxes[0].dtype)
        for level, (codes, score, anchor) in enumerate(zip(boxes, scores, anchors, strict=True)):
            flat = score.reshape(-1)
            places = likeliest(flat, threshold if level < len(boxes) - 1 else 0.0, first)
            made = decode_boxes(anchor[places // classes], codes[places // classes], 1.0, 1) / info[2]
            made = np.maximum(np.minimum(made, edges), 0)
            rows.append(np.column_stack([places % classes, flat[places], made]).astype(boxes[0].dtype))
        whole = np.concatenate(rows)
        chosen: list[tuple[int, Array]] = []
        for label in range(classes):
            mine = np.nonzero(whole[:, 0] == label)[0]
            order = mine[np.argsort(-whole[mine, 1], kind="stable")]
            chosen.append((label, non_maximum_suppression(whole[:, 2:], order, overlap, eta, 1)))
        best = best_of(chosen, [whole[places, 1] for _, places in chosen], most)
        result = whole[np.concatenate([places for _, places in best]).astype("int64")]
        result[:, 0] += 1
        return result[np.argsort(-result[:, 1], kind="stable")]

    def run(BBoxes: list[object], Scores: list[object], Anchors: list[object], ImInfo: object) -> LoDTensor:
        boxes, scores, anchors = ([plain(level) for level in levels] for levels in (BBoxes, Scores, Anchors))
        info = plain(ImInfo)
        images = range(len(info))
        return ragged_from_parts(
            [of([b[at] for b in boxes], [s[at] for s in scores], anchors, info[at]) for at in images]
        )

    return run


# Kernels. YOLOv3: the loss of a grid of predictions, and the predicted boxes.

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

    `image`, `anchor` (index in the mask), `row` and `column` locate the grid cell of an object. `targets` [objects, 4]
    are the box's targets, `weight` the weight of its loss, `label` the class, `score` the confidence.
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
    if matched.ndim != 2:
        raise ValueError(f"GTMatchMask has dims {list(matched.shape)}, and not [images, boxes]")
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
        """(mask of cells: -1 for ignored ones, else 0; for each object the index of its best anchor in the op's mask,
        or -1).
        """
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
    """Kernel of yolo_box. Cells whose confidence is too low get the box and the scores 0."""
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


# Kernels. Mean average precision of detections.


class _Counts(NamedTuple):
    """For each class: the number of objects, and (score, count) of its true and of its false positives, both [boxes,
    2].
    """

    objects: Array
    right: list[list[tuple[float, float]]]
    wrong: list[list[tuple[float, float]]]


def _previous_counts(classes: int, state: tuple[object, object, object] | None) -> _Counts:
    """The counts of earlier batches; empty counts without a state."""
    objects = np.zeros(classes, "int32")
    right: list[list[tuple[float, float]]] = [[] for _ in range(classes)]
    wrong: list[list[tuple[float, float]]] = [[] for _ in range(classes)]
    if state is not None:
        counts, *boxes = state
        values = plain(counts).reshape(-1)
        if len(values) != classes:
            raise ValueError(f"PosCount has {len(values)} classes, class_num is {classes}")
        objects += values
        for slot, value, lists in zip(("TruePos", "FalsePos"), boxes, (right, wrong), strict=True):
            parts = parts_of(value, slot)
            if len(parts) > classes:
                raise ValueError(f"{slot} has {len(parts)} classes, class_num is {classes}")
            for number, part in enumerate(parts):
                lists[number] += [(float(score), float(mark)) for score, mark in part]
    return _Counts(objects, right, wrong)


class _Rule(NamedTuple):
    classes: int
    overlap: float
    difficult: bool


def _count(counts: _Counts, rule: _Rule, detections: Array, label: Array) -> None:
    """Adds the detections of one image to the counts. A box is right if no box with a higher score was matched with the
    object that it overlaps most.

    Boxes of difficult objects are ignored, unless difficult objects are evaluated as well.
    """
    marked = label.shape[1] == 6
    kinds, boxes = label[:, 0].astype("int64"), label[:, 2 if marked else 1 :]
    hard = (label[:, 1] != 0) if marked else np.zeros(len(label), bool)
    check_ids(kinds, rule.classes, "the label")
    labels = detections[:, 0].astype("int64")
    check_ids(labels[labels >= 0], rule.classes, "the label")
    counted = kinds if rule.difficult else kinds[~hard]
    np.add.at(counts.objects, counted, 1)
    for number in sorted({int(label) for label in labels[labels >= 0]}):
        mine, objects = detections[labels == number], np.nonzero(kinds == number)[0]
        mine = mine[np.argsort(-mine[:, 1], kind="stable")]
        shares = overlaps(mine[:, 2:].clip(0, 1), boxes[objects], 0)
        taken = np.zeros(len(objects), bool)
        for row, share in zip(mine, shares, strict=True):
            score, right = float(row[1]), False
            best = int(share.argmax()) if len(objects) else -1
            if best >= 0 and share[best] > rule.overlap:
                if not rule.difficult and hard[objects[best]]:
                    continue
                right = not taken[best]
                taken[best] = True
            counts.right[number].append((score, float(right)))
            counts.wrong[number].append((score, float(not right)))


def _precision(right: list[tuple[float, float]], wrong: list[tuple[float, float]], objects: int, ap_type: str) -> float:
    """The average precision of a class; 0 without detections."""
    marks = np.array(right).reshape(-1, 2)
    order = np.argsort(-marks[:, 0], kind="stable")
    hits, misses = np.cumsum(marks[order, 1]), np.cumsum(np.array(wrong).reshape(-1, 2)[order, 1])
    precision, recall = hits / (hits + misses), hits / objects
    if ap_type == AP_TYPES[0]:
        return float((np.diff(recall, prepend=0) * precision).sum())
    return sum(float(precision[recall >= step / 10].max(initial=0)) for step in range(11)) / 11


def _ragged_from_lists(lists: list[list[tuple[float, float]]]) -> LoDTensor:
    ends = [0, *np.cumsum([len(rows) for rows in lists]).tolist()]
    return LoDTensor(np.array([row for rows in lists for row in rows], "float32").reshape(-1, 2), [ends])


@kernel("detection_map", "AccumPosCount AccumTruePos AccumFalsePos MAP", lod="new")
def _detection_map_values(op: Op) -> Run:
    """Kernel of detection_map. The mean leaves out classes without objects and, as in Fluid, classes whose number of
    objects equals the number of the background class.
    """
    rule = _Rule(int_attr(op, "class_num"), real(op, "overlap_threshold"), flag(op, "evaluate_difficult"))
    background, ap_type = int_attr(op, "background_label"), one_of(op, "ap_type", AP_TYPES, "DetectRes")

    def run(
        DetectRes: object, Label: object, HasState: Array | None, PosCount: object, TruePos: object, FalsePos: object
    ) -> tuple[Array, LoDTensor, LoDTensor, Array]:
        there = HasState is not None and bool(plain(HasState).reshape(-1)[:1].any())
        counts = _previous_counts(rule.classes, (PosCount, TruePos, FalsePos) if there else None)
        detections, labels = parts_of(DetectRes, "DetectRes"), parts_of(Label, "Label")
        require_count(detections, len(labels), "DetectRes")
        for rows, objects in zip(detections, labels, strict=True):
            _count(counts, rule, rows, objects)
        precisions = [
            _precision(counts.right[number], counts.wrong[number], int(counts.objects[number]), ap_type)
            for number in range(rule.classes)
            if counts.objects[number] not in (0, background)
        ]
        mean = np.array([sum(precisions) / len(precisions) if precisions else 0.0], "float32")
        return counts.objects[:, None], _ragged_from_lists(counts.right), _ragged_from_lists(counts.wrong), mean

    return run
