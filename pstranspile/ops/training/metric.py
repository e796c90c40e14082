"""Metrics of predictions."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.facts import Below
from pstranspile.ops.schema import INT, bounded, declare
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, fits, one, require_alike, shape_rule

declare(
    "accuracy",
    "Out Indices Label -> Accuracy Correct Total",
    doc="Accuracy = the share of rows whose Label is among Indices",
)
declare(
    "auc",
    "Predict Label StatPos StatNeg -> AUC StatPosOut StatNegOut",
    {"curve": "ROC", "num_thresholds": bounded(8191, 0), "slide_steps": bounded(1, 0)},
    domains={"Label": "binary"},
    doc="AUC = the area under the curve over all batches, from histograms of predictions",
)


@shape_rule("accuracy")
def _accuracy(_op: Op, types: Types) -> Types:
    out, indices, label = one(types, "Out"), one(types, "Indices"), one(types, "Label")
    if not fits(out.shape, indices.shape):
        disagree("Indices", indices, "Out", out)
    if not fits(label.shape[:1], indices.shape[:1]):
        disagree("Label", label, "Indices", indices)
    number = (TensorType(DType.INT32, (1,)),)
    return {"Accuracy": (TensorType(DType.FP32, (1,), out.lod_level),), "Correct": number, "Total": number}


@shape_rule("auc")
def _auc(op: Op, types: Types) -> Types:
    predict, label = one(types, "Predict"), one(types, "Label")
    if not fits(predict.shape[:1], label.shape[:1]):
        disagree("Label", label, "Predict", predict)
    buckets, steps = int_attr(op, "num_thresholds", 8191) + 1, int_attr(op, "slide_steps", 1)
    kept = (TensorType(DType.INT64, (1, buckets) if steps == 0 else ((steps + 1) * buckets + 1,)),)
    return {"AUC": (TensorType(DType.FP64, (1,)),), "StatPosOut": kept, "StatNegOut": kept}


declare(
    "precision_recall",
    "MaxProbs Indices Labels Weights? StatesInfo? -> BatchMetrics AccumMetrics AccumStatesInfo",
    {"class_number": bounded(INT, 1)},
    rows="own",
    domains={"Indices": Below("class_number"), "Labels": Below("class_number")},
    doc="precision and recall of each class, for this batch and so far",
)
declare(
    "mean_iou",
    "Predictions Labels InWrongs*? InCorrects*? InMeanIou*? -> OutMeanIou OutWrong OutCorrect",
    {"num_classes": bounded(INT, 1)},
    domains={"Predictions": Below("num_classes"), "Labels": Below("num_classes")},
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
    for slot, tensor in (("Labels", labels), ("Indices", indices)):
        if not fits(tensor.shape, probabilities.shape):
            disagree(slot, tensor, "MaxProbs", probabilities)
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
