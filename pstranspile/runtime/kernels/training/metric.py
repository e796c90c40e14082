"""Kernels. Metrics of predictions."""

from __future__ import annotations

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr
from pstranspile.runtime.kernels.kernel import Run, has_output, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import as_matrix, check_ids
from pstranspile.runtime.kernels.training.optimizer import arrays_to_update
from pstranspile.runtime.values import Array


@plain_kernel("accuracy", "Accuracy Correct Total", lod="none")
def _accuracy_values(Indices: Array, Label: Array) -> tuple[Array, Array, Array]:
    correct = np.count_nonzero((Indices == Label.reshape(-1, 1)).any(axis=1))
    total = len(Indices)
    share = correct / total if total else 0.0
    return np.array([share], "float32"), np.array([correct], "int32"), np.array([total], "int32")


@kernel("auc", "AUC StatPosOut StatNegOut", lod="none", spares="AUC")
def _auc_values(op: Op) -> Run:
    buckets, steps = int_attr(op, "num_thresholds", 8191) + 1, int_attr(op, "slide_steps", 1)
    writable_arrays, named = arrays_to_update(op, "StatPos StatNeg"), has_output(op, "AUC")

    def histogram(bins: Array, stat: Array) -> tuple[Array, Array]:
        """Updates the statistics in place, and returns the part of them that is the current histogram
        (see `_slide`).
        """
        if steps == 0:  # Fluid's startup program makes one element too many, which the op ignores
            if stat.shape != (1, buckets):
                stat = stat.reshape(-1)[:buckets].reshape(1, buckets).copy()
            np.add.at(stat[0], bins, 1)
            return stat, stat[0]
        flat = stat.reshape(-1)
        _slide(flat, bins, buckets, steps)
        return flat, flat[steps * buckets : (steps + 1) * buckets]

    def run(Predict: Array, Label: Array, StatPos: Array, StatNeg: Array) -> tuple[Array | None, Array, Array]:
        predicted, label = as_matrix(Predict)[:, -1].astype("float32", copy=False), Label.reshape(-1)
        if len(predicted) and not (np.minimum.reduce(predicted) >= 0 and np.maximum.reduce(predicted) <= 1):
            raise ValueError("Predict has values that are no probabilities")
        bins = (predicted * np.float32(buckets - 1)).astype("int64")
        stats = writable_arrays(np.ascontiguousarray(StatPos), np.ascontiguousarray(StatNeg))
        new_positive, positive = histogram(bins[label > 0], stats[0])
        new_negative, negative = histogram(bins[label == 0], stats[1])
        return np.array([_area(positive, negative)]) if named else None, new_positive, new_negative

    return run


def _slide(flat: Array, bins: Array, buckets: int, steps: int) -> None:
    """Replaces the oldest of the last `steps` histograms by that of this step, in place.

    The statistics are these histograms one after another, their sum, and the number of steps so far.
    """
    at = int(flat[(steps + 1) * buckets]) % steps * buckets
    oldest, total = flat[at : at + buckets], flat[steps * buckets : (steps + 1) * buckets]
    total -= oldest
    oldest[:] = 0
    np.add.at(oldest, bins, 1)
    total += oldest
    flat[(steps + 1) * buckets] += 1


_LARGEST_EXACT = 1 << 61
"""Up to this number, twice the area is exact as a sum of 64-bit integers."""


def _area(positive: Array, negative: Array) -> float:
    """The area under the curve by trapezoids; not divided if one of the classes is missing."""
    below = np.add.accumulate(positive, dtype="int64")
    positives, negatives = below.item(-1), int(np.add.reduce(negative))
    whole = positives * negatives
    below += below  # twice the positives in the buckets up to each, minus the positives in the bucket itself
    below -= positive
    if whole < _LARGEST_EXACT:
        area = (2 * whole - int(np.dot(negative, below))) / 2
    else:
        area = whole - np.dot(negative.astype("float64"), below.astype("float64")).item() / 2
    return area / whole if whole else area


def _share(part: Array, rest: Array) -> Array:
    """The share part / (part + rest); 1 if both are 0, as nothing is wrong there."""
    whole = part + rest
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1), 1)


def _metrics(states: Array) -> Array:
    """Precision, recall and F1: first macro-averaged over classes, then micro-averaged."""
    right, wrong, missed = states[:, 0], states[:, 1], states[:, 3]
    total, total_wrong, total_missed = right.sum(), wrong.sum(), missed.sum()
    macro = np.mean(_share(right, wrong)), np.mean(_share(right, missed))
    micro = _share(total, total_wrong), _share(total, total_missed)
    return np.array([*_with_f1(*macro), *_with_f1(*micro)], "float64")


def _with_f1(precision: Array, recall: Array) -> tuple[float, float, float]:
    a, b = float(precision), float(recall)
    return a, b, 2 * a * b / (a + b) if a + b > 0 else 0.0


@kernel("precision_recall", "BatchMetrics AccumMetrics AccumStatesInfo", lod="none")
def _precision_recall_values(op: Op) -> Run:
    classes = int_attr(op, "class_number")

    def run(
        MaxProbs: Array, Indices: Array, Labels: Array, Weights: Array | None, StatesInfo: Array | None
    ) -> tuple[Array, Array, Array]:
        """The states of a class are the summed weights of its true positives, false positives, true negatives and false
        negatives.
        """
        indices, labels = Indices.reshape(-1), Labels.reshape(-1)
        check_ids(indices, classes, "the class")
        check_ids(labels, classes, "the label")
        weights = np.ones(len(labels), MaxProbs.dtype) if Weights is None else Weights.reshape(-1)
        right = indices == labels

        def sums(chosen: Array, by: Array) -> Array:
            return np.bincount(chosen, by, classes)

        result, wrong = sums(labels, weights * right), sums(indices, weights * ~right)
        missed = sums(labels, weights * ~right)
        states = np.stack([result, wrong, weights.sum(dtype="float64") - result - wrong - missed, missed], axis=1)
        states[:, 2] = np.maximum(states[:, 2], 0)  # rounding must not make it negative
        states = states.astype(MaxProbs.dtype)
        if StatesInfo is not None and StatesInfo.shape != states.shape:
            held = list(StatesInfo.shape)
            raise ValueError(f"StatesInfo has the dims {held}, it must have four states of each class, [{classes}, 4]")
        total = states if StatesInfo is None else states + StatesInfo
        return _metrics(states), _metrics(total), total

    return run


def _add_terms(value: Array, more: list[Array] | None) -> Array:
    for term in more or ():
        value = value + term
    return value


@plain_kernel("mean_iou", "OutMeanIou OutWrong OutCorrect", lod="none")
def _mean_iou_values(
    Predictions: Array,
    Labels: Array,
    InWrongs: list[Array] | None,
    InCorrects: list[Array] | None,
    InMeanIou: list[Array] | None,
    *,
    num_classes: int,
) -> tuple[Array, Array, Array]:
    predicted, labels = Predictions.reshape(-1), Labels.reshape(-1)
    check_ids(predicted, num_classes, "the prediction")
    check_ids(labels, num_classes, "the label")
    right = predicted == labels
    wrong = np.bincount(predicted[~right], minlength=num_classes) + np.bincount(labels[~right], minlength=num_classes)
    correct = np.bincount(predicted[right], minlength=num_classes)
    wrong, correct = _add_terms(wrong, InWrongs).astype("int32"), _add_terms(correct, InCorrects).astype("int32")
    seen = wrong + correct > 0
    mean = np.mean(correct[seen] / (wrong + correct)[seen]) if seen.any() else 0.0
    return _add_terms(np.array([mean]), InMeanIou).astype("float32"), wrong, correct


def _pairs(query: Array) -> tuple[Array, Array]:
    """All pairs of rows of the same query, as two arrays of rows, query by query."""
    order = np.argsort(query, kind="stable")
    ends = np.flatnonzero(np.diff(query[order])) + 1
    result = [rows[np.stack(np.triu_indices(len(rows), 1))] for rows in np.split(order, ends)]
    first, second = np.concatenate(result, axis=1)
    return first, second


@plain_kernel("positive_negative_pair", "PositivePair NegativePair NeutralPair", lod="none")
def _positive_negative_pair_values(
    Score: Array,
    Label: Array,
    QueryID: Array,
    AccumulatePositivePair: Array | None,
    AccumulateNegativePair: Array | None,
    AccumulateNeutralPair: Array | None,
    Weight: Array | None,
    *,
    column: int,
) -> tuple[Array, Array, Array]:
    score, label, query = Score[:, column], Label.reshape(-1), QueryID.reshape(-1)
    weight = np.ones(len(score), Score.dtype) if Weight is None else Weight.reshape(-1)
    first, second = _pairs(query)
    differ = label[first] != label[second]
    first, second = first[differ], second[differ]
    counts = (weight[first] + weight[second]) / 2
    scores, labels = score[first] - score[second], label[first] - label[second]
    ordered = scores * labels > 0
    # Pairs of equal scores count as negative, and as neutral too, as in Fluid
    result = (counts[ordered], counts[~ordered], counts[scores == 0])
    before = (AccumulatePositivePair, AccumulateNegativePair, AccumulateNeutralPair)
    several = all(value is not None for value in before)
    positive, negative, neutral = (
        np.add.reduce(part, keepdims=True) + (value if several else 0)
        for part, value in zip(result, before, strict=True)
    )
    return positive, negative, neutral
