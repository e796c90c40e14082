"""Images scaled to other sizes, and sampled at points."""

from __future__ import annotations

from pstranspile.ir.attributes import float32
from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, real, text
from pstranspile.ops.schema import declare, declare_gradient, ints, later
from pstranspile.ops.shapes import Dims, ShapeError, Types, describe, disagree, one, shape_rule

_RESIZE = {
    "data_layout": "NCHW",
    "out_d": 0,
    "out_h": 0,
    "out_w": 0,
    "scale": 0.0,
    "interp_method": "bilinear",
    "align_corners": True,
    "align_mode": 1,
    "by_scale": later("bool"),
}
"""`by_scale`: positions are those of the scale that is given, not of the quotient of the sizes."""


def _declare_resize(op_type: str, how: str) -> None:
    inputs = "X OutSize? SizeTensor*? Scale?"
    declare(op_type, f"{inputs} -> Out", _RESIZE, doc=f"Out = X scaled to another size, {how}")
    declare_gradient(op_type, f"{inputs} Out@GRAD -> X@GRAD")


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
"""The attributes that give the dims of the result; of images the last two."""


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
