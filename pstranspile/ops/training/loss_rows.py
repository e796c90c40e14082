"""Losses of rows and of whole tensors, and the smoothing of labels."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import text
from pstranspile.ops.schema import BOOL, INT, declare, declare_gradient, long
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    disagree,
    fits,
    given,
    one,
    require_alike,
    results_like,
    shape_rule,
)

declare(
    "label_smooth",
    "X PriorDist? -> Out",
    {"epsilon": 0.0},
    doc="Out = (1 - epsilon) * X + epsilon * PriorDist (or 1 / classes)",
)
declare_gradient("label_smooth", "Out@GRAD -> X@GRAD")
declare(
    "smooth_l1_loss",
    "X Y InsideWeight? OutsideWeight? -> Diff~ Out",
    {"sigma": 1.0},
    doc="Out = the Huber loss of each row, with weights inside and outside",
)
declare_gradient("smooth_l1_loss", "InsideWeight? OutsideWeight? Diff Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "bpr_loss",
    "X Label -> Y",
    doc="Y = Bayesian personalised ranking: the label's score against those of all other classes",
)
declare_gradient("bpr_loss", "X Label Y@GRAD -> X@GRAD")
declare(
    "kldiv_loss", "X Target -> Loss", {"reduction": "mean"}, doc="Loss = Target * (log(Target) - X), reduced as asked"
)
declare_gradient("kldiv_loss", "X Target Loss@GRAD -> X@GRAD")
declare(
    "nll_loss",
    "X Label Weight? -> Out Total_weight",
    {"ignore_index": long(-100), "reduction": "mean"},
    doc="Out = -Weight * X at the label, reduced as asked",
)
declare_gradient("nll_loss", "X Label Weight? Total_weight Out@GRAD -> X@GRAD")
declare(
    "center_loss",
    "X Label Centers CenterUpdateRate -> CentersOut SampleCenterDiff Loss",
    {"cluster_num": INT, "need_update": BOOL},
    doc="Loss = half the squared distance of X to the centre of its class",
)
declare_gradient("center_loss", "X SampleCenterDiff Loss@GRAD -> X@GRAD")


@shape_rule("label_smooth")
def _label_smooth(_op: Op, types: Types) -> Types:
    x, prior = one(types, "X"), given(types, "PriorDist")
    if prior is not None and not fits(prior.shape, (1, x.shape[-1])):
        disagree("PriorDist", prior, "X", x)
    return {"Out": (x,)}


shape_rule("label_smooth_grad")(results_like("Out@GRAD", "X@GRAD"))


@shape_rule("smooth_l1_loss")
def _smooth_l1_loss(_op: Op, types: Types) -> Types:
    for slot in ("Y", "InsideWeight", "OutsideWeight"):
        require_alike(types, slot, "X")
    x = one(types, "X")._replace(lod_level=0)
    if len(x.shape) < 2:
        raise ShapeError("X has one dim, it must have rows", "X")
    return {"Diff": (x,), "Out": (TensorType(x.dtype, (x.shape[0], 1)),)}


shape_rule("smooth_l1_loss_grad")(results_like("Diff", "X@GRAD Y@GRAD"))


@shape_rule("bpr_loss")
def _bpr_loss(_op: Op, types: Types) -> Types:
    x, label = one(types, "X"), one(types, "Label")
    column = (*x.shape[:-1], 1)
    if not fits(label.shape, column):
        disagree("Label", label, "X", x)
    return {"Y": (TensorType(x.dtype, column, x.lod_level),)}


@shape_rule("kldiv_loss")
def _kldiv_loss(op: Op, types: Types) -> Types:
    require_alike(types, "Target", "X")
    x = one(types, "X")
    return {"Loss": (TensorType(x.dtype, x.shape if text(op, "reduction") == "none" else (1,)),)}


@shape_rule("nll_loss")
def _nll_loss(op: Op, types: Types) -> Types:
    x, label, weight = one(types, "X"), one(types, "Label"), given(types, "Weight")
    if len(x.shape) not in (2, 4):
        raise ShapeError(f"X has {len(x.shape)} dims, not 2 or 4", "X")
    per_row = (x.shape[0], *x.shape[2:])
    if not fits(label.shape, per_row):
        disagree("Label", label, "X", x)
    if weight is not None and not fits(weight.shape, x.shape[1:2]):
        disagree("Weight", weight, "X", x)
    number = TensorType(x.dtype, (1,))
    return {
        "Out": (TensorType(x.dtype, per_row) if text(op, "reduction") == "none" else number,),
        "Total_weight": (number,),
    }


@shape_rule("center_loss")
def _center_loss(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    centers = types.get("Centers", ())
    return {
        "CentersOut": centers,
        "SampleCenterDiff": (x._replace(lod_level=0),),
        "Loss": (TensorType(x.dtype, (x.shape[0], 1), x.lod_level),),
    }
