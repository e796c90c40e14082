"""Metrics: how good predictions are."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.ir.model import TensorType
from pstranspile.ir.types import DType
from pstranspile.layers.basic import initialised
from pstranspile.layers.draft import Value


def top_k(x: Value, k: int) -> tuple[Value, Value]:
    """The k largest elements of each row, and where they are."""
    draft = x.draft
    minted = draft.names.mint("top_k")
    values = draft.temporary(minted, x.dtype, stop_gradient=True)
    indices = draft.temporary(minted, DType.INT64, stop_gradient=True)
    draft.op("top_k", {"X": x}, {"Out": values, "Indices": indices}, {"k": k})
    return values, indices


def accuracy(x: Value, label: Value, *, k: int = 1) -> Value:
    """The share of rows whose label is among the k largest elements."""
    draft = x.draft
    minted = draft.names.mint("accuracy")
    values, indices = top_k(x, k)
    out = draft.temporary(minted, DType.FP32)
    correct, total = draft.temporary(minted, DType.INT32), draft.temporary(minted, DType.INT32)
    inputs = {"Out": values, "Indices": indices, "Label": label}
    draft.op("accuracy", inputs, {"Accuracy": out, "Correct": correct, "Total": total})
    return out


def arg_max(x: Value, *, axis: int = 0) -> Value:
    """Where the largest element along `axis` is, i64."""
    out = x.draft.temporary(x.draft.names.mint("arg_max"), DType.INT64, stop_gradient=True)
    x.draft.op("arg_max", {"X": x}, {"Out": out}, {"axis": axis})
    return out


class Auc(NamedTuple):
    """Area under the curve since the start, and over the last steps."""

    total: Value
    batch: Value


def auc(x: Value, label: Value, *, curve: str = "ROC", num_thresholds: int = 2**12 - 1, slide_steps: int = 1) -> Auc:
    """The area under the ROC curve of the last column of x, from counts kept in four persistable variables."""
    draft = x.draft
    minted = draft.names.mint("auc")
    total, batch = draft.temporary(minted, DType.FP64), draft.temporary(minted, DType.FP64)
    sliding = ((1 + slide_steps) * (num_thresholds + 1) + 1,)
    counts: list[str] = []
    for shape in (sliding, sliding, (1, num_thresholds + 1), (1, num_thresholds + 1)):
        counts.append(draft.names.mint("_generated_var"))
        draft.stop_gradient.add(counts[-1])
        initialised(draft, counts[-1], TensorType(DType.INT64, shape), 0.0)
    for out, positive, negative, steps in ((batch, *counts[:2], slide_steps), (total, *counts[2:], 0)):
        inputs = {"Predict": x, "Label": label, "StatPos": positive, "StatNeg": negative}
        outputs = {"AUC": out, "StatPosOut": positive, "StatNegOut": negative}
        attrs = {"curve": curve, "num_thresholds": num_thresholds, "slide_steps": steps}
        draft.op("auc", inputs, outputs, attrs)
    return Auc(total, batch)
