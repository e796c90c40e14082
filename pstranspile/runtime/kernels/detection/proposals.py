"""Kernels. Region proposals: targets of anchors, proposed boxes, and their levels of a pyramid."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real, reals_attr
from pstranspile.ops.detection.proposals import MATCH_TYPES, MINING_TYPES, one_of
from pstranspile.runtime.kernels.detection.boxes import (
    LARGEST_LOG,
    clip_boxes,
    decode_boxes,
    deltas,
    non_maximum_suppression,
    offsets_of,
    parts_of,
    pixel_overlaps,
    ragged_from_parts,
    require_count,
)
from pstranspile.runtime.kernels.kernel import Run, Surroundings, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import check_ids, plain
from pstranspile.runtime.kernels.random import words
from pstranspile.runtime.values import Array, LoDTensor

_ALIKE = 1e-5
"""Overlaps with a smaller difference count as equal."""

Drawn = Callable[[int], Array]
"""A function that returns the given number of random words."""


def _source(op: Op, slot: str, surroundings: Surroundings) -> Drawn | None:
    """A source of fresh random words; None if the op takes the first candidates instead of random ones."""
    if not flag(op, "use_random"):
        return None
    key, offset = surroundings.stream(op.output(slot) or op.type, 0)
    used = [offset]

    def draw_words(count: int) -> Array:
        used[0] += count
        return words(key, used[0] - count, count)

    return draw_words


def _sample_indices(places: Array, count: int, drawn: Drawn | None) -> Array:
    """At most `count` of the indices in `places`: random ones, or without `drawn` the first ones."""
    count = max(count, 0)
    if len(places) <= count:
        return places
    if drawn is None:
        return places[:count]
    return places[np.sort(np.argsort(drawn(len(places)), kind="stable")[:count])]


class _Targets(NamedTuple):
    """Indices of an image's anchors: `boxes` train the box regression, `positive` have an object, `negative` have none.

    `counts` states for each of `boxes` whether its loss counts, `objects` is its object. The loss of an anchor that
    lost its object does not count.
    """

    boxes: Array
    positive: Array
    negative: Array
    counts: Array
    objects: Array


class _Rule(NamedTuple):
    """Anchors have an object if their overlap is at least `positive`, and none if it is below `negative`; of the `size`
    anchors that are sampled, `share` have an object.
    """

    positive: float
    negative: float
    size: int = 0
    share: float = 0.0


def _assign_anchors(shares: Array, rule: _Rule, drawn: Drawn | None) -> _Targets:
    """The anchors that train, from the overlaps [anchors, objects].

    An anchor has an object if it overlaps the object most of all anchors, or if the overlap reaches the threshold.
    """
    if shares.shape[1]:
        most = shares.max(axis=1)
        best = (np.abs(shares - shares.max(axis=0)) < _ALIKE).any(axis=1) | (most >= rule.positive)
        objects = shares.argmax(axis=1)
    else:
        most = objects = np.zeros(len(shares), "int64")
        best = np.zeros(len(shares), bool)
    positive = np.nonzero(best)[0]
    negative = np.nonzero(most < rule.negative)[0]
    if rule.size:
        positive = _sample_indices(positive, int(np.float32(rule.share) * np.float32(rule.size)), drawn)
        negative = _sample_indices(negative, rule.size - len(positive), drawn)
    lost = int(np.isin(negative, positive).sum())
    matched = positive[~np.isin(positive, negative)]
    boxes = np.concatenate([np.repeat(positive[:1], lost), matched])
    counts = np.arange(len(boxes)) >= lost
    return _Targets(boxes, matched, np.sort(negative), counts, objects[boxes])


def _objects_of(boxes: object, crowd: object, info: Array) -> list[tuple[Array, Array]]:
    """For each image, the objects that are no crowds: (boxes scaled like the image, their indices)."""
    parts, crowds = parts_of(boxes, "GtBoxes"), parts_of(crowd, "IsCrowd")
    require_count(parts, len(info), "GtBoxes")
    require_count(crowds, len(info), "IsCrowd")
    result: list[tuple[Array, Array]] = []
    for image, (part, marks) in enumerate(zip(parts, crowds, strict=True)):
        if len(part) != len(marks):
            raise ValueError(f"image {image} has {len(part)} boxes, and {len(marks)} rows of IsCrowd")
        places = np.nonzero(marks.reshape(-1) == 0)[0]
        result.append((part[places] * info[image, 2], places))
    return result


def _anchors_in_image(anchors: Array, info: Array, beyond: float) -> Array:
    """The indices of the anchors within an image or within a margin of `beyond` pixels around it; all if `beyond` is
    negative.
    """
    if beyond < 0:
        return np.arange(len(anchors))
    low, high = anchors[:, :2] >= -beyond, anchors[:, 2:] < info[1::-1] + anchors.dtype.type(beyond)
    return np.nonzero((low & high).all(axis=1))[0]


def _weights(counts: Array, kind: object) -> Array:
    return np.repeat(counts[:, None], 4, axis=1).astype(kind)


@kernel("rpn_target_assign", "LocationIndex ScoreIndex TargetBBox TargetLabel BBoxInsideWeight", lod="new")
def _rpn_target_assign_values(op: Op) -> Run:
    """Kernel of rpn_target_assign. Objects are given in coordinates of the original image."""
    rule = _Rule(
        real(op, "rpn_positive_overlap"),
        real(op, "rpn_negative_overlap"),
        int_attr(op, "rpn_batch_size_per_im"),
        real(op, "rpn_fg_fraction"),
    )
    beyond = real(op, "rpn_straddle_thresh")

    def run(
        Anchor: object, GtBoxes: object, IsCrowd: object, ImInfo: object, surroundings: Surroundings
    ) -> tuple[LoDTensor, ...]:
        anchors, info = plain(Anchor), plain(ImInfo)
        drawn = _source(op, "LocationIndex", surroundings)
        parts: list[tuple[Array, ...]] = []
        for image, (objects, _) in enumerate(_objects_of(GtBoxes, IsCrowd, info)):
            inside = _anchors_in_image(anchors, info[image], beyond)
            of = _assign_anchors(pixel_overlaps(anchors[inside], objects), rule, drawn)
            targets = deltas(anchors[inside][of.boxes], objects[of.objects], None)
            labels = np.repeat([1, 0], [len(of.positive), len(of.negative)]).astype("int32")
            first = image * len(anchors)
            scores = inside[np.concatenate([of.positive, of.negative])] + first
            places = (inside[of.boxes] + first).astype("int32")
            parts.append((places, scores.astype("int32"), targets, labels[:, None], _weights(of.counts, anchors.dtype)))
        return tuple(ragged_from_parts([part[slot] for part in parts]) for slot in range(5))

    return run


@kernel(
    "retinanet_target_assign",
    "LocationIndex ScoreIndex TargetBBox TargetLabel BBoxInsideWeight ForegroundNumber",
    lod="new",
)
def _retinanet_target_assign_values(op: Op) -> Run:
    rule = _Rule(real(op, "positive_overlap"), real(op, "negative_overlap"))

    def run(
        Anchor: object, GtBoxes: object, GtLabels: object, IsCrowd: object, ImInfo: object
    ) -> tuple[LoDTensor, ...]:
        anchors, info, classes = plain(Anchor), plain(ImInfo), parts_of(GtLabels, "GtLabels")
        require_count(classes, len(info), "GtLabels")
        parts: list[tuple[Array, ...]] = []
        for image, (objects, numbers) in enumerate(_objects_of(GtBoxes, IsCrowd, info)):
            shares = pixel_overlaps(anchors, objects)
            of = _assign_anchors(shares, rule, None)
            targets = deltas(anchors[of.boxes], objects[of.objects], None)
            own = classes[image].reshape(-1)
            check_ids(numbers, len(own), "GtLabels lacks row")
            labels = own[numbers][shares[of.positive].argmax(axis=1)] if len(of.positive) else own[:0]
            labels = np.concatenate([labels, np.zeros(len(of.negative), labels.dtype)]).astype("int32")
            first = image * len(anchors)
            scores = (np.concatenate([of.positive, of.negative]) + first).astype("int32")
            places, weights = (of.boxes + first).astype("int32"), _weights(of.counts, anchors.dtype)
            count = np.array([[len(of.boxes) + 1]], "int32")
            parts.append((places, scores, targets, labels[:, None], weights, count))
        return tuple(ragged_from_parts([part[slot] for part in parts]) for slot in range(6))

    return run


@kernel("generate_proposals", "RpnRois RpnRoiProbs RpnRoisLod", lod="new")
def _generate_proposals_values(op: Op) -> Run:
    first, most = int_attr(op, "pre_nms_topN"), int_attr(op, "post_nms_topN")
    overlap, least, eta = real(op, "nms_thresh"), max(real(op, "min_size"), 1.0), real(op, "eta")

    def large_enough(boxes: Array, info: Array) -> Array:
        """The boxes that are large enough in the original image, and whose middles lie in the image."""
        sides = (boxes[:, 2:] - boxes[:, :2]) / info[2] + 1
        middles = boxes[:, :2] + (boxes[:, 2:] - boxes[:, :2] + 1) / 2
        return np.nonzero(((sides >= least) & (middles <= info[1::-1])).all(axis=1))[0]

    def of(scores: Array, codes: Array, info: Array, anchors: Array, variances: Array) -> tuple[Array, Array]:
        order = np.argsort(-scores, kind="stable")
        order = order[:first] if first > 0 else order
        boxes = decode_boxes(anchors[order], codes[order], variances[order], 1, LARGEST_LOG)
        boxes = clip_boxes(boxes, info[1], info[0])
        places = large_enough(boxes, info)
        if overlap > 0 and len(places):
            places = non_maximum_suppression(boxes, places, overlap, eta, 1)
            places = places[:most] if most > 0 else places
        return boxes[places], scores[order][places, None]

    def run(
        Scores: object, BboxDeltas: object, ImInfo: object, Anchors: object, Variances: object
    ) -> tuple[LoDTensor, LoDTensor, Array]:
        scores, codes, info = plain(Scores), plain(BboxDeltas), plain(ImInfo)
        anchors, variances = plain(Anchors).reshape(-1, 4), plain(Variances).reshape(-1, 4)
        images = len(scores)
        rows = scores.transpose(0, 2, 3, 1).reshape(images, -1)
        places = codes.reshape(images, -1, 4, *codes.shape[2:]).transpose(0, 3, 4, 1, 2).reshape(images, -1, 4)
        if not rows.shape[1] == places.shape[1] == len(anchors) == len(variances):
            raise ValueError(f"{rows.shape[1]} scores and {places.shape[1]} boxes, but {len(anchors)} anchors")
        results = [of(*item, anchors, variances) for item in zip(rows, places, info, strict=True)]
        ends = np.cumsum([len(boxes) for boxes, _ in results], dtype="int64")
        return (
            ragged_from_parts([boxes for boxes, _ in results]),
            ragged_from_parts([score for _, score in results]),
            ends,
        )

    return run


class _Sampling(NamedTuple):
    """How many proposals are sampled, the share with objects, and the ranges of overlap that count."""

    size: int
    share: float
    positive: float
    upper: float
    lower: float
    cascade: bool


def _candidates(rois: Array, scale: float, objects: Array, cascade: bool) -> Array:
    """The boxes that may train: the objects, then the proposals, scaled back to the original image.

    In a cascade they are the proposals with an area. As in Fluid, as many of the first of these as there are objects
    are not scaled back.
    """
    if not cascade:
        return np.concatenate([objects, rois / scale])
    boxes = rois / scale
    boxes[: len(objects)] = rois[: len(objects)]
    return boxes[(boxes[:, 2:] - boxes[:, :2] + 1 > 0).all(axis=1)]


def _training(shares: Array, crowd: Array, rule: _Sampling, drawn: Drawn | None) -> tuple[Array, Array, Array]:
    """The boxes with an object, the object of each, and the boxes without, from the overlaps [boxes, objects].

    The first boxes are the objects themselves; crowds among them are ignored. As in Fluid, a cascade ignores the
    proposals at the same indices.
    """
    most = shares.max(axis=1, initial=0)
    most[: len(crowd)][crowd[: len(most)] != 0] = -1
    positive = np.nonzero(most >= rule.positive)[0]
    negative = np.nonzero((most < rule.positive) & (most >= rule.lower) & (most < rule.upper))[0]
    if not rule.cascade:
        count = min(int(np.floor(np.float32(rule.size) * np.float32(rule.share))), len(positive))
        positive = _sample_indices(positive, count, drawn)
        negative = _sample_indices(negative, rule.size - count, drawn)
    near = np.abs(most[positive, None] - shares[positive]) < _ALIKE
    return positive, near.argmax(axis=1) if near.size else np.zeros(0, "int64"), negative


@kernel("generate_proposal_labels", "Rois LabelsInt32 BboxTargets BboxInsideWeights BboxOutsideWeights", lod="new")
def _generate_proposal_labels_values(op: Op) -> Run:
    """Kernel of generate_proposal_labels. The objects count as proposals too, except in a cascade, which takes all
    proposals that count.
    """
    rule = _Sampling(
        int_attr(op, "batch_size_per_im"),
        real(op, "fg_fraction"),
        real(op, "fg_thresh"),
        real(op, "bg_thresh_hi"),
        real(op, "bg_thresh_lo"),
        flag(op, "is_cascade_rcnn"),
    )
    weights, classes, agnostic = (
        reals_attr(op, "bbox_reg_weights"),
        int_attr(op, "class_nums"),
        flag(op, "is_cls_agnostic"),
    )

    def spread(codes: Array, labels: Array) -> tuple[Array, Array]:
        """(codes in the columns of their class, a mask of these columns)."""
        result = np.zeros((len(labels), classes, 4), codes.dtype)
        mask = np.zeros_like(result)
        columns = np.where(labels[: len(codes)] > 0, 1, 0) if agnostic else labels[: len(codes)]
        check_ids(columns, classes, "the class")
        rows = np.nonzero(columns > 0)[0]
        result[rows, columns[rows]], mask[rows, columns[rows]] = codes[rows], 1
        return result.reshape(len(labels), -1), mask.reshape(len(labels), -1)

    def run(
        RpnRois: object,
        GtClasses: object,
        IsCrowd: object,
        GtBoxes: object,
        ImInfo: object,
        surroundings: Surroundings,
    ) -> tuple[LoDTensor, ...]:
        info, drawn = plain(ImInfo), _source(op, "Rois", surroundings)
        inputs = {"RpnRois": RpnRois, "GtClasses": GtClasses, "IsCrowd": IsCrowd, "GtBoxes": GtBoxes}
        given = {slot: parts_of(value, slot) for slot, value in inputs.items()}
        for slot, sequences in given.items():
            require_count(sequences, len(info), slot)
        parts: list[tuple[Array, ...]] = []
        for rois, kinds, crowd, objects, about in zip(*given.values(), info, strict=True):
            boxes = _candidates(rois, about[2], objects, rule.cascade)
            if not len(kinds) == len(crowd) == len(objects):
                raise ValueError(
                    f"{len(objects)} boxes, {len(kinds)} classes, {len(crowd)} rows of IsCrowd of an image"
                )
            shares = pixel_overlaps(boxes, objects)
            positive, matched, negative = _training(shares, crowd.reshape(-1), rule, drawn)
            labels = np.zeros(len(positive) + len(negative), "int32")
            labels[: len(positive)] = kinds.reshape(-1)[matched]
            codes = deltas(boxes[positive], objects[matched], np.array(weights, boxes.dtype))
            targets, mask = spread(codes, labels)
            taken = boxes[np.concatenate([positive, negative])] * about[2]
            parts.append((taken, labels[:, None], targets, mask, mask.copy()))
        return tuple(ragged_from_parts([part[slot] for part in parts]) for slot in range(5))

    return run


@kernel("distribute_fpn_proposals", "MultiFpnRois RestoreIndex", lod="new")
def _distribute_fpn_proposals_values(op: Op) -> Run:
    """Kernel of distribute_fpn_proposals. A box of the area `refer_scale` squared is on `refer_level`; a box with sides
    twice as long is one level higher.
    """
    least, most = int_attr(op, "min_level"), int_attr(op, "max_level")
    level, scale = int_attr(op, "refer_level"), int_attr(op, "refer_scale")
    if scale < 1:
        raise ValueError(f"refer_scale is {scale}, it must be above 0")

    def run(FpnRois: object) -> tuple[list[LoDTensor], Array]:
        rois, parts = plain(FpnRois), parts_of(FpnRois, "FpnRois")
        sides = rois[:, 2:] - rois[:, :2]
        area = np.where((sides < 0).any(axis=1), rois.dtype.type(0), (sides + 1).prod(axis=1))
        with np.errstate(divide="ignore"):
            exact = np.floor(np.log2(np.sqrt(area) / scale + rois.dtype.type(1e-6)) + level)
        levels = np.clip(exact, least, most).astype("int64")
        image = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        made: list[LoDTensor] = []
        for number in range(least, min(most + 1, least + len(op.outputs.get("MultiFpnRois", ())))):
            mine = levels == number
            ends = [0, *np.cumsum(np.bincount(image[mine], minlength=len(parts))).tolist()]
            made.append(LoDTensor(rois[mine], [ends]))
        restore = np.empty(len(rois), "int32")
        restore[np.argsort(levels, kind="stable")] = np.arange(len(rois))
        return made, restore[:, None]

    return run


@plain_kernel("collect_fpn_proposals", "FpnRois", lod="new")
def _collect_fpn_proposals_values(
    MultiLevelRois: list[object], MultiLevelScores: list[object], *, post_nms_topN: int
) -> LoDTensor:
    levels = [offsets_of(rois, len(plain(rois))) for rois in MultiLevelRois]
    images = len(levels[0]) - 1
    for rois, scores, ends in zip(MultiLevelRois, MultiLevelScores, levels, strict=True):
        if len(plain(rois)) != plain(scores).size or len(ends) - 1 != images:
            raise ValueError("the levels have other images, or other numbers of boxes and scores")
    image = np.concatenate([np.repeat(np.arange(images), np.diff(ends)) for ends in levels])
    rois = np.concatenate([plain(item) for item in MultiLevelRois])
    scores = np.concatenate([plain(item).reshape(-1) for item in MultiLevelScores])
    order = np.argsort(-scores, kind="stable")[: max(post_nms_topN, 0)]
    order = order[np.argsort(image[order], kind="stable")]
    ends = [0, *np.cumsum(np.bincount(image[order], minlength=images)).tolist()]
    return LoDTensor(rois[order], [ends])


# Kernels. Boxes matched with objects, and the choice of boxes without objects that count in a loss.

_NO_MATCH = 1e-6
"""Rows and columns with a smaller similarity are not matched."""


def _greedy_matching(likeness: Array) -> tuple[Array, Array]:
    """(for each column, the row that it is matched with, or -1; their similarity).

    Matching is greedy: the largest remaining similarity comes first; ties go to the first column, then to the first
    row.
    """
    rows, columns = likeness.shape
    left = np.where(likeness < _NO_MATCH, -1, likeness).T.copy()  # column by column
    indices, similarity = np.full(columns, -1, "int32"), np.zeros(columns, likeness.dtype)
    for _ in range(min(rows, columns)):
        column, row = divmod(int(left.argmax()), rows)
        if left[column, row] < 0:
            break
        indices[column], similarity[column] = row, left[column, row]
        left[column], left[:, row] = -1, -1
    return indices, similarity


@kernel("bipartite_match", "ColToRowMatchIndices ColToRowMatchDist", lod="new")
def _bipartite_match_values(op: Op) -> Run:
    """Kernel of bipartite_match. With `per_prediction`, an unmatched column takes its most similar row if the
    similarity reaches the threshold.
    """
    per_prediction = one_of(op, "match_type", MATCH_TYPES, "DistMat") == MATCH_TYPES[1]
    threshold = real(op, "dist_threshold")

    def run(DistMat: object) -> tuple[Array, Array]:
        likeness = plain(DistMat)
        ends = offsets_of(DistMat, len(likeness))
        indices = np.full((len(ends) - 1, likeness.shape[1]), -1, "int32")
        similarity = np.zeros(indices.shape, likeness.dtype)
        for image, (start, stop) in enumerate(pairwise(ends)):
            part = likeness[start:stop]
            if not part.size:
                continue
            indices[image], similarity[image] = _greedy_matching(part)
            if per_prediction:
                best = part.argmax(axis=0)
                most = part[best, np.arange(part.shape[1])]
                takes = (indices[image] < 0) & (most >= threshold) & (most >= _NO_MATCH)
                indices[image, takes], similarity[image, takes] = best[takes], most[takes]
        return indices, similarity

    return run


@plain_kernel("target_assign", "Out OutWeight", lod="new")
def _target_assign_values(
    X: object, MatchIndices: object, NegIndices: object, *, mismatch_value: int
) -> tuple[Array, Array]:
    parts, matched = parts_of(X, "X"), plain(MatchIndices)
    require_count(parts, len(matched), "X")
    rows = plain(X)
    out = np.full((*matched.shape, rows.shape[2]), mismatch_value, rows.dtype)
    weight = np.zeros((*matched.shape, 1), "float32")
    for image, (part, indices) in enumerate(zip(parts, matched, strict=True)):
        there = np.nonzero(indices > -1)[0]
        check_ids(indices[there], len(part), "MatchIndices has")
        out[image, there] = part[indices[there], there % rows.shape[1]]
        weight[image, there] = 1
    if NegIndices is not None:
        negatives = parts_of(NegIndices, "NegIndices")
        require_count(negatives, len(matched), "NegIndices")
        for image, part in enumerate(negatives):
            places = part.reshape(-1)
            check_ids(places, matched.shape[1], "NegIndices has")
            out[image, places], weight[image, places] = mismatch_value, 1
    return out, weight


@kernel("mine_hard_examples", "NegIndices UpdatedMatchIndices", lod="new")
def _mine_hard_examples_values(op: Op) -> Run:
    """Kernel of mine_hard_examples. `max_negative` selects boxes that are unlike every object, up to a multiple of the
    number of matched ones.

    `hard_example` selects the largest losses of all boxes; matched boxes that are not selected lose their match.
    """
    hard = one_of(op, "mining_type", MINING_TYPES, "ClsLoss") == MINING_TYPES[1]
    ratio, threshold, size = real(op, "neg_pos_ratio"), real(op, "neg_dist_threshold"), int_attr(op, "sample_size")

    def select_hard_examples(loss: Array, indices: Array, similarity: Array) -> Array:
        able = np.ones(len(loss), bool) if hard else (indices == -1) & (similarity < threshold)
        places = np.nonzero(able)[0]
        count = size if hard else int(np.float32(np.count_nonzero(indices != -1)) * np.float32(ratio))
        order = np.argsort(-loss[places], kind="stable")
        return np.sort(places[order[: max(count, 0)]])

    def run(ClsLoss: object, LocLoss: object, MatchIndices: object, MatchDist: object) -> tuple[object, Array]:
        loss, matched, similarity = plain(ClsLoss), plain(MatchIndices), plain(MatchDist)
        if hard and LocLoss is not None:
            loss = loss + plain(LocLoss)
        updated, negatives = matched.copy(), list[Array]()
        for image, indices in enumerate(matched):
            places = select_hard_examples(loss[image], indices, similarity[image])
            if hard:
                left_out = np.ones(len(indices), bool)
                left_out[places] = False
                updated[image, left_out & (indices > -1)] = -1
                places = places[indices[places] <= -1]
            negatives.append(places.astype("int32").reshape(-1, 1))
        return ragged_from_parts(negatives), updated

    return run
