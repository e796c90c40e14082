"""Losses of single elements: against a binary label, or by the order of two scores."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.schema import UNSCOPED, declare, declare_gradient
from pstranspile.ops.shapes import Dims, Types, disagree, fits, given, one, require_alike, results_like, shape_rule

declare(
    "bce_loss",
    "X Label -> Out",
    doc="Out = the binary cross entropy of the probabilities X with Label, element by element",
)
declare_gradient("bce_loss", "X Label Out@GRAD -> X@GRAD", UNSCOPED)
declare("hinge_loss", "Logits Labels -> Loss", doc="Loss = max(0, 1 - Logits * (2 * Labels - 1))")
declare_gradient("hinge_loss", "Logits Labels Loss@GRAD -> Logits@GRAD")
declare(
    "modified_huber_loss",
    "X Y -> IntermediateVal~ Out",
    doc="Out = max(0, 1 - v)^2 where v >= -1, else -4 * v; v = X * (2 * Y - 1)",
)
declare_gradient("modified_huber_loss", "Y IntermediateVal Out@GRAD -> X@GRAD")
declare(
    "margin_rank_loss", "X1 X2 Label -> Activated~ Out", {"margin": 0.0}, doc="Out = max(0, margin - Label * (X1 - X2))"
)
declare_gradient("margin_rank_loss", "Label Activated Out@GRAD -> X1@GRAD X2@GRAD")
declare("rank_loss", "Label Left Right -> Out", doc="Out = the cross entropy of sigmoid(Left - Right) with Label")
declare_gradient("rank_loss", "Label Left Right Out@GRAD -> Left@GRAD Right@GRAD")
declare(
    "sigmoid_focal_loss",
    "X Label FgNum -> Out",
    {"gamma": 2.0, "alpha": 0.25},
    doc="Out = the focal loss of sigmoid(X) with Label",
)
declare_gradient("sigmoid_focal_loss", "X Label FgNum Out@GRAD -> X@GRAD")
declare(
    "teacher_student_sigmoid_loss",
    "X Label -> Y",
    {"soft_max_up_bound": 15.0, "soft_max_lower_bound": -15.0},
    doc="Y = the sum of the losses against a label and a teacher's score",
)
declare_gradient("teacher_student_sigmoid_loss", "X Label Y@GRAD -> X@GRAD")


shape_rule("bce_loss")(results_like("X", "Out", alike="Label"))


shape_rule("hinge_loss")(results_like("Logits", "Loss", alike="Labels"))


@shape_rule("modified_huber_loss")
def _modified_huber_loss(_op: Op, types: Types) -> Types:
    require_alike(types, "Y", "X")
    x = one(types, "X")._replace(lod_level=0)
    return {"IntermediateVal": (x,), "Out": (TensorType(x.dtype, (x.shape[0], 1)),)}


shape_rule("modified_huber_loss_grad")(results_like("IntermediateVal", "X@GRAD"))


@shape_rule("margin_rank_loss")
def _margin_rank_loss(_op: Op, types: Types) -> Types:
    require_alike(types, "X1", "Label")
    require_alike(types, "X2", "Label")
    label = one(types, "Label")._replace(lod_level=0)
    return {"Activated": (label,), "Out": (label,)}


shape_rule("margin_rank_loss_grad")(results_like("Label", "X1@GRAD X2@GRAD"))


def _one_each(scores: Dims, labels: Dims) -> bool:
    """Whether dims are alike, or both are one number for each row: [rows] or [rows, 1]."""
    if len(scores) == len(labels):
        return fits(scores, labels)
    return {len(scores), len(labels)} == {1, 2} and fits((*scores, 1)[:2], (*labels, 1)[:2])


@shape_rule("rank_loss")
def _rank_loss(_op: Op, types: Types) -> Types:
    label = one(types, "Label")
    for slot in ("Left", "Right"):
        score = given(types, slot)
        if score is not None and (score.dtype is not label.dtype or not _one_each(score.shape, label.shape)):
            disagree(slot, score, "Label", label)
    return {"Out": (one(types, "Label")._replace(lod_level=0),)}


@shape_rule("sigmoid_focal_loss")
def _sigmoid_focal_loss(_op: Op, types: Types) -> Types:
    x, label = one(types, "X"), one(types, "Label")
    if not fits(label.shape, (x.shape[0], 1)):
        disagree("Label", label, "X", x)
    return {"Out": (x,)}


@shape_rule("teacher_student_sigmoid_loss")
def _teacher_student_sigmoid_loss(_op: Op, types: Types) -> Types:
    x, label = one(types, "X"), one(types, "Label")
    if not fits(label.shape, x.shape):
        disagree("Label", label, "X", x)
    return {"Y": (TensorType(x.dtype, (x.shape[0], 1), x.lod_level),)}
