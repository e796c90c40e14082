"""Normalisation of groups of channels, of instances and of weights."""

from __future__ import annotations

from math import prod

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, text
from pstranspile.ops.schema import INT, declare, declare_gradient
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    given,
    one,
    outputs_like,
    shape_rule,
)

declare(
    "affine_channel", "X Scale Bias -> Out", {"data_layout": "AnyLayout"}, doc="Out = X * Scale + Bias for each channel"
)
declare_gradient("affine_channel", "X Scale Out@GRAD -> X@GRAD Scale@GRAD Bias@GRAD")
declare(
    "lrn",
    "X -> Out MidOut",
    {
        "n": 5,
        "k": 2.0,
        "alpha": 0.0001,
        "beta": 0.75,
        "use_mkldnn": False,
        "data_format": "AnyLayout",
        "is_test": False,
    },
    doc="Out = X divided by the local energy over neighbouring channels",
)
declare_gradient("lrn", "X Out MidOut Out@GRAD -> X@GRAD")
declare(
    "group_norm",
    "X Scale? Bias? -> Y Mean~ Variance~",
    {"epsilon": 1e-05, "groups": INT, "data_layout": "NCHW"},
    doc="Y = X normalised over groups of channels",
)
declare_gradient("group_norm", "Scale? Bias? Y Variance Y@GRAD -> X@GRAD Scale@GRAD? Bias@GRAD?")
declare(
    "instance_norm",
    "X Scale Bias -> Y SavedMean~ SavedVariance~",
    {"epsilon": 1e-05},
    doc="Y = X normalised over each channel of each image",
)
declare_gradient("instance_norm", "X Scale SavedMean SavedVariance Y@GRAD -> X@GRAD Scale@GRAD Bias@GRAD")
declare(
    "spectral_norm",
    "Weight U V -> Out",
    {"dim": 0, "power_iters": 1, "eps": 1e-12},
    doc="Out = Weight divided by its largest singular value",
)
declare_gradient("spectral_norm", "Weight U V Out@GRAD -> Weight@GRAD")


# Shape rules


def require_vectors(types: Types, slots: tuple[str, ...], length: int, x: TensorType) -> None:
    """Raises ShapeError unless each of the slots that is there is a vector of this length."""
    for slot in slots:
        tensor = given(types, slot)
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
    statistic = (TensorType(x.dtype, (prod(x.shape[:2]),)),)  # below 0 for unknown ones, as in Fluid
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
    """Where the channels are: in dim 1, but last for NHWC. (`affine_channel` takes no layout for NHWC.)"""
    last = text(op, "data_layout") in ("NHWC", "AnyLayout") or text(op, "data_format") == "NHWC"
    return rank - 1 if last else 1
