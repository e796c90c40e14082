"""Layers that compute metrics of predictions."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.frontends.layers.basic import initialised, layer, layer_outputs
from pstranspile.frontends.layers.draft import Value
from pstranspile.ir.model import TensorType
from pstranspile.ir.types import DType


def top_k(x: Value, k: int) -> tuple[Value, Value]:
    """The k largest elements of each row, and their indices."""
    values, indices = layer_outputs("top_k", {"X": x}, {"Out": x.dtype, "Indices": DType.INT64}, {"k": k})
    return values.stopped(), indices.stopped()


def accuracy(x: Value, label: Value, *, k: int = 1) -> Value:
    """The share of rows whose label is among the k largest elements."""
    name = x.draft.names.mint("accuracy")
    values, indices = top_k(x, k)
    inputs = {"Out": values, "Indices": indices, "Label": label}
    outputs = {"Accuracy": DType.FP32, "Correct": DType.INT32, "Total": DType.INT32}
    return layer_outputs("accuracy", inputs, outputs, name=name)[0]


def arg_max(x: Value, *, axis: int = 0) -> Value:
    """The index of the largest element along `axis`, i64."""
    return layer("arg_max", {"X": x}, DType.INT64, {"axis": axis}).stopped()


class Auc(NamedTuple):
    """Area under the curve since the start, and over the last steps."""

    total: Value
    batch: Value


def auc(x: Value, label: Value, *, curve: str = "ROC", num_thresholds: int = 2**12 - 1, slide_steps: int = 1) -> Auc:
    """The area under the ROC curve of the last column of x, from counts in four persistable variables."""
    draft = x.draft
    minted = draft.names.mint("auc")
    total, batch = draft.temporary(minted, DType.FP64), draft.temporary(minted, DType.FP64)
    whole = (1, num_thresholds + 1)
    sliding = ((1 + slide_steps) * (num_thresholds + 1) + 1,)
    counts: list[str] = []
    for shape in (sliding, sliding, whole, whole):
        counts.append(draft.names.mint("_generated_var"))
        draft.stop_gradient.add(counts[-1])
        initialised(draft, counts[-1], TensorType(DType.INT64, shape), 0.0)
    for out, positive, negative, steps in ((batch, *counts[:2], slide_steps), (total, *counts[2:], 0)):
        inputs = {"Predict": x, "Label": label, "StatPos": positive, "StatNeg": negative}
        outputs = {"AUC": out, "StatPosOut": positive, "StatNegOut": negative}
        attrs = {"curve": curve, "num_thresholds": num_thresholds, "slide_steps": steps}
        draft.op("auc", inputs, outputs, attrs)
        for name in () if steps else (positive, negative):
            Value(draft, name).declared(whole)  # as the op leaves them
    return Auc(total, batch)
