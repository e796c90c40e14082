"""Ops that move, regroup and compare the channels of images."""

from __future__ import annotations

from math import isinf

from pstranspile.ir.attributes import float32
from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, real, text
from pstranspile.ops.schema import INT, INTS, bounded, declare, declare_gradient, dim_of, ints, later, long, words
from pstranspile.ops.shapes import (
    Dims,
    ShapeError,
    Types,
    describe,
    disagree,
    gradient_types,
    one,
    outputs_like,
    shape_rule,
)

declare(
    "prelu",
    "X Alpha -> Out",
    {"mode": words("all", "channel", "element")},
    doc="Out = X where X > 0, else Alpha * X; one Alpha for all, for each channel or for each element",
)
declare_gradient("prelu", "X Alpha Out@GRAD -> X@GRAD Alpha@GRAD", result_lod="none")

declare(
    "maxout", "X -> Out", {"groups": INT, "axis": dim_of(1, "X")}, doc="Out = the largest of each group of channels"
)
declare_gradient("maxout", "X Out Out@GRAD -> X@GRAD", result_lod="none")

shape_rule("prelu")(outputs_like(Out="X"))

declare(
    "pixel_shuffle", "X -> Out", {"upscale_factor": bounded(1, 1)}, doc="Out = X with channels moved into larger images"
)
declare_gradient("pixel_shuffle", "Out@GRAD -> X@GRAD")
declare("shuffle_channel", "X -> Out", {"group": 1}, doc="Out = X with channels of groups interleaved")
declare_gradient("shuffle_channel", "Out@GRAD -> X@GRAD")
declare("space_to_depth", "X -> Out", {"blocksize": long(2)}, doc="Out = X with squares moved into channels")
declare_gradient("space_to_depth", "X Out@GRAD -> X@GRAD", result_lod="none")
declare(
    "temporal_shift",
    "X -> Out",
    {"seg_num": INT, "shift_ratio": bounded(0.25, 0, 0.5)},
    doc="Out = X with part of its channels shifted in time",
)
declare_gradient("temporal_shift", "Out@GRAD -> X@GRAD")


# Shape rules


def _images(types: Types, slot: str = "X") -> TensorType:
    x = one(types, slot)
    if len(x.shape) != 4:
        raise ShapeError(f"{slot} is {describe(x)}, images have four dims", slot)
    return x


def _times(dim: int, factor: int) -> int:
    return -1 if dim < 0 else dim * factor


def _part(dim: int, of: int, x: TensorType, what: str) -> int:
    """A dim divided by `of`. Raises ShapeError if it is not a multiple of `of`."""
    if of < 1 or (dim >= 0 and dim % of):
        raise ShapeError(f"X is {describe(x)}, where {dim} is not a multiple of {of}, {what}", "X")
    return -1 if dim < 0 else dim // of


@shape_rule("pixel_shuffle")
def _pixel_shuffle(op: Op, types: Types) -> Types:
    x, factor = _images(types), int_attr(op, "upscale_factor")
    channels = _part(x.shape[1], factor * factor, x, "upscale_factor squared")
    dims = (x.shape[0], channels, _times(x.shape[2], factor), _times(x.shape[3], factor))
    return {"Out": (TensorType(x.dtype, dims),)}


@shape_rule("pixel_shuffle_grad")
def _pixel_shuffle_grad_types(op: Op, types: Types) -> Types:
    out, factor = _images(types, "Out@GRAD"), int_attr(op, "upscale_factor")
    batch, channels, height, width = out.shape
    dims = (batch, _times(channels, factor * factor), *(-1 if dim < 0 else dim // factor for dim in (height, width)))
    return {"X@GRAD": (out._replace(shape=dims),)}


@shape_rule("shuffle_channel")
def _shuffle_channel(op: Op, types: Types) -> Types:
    x = _images(types)
    _part(x.shape[1], int_attr(op, "group"), x, "group")
    return {"Out": (x._replace(lod_level=0),)}


@shape_rule("shuffle_channel_grad", "temporal_shift_grad")
def _as_they_come(_op: Op, types: Types) -> Types:
    return {"X@GRAD": (_images(types, "Out@GRAD"),)}


@shape_rule("temporal_shift")
def _temporal_shift(op: Op, types: Types) -> Types:
    x = _images(types)
    _part(x.shape[0], int_attr(op, "seg_num"), x, "seg_num")
    return {"Out": (x,)}


@shape_rule("space_to_depth")
def _space_to_depth(op: Op, types: Types) -> Types:
    x, size = _images(types), int_attr(op, "blocksize")
    height, width = (_part(dim, size, x, "blocksize") for dim in x.shape[2:])
    _part(x.shape[1], size * size, x, "blocksize squared")
    return {"Out": (x._replace(shape=(x.shape[0], _times(x.shape[1], size * size), height, width)),)}


@shape_rule("maxout")
def _maxout(op: Op, types: Types) -> Types:
    x = _images(types)
    axis = int_attr(op, "axis", 1) % 4
    channels = _part(x.shape[axis], int_attr(op, "groups"), x, "groups")
    return {"Out": (TensorType(x.dtype, (*x.shape[:axis], channels, *x.shape[axis + 1 :])),)}


shape_rule("maxout_grad", "space_to_depth_grad", "prelu_grad")(gradient_types)

declare(
    "similarity_focus",
    "X -> Out",
    {"axis": INT, "indexes": INTS},
    doc="Out = 1 along `axis` where a chosen slice has the largest elements, one for each row and column; 0 elsewhere",
)


@shape_rule("similarity_focus")
def _similarity_focus(op: Op, types: Types) -> Types:
    x, axis = one(types, "X"), int_attr(op, "axis")
    if len(x.shape) != 4:
        raise ShapeError(f"X is {describe(x)}, it must have 4 dims", "X")
    if axis not in (1, 2, 3):
        raise ShapeError(f"axis is {axis}, not 1, 2 or 3", "X")
    return {"Out": (x,)}


# Images scaled to other sizes, and sampled at points.

_RESIZE = {
    "data_layout": words("NCHW", "NHWC", "NCDHW", "NDHWC", "AnyLayout"),
    "out_d": 0,
    "out_h": 0,
    "out_w": 0,
    "scale": 0.0,
    "interp_method": words("bilinear", "nearest", "bicubic", "trilinear"),
    "align_corners": True,
    "align_mode": 1,
    "by_scale": later("bool"),
    "ratio_d": bounded(later("float"), above=0, finite=True),
    "ratio_h": bounded(later("float"), above=0, finite=True),
    "ratio_w": bounded(later("float"), above=0, finite=True),
}
"""The attributes of ops that resize images. `by_scale`: positions follow from the given scale, not from the quotient of
the sizes. `ratio_d` and the others: the distance in X of neighbouring elements of the result, from which positions
follow in double precision, except those of the nearest elements.
"""


def _declare_resize(op_type: str, how: str) -> None:
    inputs = "X OutSize? SizeTensor*? Scale?"
    declare(op_type, f"{inputs} -> Out", _RESIZE, doc=f"Out = X scaled to another size, {how}")
    declare_gradient(op_type, f"{inputs} Out@GRAD -> X@GRAD", result_lod="none")


_declare_resize("bilinear_interp", "bilinearly")
_declare_resize("nearest_interp", "by the nearest element")
_declare_resize("bicubic_interp", "bicubically")
_declare_resize("trilinear_interp", "trilinearly")
declare("grid_sampler", "X Grid -> Output", {"use_cudnn": True}, doc="Output = X at the points of Grid")
declare_gradient("grid_sampler", "X Grid Output@GRAD -> X@GRAD Grid@GRAD")
declare(
    "affine_grid",
    "Theta OutputShape? -> Output",
    {"use_cudnn": True, "output_shape": ints()},
    doc="Output = a grid of points, moved by Theta",
)
declare_gradient("affine_grid", "OutputShape? Output@GRAD -> Theta@GRAD")

SIZES = ("out_d", "out_h", "out_w")
"""The attributes that hold the dims of the result: depth, height and width; for images, the last two."""

RATIOS = ("ratio_d", "ratio_h", "ratio_w")
"""The attributes that hold distances in X, in the order of `SIZES`."""


def scaled_dim(dim: int, scale: float) -> int:
    """A dim times the scale, as Fluid rounds it: the product is a float32."""
    return int(float32(float32(dim) * float32(scale)))


@shape_rule("bilinear_interp", "nearest_interp", "bicubic_interp", "trilinear_interp")
def _interpolate(op: Op, types: Types) -> Types:
    x = one(types, "X")
    rank = 3 if op.type == "trilinear_interp" else 2
    if len(x.shape) != rank + 2:
        raise ShapeError(f"X is {describe(x)}, {op.type} takes {rank + 2} dims", "X")
    last = text(op, "data_layout") == "NHWC"
    dims = x.shape[1:-1] if last else x.shape[2:]
    if any(slot in types for slot in ("OutSize", "SizeTensor", "Scale")):
        result: Dims = (-1,) * rank
    elif real(op, "scale") > 0:
        if isinf(real(op, "scale")):
            raise ShapeError("scale is inf, it must be finite", "X")
        result = tuple(-1 if dim < 0 else scaled_dim(dim, real(op, "scale")) for dim in dims)
    else:
        result = tuple(int_attr(op, name) for name in SIZES[-rank:])
    shape = (x.shape[0], *result, x.shape[-1]) if last else (*x.shape[:2], *result)
    return {"Out": (TensorType(x.dtype, shape),)}


@shape_rule("grid_sampler")
def _grid_sampler(_op: Op, types: Types) -> Types:
    x, grid = one(types, "X"), one(types, "Grid")
    if len(x.shape) != 4 or len(grid.shape) != 4 or grid.shape[3] not in (2, -1):
        disagree("Grid", grid, "X", x)
    return {"Output": (x._replace(shape=(*x.shape[:2], *grid.shape[1:3])),)}


@shape_rule("affine_grid")
def _affine_grid(_op: Op, types: Types) -> Types:
    theta = one(types, "Theta")
    if len(theta.shape) != 3 or theta.shape[1] not in (2, -1) or theta.shape[2] not in (3, -1):
        raise ShapeError(f"Theta is {describe(theta)}, not 2 rows of 3 for each image", "Theta")
    return {"Output": (TensorType(theta.dtype, (theta.shape[0], -1, -1, 2)),)}  # as Fluid declares it


@shape_rule("affine_grid_grad")
def _affine_grid_grad_types(_op: Op, types: Types) -> Types:
    gradient = one(types, "Output@GRAD")
    return {"Theta@GRAD": (TensorType(gradient.dtype, (gradient.shape[0], 2, 3)),)}
