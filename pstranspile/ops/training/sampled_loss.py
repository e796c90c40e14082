"""Losses over a few of many classes."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.schema import INT, declare, declare_gradient, ints, longs, strings
from pstranspile.ops.shapes import Types, disagree, fits, given, one, shape_rule

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
        "num_total_classes": INT,
        "num_neg_samples": 10,
        "sampler": 0,
        "seed": 0,
        "is_sparse": False,
        "custom_neg_classes": ints(),
        **_TABLES,
    },
    doc="Cost = noise contrastive estimation of Label against sampled classes",
)
declare_gradient(
    "nce",
    "Input Label Weight Bias? SampleWeight? CustomDistProbs? CustomDistAlias? CustomDistAliasProbs? "
    "SampleLogits SampleLabels Cost@GRAD -> Input@GRAD Weight@GRAD Bias@GRAD?",
)
declare(
    "hierarchical_sigmoid",
    "X W Label PathTable? PathCode? Bias? -> Out PreOut~ W_Out~",
    {"num_classes": 2, "is_sparse": False, **_TABLES},
    doc="Out = the sum of binary losses along the label's path in a tree of classes",
)
declare_gradient(
    "hierarchical_sigmoid", "X W Label PathTable? PathCode? Bias? PreOut Out@GRAD -> X@GRAD W@GRAD Bias@GRAD?"
)


@shape_rule("nce")
def _nce(op: Op, types: Types) -> Types:
    x, label = one(types, "Input"), one(types, "Label")
    width = x.shape[1:]
    weight = given(types, "Weight")
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
    x, weight = one(types, "X"), given(types, "W")
    if weight is not None and not fits(x.shape[1:], weight.shape[1:]):
        disagree("W", weight, "X", x)
    return {"Out": (TensorType(x.dtype, (x.shape[0], 1)),)}
