"""Sampled classes: logits of a few classes, and nodes of a tree of items, level by level."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.schema import INT, declare, declare_gradient, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, dtype_attr, fits, one, shape_rule

declare(
    "tdm_child",
    "X TreeInfo -> Child LeafMask",
    {"child_nums": INT, "dtype": DType.INT32.value},
    doc="Child = the children of the nodes X of a tree, LeafMask = which of them are leaves",
)
declare(
    "tdm_sampler",
    "X Travel Layer -> Out Labels? Mask",
    {
        "output_positive": True,
        "neg_samples_num_list": ints(),
        "layer_offset_lod": ints(),
        "seed": 0,
        "dtype": DType.INT32.value,
    },
    doc="Out = of each level of a tree the node above the leaf X, and some others",
)


@shape_rule("tdm_child")
def _tdm_child(op: Op, types: Types) -> Types:
    x = one(types, "X")
    result = TensorType(dtype_attr(op), (*x.shape, int_attr(op, "child_nums")), x.lod_level)
    return {"Child": (result,), "LeafMask": (result,)}


@shape_rule("tdm_sampler")
def _tdm_sampler(op: Op, types: Types) -> Types:
    one(types, "X")
    counts = ints_attr(op, "neg_samples_num_list")
    result = (
        TensorType(dtype_attr(op), (-1, sum(counts) + len(counts) * bool(op.attrs.get("output_positive", True)))),
    )
    return {"Out": result, "Labels": result, "Mask": result}


declare(
    "sample_logits",
    "Logits Labels CustomizedSamples? CustomizedProbabilities? -> "
    "Samples~ Probabilities~ LogitsDim~ LabelsDim~ SampledLogits~ SampledLabels",
    {
        "use_customized_samples": False,
        "uniq": True,
        "remove_accidental_hits": True,
        "num_samples": INT,
        "seed": 0,
    },
    doc="SampledLogits = Logits at the labels and at sampled classes, less the logarithm of how likely those are",
)
declare_gradient("sample_logits", "LogitsDim LabelsDim Samples SampledLogits@GRAD -> Logits@GRAD")


@shape_rule("sample_logits")
def _sample_logits(op: Op, types: Types) -> Types:
    logits, labels = one(types, "Logits"), one(types, "Labels")
    if len(logits.shape) != 2 or len(labels.shape) != 2:
        raise ShapeError(f"Logits is {describe(logits)}, Labels {describe(labels)}; both must have 2 dims", "Labels")
    if not fits(labels.shape[:1], logits.shape[:1]):
        disagree("Labels", labels, "Logits", logits)
    count = int_attr(op, "num_samples") + labels.shape[1] if labels.shape[1] >= 0 else -1
    dims = (labels.shape[0], count)
    # Fluid's layer declares Probabilities as f32 whatever the logits are, and LabelsDim without an element type
    likely = TensorType(logits.dtype, dims) if logits.dtype is DType.FP32 else None
    return {
        "Samples": (TensorType(labels.dtype, dims),),
        "Probabilities": (likely,),
        "LogitsDim": (TensorType(logits.dtype, (*logits.shape, 0)),),
        "SampledLogits": (TensorType(logits.dtype, dims),),
        "SampledLabels": (TensorType(labels.dtype, labels.shape),),
    }


@shape_rule("sample_logits_grad")
def _sample_logits_grad(_op: Op, types: Types) -> Types:
    dims = one(types, "LogitsDim")
    return {"Logits@GRAD": (dims._replace(shape=dims.shape[:-1]),)}
