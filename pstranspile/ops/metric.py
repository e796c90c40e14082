"""Measures of how good predictions are."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.kernel import Run, kernel, wanted
from pstranspile.ops.numeric import as_matrix
from pstranspile.ops.optimizer_steps import owned
from pstranspile.ops.schema import declare
from pstranspile.ops.shapes import Types, disagree, fits, int_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

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
def _auc(op: Op, types: Types) -> Types:
    predict, label = one(types, "Predict"), one(types, "Label")
    if not fits(predict.shape[:1], label.shape[:1]):
        disagree("Label", label, "Predict", predict)
    buckets, steps = int_attr(op, "num_thresholds", 8191) + 1, int_attr(op, "slide_steps", 1)
    kept = (TensorType(DType.INT64, (1, buckets) if steps == 0 else ((steps + 1) * buckets + 1,)),)
    return {"AUC": (TensorType(DType.FP64, (1,)),), "StatPosOut": kept, "StatNegOut": kept}


# Kernels


@kernel("accuracy", "Accuracy Correct Total", lod="none")
def _accuracy_values(_op: Op) -> Run:
    def run(Indices: Array, Label: Array) -> tuple[Array, Array, Array]:
        correct = np.count_nonzero((Indices == Label.reshape(-1, 1)).any(axis=1))
        total = len(Indices)
        share = correct / total if total else 0.0
        return np.array([share], "float32"), np.array([correct], "int32"), np.array([total], "int32")

    return run


@kernel("auc", "AUC StatPosOut StatNegOut", lod="none", spares="AUC")
def _auc_values(op: Op) -> Run:
    buckets, steps = int_attr(op, "num_thresholds", 8191) + 1, int_attr(op, "slide_steps", 1)
    own, named = owned(op, "StatPos StatNeg"), wanted(op, "AUC")

    def histogram(bins: Array, stat: Array) -> tuple[Array, Array]:
        """The new statistics, in place, and the histogram of them that counts (see `_slide`)."""
        if steps == 0:  # Fluid's start-up makes one element too many, its op leaves it out
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
        stats = own(np.ascontiguousarray(StatPos), np.ascontiguousarray(StatNeg))
        new_positive, positive = histogram(bins[label > 0], stats[0])
        new_negative, negative = histogram(bins[label == 0], stats[1])
        return np.array([_area(positive, negative)]) if named else None, new_positive, new_negative

    return run


def _slide(flat: Array, bins: Array, buckets: int, steps: int) -> None:
    """Puts the histogram of a step in the place of the oldest of the last `steps` ones, in place.

    The statistics are those histograms one after another, their sum, and the number of steps so far.
    """
    at = int(flat[(steps + 1) * buckets]) % steps * buckets
    oldest, total = flat[at : at + buckets], flat[steps * buckets : (steps + 1) * buckets]
    total -= oldest
    oldest[:] = 0
    np.add.at(oldest, bins, 1)
    total += oldest
    flat[(steps + 1) * buckets] += 1


_LARGEST_EXACT = 1 << 61
"""Below it, twice the area is a sum of 64-bit integers."""


def _area(positive: Array, negative: Array) -> float:
    """The area under the curve, by trapezoids; not divided when one of the classes is missing."""
    below = np.add.accumulate(positive, dtype="int64")
    positives, negatives = below.item(-1), int(np.add.reduce(negative))
    whole = positives * negatives
    below += below  # twice the positives in the buckets up to each, less half of those in it
    below -= positive
    if whole < _LARGEST_EXACT:
        area = (2 * whole - int(np.dot(negative, below))) / 2
    else:
        area = whole - np.dot(negative.astype("float64"), below.astype("float64")).item() / 2
    return area / whole if whole else area
