"""Kernels. Losses of rows and of whole tensors, and the smoothing of labels."""

from __future__ import annotations

import numpy as np

from pstranspile.ir.attributes import float32
from pstranspile.ir.model import Op
from pstranspile.ops.attributes import int_attr, real, text
from pstranspile.runtime.kernels.kernel import Run, kernel, per_op, plain_kernel, wanted
from pstranspile.runtime.kernels.numeric import check_ids, first, formula
from pstranspile.runtime.kernels.rows import add_rows
from pstranspile.runtime.values import Array


def _reduction(op: Op, *more: str) -> str:
    """The op's reduction of the losses. Raises ValueError for one that the op does not know."""
    reduction = text(op, "reduction")
    known = ("none", "sum", "mean", *more)
    if reduction not in known:
        raise ValueError(f"reduction is {reduction!r}, not one of {', '.join(known)}")
    return reduction


@plain_kernel("label_smooth")
def _label_smooth_values(X: Array, PriorDist: Array | None, *, epsilon: float) -> Array:
    added = float32(epsilon / X.shape[-1]) if PriorDist is None else epsilon * PriorDist.reshape(-1)
    return float32(1 - epsilon) * X + added


formula("label_smooth_grad", lambda op: f"{float32(1 - real(op, 'epsilon'))!r} * {{Out_GRAD}}", "X@GRAD", lod="none")


def _row_sums(x: Array) -> Array:
    """The sum of each row, as a column."""
    return np.add.reduce(x, axis=tuple(range(1, x.ndim))).reshape(-1, 1)


@kernel("smooth_l1_loss", "Diff Out", lod="none")
def _smooth_l1_loss_values(op: Op) -> Run:
    bend = real(op, "sigma") ** 2

    def run(X: Array, Y: Array, InsideWeight: Array | None, OutsideWeight: Array | None) -> tuple[Array, Array]:
        difference = X - Y if InsideWeight is None else (X - Y) * InsideWeight
        size = np.abs(difference)
        loss = np.where(size < 1 / bend, 0.5 * bend * np.square(difference), size - 0.5 / bend)
        if OutsideWeight is not None:
            loss = loss * OutsideWeight
        return difference, _row_sums(loss)

    return run


@kernel("smooth_l1_loss_grad", "X@GRAD Y@GRAD", lod="none")
def _smooth_l1_loss_grad_values(op: Op) -> Run:
    bend = real(op, "sigma") ** 2
    wants_y = wanted(op, "Y@GRAD")

    def run(
        InsideWeight: Array | None, OutsideWeight: Array | None, Diff: Array, Out_GRAD: Array
    ) -> tuple[Array, Array | None]:
        slope = np.where(np.abs(Diff) < 1 / bend, bend * Diff, np.sign(Diff))
        slope *= Out_GRAD.reshape(-1, *(1,) * (Diff.ndim - 1))
        for weight in (InsideWeight, OutsideWeight):
            if weight is not None:
                slope *= weight
        return slope, -slope if wants_y else None

    return run


def _against_label(x: Array, label: Array) -> tuple[Array, Array]:
    """For each row of x the excess of its elements over the one at the label, and a mask of the label."""
    rows = x.reshape(-1, x.shape[-1])
    check_ids(label, rows.shape[1], "the label")
    at = label.reshape(-1, 1) == np.arange(rows.shape[1])
    return rows - rows[at][:, None], at


@plain_kernel("bpr_loss", "Y")
def _bpr_loss_values(X: Array, Label: Array) -> Array:
    above, at = _against_label(X, Label)
    losses = np.where(at, 0, np.logaddexp(0, above, dtype=X.dtype))
    total = np.add.reduce(losses, axis=1, dtype=X.dtype)
    return (total / (X.shape[-1] - 1)).reshape(*X.shape[:-1], 1)


@plain_kernel("bpr_loss_grad", "X@GRAD", lod="each")
def _bpr_loss_grad(X: Array, Label: Array, Y_GRAD: Array) -> Array:
    above, at = _against_label(X, Label)
    slope = np.where(at, 0, 1 / (1 + np.exp(-above))) * (Y_GRAD.reshape(-1, 1) / (X.shape[-1] - 1))
    slope[at] = -np.add.reduce(slope, axis=1)
    return slope.astype(X.dtype).reshape(X.shape)


@kernel("kldiv_loss", "Loss", lod="none")
def _kldiv_loss_values(op: Op) -> Run:
    reduction = _reduction(op, "batchmean")

    def run(X: Array, Target: Array) -> Array:
        counts = Target > 0
        loss = np.where(counts, Target * (np.log(np.where(counts, Target, 1)) - X), 0).astype(X.dtype)
        if reduction == "none":
            return loss
        total = np.add.reduce(loss, axis=None).reshape(1)
        return total / {"sum": 1, "mean": X.size, "batchmean": len(X)}[reduction]

    return run


@kernel("kldiv_loss_grad", "X@GRAD", lod="none")
def _kldiv_loss_grad(op: Op) -> Run:
    reduction = _reduction(op, "batchmean")

    def run(X: Array, Target: Array, Loss_GRAD: Array) -> Array:
        gradient = -np.maximum(Target, 0) * Loss_GRAD
        return gradient / {"none": 1, "sum": 1, "mean": X.size, "batchmean": len(X)}[reduction]

    return run


def _class_weights(op: Op, x: Array, label: Array, weight: Array | None) -> tuple[Array, Array]:
    """The class and the weight of each label, both with the label's dims; both 0 for ignored labels."""
    ignored = label == int_attr(op, "ignore_index", -100)
    check_ids(label[~ignored], x.shape[1], "the label")
    classes = np.where(ignored, 0, label)
    weights = np.ones(label.shape, x.dtype) if weight is None else weight.reshape(-1)[classes]
    return classes, np.where(ignored, 0, weights).astype(x.dtype)


@plain_kernel("nll_loss", "Out Total_weight", lod="none")
def _nll_loss_values(
    X: Array, Label: Array, Weight: Array | None, *, op: Op, reduction: str = per_op(_reduction)
) -> tuple[Array, Array]:
    classes, weights = _class_weights(op, X, Label, Weight)
    loss = -weights * np.take_along_axis(X, np.expand_dims(classes, 1), axis=1)[:, 0]
    if reduction == "none":
        return loss, np.zeros(1, X.dtype)
    loss, total = np.add.reduce(loss, axis=None).reshape(1), np.add.reduce(weights, axis=None).reshape(1)
    return loss / total if reduction == "mean" and total.any() else loss, total


@kernel("nll_loss_grad", "X@GRAD", lod="none")
def _nll_loss_grad(op: Op) -> Run:
    reduction = _reduction(op)

    def run(X: Array, Label: Array, Weight: Array | None, Total_weight: Array, Out_GRAD: Array) -> Array:
        classes, weights = _class_weights(op, X, Label, Weight)
        gradient = -weights * Out_GRAD
        if reduction == "mean" and Total_weight.any():
            gradient /= Total_weight
        result = np.zeros_like(X)
        np.put_along_axis(result, np.expand_dims(classes, 1), np.expand_dims(gradient, 1), axis=1)
        return result

    return run


@plain_kernel("center_loss", "CentersOut SampleCenterDiff Loss", lod="Loss")
def _center_loss_values(
    X: Array, Label: Array, Centers: Array, CenterUpdateRate: Array, *, need_update: bool
) -> tuple[Array, Array, Array]:
    label = Label.reshape(-1)
    check_ids(label, len(Centers), "the label")
    difference = X - Centers[label]
    loss = _row_sums(np.square(difference)) / 2
    centers = Centers.copy()
    if need_update:
        moved = np.zeros_like(Centers)
        add_rows(moved, label, difference)
        count = np.bincount(label, minlength=len(Centers)).astype(X.dtype)
        centers += first(CenterUpdateRate) * moved / (1 + count).reshape(-1, *(1,) * (X.ndim - 1))
    return centers, difference, loss


@plain_kernel("center_loss_grad", "X@GRAD", lod="none")
def _center_loss_grad(SampleCenterDiff: Array, Loss_GRAD: Array) -> Array:
    return SampleCenterDiff * Loss_GRAD.reshape(-1, *(1,) * (SampleCenterDiff.ndim - 1))
