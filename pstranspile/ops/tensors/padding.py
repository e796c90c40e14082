"""Tensors with their edges padded or cropped."""

from __future__ import annotations

from typing import TypeAlias

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import ints_attr, text
from pstranspile.ops.schema import INTS, declare, declare_gradient, ints
from pstranspile.ops.shapes import Dims, ShapeError, Types, describe, disagree, given, one, shape_rule

Padding: TypeAlias = "list[tuple[int, int]]"
"""The number of elements before and after each dim."""


# Shape rules


def pairs(paddings: Dims) -> Padding:
    """A flat list of numbers as pairs, before and after each dim."""
    return list(zip(paddings[::2], paddings[1::2], strict=True))


def _padded(dims: Dims, padding: Padding) -> Dims:
    return tuple(-1 if dim < 0 else before + dim + after for dim, (before, after) in zip(dims, padding, strict=True))


@shape_rule("pad")
def _pad(op: Op, types: Types) -> Types:
    x, paddings = one(types, "X"), ints_attr(op, "paddings")
    if len(paddings) != 2 * len(x.shape):
        raise ShapeError(f"paddings is {list(paddings)}, it needs two numbers for each dim of X, {describe(x)}", "X")
    return {"Out": (x._replace(shape=_padded(x.shape, pairs(paddings))),)}


@shape_rule("pad_grad")
def _pad_grad_types(op: Op, types: Types) -> Types:
    out, paddings = one(types, "Out@GRAD"), ints_attr(op, "paddings")
    less = [(-before, -after) for before, after in pairs(paddings)]
    return {"X@GRAD": (out._replace(shape=_padded(out.shape, less)),)}


@shape_rule("pad2d")
def _pad2d(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) != 4:
        raise ShapeError(f"X is {describe(x)}, images have four dims", "X")
    if "Paddings" in types:
        return {
            "Out": (x._replace(shape=(*x.shape[:2], -1, -1) if not _last(op) else (x.shape[0], -1, -1, x.shape[3])),)
        }
    return {"Out": (x._replace(shape=_padded(x.shape, image_padding(op, ints_attr(op, "paddings")))),)}


@shape_rule("pad_constant_like")
def _pad_constant_like(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    if len(x.shape) != len(y.shape) or any(0 <= big < small for big, small in zip(x.shape, y.shape, strict=True)):
        disagree("Y", y, "X", x)
    return {"Out": (x,)}


@shape_rule("crop", "crop_tensor")
def _crop(op: Op, types: Types) -> Types:
    x, shape = one(types, "X"), ints_attr(op, "shape")
    like = given(types, "Y")
    if like is not None:
        shape = like.shape
    if ("Shape" in types and "ShapeTensor" not in types) or not shape:
        shape = (-1,) * len(x.shape)
    elif op.type == "crop_tensor":  # 0 stands for a variable, -1 for what is left, where that is known
        first = ints_attr(op, "offsets") or (-1,) * len(x.shape)
        left = [dim - at if at >= 0 and dim >= 0 else -1 for dim, at in zip(x.shape, first, strict=False)]
        shape = tuple(rest if size == -1 else size or -1 for size, rest in zip(shape, left, strict=False))
    if len(shape) != len(x.shape):
        raise ShapeError(f"shape is {list(shape)}, but X is {describe(x)}", "X")
    for dim, size in zip(x.shape, shape, strict=True):
        if 0 <= dim < size:
            raise ShapeError(f"shape is {list(shape)}, which is more than X has, {describe(x)}", "X")
    return {"Out": (x._replace(shape=shape),)}


def _last(op: Op) -> bool:
    return text(op, "data_format") == "NHWC"


def image_padding(op: Op, paddings: Dims) -> Padding:
    """The padding of every dim of images; `paddings` are top, bottom, left, right."""
    if len(paddings) != 4:
        raise ValueError(f"paddings is {list(paddings)}, not top, bottom, left and right")
    spatial = pairs(paddings)
    return [(0, 0), *spatial, (0, 0)] if _last(op) else [(0, 0), (0, 0), *spatial]


declare("pad", "X -> Out", {"paddings": INTS, "pad_value": 0.0}, doc="Out = X with paddings of pad_value")
declare_gradient("pad", "Out@GRAD -> X@GRAD")
declare(
    "pad2d",
    "X Paddings? -> Out",
    {"paddings": INTS, "pad_value": 0.0, "mode": "constant", "data_format": "NCHW"},
    doc="Out = images X with their edges padded",
)
declare_gradient("pad2d", "X Paddings? Out@GRAD -> X@GRAD")
declare("pad_constant_like", "X Y -> Out", {"pad_value": 0.0}, doc="Out = Y padded to the dims of X")
declare_gradient("pad_constant_like", "Y Out@GRAD -> Y@GRAD")
declare(
    "crop",
    "X Y? Offsets? -> Out",
    {"offsets": ints(), "shape": ints()},
    doc="Out = X from `offsets` on, of the dims `shape` or those of Y",
)
declare_gradient("crop", "X Offsets? Out@GRAD -> X@GRAD")
declare(
    "crop_tensor",
    "X Shape? Offsets? ShapeTensor*? OffsetsTensor*? -> Out",
    {"offsets": ints(), "shape": ints()},
    doc="as crop, dims and offsets may come as tensors",
)
declare_gradient("crop_tensor", "X Offsets? OffsetsTensor*? Out@GRAD -> X@GRAD")
