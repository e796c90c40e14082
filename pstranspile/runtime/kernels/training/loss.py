"""Kernels. Losses of each row."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pstranspile.ir.attributes import float32
from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real, text
from pstranspile.runtime.arithmetic import (
    exp_of_each,
    log,
    log1p_of_each,
    log_of_each,
    loops,
    minus_log_of_shares,
    same_everywhere,
    shares_of_exp,
    sum_over,
)
from pstranspile.runtime.kernels.kernel import Run, Surroundings, has_output, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import all_ids, as_matrix, below_largest, check_ids, first_number, formula
from pstranspile.runtime.kernels.random import Rows, mersenne_words, words
from pstranspile.runtime.kernels.rows import add_rows
from pstranspile.runtime.values import Array, SelectedRows

_GREATEST = 1e20
"""The limit of logarithms of either sign, as in Fluid, so that losses stay finite."""


def _limit(x: Array) -> Array:
    """Logarithms within their limits, in the memory of x."""
    lowest, highest = _bounds(x.dtype)
    return np.minimum(np.maximum(x, lowest, out=x), highest, out=x)


def _minus_log(x: Array) -> Array:
    """The negative logarithm within its limits."""
    result = log_of_each(x)
    return result if loops.negative_within(result, result, _GREATEST) else -_limit(result)


@lru_cache(8)
def _bounds(kind: Any) -> tuple[Array, Array]:
    """The limits of logarithms as 0-d arrays, which numpy handles faster than Python numbers."""
    return np.array(-_GREATEST, kind), np.array(_GREATEST, kind)


def _sum_of_classes(x: Array) -> Array:
    return sum_over(x, (x.ndim - 1,))[..., None]


def _picks(labels: Array, classes: int, ignore_index: int) -> tuple[Array, Array | None]:
    """(class of every row, mask of the rows that count; None: all). Ignored rows get class 0.

    Raises ValueError for labels that are no class.
    """
    flat = labels.reshape(-1)
    if not 0 <= ignore_index < classes and all_ids(flat, classes):
        return flat, None
    ignored = flat == ignore_index
    check_ids(flat[~ignored], classes, "the label")
    return np.where(ignored, 0, flat), ~ignored


def _label_shape(x: Array, label: Array) -> tuple[int, ...]:
    return label.shape if label.ndim < x.ndim else (*x.shape[:-1], 1)


def _at_labels(x: Array, label: Array, ignore_index: int) -> tuple[Array, Array | None]:
    """(element of every row of x at its label, mask of the rows that count; None: all)."""
    result = np.empty(label.size, x.dtype)
    if loops.pick(x, label, result, ignore_index):
        return result, None
    picks, counted = _picks(label, x.shape[-1], ignore_index)
    return x.reshape(-1)[_row_starts(x.size, x.shape[-1]) + picks], counted


@lru_cache(8)
def _row_starts(size: int, width: int) -> Array:
    """The flat index of the first element of each row."""
    return np.arange(size // max(width, 1)) * width


def _put_at_labels(shape: tuple[int, ...], label: Array, value: Array, ignore_index: int) -> Array:
    """Zeros of this shape with `value` at the labels of the rows that count."""
    result = np.empty(shape, value.dtype)
    if loops.put(result, label, value, ignore_index):
        return result
    result.fill(0)
    picks, counted = _picks(label, shape[-1], ignore_index)
    value = value.reshape(-1) if counted is None else np.where(counted, value.reshape(-1), 0)
    result.reshape(-1)[_row_starts(result.size, shape[-1]) + picks] = value
    return result


@kernel("cross_entropy", "Y")
def _cross_entropy_values(op: Op) -> Run:
    ignore_index = int_attr(op, "ignore_index", -100)

    def soft(X: Array, Label: Array) -> Array:
        return -_sum_of_classes(Label * _limit(log_of_each(X)))

    def hard(X: Array, Label: Array) -> Array:
        match, counted = _at_labels(X, Label, ignore_index)
        loss = _minus_log(match) if counted is None else np.where(counted, _minus_log(match), 0).astype(X.dtype)
        return loss.reshape(_label_shape(X, Label))

    return soft if flag(op, "soft_label") else hard


@kernel("cross_entropy_grad", "X@GRAD")
def _cross_entropy_grad(op: Op) -> Run:
    ignore_index = int_attr(op, "ignore_index", -100)

    def soft(X: Array, Label: Array, Y_GRAD: Array) -> Array:
        return -Label / X * Y_GRAD.reshape(*X.shape[:-1], 1)

    def hard(X: Array, Label: Array, Y_GRAD: Array) -> Array:
        match, _ = _at_labels(X, Label, ignore_index)
        return _put_at_labels(X.shape, Label, -Y_GRAD.reshape(-1) / match, ignore_index)

    return soft if flag(op, "soft_label") else hard


@plain_kernel("cross_entropy2", "Y XShape MatchX", lod="Y")
def _cross_entropy2_values(X: Array, Label: Array, *, ignore_index: int = -100) -> tuple[Array, Array, Array]:
    match, loss = np.empty(Label.size, X.dtype), np.empty(Label.size, X.dtype)
    if not (same_everywhere() and loops.cross_entropy(X, Label, match, loss, ignore_index, _GREATEST)):
        match, counted = _at_labels(X, Label, ignore_index)
        loss = _minus_log(match)
        if counted is not None:
            match, loss = np.where(counted, match, 0).astype(X.dtype), np.where(counted, loss, 0).astype(X.dtype)
    of_match = (*X.shape[:-1], 1)
    return loss.reshape(_label_shape(X, Label)), np.empty((*X.shape, 0), X.dtype), match.reshape(of_match)


@plain_kernel("cross_entropy_grad2", "X@GRAD")
def _cross_entropy2_grad(
    Label: Array, XShape: Array, MatchX: Array, Y_GRAD: Array, *, ignore_index: int = -100
) -> Array:
    result = np.empty(XShape.shape[:-1], Y_GRAD.dtype)
    if loops.cross_entropy_grad(result, Label, Y_GRAD, MatchX, ignore_index):
        return result
    return _put_at_labels(result.shape, Label, -Y_GRAD.reshape(MatchX.shape) / MatchX, ignore_index)


def _move_axis_last(x: Array, axis: int) -> Array:
    """x with this axis moved to the end."""
    return x if axis in (-1, x.ndim - 1) else np.moveaxis(x, axis, -1)


def _back(x: Array, axis: int) -> Array:
    return x if axis in (-1, x.ndim - 1) else np.ascontiguousarray(np.moveaxis(x, -1, axis))


@plain_kernel("softmax_with_cross_entropy", "Softmax Loss")
def _softmax_with_cross_entropy_values(
    Logits: Array, Label: Array, *, axis: int = -1, ignore_index: int = -100, soft_label: bool
) -> tuple[Array, Array]:
    logits, label = _move_axis_last(Logits, axis), _move_axis_last(Label, axis)
    shifted = below_largest(logits, -1)
    softmax, total = shares_of_exp(shifted.copy(), -1)
    if soft_label:
        loss = _sum_of_classes(label * minus_log_of_shares(softmax, shifted, total, lambda x: x))
    else:
        picks, counted = _picks(label, softmax.shape[-1], ignore_index)
        places = _row_starts(softmax.size, softmax.shape[-1]) + picks

        def at_labels(x: Array) -> Array:
            return x.reshape(-1)[places].reshape(total.shape)

        loss = minus_log_of_shares(softmax, shifted, total, at_labels)
        if counted is not None:
            loss *= counted.reshape(total.shape)
    return _back(softmax, axis), _back(loss, axis)


@plain_kernel("softmax_with_cross_entropy_grad", "Logits@GRAD", lod="none")
def _softmax_with_cross_entropy_grad(
    Label: Array, Softmax: Array, Loss_GRAD: Array, *, axis: int = -1, ignore_index: int = -100, soft_label: bool
) -> Array:
    softmax, label, gradient = (
        _move_axis_last(Softmax, axis),
        _move_axis_last(Label, axis),
        _move_axis_last(Loss_GRAD, axis),
    )
    if soft_label:
        return _back((softmax - label) * gradient, axis)
    result = np.multiply(softmax, gradient, order="C")
    picks, counted = _picks(label, result.shape[-1], ignore_index)
    result.reshape(-1)[_row_starts(result.size, result.shape[-1]) + picks] -= gradient.reshape(-1)
    if counted is not None:
        result.reshape(-1, result.shape[-1])[...] *= counted.reshape(-1, 1)
    return _back(result, axis)


@plain_kernel("sigmoid_cross_entropy_with_logits")
def _sigmoid_cross_entropy_values(X: Array, Label: Array, *, ignore_index: int = -100, normalize: bool) -> Array:
    power = exp_of_each(-np.abs(X))
    loss = np.maximum(X, 0) - X * Label + log1p_of_each(power)
    return _mask_ignored(loss, Label, ignore_index, normalize)


def _mask_ignored(loss: Array, label: Array, ignore_index: int, normalize: bool) -> Array:
    """`loss` where the label is not ignored, else 0; with `normalize`, divided by the number of labels that are not
    ignored.

    A fractional label is truncated for the comparison.
    """
    counts = np.trunc(label) != ignore_index
    loss = loss * counts
    return loss / max(int(np.count_nonzero(counts)), 1) if normalize else loss


@plain_kernel("sigmoid_cross_entropy_with_logits_grad", "X@GRAD", lod="none")
def _sigmoid_cross_entropy_grad(
    X: Array, Label: Array, Out_GRAD: Array, *, ignore_index: int = -100, normalize: bool
) -> Array:
    return _mask_ignored((1 / (1 + exp_of_each(-X)) - Label) * Out_GRAD, Label, ignore_index, normalize)


@plain_kernel("log_loss", "Loss")
def _log_loss_values(Predicted: Array, Labels: Array, *, epsilon: float) -> Array:
    return -Labels * log(Predicted + epsilon) - (1 - Labels) * log(1 - Predicted + epsilon)


@plain_kernel("log_loss_grad", "Predicted@GRAD", lod="none")
def _log_loss_grad(Predicted: Array, Labels: Array, Loss_GRAD: Array, *, epsilon: float) -> Array:
    return Loss_GRAD * ((1 - Labels) / (1 - Predicted + epsilon) - Labels / (Predicted + epsilon))


@plain_kernel("huber_loss", "Residual Out", lod="Out")
def _huber_loss_values(X: Array, Y: Array, *, delta: float) -> tuple[Array, Array]:
    residual = Y - X
    size = np.abs(residual)
    return residual, np.where(size <= delta, 0.5 * residual * residual, delta * (size - 0.5 * delta))


@plain_kernel("huber_loss_grad", "X@GRAD Y@GRAD", lod="none")
def _huber_loss_grad_values(
    Residual: Array, Out_GRAD: Array, *, delta: float, wants_Y_GRAD: bool
) -> tuple[Array, Array | None]:
    slope = np.clip(Residual, -delta, delta) * Out_GRAD
    return -slope, slope if wants_Y_GRAD else None


# Kernels. Losses of single elements: against a binary label, or by the order of two scores.


@plain_kernel("bce_loss")
def _bce_loss_values(X: Array, Label: Array) -> Array:
    if X.size and not (X.min() >= 0 and X.max() <= 1):
        raise ValueError("X has values that are no probabilities")
    log, log_of_rest = np.maximum(np.log(X), -100), np.maximum(np.log(1 - X), -100)
    return (Label - 1) * log_of_rest - Label * log


formula("bce_loss_grad", "{Out_GRAD} * ({X} - {Label}) / np.maximum((1 - {X}) * {X}, 1e-12)", "X@GRAD", lod="each")
formula("hinge_loss", "np.maximum(1 - {Logits} * (2 * {Labels} - 1), 0)", "Loss")
formula(
    "hinge_loss_grad",
    "np.where({Logits} * (2 * {Labels} - 1) < 1, {Loss_GRAD} * (1 - 2 * {Labels}), 0).astype({Logits}.dtype)",
    "Logits@GRAD",
    lod="none",
)


@plain_kernel("modified_huber_loss", "IntermediateVal Out", lod="none")
def _modified_huber_loss_values(X: Array, Y: Array) -> tuple[Array, Array]:
    margin = X * (2 * Y - 1)
    loss = np.where(margin < -1, -4 * margin, np.square(np.maximum(1 - margin, 0)))
    return margin, loss.astype(X.dtype).reshape(len(X), 1)


@plain_kernel("modified_huber_loss_grad", "X@GRAD", lod="none")
def _modified_huber_loss_grad_values(Y: Array, IntermediateVal: Array, Out_GRAD: Array) -> Array:
    slope = np.where(IntermediateVal < -1, -4, -2 * np.maximum(1 - IntermediateVal, 0))
    return (slope * (2 * Y - 1) * Out_GRAD.reshape(Y.shape)).astype(Out_GRAD.dtype)


@plain_kernel("margin_rank_loss", "Activated Out", lod="none")
def _margin_rank_loss_values(X1: Array, X2: Array, Label: Array, *, margin: float) -> tuple[Array, Array]:
    loss = np.maximum(margin - Label * (X1 - X2), 0)
    return (loss > 0).astype(loss.dtype), loss


@plain_kernel("margin_rank_loss_grad", "X1@GRAD X2@GRAD", lod="none")
def _margin_rank_loss_grad_values(Label: Array, Activated: Array, Out_GRAD: Array) -> tuple[Array, Array]:
    slope = Out_GRAD * Activated * Label
    return -slope, slope


@plain_kernel("rank_loss", "Out", lod="none")
def _rank_loss(Label: Array, Left: Array, Right: Array) -> Array:
    ahead = Left.reshape(Label.shape) - Right.reshape(Label.shape)
    return np.logaddexp(0, ahead, dtype=ahead.dtype) - Label * ahead


@plain_kernel("rank_loss_grad", "Left@GRAD Right@GRAD", lod="none")
def _rank_loss_grad(Label: Array, Left: Array, Right: Array, Out_GRAD: Array) -> tuple[Array, Array]:
    behind = Right.reshape(Label.shape) - Left.reshape(Label.shape)
    slope = Out_GRAD * (1 / (1 + np.exp(behind)) - Label)
    return slope.reshape(Left.shape), -slope.reshape(Right.shape)


def _focal_terms(op: Op, x: Array, label: Array, foreground: Array) -> tuple[Array, Array]:
    """The factors of the losses of elements whose class is the label, and of all other elements.

    Classes are numbered from 1 on. Label 0 is the background, and rows of label -1 are ignored.
    """
    check_ids(label + 1, x.shape[1] + 2, "the label plus 1,")
    count = max(first_number(foreground), 1)
    alpha = real(op, "alpha")
    is_class = label.reshape(-1, 1) == np.arange(1, x.shape[1] + 1)
    is_other = ~is_class & (label.reshape(-1, 1) != -1)
    return is_class * x.dtype.type(alpha / count), is_other * x.dtype.type((1 - alpha) / count)


@plain_kernel("sigmoid_focal_loss")
def _sigmoid_focal_loss_values(X: Array, Label: Array, FgNum: Array, *, op: Op, gamma: float) -> Array:
    of_class, of_others = _focal_terms(op, X, Label, FgNum)
    share = 1 / (1 + np.exp(-X))
    log = np.log(np.maximum(share, np.finfo("float32").tiny))
    log_of_rest = -np.logaddexp(0, X, dtype=X.dtype)
    return -of_class * (1 - share) ** gamma * log - of_others * share**gamma * log_of_rest


@plain_kernel("sigmoid_focal_loss_grad", "X@GRAD", lod="none")
def _sigmoid_focal_loss_grad(X: Array, Label: Array, FgNum: Array, Out_GRAD: Array, *, op: Op, gamma: float) -> Array:
    of_class, of_others = _focal_terms(op, X, Label, FgNum)
    share = 1 / (1 + np.exp(-X))
    log = np.log(np.maximum(share, np.finfo("float32").tiny))
    log_of_rest = -np.logaddexp(0, X, dtype=X.dtype)
    slope = of_class * (1 - share) ** gamma * (1 - share - gamma * share * log)
    slope += of_others * share**gamma * (gamma * (1 - share) * log_of_rest - share)
    return -slope * Out_GRAD


@plain_kernel("teacher_student_sigmoid_loss", "Y")
def _teacher_student_sigmoid_loss_values(X: Array, Label: Array) -> Array:
    """Kernel of teacher_student_sigmoid_loss. Label combines a click and a teacher's score: below -1 no click, from -1
    to below 0 a click, both without a score; from 0 to below 1 no click with the score Label; from 1 a click with
    the score Label - 1.

    The loss is the cross entropy of sigmoid(X) with the click, plus that with the score, if there is one.
    """
    single = np.maximum(X, 0) + np.log1p(np.exp(-np.abs(X)))
    without = np.where(Label < -1, single, single - X)
    loss = np.where(Label < 0, without, 2 * single - X * Label)
    return loss.reshape(len(X), 1)


@plain_kernel("teacher_student_sigmoid_loss_grad", "X@GRAD", lod="each")
def _teacher_student_sigmoid_loss_grad(
    X: Array, Label: Array, Y_GRAD: Array, *, soft_max_up_bound: float, soft_max_lower_bound: float
) -> Array:
    share = 1 / (1 + np.exp(-X))
    without = np.where(Label < -1, share, share - 1)
    slope = np.where(Label < 0, without, 2 * share - Label)
    within = (soft_max_lower_bound < X) & (soft_max_up_bound > X)
    return slope * within * Y_GRAD.reshape(X.shape)


# Kernels. Losses of rows and of whole tensors, and the smoothing of labels.


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
    """The sum of each row, as a column [rows, 1]."""
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
    wants_y = has_output(op, "Y@GRAD")

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
    """(x minus the element at the label, for each row; mask of the label)."""
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


@plain_kernel("kldiv_loss", "Loss", lod="none")
def _kldiv_loss_values(
    X: Array, Target: Array, *, reduction: str = per_op(lambda op: _reduction(op, "batchmean"))
) -> Array:
    counts = Target > 0
    loss = np.where(counts, Target * (np.log(np.where(counts, Target, 1)) - X), 0).astype(X.dtype)
    if reduction == "none":
        return loss
    total = np.add.reduce(loss, axis=None).reshape(1)
    return total / {"sum": 1, "mean": X.size, "batchmean": len(X)}[reduction]


@plain_kernel("kldiv_loss_grad", "X@GRAD", lod="none")
def _kldiv_loss_grad(
    X: Array, Target: Array, Loss_GRAD: Array, *, reduction: str = per_op(lambda op: _reduction(op, "batchmean"))
) -> Array:
    gradient = -np.maximum(Target, 0) * Loss_GRAD
    return gradient / {"none": 1, "sum": 1, "mean": X.size, "batchmean": len(X)}[reduction]


def _class_weights(op: Op, x: Array, label: Array, weight: Array | None) -> tuple[Array, Array]:
    """(class of each label, its weight), both with the label's dims; both 0 for ignored labels."""
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
        centers += first_number(CenterUpdateRate) * moved / (1 + count).reshape(-1, *(1,) * (X.ndim - 1))
    return centers, difference, loss


@plain_kernel("center_loss_grad", "X@GRAD", lod="none")
def _center_loss_grad(SampleCenterDiff: Array, Loss_GRAD: Array) -> Array:
    return SampleCenterDiff * Loss_GRAD.reshape(-1, *(1,) * (SampleCenterDiff.ndim - 1))


# Kernels. Losses over a few of many classes.

# Kernels: functions that both losses share


def _scores(x: Array, weight: Array, bias: Array | None, classes: Array) -> Array:
    """For each row of x its products with the rows `classes` [rows, n] of the weight, plus their bias."""
    scores = np.matmul(weight[classes], x[:, :, None])[:, :, 0]
    return scores if bias is None else scores + bias.reshape(-1)[classes]


def _input_gradient(gradient: Array, weight: Array, classes: Array) -> Array:
    return np.matmul(gradient[:, None, :], weight[classes])[:, 0, :]


def _weight_gradient(
    gradient: Array, x: Array, classes: Array, used: Array | None, weight: Array, sparse: bool
) -> Array | SelectedRows:
    """The gradient of the weight: dense, or SelectedRows of the used rows (None: all) in ascending order."""
    value = gradient[:, :, None] * x[:, None, :]
    if used is None:
        classes, value = classes.reshape(-1), value.reshape(-1, x.shape[1])
    else:
        classes, value = classes[used], value[used]
    if not sparse:
        return _scatter_rows(weight.shape, classes, value)
    rows, places = np.unique(classes, return_inverse=True)
    result = _scatter_rows((len(rows), *weight.shape[1:]), places.reshape(-1), value)
    return SelectedRows(rows.astype("int64"), result, len(weight))


def _scatter_rows(shape: tuple[int, ...], rows: Array, value: Array) -> Array:
    result = np.zeros(shape, value.dtype)
    add_rows(result, rows.reshape(-1), value)
    return result


# Kernels: nce


def _sampler(op: Op) -> int:
    sampler = int_attr(op, "sampler")
    if sampler not in (0, 1, 2):
        raise ValueError(f"sampler is {sampler}, not 0 (uniform), 1 (log uniform) or 2 (custom)")
    return sampler


_Expected: TypeAlias = Callable[["Array | None", Array, Any], Array]
"""A function from the listed probabilities, classes and a dtype to the expected count of each class
among the samples.
"""


def _expected_count_function(op: Op) -> _Expected:
    """The function that gives expected counts of classes, rounded to float32 as in Fluid."""
    count, samples = int_attr(op, "num_total_classes"), np.float32(int_attr(op, "num_neg_samples"))

    def uniform(_custom: Array | None, classes: Array, dtype: Any) -> Array:
        return np.full(classes.shape, np.float32(1 / count) * samples, dtype)

    def log_uniform(_custom: Array | None, classes: Array, dtype: Any) -> Array:
        likely = np.log((classes + 2) / (classes + 1)) / float(np.float32(np.log(count)))
        return (likely.astype("float32") * samples).astype(dtype)

    def custom_distribution(custom: Array | None, classes: Array, dtype: Any) -> Array:
        if custom is None:
            raise ValueError("sampler 2 needs CustomDistProbs")
        return (custom.reshape(-1)[classes].astype("float32") * samples).astype(dtype)

    return (uniform, log_uniform, custom_distribution)[_sampler(op)]


def _draw(op: Op, count: int, bits: _Bits, alias: Array | None, probabilities: Array | None) -> Array:
    """`count` classes, drawn as Fluid's samplers do from the same random words."""
    classes, sampler = int_attr(op, "num_total_classes"), _sampler(op)
    if sampler == 0:
        return evenly(bits(64, count), 64, classes)
    if sampler == 1:
        powers = np.exp(bits(64, count) * 2.0**-64 * np.log(classes))
        return (powers.astype("int64") - 1) % max(classes - 1, 1)
    if alias is None or probabilities is None:
        raise ValueError("sampler 2 needs CustomDistAlias and CustomDistAliasProbs")
    # A. J. Walker's alias method: a uniform class or its alias, selected by a second number
    drawn = bits(32, 3 * count).reshape(-1, 3)
    chosen, fraction = evenly(drawn[:, 0], 32, classes), drawn[:, 1] * 2.0**-64 + drawn[:, 2] * 2.0**-32
    other = alias.reshape(-1)[chosen].astype("int64")
    return np.where((fraction > probabilities.reshape(-1)[chosen]) & (other >= 0), other, chosen)


def evenly(words: Array, width: int, classes: int) -> Array:
    """Uniform classes from random words of this many bits, like g++'s uniform_int_distribution."""
    return np.minimum(words // np.uint64((2**width - 1) // classes), np.uint64(classes - 1)).astype("int64")


_Bits: TypeAlias = Callable[[int, int], Array]
"""A function from a width in bits (32 or 64) and a count to that many random words, as uint64."""


def _random_bits(op: Op, rows: int, surroundings: Surroundings) -> _Bits:
    """A function for random words: those that Fluid draws with the op's seed, or those of the program's seed; equally
    many for each row.
    """
    seed, source = int_attr(op, "seed"), op.inputs["Input"][0]

    def seeded_words(width: int, count: int) -> Array:
        batch_rows = surroundings.rows(source, (rows, count // max(rows, 1))) or Rows.single_row(count)
        places = batch_rows.positions()
        most = int(places.max(initial=-1)) + 1
        if width == 64:
            return mersenne_words(seed, most)[places]
        return np.frombuffer(np.random.RandomState(seed).bytes(4 * most), "<u4").astype("uint64")[places]

    def fresh(width: int, count: int) -> Array:
        name = op.output("SampleLabels") or op.type
        key, offset = surroundings.stream(name, 0, source, (rows, count // max(rows, 1)))
        return words(key, offset, count) >> np.uint64(64 - width)

    return seeded_words if seed else fresh


@kernel("nce", "Cost SampleLogits SampleLabels", lod="none")
def _nce_values(op: Op) -> Run:
    negatives, count = ints_attr(op, "custom_neg_classes"), int_attr(op, "num_neg_samples")
    expected = _expected_count_function(op)

    def run(
        Input: Array,
        Label: Array,
        Weight: Array,
        Bias: Array | None,
        SampleWeight: Array | None,
        CustomDistProbs: Array | None,
        CustomDistAlias: Array | None,
        CustomDistAliasProbs: Array | None,
        surroundings: Surroundings,
    ) -> tuple[Array, Array, Array]:
        label, rows = as_matrix(Label), len(Input)
        if negatives:
            drawn = np.broadcast_to(np.array(negatives, "int64"), (rows, len(negatives)))
        else:
            drawn = _draw(op, rows * count, _random_bits(op, rows, surroundings), CustomDistAlias, CustomDistAliasProbs)
            drawn = drawn.reshape(rows, count)
        classes = np.concatenate([label, drawn], axis=1)
        check_ids(classes, len(Weight), "class")
        share = 1 / (1 + np.exp(-_scores(Input, Weight, Bias, classes)))
        noise = expected(CustomDistProbs, classes, share.dtype)
        true = label.shape[1]
        cost = -np.log(np.concatenate([share[:, :true], noise[:, true:]], axis=1) / (share + noise))
        if SampleWeight is not None:
            cost *= SampleWeight.reshape(-1, 1)[: len(cost)]
        return np.add.reduce(cost, axis=1, keepdims=True), share, classes.astype("int64")

    return run


@plain_kernel("nce_grad", "Input@GRAD Weight@GRAD Bias@GRAD", lod="none")
def _nce_grad(
    Input: Array,
    Label: Array,
    Weight: Array,
    Bias: Array | None,
    SampleWeight: Array | None,
    CustomDistProbs: Array | None,
    SampleLogits: Array,
    SampleLabels: Array,
    Cost_GRAD: Array,
    *,
    is_sparse: bool,
    wants_Input_GRAD: bool,
    wants_Bias_GRAD: bool,
    expected: _Expected = per_op(_expected_count_function),
) -> tuple[Array | None, Array | SelectedRows, Array | None]:
    share, classes, true = SampleLogits, SampleLabels, as_matrix(Label).shape[1]
    noise = expected(CustomDistProbs, classes, share.dtype)
    both = share + noise
    gradient = share * (1 - share) / both
    gradient[:, :true] = noise[:, :true] * (share[:, :true] - 1) / both[:, :true]
    gradient *= Cost_GRAD.reshape(-1, 1)
    if SampleWeight is not None:
        gradient *= SampleWeight.reshape(-1, 1)[: len(gradient)]
    bias_grad = None
    if wants_Bias_GRAD and Bias is not None:
        bias_grad = _scatter_rows((Bias.size,), classes, gradient.reshape(-1)).reshape(Bias.shape)
    input_grad = _input_gradient(gradient, Weight, classes) if wants_Input_GRAD else None
    return input_grad, _weight_gradient(gradient, Input, classes, None, Weight, is_sparse), bias_grad


# Kernels: hierarchical_sigmoid


class _Paths(NamedTuple):
    """The path from the root to every row's class, [rows, steps]: at each step a row of W, and the bit to predict.

    Steps beyond the end of a path are not among `used_steps`.
    """

    nodes: Array
    bits: Array
    used_steps: Array


def _paths(op: Op, label: Array, table: Array | None, code: Array | None) -> _Paths:
    """The given paths, or those of the complete binary tree whose leaves are numbered from num_classes on."""
    if table is not None:
        if code is None:
            raise ValueError("PathTable needs PathCode")
        ended = np.logical_or.accumulate(table < 0, axis=1)
        return _Paths(np.where(ended, 0, table), (code > 0) & ~ended, ~ended)
    classes = int_attr(op, "num_classes", 2)
    check_ids(label, classes, "the label")
    if classes <= _KNOWN_LEAVES:
        label = label.reshape(-1)
        return _Paths(*[part.take(label, axis=0) for part in _tree(classes)])
    return _to_leaves(label, classes)


_KNOWN_LEAVES = 1 << 14
"""Up to this many classes, the paths to all of them are calculated once."""


@lru_cache(4)
def _tree(classes: int) -> _Paths:
    return _to_leaves(np.arange(classes), classes)


def _to_leaves(label: Array, classes: int) -> _Paths:
    leaf = label.reshape(-1, 1).astype("int64") + classes
    step = np.arange((classes - 1).bit_length())
    used = leaf >> (step + 1) > 0
    return _Paths(np.where(used, (leaf >> (step + 1)) - 1, 0), (leaf >> step & 1).astype(bool) & used, used)


@plain_kernel("hierarchical_sigmoid", "Out PreOut", lod="Out")
def _hierarchical_sigmoid_values(
    X: Array, W: Array, Label: Array, PathTable: Array | None, PathCode: Array | None, Bias: Array | None, *, op: Op
) -> tuple[Array, Array]:
    paths = _paths(op, Label, PathTable, PathCode)
    scores = np.minimum(np.maximum(_scores(X, W, Bias, paths.nodes), -40), 40) * paths.used_steps
    # Steps beyond the end count with a score of 0, as in Fluid: each adds log(2) to the loss
    losses = np.log1p(np.exp(scores))
    return np.add.reduce(losses - scores * paths.bits, axis=1, keepdims=True), losses


@kernel("hierarchical_sigmoid_grad", "X@GRAD W@GRAD Bias@GRAD", lod="each")
def _hierarchical_sigmoid_grad(op: Op) -> Run:
    sparse = flag(op, "is_sparse")
    wants_x, wants_bias = has_output(op, "X@GRAD"), has_output(op, "Bias@GRAD")

    def run(
        X: Array,
        W: Array,
        Label: Array,
        PathTable: Array | None,
        PathCode: Array | None,
        Bias: Array | None,
        PreOut: Array,
        Out_GRAD: Array,
    ) -> tuple[Array | None, Array | SelectedRows, Array | None]:
        nodes, bits, used = _paths(op, Label, PathTable, PathCode)
        gradient = (1 - np.exp(-PreOut) - bits) * used * Out_GRAD.reshape(-1, 1)
        bias_grad = None
        if wants_bias and Bias is not None:
            bias_grad = _scatter_rows((Bias.size,), nodes[used], gradient[used]).reshape(Bias.shape)
        x_grad = _input_gradient(gradient, W, nodes) if wants_x else None
        return x_grad, _weight_gradient(gradient, X, nodes, used, W, sparse), bias_grad

    return run
