"""Measures of how good predictions are that are less often used, and comparisons of whole tensors."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import check_ids, flag, real
from pstranspile.ops.schema import INT, declare
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, fits, int_attr, one, require_alike, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

declare(
    "precision_recall",
    "MaxProbs Indices Labels Weights? StatesInfo? -> BatchMetrics AccumMetrics AccumStatesInfo",
    {"class_number": INT},
    doc="precision and recall of each class, for this batch and so far",
)
declare(
    "mean_iou",
    "Predictions Labels InWrongs*? InCorrects*? InMeanIou*? -> OutMeanIou OutWrong OutCorrect",
    {"num_classes": INT},
    doc="OutMeanIou = the mean over classes of intersection over union",
)
declare(
    "positive_negative_pair",
    "Score Label QueryID AccumulatePositivePair? AccumulateNegativePair? AccumulateNeutralPair? Weight? -> "
    "PositivePair NegativePair NeutralPair?",
    {"column": 0},
    doc="PositivePair = the pairs of rows of one query whose scores are in the order of their labels",
)


@shape_rule("precision_recall")
def _precision_recall(op: Op, types: Types) -> Types:
    probabilities, labels, indices = one(types, "MaxProbs"), one(types, "Labels"), one(types, "Indices")
    for slot, held in (("Labels", labels), ("Indices", indices)):
        if not fits(held.shape, probabilities.shape):
            disagree(slot, held, "MaxProbs", probabilities)
    metrics = (TensorType(DType.FP64, (6,)),)
    states = TensorType(probabilities.dtype, (int_attr(op, "class_number"), 4))
    return {"BatchMetrics": metrics, "AccumMetrics": metrics, "AccumStatesInfo": (states,)}


@shape_rule("mean_iou")
def _mean_iou(op: Op, types: Types) -> Types:
    require_alike(types, "Labels", "Predictions")
    counts = (TensorType(DType.INT32, (int_attr(op, "num_classes"),)),)
    return {"OutMeanIou": (TensorType(DType.FP32, (1,)),), "OutWrong": counts, "OutCorrect": counts}


@shape_rule("positive_negative_pair")
def _positive_negative_pair(op: Op, types: Types) -> Types:
    score, label = one(types, "Score"), one(types, "Label")
    column = int_attr(op, "column")
    if len(score.shape) != 2 or not fits(label.shape, (score.shape[0], 1)):
        disagree("Label", label, "Score", score)
    if score.shape[1] >= 0 and not -score.shape[1] <= column < score.shape[1]:
        raise ShapeError(f"column {column} is not a column of Score, which is {describe(score)}", "Score")
    number = (TensorType(score.dtype, (1,)),)
    return {"PositivePair": number, "NegativePair": number, "NeutralPair": number}


@shape_rule("allclose")
def _allclose(_op: Op, types: Types) -> Types:
    require_alike(types, "Other", "Input")
    one(types, "Input")
    return {"Out": (TensorType(DType.BOOL, (1,)),)}


# Kernels


def _share(part: Array, rest: Array) -> Array:
    """part / (part + rest), 1 where both are 0, as nothing is wrong there."""
    whole = part + rest
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1), 1)


def _metrics(states: Array) -> Array:
    """Precision, recall and F1: first of the means over classes, then of the sums over classes."""
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
        """States of a class: the weights of its true and false positives, true and false negatives."""
        indices, labels = Indices.reshape(-1), Labels.reshape(-1)
        check_ids(indices, classes, "the class")
        check_ids(labels, classes, "the label")
        weights = np.ones(len(labels), MaxProbs.dtype) if Weights is None else Weights.reshape(-1)
        right = indices == labels

        def sums(chosen: Array, by: Array) -> Array:
            return np.bincount(chosen, by, classes)

        found, wrong = sums(labels, weights * right), sums(indices, weights * ~right)
        missed = sums(labels, weights * ~right)
        states = np.stack([found, wrong, weights.sum(dtype="float64") - found - wrong - missed, missed], axis=1)
        states[:, 2] = np.maximum(states[:, 2], 0)  # not less than 0 by rounding
        states = states.astype(MaxProbs.dtype)
        total = states if StatesInfo is None else states + StatesInfo
        return _metrics(states), _metrics(total), total

    return run


def _added(value: Array, more: list[Array] | None) -> Array:
    for term in more or ():
        value = value + term
    return value


@kernel("mean_iou", "OutMeanIou OutWrong OutCorrect", lod="none")
def _mean_iou_values(op: Op) -> Run:
    classes = int_attr(op, "num_classes")

    def run(
        Predictions: Array,
        Labels: Array,
        InWrongs: list[Array] | None,
        InCorrects: list[Array] | None,
        InMeanIou: list[Array] | None,
    ) -> tuple[Array, Array, Array]:
        predicted, labels = Predictions.reshape(-1), Labels.reshape(-1)
        check_ids(predicted, classes, "the prediction")
        check_ids(labels, classes, "the label")
        right = predicted == labels
        wrong = np.bincount(predicted[~right], minlength=classes) + np.bincount(labels[~right], minlength=classes)
        correct = np.bincount(predicted[right], minlength=classes)
        wrong, correct = _added(wrong, InWrongs).astype("int32"), _added(correct, InCorrects).astype("int32")
        seen = wrong + correct > 0
        mean = np.mean(correct[seen] / (wrong + correct)[seen]) if seen.any() else 0.0
        return _added(np.array([mean]), InMeanIou).astype("float32"), wrong, correct

    return run


def _pairs(query: Array) -> tuple[Array, Array]:
    """All pairs of rows of the same query, as the rows that come first and second; query by query."""
    order = np.argsort(query, kind="stable")
    ends = np.flatnonzero(np.diff(query[order])) + 1
    found = [rows[np.stack(np.triu_indices(len(rows), 1))] for rows in np.split(order, ends)]
    first, second = np.concatenate(found, axis=1)
    return first, second


@kernel("positive_negative_pair", "PositivePair NegativePair NeutralPair", lod="none")
def _positive_negative_pair_values(op: Op) -> Run:
    column = int_attr(op, "column")

    def run(
        Score: Array,
        Label: Array,
        QueryID: Array,
        AccumulatePositivePair: Array | None,
        AccumulateNegativePair: Array | None,
        AccumulateNeutralPair: Array | None,
        Weight: Array | None,
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
        found = (counts[ordered], counts[~ordered], counts[scores == 0])
        before = (AccumulatePositivePair, AccumulateNegativePair, AccumulateNeutralPair)
        several = all(value is not None for value in before)
        positive, negative, neutral = (
            np.add.reduce(part, keepdims=True) + (value if several else 0)
            for part, value in zip(found, before, strict=True)
        )
        return positive, negative, neutral

    return run


@kernel("allclose", lod="none")
def _allclose_values(op: Op) -> Run:
    relative, absolute, equal_nan = real(op, "rtol"), real(op, "atol"), flag(op, "equal_nan")

    def run(Input: Array, Other: Array) -> Array:
        return np.array([np.allclose(Input, Other, relative, absolute, equal_nan)])

    return run
