"""Measures of how good predictions are."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.schema import declare
from pstranspile.ops.shapes import Types, disagree, fits, one, shape_rule

declare(
    "accuracy",
    "Out Indices Label -> Accuracy Correct Total",
    doc="Accuracy = the share of rows whose Label is among Indices",
)
declare(
    "auc",
    "Predict Label StatPos StatNeg -> AUC StatPosOut StatNegOut",
    {"curve": "ROC", "num_thresholds": 8191, "slide_steps": 1},
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
def _auc(_op: Op, types: Types) -> Types:
    predict, label = one(types, "Predict"), one(types, "Label")
    if not fits(predict.shape[:1], label.shape[:1]):
        disagree("Label", label, "Predict", predict)
    return {
        "AUC": (TensorType(DType.FP64, (1,)),),
        "StatPosOut": types.get("StatPos", ()),
        "StatNegOut": types.get("StatNeg", ()),
    }
