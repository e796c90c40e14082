"""Kernels. Losses of single elements: against a binary label, or by the order of two scores."""

from __future__ import annotations

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import real
from pstranspile.runtime.kernels.kernel import plain_kernel
from pstranspile.runtime.kernels.numeric import check_ids, first, formula
from pstranspile.runtime.values import Array


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
    count = max(first(foreground), 1)
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
    """A label below 0 has no teacher's score: below -1 it says no click, else a click.

    From 0 on the score is added to it: below 1 no click, else a click.
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
