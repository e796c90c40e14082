"""Kernels. Non-maximum suppression of detected boxes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real
from pstranspile.runtime.kernels.boxes import decoded, joined, offsets_of, overlaps, require_count, rounded
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.kernels.suppression import best_of, kept, likeliest
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
    most: int
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
    """The images of a batch, and whether each class has boxes of its own; `shared`: classes must share boxes.

    Raises ValueError for polygons, and for dims that don't fit.
    """
    values, of = plain(boxes), plain(scores)
    if shared and of.ndim != 3:
        raise ValueError("Scores must have 3 dims: images, classes and boxes")
    if values.shape[-1] != 4:
        raise ValueError(f"boxes of {values.shape[-1]} numbers are polygons, which are not supported")
    if of.ndim == 3:
        require_count(list(values), len(of), "BBoxes")
        for image, (own_boxes, part) in enumerate(zip(values, of, strict=True)):
            numbers = np.broadcast_to(np.arange(len(own_boxes)) + image * len(own_boxes), part.shape)
            yield False, _Image(part, own_boxes[None], numbers)
        return
    ends, classes = offsets_of(boxes, len(values)), of.shape[1]
    for start, stop in pairwise(ends):
        numbers = np.arange(start * classes, stop * classes).reshape(-1, classes).T
        yield True, _Image(of[start:stop].T, values[start:stop].transpose(1, 0, 2), numbers)


def _rows(image: _Image, chosen: list[tuple[int, Array]]) -> tuple[Array, Array]:
    """Rows of label, score and box, and the number of each box."""
    kind = image.boxes.dtype
    rows = [np.empty((0, 6), kind)]
    numbers = [np.empty((0, 1), "int32")]
    for label, places in chosen:
        labels = np.full((len(places), 1), label, kind)
        rows.append(np.hstack([labels, image.scores[label, places, None], image.of_class(label)[places]]))
        numbers.append(image.numbers[label, places, None].astype("int32"))
    return np.concatenate(rows), np.concatenate(numbers)


def _chosen(image: _Image, by_class: bool, settings: _Settings) -> list[tuple[int, Array]]:
    """The indices of the selected boxes, per label."""
    chosen: list[tuple[int, Array]] = []
    for label, scores in enumerate(image.scores):
        if label == settings.background:
            continue
        order = likeliest(scores, settings.threshold, settings.first)
        places = kept(image.of_class(label), order, settings.overlap, settings.eta, settings.edge)
        chosen.append((label, np.sort(places) if by_class else places))
    best = best_of(chosen, [image.scores[label, places] for label, places in chosen], settings.most)
    return [(label, np.sort(places) if by_class else places) for label, places in best]


def _or_none(rows: list[Array]) -> LoDTensor:
    """The rows of all images. Without rows it is a single -1, as in Fluid."""
    result = joined(rows)
    if len(result.data):
        return result
    return LoDTensor(np.full((1, 1), -1, result.data.dtype), [[0, 1]])


@plain_kernel("multiclass_nms", lod="new")
def _multiclass_nms_values(BBoxes: object, Scores: object, *, settings: _Settings = per_op(_settings)) -> LoDTensor:
    images = _images(BBoxes, Scores)
    return _or_none([_rows(image, _chosen(image, by_class, settings))[0] for by_class, image in images])


@plain_kernel("multiclass_nms2", "Out Index", lod="new")
def _multiclass_nms2_values(
    BBoxes: object, Scores: object, *, settings: _Settings = per_op(_settings)
) -> tuple[LoDTensor, LoDTensor]:
    chosen = [_rows(image, _chosen(image, by_class, settings)) for by_class, image in _images(BBoxes, Scores)]
    return joined([rows for rows, _ in chosen]), joined([numbers for _, numbers in chosen])


def _merged(boxes: Array, scores: Array, overlap: float, edge: int) -> Array:
    """Merges each box with the one before it if they overlap enough, in place, and gives the remaining indices.

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
    """Boxes merged for one class are the input of the next class."""
    settings = _settings(op)

    def of(image: _Image) -> Array:
        own = _Image(image.scores.copy(), image.boxes.copy(), image.numbers)
        boxes = own.boxes[0]
        chosen: list[tuple[int, Array]] = []
        for label, scores in enumerate(own.scores):
            if label == settings.background:
                continue
            left = _merged(boxes, scores, settings.overlap, settings.edge)
            order = left[likeliest(scores[left], settings.threshold, settings.first)]
            chosen.append((label, kept(boxes, order, settings.overlap, settings.eta, settings.edge)))
        best = best_of(chosen, [own.scores[label, places] for label, places in chosen], settings.most)
        return _rows(own, best)[0]

    def run(BBoxes: object, Scores: object) -> LoDTensor:
        return _or_none([of(image) for _, image in _images(BBoxes, Scores, shared=True)])

    return run


@kernel("matrix_nms", "Out Index", lod="new")
def _matrix_nms_values(op: Op) -> Run:
    """The decay of a score is the largest decay by any box of a higher score, compensated by that box's own overlap."""
    settings = _settings(op._replace(attrs=op.attrs | {"nms_threshold": 0.0, "nms_eta": 1.0}))
    gaussian, sigma, least = flag(op, "use_gaussian"), real(op, "gaussian_sigma"), real(op, "post_threshold")

    def lowered(boxes: Array, scores: Array) -> Array:
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
            values = lowered(boxes, scores[order])
            there = values > least
            labels = np.full(len(order), label, boxes.dtype)
            rows.append(np.column_stack([labels, values, boxes])[there].astype(boxes.dtype))
            numbers.append(image.numbers[label, order[there], None].astype("int32"))
        chosen, places = np.concatenate(rows), np.concatenate(numbers)
        order = np.argsort(-chosen[:, 1], kind="stable")
        order = order[: settings.most] if settings.most > -1 else order
        return chosen[order], places[order]

    def run(BBoxes: object, Scores: object) -> tuple[LoDTensor, LoDTensor]:
        chosen = [of(image) for _, image in _images(BBoxes, Scores, shared=True)]
        return joined([rows for rows, _ in chosen]), joined([numbers for _, numbers in chosen])

    return run


@kernel("retinanet_detection_output", lod="new")
def _retinanet_detection_output_values(op: Op) -> Run:
    """On the last level every score above 0 counts. Boxes are in pixels of the original images."""
    threshold, first, most = real(op, "score_threshold"), int_attr(op, "nms_top_k"), int_attr(op, "keep_top_k")
    overlap, eta = real(op, "nms_threshold"), real(op, "nms_eta")

    def of(boxes: list[Array], scores: list[Array], anchors: list[Array], info: Array) -> Array:
        classes = scores[0].shape[1]
        rows: list[Array] = []
        height, width = rounded(info[:2] / info[2])
        edges = np.array([width - 1, height - 1] * 2, boxes[0].dtype)
        for level, (codes, score, anchor) in enumerate(zip(boxes, scores, anchors, strict=True)):
            flat = score.reshape(-1)
            places = likeliest(flat, threshold if level < len(boxes) - 1 else 0.0, first)
            made = decoded(anchor[places // classes], codes[places // classes], 1.0, 1) / info[2]
            made = np.maximum(np.minimum(made, edges), 0)
            rows.append(np.column_stack([places % classes, flat[places], made]).astype(boxes[0].dtype))
        whole = np.concatenate(rows)
        chosen: list[tuple[int, Array]] = []
        for label in range(classes):
            mine = np.nonzero(whole[:, 0] == label)[0]
            order = mine[np.argsort(-whole[mine, 1], kind="stable")]
            chosen.append((label, kept(whole[:, 2:], order, overlap, eta, 1)))
        best = best_of(chosen, [whole[places, 1] for _, places in chosen], most)
        result = whole[np.concatenate([places for _, places in best]).astype("int64")]
        result[:, 0] += 1
        return result[np.argsort(-result[:, 1], kind="stable")]

    def run(BBoxes: list[object], Scores: list[object], Anchors: list[object], ImInfo: object) -> LoDTensor:
        boxes, scores, anchors = ([plain(level) for level in levels] for levels in (BBoxes, Scores, Anchors))
        info = plain(ImInfo)
        images = range(len(info))
        return joined([of([b[at] for b in boxes], [s[at] for s in scores], anchors, info[at]) for at in images])

    return run
