"""Boxes: overlaps, codes relative to other boxes, and clipping.

A box is left, top, right, bottom. Boxes in pixels (`box_normalized` false) include both edges: a box from 2 to 4 is 3
wide.
"""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, reals_attr, text
from pstranspile.ops.schema import declare, floats
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, fits, given, one, shape_rule

declare(
    "iou_similarity",
    "X Y -> Out",
    {"box_normalized": True},
    doc="Out = for each box of X and of Y, their common area as a share of what they cover together",
)
declare(
    "box_coder",
    "PriorBox PriorBoxVar? TargetBox -> OutputBox",
    {"code_type": "encode_center_size", "box_normalized": True, "axis": 0, "variance": floats()},
    doc="OutputBox = TargetBox as distances from PriorBox in shares of its sides, or the other way round",
)
declare("box_clip", "Input ImInfo -> Output", doc="Output = Input, cut at the edges of the images")
declare(
    "polygon_box_transform",
    "Input -> Output",
    doc="Output = corners of polygons, from their distances to the places of a map a quarter of the image's size",
)
declare(
    "box_decoder_and_assign",
    "PriorBox PriorBoxVar? TargetBox BoxScore -> DecodeBox OutputAssignBox",
    {"box_clip": 4.135},
    doc="DecodeBox = for each class a box from distances to PriorBox; OutputAssignBox = that of the likeliest class",
)

ENCODE, DECODE = "encode_center_size", "decode_center_size"
"""What `code_type` of box_coder may be."""


def require_boxes(x: TensorType, slot: str) -> None:
    """Raises ShapeError unless a type is [boxes, 4]."""
    if len(x.shape) != 2 or x.shape[1] not in (4, -1):
        raise ShapeError(f"{slot} is {describe(x)}, boxes have the dims [boxes, 4]", slot)


@shape_rule("iou_similarity")
def _iou_similarity(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    require_boxes(x, "X")
    require_boxes(y, "Y")
    return {"Out": (x._replace(shape=(x.shape[0], y.shape[0])),)}


@shape_rule("box_coder")
def _box_coder(op: Op, types: Types) -> Types:
    prior, target, kind = one(types, "PriorBox"), one(types, "TargetBox"), text(op, "code_type")
    require_boxes(prior, "PriorBox")
    variances = given(types, "PriorBoxVar")
    if variances is not None and not fits(variances.shape, prior.shape):
        disagree("PriorBoxVar", variances, "PriorBox", prior)
    if len(reals_attr(op, "variance")) not in (0, 4):
        raise ShapeError("variance must be four numbers", "PriorBox")
    if kind == ENCODE:
        require_boxes(target, "TargetBox")
        return {"OutputBox": (TensorType(target.dtype, (target.shape[0], prior.shape[0], 4), target.lod_level),)}
    if kind != DECODE:
        raise ShapeError(f"code_type is {kind!r}, it must be {ENCODE!r} or {DECODE!r}", "PriorBox")
    axis = int_attr(op, "axis")
    if axis not in (0, 1):
        raise ShapeError(f"axis is {axis}, it must be 0 or 1", "PriorBox")
    if len(target.shape) != 3 or target.shape[2] not in (4, -1):
        disagree("TargetBox", target, "PriorBox", prior)
    like = prior if axis else target
    # as in Fluid, the number of boxes is checked at run time
    return {"OutputBox": (target._replace(lod_level=like.lod_level),)}


@shape_rule("box_clip")
def _box_clip(_op: Op, types: Types) -> Types:
    x, info = one(types, "Input"), one(types, "ImInfo")
    if x.shape[-1] not in (4, -1):
        raise ShapeError(f"Input is {describe(x)}, the last dim of boxes is 4", "Input")
    require_image_info(info)
    return {"Output": (x,)}


def require_image_info(info: TensorType) -> None:
    """Raises ShapeError unless a type is [images, 3]: height, width and scale."""
    if len(info.shape) != 2 or info.shape[1] not in (3, -1):
        raise ShapeError(f"ImInfo is {describe(info)}, it must have height, width and scale of each image", "ImInfo")


@shape_rule("polygon_box_transform")
def _polygon_box_transform(_op: Op, types: Types) -> Types:
    x = one(types, "Input")
    if len(x.shape) != 4 or (x.shape[1] % 2 and x.shape[1] > 0):
        raise ShapeError(f"Input is {describe(x)}, it must have 4 dims and an even number of channels", "Input")
    return {"Output": (x,)}


@shape_rule("box_decoder_and_assign")
def _box_decoder_and_assign(_op: Op, types: Types) -> Types:
    prior, target, score = one(types, "PriorBox"), one(types, "TargetBox"), one(types, "BoxScore")
    require_boxes(prior, "PriorBox")
    if len(target.shape) != 2 or not fits(target.shape[:1], prior.shape[:1]):
        disagree("TargetBox", target, "PriorBox", prior)
    classes = score.shape[1] if len(score.shape) == 2 else 0
    if len(score.shape) != 2 or (classes >= 0 <= target.shape[1] and target.shape[1] != 4 * classes):
        disagree("BoxScore", score, "TargetBox", target)
    return {"DecodeBox": (target._replace(lod_level=prior.lod_level),), "OutputAssignBox": (prior,)}
