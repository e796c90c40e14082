"""Losses of each row."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.schema import FLOAT, declare, declare_gradient
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    one,
    outputs_like,
    require_alike,
    results_like,
    shape_rule,
)

declare(
    "cross_entropy",
    "X Label -> Y",
    {"soft_label": False, "ignore_index": -100},
    doc="Y = -log(X at the label), or -sum(Label * log(X)) with soft labels",
)
declare_gradient("cross_entropy", "X Label Y@GRAD -> X@GRAD")
declare(
    "cross_entropy2",
    "X Label -> Y XShape MatchX",
    {"ignore_index": -100},
    doc="Y = -log(MatchX), MatchX = X at the label",
)
declare_gradient("cross_entropy2", "Label XShape MatchX Y@GRAD -> X@GRAD", op_type="cross_entropy_grad2")
declare(
    "softmax_with_cross_entropy",
    "Logits Label -> Softmax~ Loss",
    {"soft_label": False, "numeric_stable_mode": True, "ignore_index": -100, "axis": -1},
    doc="Loss = the cross entropy of Softmax = softmax(Logits) along `axis`",
)
declare_gradient("softmax_with_cross_entropy", "Label Softmax Loss@GRAD -> Logits@GRAD")
declare(
    "sigmoid_cross_entropy_with_logits",
    "X Label -> Out",
    {"normalize": False, "ignore_index": -100},
    doc="Out = the cross entropy of sigmoid(X) with Label, element by element",
)
declare_gradient("sigmoid_cross_entropy_with_logits", "X Label Out@GRAD -> X@GRAD")
declare(
    "log_loss",
    "Predicted Labels -> Loss",
    {"epsilon": FLOAT},
    doc="Loss = -Labels * log(p + epsilon) - (1 - Labels) * log(1 - p + epsilon), p = Predicted",
)
declare_gradient("log_loss", "Predicted Labels Loss@GRAD -> Predicted@GRAD")
declare(
    "huber_loss",
    "X Y -> Residual~ Out",
    {"delta": FLOAT},
    doc="Out = r * r / 2 where abs(r) <= delta, else delta * (abs(r) - delta / 2); Residual r = Y - X",
)
declare_gradient("huber_loss", "Residual Out@GRAD -> X@GRAD Y@GRAD")


def _require_rows(x: TensorType, label: TensorType) -> None:
    """Labels of rows: the leading dims of X, with or without a last dim of size 1."""
    leading = x.shape[:-1]
    if not fits(label.shape, leading) and not fits(label.shape, (*leading, 1)):
        raise ShapeError(f"Label is {describe(label)}, which is not one label for each row of {describe(x)}", "Label")


@shape_rule("cross_entropy")
def _cross_entropy(op: Op, types: Types) -> Types:
    x, label = one(types, "X"), one(types, "Label")
    if op.attrs.get("soft_label"):
        if not fits(x.shape, label.shape):
            disagree("Label", label, "X", x)
    else:
        _require_rows(x, label)
    if len(label.shape) < len(x.shape):
        return {"Y": (TensorType(x.dtype, label.shape, x.lod_level),)}
    return {"Y": (TensorType(x.dtype, (*x.shape[:-1], 1), x.lod_level),)}


@shape_rule("cross_entropy2")
def _cross_entropy2(_op: Op, types: Types) -> Types:
    x, label = one(types, "X"), one(types, "Label")
    _require_rows(x, label)
    match = TensorType(x.dtype, (*x.shape[:-1], 1))
    y = TensorType(x.dtype, label.shape if len(label.shape) < len(x.shape) else match.shape, x.lod_level)
    shape = TensorType(x.dtype, (*x.shape, 0), x.lod_level)
    return {"Y": (y,), "MatchX": (match,), "XShape": (shape,)}


@shape_rule("cross_entropy_grad2")
def _cross_entropy_grad2(_op: Op, types: Types) -> Types:
    shape = one(types, "XShape")
    return {"X@GRAD": (shape._replace(shape=shape.shape[:-1]),)}


@shape_rule("softmax_with_cross_entropy")
def _softmax_with_cross_entropy(op: Op, types: Types) -> Types:
    logits, label = one(types, "Logits"), one(types, "Label")
    axis = int_attr(op, "axis") % len(logits.shape)
    loss = (*logits.shape[:axis], 1, *logits.shape[axis + 1 :])
    if not fits(label.shape, logits.shape if op.attrs.get("soft_label") else loss):
        disagree("Label", label, "Logits", logits)
    return {"Softmax": (logits,), "Loss": (TensorType(logits.dtype, loss, logits.lod_level),)}


shape_rule("softmax_with_cross_entropy_grad")(outputs_like(**{"Logits@GRAD": "Softmax"}))


shape_rule("sigmoid_cross_entropy_with_logits")(results_like("X", "Out", alike="Label"))


shape_rule("log_loss")(results_like("Predicted", "Loss", alike="Labels"))


@shape_rule("huber_loss")
def _huber_loss(_op: Op, types: Types) -> Types:
    require_alike(types, "Y", "X")
    x = one(types, "X")
    return {"Residual": (x._replace(lod_level=0),), "Out": (x,)}


shape_rule("huber_loss_grad")(results_like("Residual", "X@GRAD Y@GRAD"))
