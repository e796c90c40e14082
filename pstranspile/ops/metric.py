"""Measures of how good predictions are."""

from __future__ import annotations

from pstranspile.ops.schema import declare

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
