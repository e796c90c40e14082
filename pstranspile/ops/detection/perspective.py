"""Quadrilaterals of feature maps brought to one size."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr, real
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, fits, one, shape_rule

declare(
    "roi_perspective_transform",
    "X ROIs -> Out Mask TransformMatrix Out2InIdx~ Out2InWeights~",
    {"spatial_scale": 1.0, "transformed_height": 1, "transformed_width": 1},
    doc="Out = quadrilaterals of X seen as rectangles; Mask = 1 inside; TransformMatrix = how places are moved",
)
declare_gradient(
    "roi_perspective_transform", "X ROIs Out2InIdx Out2InWeights Out@GRAD -> X@GRAD", may_lack="Out2InIdx Out2InWeights"
)


@shape_rule("roi_perspective_transform")
def _roi_perspective_transform(op: Op, types: Types) -> Types:
    x, rois = one(types, "X"), one(types, "ROIs")
    size = int_attr(op, "transformed_height", 1), int_attr(op, "transformed_width", 1)
    if len(x.shape) != 4:
        raise ShapeError(f"X is {describe(x)}, it must have 4 dims", "X")
    if len(rois.shape) != 2 or not fits(rois.shape[1:], (8,)):
        raise ShapeError(f"ROIs is {describe(rois)}, it must be rows of 4 corners, each x and y", "ROIs")
    if min(size) < 1 or real(op, "spatial_scale") <= 0:
        raise ShapeError("transformed_height, transformed_width and spatial_scale must be positive", "X")
    out = TensorType(x.dtype, (rois.shape[0], x.shape[1], *size), rois.lod_level)
    return {
        "Out": (out,),
        "Mask": (TensorType(DType.INT32, (rois.shape[0], 1, *size)),),
        "TransformMatrix": (TensorType(x.dtype, (rois.shape[0], 9)),),
        "Out2InIdx": (TensorType(DType.INT32, out.shape),),
        "Out2InWeights": (TensorType(x.dtype, out.shape),),
    }
