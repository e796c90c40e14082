"""Normalisation of batches and layers."""

from __future__ import annotations

from math import prod

from pstranspile.ir.model import FrozenMap, Op, TensorType
from pstranspile.ops.attributes import int_attr, text
from pstranspile.ops.gradient import WantedGradients, from_declaration, gradient
from pstranspile.ops.schema import INT, bounded, declare, declare_gradient, dim_of, later, words
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    one,
    one_or_none,
    outputs_like,
    shape_rule,
    size,
)

_BATCH = "X Scale Bias Mean Variance MomentumTensor? -> Y MeanOut VarianceOut SavedMean~ SavedVariance~ ReserveSpace?"
_BATCH_ATTRS = {
    "is_test": False,
    "momentum": 0.9,
    "epsilon": bounded(1e-05, 0),
    "data_layout": words("NCHW", "NHWC", "AnyLayout"),
    "use_mkldnn": False,
    "fuse_with_relu": False,
    "use_global_stats": False,
    "trainable_statistics": False,
}
declare(
    "batch_norm",
    _BATCH,
    {**_BATCH_ATTRS, "sample_variance": later("bool")},
    typed_by="X",
    doc="Y = (X - mean) / std * Scale + Bias for each channel; MeanOut and VarianceOut are running statistics; with "
    "sample_variance, as in PyTorch, the variance that is kept is n / (n - 1) times that of the n elements",
)
declare_gradient(
    "batch_norm",
    "X Scale Bias SavedMean SavedVariance ReserveSpace- Mean- Variance- Y@GRAD -> X@GRAD Scale@GRAD Bias@GRAD",
    result_lod="none",
)
declare(
    "inplace_abn",
    _BATCH,
    {**_BATCH_ATTRS, "activation": words("", "identity", "leaky_relu", "elu"), "alpha": 0.1, "use_sync_bn": False},
    typed_by="X",
    doc="Y = the activation of what batch_norm gives, in the memory of X (arXiv 1712.02616)",
)
declare_gradient(
    "inplace_abn",
    "Y Y@GRAD Scale Bias SavedMean SavedVariance Mean- Variance- -> X@GRAD Scale@GRAD Bias@GRAD",
)
declare(
    "layer_norm",
    "X Scale? Bias? -> Y Mean~ Variance~",
    {"epsilon": bounded(1e-05, 0), "begin_norm_axis": dim_of(1, "X", 0)},
    doc="Y = (X - mean) / std * Scale + Bias over the dims from begin_norm_axis on",
)
declare_gradient(
    "layer_norm", "X Scale? Bias? Mean Variance Y@GRAD -> X@GRAD Scale@GRAD? Bias@GRAD?", result_lod="none"
)


@shape_rule("batch_norm", "inplace_abn")
def _batch_norm(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) < 2:
        raise ShapeError(f"X is {describe(x)}, it must have two dims at least", "X")
    channels = x.shape[1 if op.attrs.get("data_layout") == "NCHW" else -1]
    for slot in ("Scale", "Bias", "Mean", "Variance"):
        tensor = one_or_none(types, slot)
        if tensor is not None and not fits(tensor.shape, (channels,)):
            disagree(slot, tensor, "X", x)
    statistic = (one_or_none(types, "Mean") or TensorType(x.dtype, (channels,)),)
    return {
        "Y": (x,),
        "MeanOut": statistic,
        "VarianceOut": statistic,
        "SavedMean": statistic,
        "SavedVariance": statistic,
    }


@shape_rule("layer_norm")
def _layer_norm(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axis = int_attr(op, "begin_norm_axis")
    columns = size(x.shape[axis:])
    for slot in ("Scale", "Bias"):
        tensor = one_or_none(types, slot)
        if tensor is not None and not fits(tensor.shape, (columns,)):
            disagree(slot, tensor, "X", x)
    statistic = (TensorType(x.dtype, (prod(x.shape[:axis]),)),)  # below 0 if a dim is unknown, as in Fluid
    return {"Y": (x,), "Mean": statistic, "Variance": statistic}


def _global_statistics(op: Op) -> bool:
    return op.attrs.get("use_global_stats") is True


def _has_reserve_space(op: Op) -> bool:
    return bool(op.outputs.get("ReserveSpace"))


gradient("batch_norm")(
    from_declaration(
        "batch_norm_grad", ReserveSpace=_has_reserve_space, Mean=_global_statistics, Variance=_global_statistics
    )
)


@gradient("inplace_abn")
def _inplace_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    """The declared gradient op. It reads the running statistics that the op has written if the op uses these."""
    made = from_declaration("inplace_abn_grad")(op, wanted)[0]
    if _global_statistics(op):
        used = {"Mean": op.outputs["MeanOut"], "Variance": op.outputs["VarianceOut"]}
        made = made._replace(inputs=FrozenMap({**made.inputs, **used}))
    return (made,)


@shape_rule("inplace_abn_grad")
def _inplace_gradient_types(_op: Op, types: Types) -> Types:
    return {"X@GRAD": types.get("Y", ()), **{f"{slot}@GRAD": types.get(slot, ()) for slot in ("Scale", "Bias")}}


# Normalisation of groups of channels, of instances and of weights.

declare(
    "affine_channel",
    "X Scale Bias -> Out",
    {"data_layout": words("AnyLayout", "NCHW", "NHWC")},
    doc="Out = X * Scale + Bias for each channel",
)
declare_gradient("affine_channel", "X Scale Out@GRAD -> X@GRAD Scale@GRAD Bias@GRAD")
declare(
    "lrn",
    "X -> Out MidOut",
    {
        "n": bounded(5, 1),
        "k": bounded(2.0, above=0),
        "alpha": bounded(0.0001, above=0),
        "beta": bounded(0.75, above=0),
        "use_mkldnn": False,
        "data_format": words("AnyLayout", "NCHW", "NHWC"),
        "is_test": False,
    },
    doc="Out = X divided by the local energy over neighbouring channels",
)
declare_gradient("lrn", "X Out MidOut Out@GRAD -> X@GRAD", result_lod="none")
declare(
    "group_norm",
    "X Scale? Bias? -> Y Mean~ Variance~",
    {"epsilon": bounded(1e-05, 0), "groups": bounded(INT, 1), "data_layout": words("NCHW", "NHWC", "AnyLayout")},
    typed_by="X",
    doc="Y = X normalised over groups of channels",
)
declare_gradient("group_norm", "Scale? Bias? Y Variance Y@GRAD -> X@GRAD Scale@GRAD? Bias@GRAD?", result_lod="none")
declare(
    "instance_norm",
    "X Scale Bias -> Y SavedMean~ SavedVariance~",
    {"epsilon": bounded(1e-05, 0)},
    typed_by="X",
    doc="Y = X normalised over each channel of each image",
)
declare_gradient(
    "instance_norm", "X Scale SavedMean SavedVariance Y@GRAD -> X@GRAD Scale@GRAD Bias@GRAD", result_lod="none"
)
declare(
    "spectral_norm",
    "Weight U V -> Out",
    {"dim": 0, "power_iters": bounded(1, 0, 100_000), "eps": 1e-12},
    doc="Out = Weight divided by its largest singular value",
)
declare_gradient("spectral_norm", "Weight U V Out@GRAD -> Weight@GRAD")


# Shape rules


def require_vectors(types: Types, slots: tuple[str, ...], length: int, x: TensorType) -> None:
    """Raises ShapeError unless each of the slots that is not empty is a vector of this length."""
    for slot in slots:
        tensor = one_or_none(types, slot)
        if tensor is not None and not fits(tensor.shape, (length,)):
            disagree(slot, tensor, "X", x)


@shape_rule("group_norm")
def _group_norm(op: Op, types: Types) -> Types:
    x, groups = one(types, "X"), int_attr(op, "groups")
    channels = x.shape[1 if text(op, "data_layout") == "NCHW" else -1]
    if groups < 1 or (channels >= 0 and channels % groups):
        raise ShapeError(f"X is {describe(x)}, whose {channels} channels can't be cut into {groups} groups", "X")
    require_vectors(types, ("Scale", "Bias"), channels, x)
    statistic = (TensorType(x.dtype, (x.shape[0], groups)),)
    return {"Y": (x,), "Mean": statistic, "Variance": statistic}


@shape_rule("instance_norm")
def _instance_norm(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) < 2:
        raise ShapeError(f"X is {describe(x)}, it must have images and channels", "X")
    require_vectors(types, ("Scale", "Bias"), x.shape[1], x)
    statistic = (TensorType(x.dtype, (prod(x.shape[:2]),)),)  # below 0 if a dim is unknown, as in Fluid
    return {"Y": (x,), "SavedMean": statistic, "SavedVariance": statistic}


@shape_rule("lrn")
def _lrn(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (x,), "MidOut": (x._replace(lod_level=0),)}


shape_rule("spectral_norm")(outputs_like(Out="Weight"))


@shape_rule("affine_channel")
def _affine_channel(op: Op, types: Types) -> Types:
    x = one(types, "X")
    require_vectors(types, ("Scale", "Bias"), x.shape[channel_axis(op, len(x.shape))], x)
    return {"Out": (x,)}


def channel_axis(op: Op, rank: int) -> int:
    """The index of the channels' dim: 1, or the last for NHWC. (`affine_channel` takes no layout for NHWC.)"""
    last = text(op, "data_layout") in ("NHWC", "AnyLayout") or text(op, "data_format") == "NHWC"
    return rank - 1 if last else 1
