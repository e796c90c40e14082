"""Kernels. Losses of each row."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr
from pstranspile.runtime.arithmetic import (
    exp_of_each,
    log,
    log1p_of_each,
    log_of_each,
    loops,
    minus_log_of_shares,
    shares_of_exp,
    sum_over,
)
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import all_ids, below_largest, check_ids
from pstranspile.runtime.values import Array


def _log(x: Array) -> Array:
    """The logarithm, limited to +-1e20 as in Fluid so that losses stay finite."""
    lowest, highest = _bounds(x.dtype)
    result = log_of_each(x)
    return np.minimum(np.maximum(result, lowest, out=result), highest, out=result)


@lru_cache(8)
def _bounds(kind: Any) -> tuple[Array, Array]:
    """The limits of logarithms as 0-d arrays, which numpy handles faster than Python numbers."""
    return np.array(-1e20, kind), np.array(1e20, kind)


def _sum_of_classes(x: Array) -> Array:
    return sum_over(x, (x.ndim - 1,))[..., None]


def _picks(labels: Array, classes: int, ignore_index: int) -> tuple[Array, Array | None]:
    """The class of every row, and a mask of the rows that count (None: all). Ignored rows get class 0.

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
    """The element of every row of x at its label, and a mask of the rows that count."""
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
        return -_sum_of_classes(Label * _log(X))

    def hard(X: Array, Label: Array) -> Array:
        match, counted = _at_labels(X, Label, ignore_index)
        loss = -_log(match) if counted is None else np.where(counted, -_log(match), 0).astype(X.dtype)
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
    match, counted = _at_labels(X, Label, ignore_index)
    loss = -_log(match)
    if counted is not None:
        match, loss = np.where(counted, match, 0).astype(X.dtype), np.where(counted, loss, 0).astype(X.dtype)
    of_match = (*X.shape[:-1], 1)
    return loss.reshape(_label_shape(X, Label)), np.empty((*X.shape, 0), X.dtype), match.reshape(of_match)


@plain_kernel("cross_entropy_grad2", "X@GRAD")
def _cross_entropy2_grad(
    Label: Array, XShape: Array, MatchX: Array, Y_GRAD: Array, *, ignore_index: int = -100
) -> Array:
    return _put_at_labels(XShape.shape[:-1], Label, -Y_GRAD.reshape(MatchX.shape) / MatchX, ignore_index)


def _last(x: Array, axis: int) -> Array:
    """x with this axis moved to the end."""
    return x if axis in (-1, x.ndim - 1) else np.moveaxis(x, axis, -1)


def _back(x: Array, axis: int) -> Array:
    return x if axis in (-1, x.ndim - 1) else np.ascontiguousarray(np.moveaxis(x, -1, axis))


@plain_kernel("softmax_with_cross_entropy", "Softmax Loss")
def _softmax_with_cross_entropy_values(
    Logits: Array, Label: Array, *, axis: int = -1, ignore_index: int = -100, soft_label: bool
) -> tuple[Array, Array]:
    logits, label = _last(Logits, axis), _last(Label, axis)
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
    softmax, label, gradient = _last(Softmax, axis), _last(Label, axis), _last(Loss_GRAD, axis)
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
    return _counted(loss, Label, ignore_index, normalize)


def _counted(loss: Array, label: Array, ignore_index: int, normalize: bool) -> Array:
    """`loss` where the label counts and 0 elsewhere; to normalize, divided by the number of labels that count.

    A fractional label is truncated for the comparison.
    """
    counts = np.trunc(label) != ignore_index
    loss = loss * counts
    return loss / max(int(np.count_nonzero(counts)), 1) if normalize else loss


@plain_kernel("sigmoid_cross_entropy_with_logits_grad", "X@GRAD", lod="none")
def _sigmoid_cross_entropy_grad(
    X: Array, Label: Array, Out_GRAD: Array, *, ignore_index: int = -100, normalize: bool
) -> Array:
    return _counted((1 / (1 + exp_of_each(-X)) - Label) * Out_GRAD, Label, ignore_index, normalize)


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
