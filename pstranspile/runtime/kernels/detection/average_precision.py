"""Kernels. Mean average precision of detections."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, real
from pstranspile.ops.detection.average_precision import AP_TYPES
from pstranspile.ops.detection.matching import one_of
from pstranspile.runtime.kernels.boxes import overlaps, parts_of, require_count
from pstranspile.runtime.kernels.kernel import Run, kernel
from pstranspile.runtime.kernels.numeric import check_ids
from pstranspile.runtime.kernels.ragged import plain
from pstranspile.runtime.values import Array, LoDTensor


class _Counts(NamedTuple):
    """For each class the number of objects, and the scores of its true and of its false positives, both [boxes, 2]."""

    objects: Array
    right: list[list[tuple[float, float]]]
    wrong: list[list[tuple[float, float]]]


def _before(classes: int, state: tuple[object, object, object] | None) -> _Counts:
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
    """Adds the detections of one image. A box is right if no box of a larger score was matched with the object it
    overlaps most.

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


def _gathered(lists: list[list[tuple[float, float]]]) -> LoDTensor:
    ends = [0, *np.cumsum([len(rows) for rows in lists]).tolist()]
    return LoDTensor(np.array([row for rows in lists for row in rows], "float32").reshape(-1, 2), [ends])


@kernel("detection_map", "AccumPosCount AccumTruePos AccumFalsePos MAP", lod="new")
def _detection_map_values(op: Op) -> Run:
    """The mean leaves out classes without objects. As in Fluid, it also leaves out classes whose number of objects
    equals the number of the background class.
    """
    rule = _Rule(int_attr(op, "class_num"), real(op, "overlap_threshold"), flag(op, "evaluate_difficult"))
    background, ap_type = int_attr(op, "background_label"), one_of(op, "ap_type", AP_TYPES, "DetectRes")

    def run(
        DetectRes: object, Label: object, HasState: Array | None, PosCount: object, TruePos: object, FalsePos: object
    ) -> tuple[Array, LoDTensor, LoDTensor, Array]:
        there = HasState is not None and bool(plain(HasState).reshape(-1)[:1].any())
        counts = _before(rule.classes, (PosCount, TruePos, FalsePos) if there else None)
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
        return counts.objects[:, None], _gathered(counts.right), _gathered(counts.wrong), mean

    return run
