"""Losses of each row."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, text
from pstranspile.ops.facts import Below
from pstranspile.ops.schema import (
    BOOL,
    FLOAT,
    INT,
    UNSCOPED,
    bounded,
    declare,
    declare_gradient,
    dim_of,
    ints,
    long,
    longs,
    strings,
    words,
)
from pstranspile.ops.shapes import (
    Dims,
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    one,
    one_or_none,
    outputs_like,
    require_alike,
    results_like,
    shape_rule,
)
from pstranspile.ops.work import elements, work_rule

declare(
    "cross_entropy",
    "X Label -> Y",
    {"soft_label": False, "ignore_index": -100},
    domains={"Label": Below("X", -1)},
    typed_by="X",
    doc="Y = -log(X at the label), or -sum(Label * log(X)) with soft labels",
)
declare_gradient("cross_entropy", "X Label Y@GRAD -> X@GRAD")
declare(
    "cross_entropy2",
    "X Label -> Y XShape MatchX",
    {"ignore_index": -100},
    domains={"Label": Below("X", -1)},
    typed_by="X",
    doc="Y = -log(MatchX), MatchX = X at the label",
)
declare_gradient("cross_entropy2", "Label XShape MatchX Y@GRAD -> X@GRAD", op_type="cross_entropy_grad2")
declare(
    "softmax_with_cross_entropy",
    "Logits Label -> Softmax~ Loss",
    {"soft_label": False, "numeric_stable_mode": True, "ignore_index": -100, "axis": dim_of(-1, "Logits")},
    domains={"Label": Below("Logits", -1)},
    doc="Loss = the cross entropy of Softmax = softmax(Logits) along `axis`",
)
declare_gradient("softmax_with_cross_entropy", "Label Softmax Loss@GRAD -> Logits@GRAD", result_lod="none")
declare(
    "sigmoid_cross_entropy_with_logits",
    "X Label -> Out",
    {"normalize": False, "ignore_index": -100},
    domains={"Label": "binary"},
    doc="Out = the cross entropy of sigmoid(X) with Label, element by element",
)
declare_gradient("sigmoid_cross_entropy_with_logits", "X Label Out@GRAD -> X@GRAD", result_lod="none")
declare(
    "log_loss",
    "Predicted Labels -> Loss",
    {"epsilon": FLOAT},
    domains={"Labels": "binary"},
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
    """Raises ShapeError unless the labels have the leading dims of X, with or without a last dim of size 1."""
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


# Losses of single elements: against a binary label, or by the order of two scores.

declare(
    "bce_loss",
    "X Label -> Out",
    domains={"Label": "binary"},
    doc="Out = the binary cross entropy of the probabilities X with Label, element by element",
)
declare_gradient("bce_loss", "X Label Out@GRAD -> X@GRAD", UNSCOPED)
declare(
    "hinge_loss",
    "Logits Labels -> Loss",
    domains={"Labels": "binary"},
    doc="Loss = max(0, 1 - Logits * (2 * Labels - 1))",
)
declare_gradient("hinge_loss", "Logits Labels Loss@GRAD -> Logits@GRAD")
declare(
    "modified_huber_loss",
    "X Y -> IntermediateVal~ Out",
    domains={"Y": "binary"},
    doc="Out = max(0, 1 - v)^2 where v >= -1, else -4 * v; v = X * (2 * Y - 1)",
)
declare_gradient("modified_huber_loss", "Y IntermediateVal Out@GRAD -> X@GRAD")
declare(
    "margin_rank_loss",
    "X1 X2 Label -> Activated~ Out",
    {"margin": 0.0},
    domains={"Label": "binary"},
    doc="Out = max(0, margin - Label * (X1 - X2))",
)
declare_gradient("margin_rank_loss", "Label Activated Out@GRAD -> X1@GRAD X2@GRAD", result_lod="none")
declare(
    "rank_loss",
    "Label Left Right -> Out",
    domains={"Label": "binary"},
    doc="Out = the cross entropy of sigmoid(Left - Right) with Label",
)
declare_gradient("rank_loss", "Label Left Right Out@GRAD -> Left@GRAD Right@GRAD", result_lod="none")
declare(
    "sigmoid_focal_loss",
    "X Label FgNum -> Out",
    {"gamma": 2.0, "alpha": 0.25},
    domains={"Label": Below("X", -1)},
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
    """Whether the dims of scores and labels fit, or one is [rows] and the other [rows, 1]."""
    if len(scores) == len(labels):
        return fits(scores, labels)
    return {len(scores), len(labels)} == {1, 2} and fits((*scores, 1)[:2], (*labels, 1)[:2])


@shape_rule("rank_loss")
def _rank_loss(_op: Op, types: Types) -> Types:
    label = one(types, "Label")
    for slot in ("Left", "Right"):
        score = one_or_none(types, slot)
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


# Losses of rows and of whole tensors, and the smoothing of labels.

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
declare_gradient("smooth_l1_loss", "InsideWeight? OutsideWeight? Diff Out@GRAD -> X@GRAD Y@GRAD", result_lod="none")
declare(
    "bpr_loss",
    "X Label -> Y",
    domains={"Label": Below("X", -1)},
    doc="Y = Bayesian personalised ranking: the label's score against those of all other classes",
)
declare_gradient("bpr_loss", "X Label Y@GRAD -> X@GRAD")
declare(
    "kldiv_loss",
    "X Target -> Loss",
    {"reduction": words("mean", "sum", "batchmean", "none")},
    doc="Loss = Target * (log(Target) - X), reduced as asked",
)
declare_gradient("kldiv_loss", "X Target Loss@GRAD -> X@GRAD", result_lod="none")
declare(
    "nll_loss",
    "X Label Weight? -> Out Total_weight",
    {"ignore_index": long(-100), "reduction": words("mean", "sum", "none")},
    domains={"Label": Below("X", 1)},
    doc="Out = -Weight * X at the label, reduced as asked",
)
declare_gradient("nll_loss", "X Label Weight? Total_weight Out@GRAD -> X@GRAD")
declare(
    "center_loss",
    "X Label Centers CenterUpdateRate -> CentersOut SampleCenterDiff Loss",
    {"cluster_num": bounded(INT, 1), "need_update": BOOL},
    domains={"Label": Below("cluster_num")},
    doc="Loss = half the squared distance of X to the centre of its class",
)
declare_gradient("center_loss", "X SampleCenterDiff Loss@GRAD -> X@GRAD")


@shape_rule("label_smooth")
def _label_smooth(_op: Op, types: Types) -> Types:
    x, prior = one(types, "X"), one_or_none(types, "PriorDist")
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
    x, label, weight = one(types, "X"), one(types, "Label"), one_or_none(types, "Weight")
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


# Losses over a few of many classes.

_TABLES = {
    "remote_prefetch": False,
    "trainer_id": 0,
    "height_sections": longs(),
    "epmap": strings(),
    "table_names": strings(),
}

declare(
    "nce",
    "Input Label Weight Bias? SampleWeight? CustomDistProbs? CustomDistAlias? CustomDistAliasProbs? -> "
    "Cost SampleLogits~ SampleLabels~",
    {
        "num_total_classes": bounded(INT, 1),
        "num_neg_samples": 10,
        "sampler": bounded(0, 0, 2),
        "seed": 0,
        "is_sparse": False,
        "custom_neg_classes": ints(),
        **_TABLES,
    },
    looks_up="Weight",
    domains={"Label": Below("num_total_classes")},
    draws=True,
    doc="Cost = noise contrastive estimation of Label against sampled classes",
)
declare_gradient(
    "nce",
    "Input Label Weight Bias? SampleWeight? CustomDistProbs? CustomDistAlias? CustomDistAliasProbs? "
    "SampleLogits SampleLabels Cost@GRAD -> Input@GRAD Weight@GRAD Bias@GRAD?",
    sparse_gradient="Weight@GRAD",
)
declare(
    "hierarchical_sigmoid",
    "X W Label PathTable? PathCode? Bias? -> Out PreOut~ W_Out~",
    {"num_classes": bounded(2, 2), "is_sparse": False, **_TABLES},
    looks_up="W",
    domains={"Label": Below("num_classes"), "PathTable": Below("W", 0, ends=True), "PathCode": "binary"},
    doc="Out = the sum of binary losses along the label's path in a tree of classes",
)
declare_gradient(
    "hierarchical_sigmoid",
    "X W Label PathTable? PathCode? Bias? PreOut Out@GRAD -> X@GRAD W@GRAD Bias@GRAD?",
    sparse_gradient="W@GRAD",
)


@shape_rule("nce")
def _nce(op: Op, types: Types) -> Types:
    x, label = one(types, "Input"), one(types, "Label")
    width = x.shape[1:]
    weight = one_or_none(types, "Weight")
    if weight is not None and not fits(width, weight.shape[1:]):
        disagree("Weight", weight, "Input", x)
    true_classes = label.shape[1] if len(label.shape) == 2 else 1
    samples = int_attr(op, "num_neg_samples") + true_classes if true_classes >= 0 else -1
    return {
        "Cost": (TensorType(x.dtype, (x.shape[0], 1)),),
        "SampleLogits": (TensorType(x.dtype, (x.shape[0], samples)),),
        "SampleLabels": (TensorType(label.dtype, (x.shape[0], samples)),),
    }


@shape_rule("hierarchical_sigmoid")
def _hierarchical_sigmoid(_op: Op, types: Types) -> Types:
    x, weight = one(types, "X"), one_or_none(types, "W")
    if weight is not None and not fits(x.shape[1:], weight.shape[1:]):
        disagree("W", weight, "X", x)
    return {"Out": (TensorType(x.dtype, (x.shape[0], 1)),)}


# The work of losses that take the softmax of a row: a maximum, a difference, `exp`, a sum, and a logarithm for each
# element.

_SOFTMAX = 5.0
"""The operations on each element of a row whose softmax is taken."""


@work_rule("softmax_with_cross_entropy", factors="Logits", family="passes")
def _softmax_loss_work(_op: Op, types: Types) -> float:
    return _SOFTMAX * elements(types, "Logits" if "Logits" in types else "Softmax")
