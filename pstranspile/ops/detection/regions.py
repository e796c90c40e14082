"""Pooling of regions to one size: by the maximum of each part, by samples, or position-sensitive.

ROIs are [regions, 4] in pixels of the image: left, top, right, bottom. The regions of each image are a sequence, or
RoisLod holds their offsets.
"""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr, ints_attr, real
from pstranspile.ops.detection.boxes import require_boxes, require_image_info
from pstranspile.ops.schema import BOOL, FLOAT, INT, INTS, bounded, declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, fits, gradient_types, one, shape_rule

POOLED = {"spatial_scale": bounded(1.0, above=0), "pooled_height": bounded(1, 1), "pooled_width": bounded(1, 1)}
"""The attributes of all region poolings."""

declare(
    "roi_pool",
    "X ROIs RoisLod? -> Out Argmax~",
    POOLED,
    rows="own",
    doc="Out = the largest element of each part of a region (Fast R-CNN, arXiv 1504.08083), Argmax = where it was",
)
declare_gradient("roi_pool", "X ROIs RoisLod? Argmax Out@GRAD -> X@GRAD")
declare(
    "roi_align",
    "X ROIs RoisLod? -> Out",
    {**POOLED, "sampling_ratio": -1},
    rows="own",
    doc="Out = the mean of samples in each part of a region (Mask R-CNN, arXiv 1703.06870)",
)
declare_gradient("roi_align", "X ROIs RoisLod? Out@GRAD -> X@GRAD")
declare(
    "psroi_pool",
    "X ROIs -> Out",
    {"output_channels": INT, **POOLED},
    rows="own",
    doc="Out = the mean of each part of a region, of channels of its own (R-FCN, arXiv 1605.06409)",
)
declare_gradient("psroi_pool", "X ROIs Out@GRAD -> X@GRAD")


def regions_of(op: Op, types: Types, slot: str = "X") -> tuple[TensorType, int, tuple[int, int]]:
    """(type of the feature map, number of regions, dims of the results). Raises ShapeError if they
    don't fit together.
    """
    x, rois = one(types, slot), one(types, "ROIs")
    if len(x.shape) != 4:
        raise ShapeError(f"{slot} is {describe(x)}, images have four dims", slot)
    require_boxes(rois, "ROIs")
    size = int_attr(op, "pooled_height"), int_attr(op, "pooled_width")
    if min(size) < 1:
        raise ShapeError(f"regions can't be brought to {list(size)}", "ROIs")
    return x, rois.shape[0], size


@shape_rule("roi_pool", "roi_align")
def _roi_pool(op: Op, types: Types) -> Types:
    x, count, size = regions_of(op, types)
    # Fluid's layer declares Argmax as i32; the op gives i64
    return {"Out": (TensorType(x.dtype, (count, x.shape[1], *size)),), "Argmax": (None,)}


@shape_rule("psroi_pool")
def _psroi_pool(op: Op, types: Types) -> Types:
    x, count, size = regions_of(op, types)
    channels = int_attr(op, "output_channels")
    if channels < 1 or x.shape[1] not in (-1, channels * size[0] * size[1]):
        raise ShapeError(f"X is {describe(x)}, it must have {channels} * {size[0]} * {size[1]} channels", "X")
    return {"Out": (TensorType(x.dtype, (count, channels, *size)),)}


shape_rule("roi_pool_grad", "roi_align_grad", "psroi_pool_grad")(gradient_types)


# Position-sensitive pooling of regions with learned offsets of the samples.

declare(
    "deformable_psroi_pooling",
    "Input ROIs Trans -> TopCount Output",
    {
        "no_trans": BOOL,
        "spatial_scale": bounded(FLOAT, above=0),
        "output_dim": INT,
        "group_size": INTS,
        "pooled_height": bounded(INT, 1),
        "pooled_width": bounded(INT, 1),
        "part_size": INTS,
        "sample_per_part": INT,
        "trans_std": bounded(FLOAT, 0),
    },
    rows="own",
    doc="Output = the mean of samples in each part of a region, moved by Trans (arXiv 1703.06211); TopCount = how many",
)
declare_gradient("deformable_psroi_pooling", "Input ROIs Trans TopCount Output@GRAD -> Input@GRAD Trans@GRAD")


@shape_rule("deformable_psroi_pooling")
def _deformable_psroi_pooling(op: Op, types: Types) -> Types:
    x, count, size = regions_of(op, types, "Input")
    trans, channels = one(types, "Trans"), int_attr(op, "output_dim")
    if len(trans.shape) != 4 or trans.shape[1] == 1:
        raise ShapeError(f"Trans is {describe(trans)}, it must have 4 dims and two channels for each class", "Trans")
    groups, parts = ints_attr(op, "group_size"), ints_attr(op, "part_size")
    if len(groups) != 2 or len(parts) != 2 or min(*groups, *parts, channels, int_attr(op, "sample_per_part")) < 1:
        raise ShapeError("group_size and part_size must be two numbers, and no size below 1", "Input")
    if 0 <= x.shape[1] < channels * groups[0] * groups[1]:
        raise ShapeError(
            f"Input is {describe(x)}, it must have {channels} * {groups[0]} * {groups[1]} channels", "Input"
        )
    made = TensorType(x.dtype, (count, channels, *size))
    return {"Output": (made,), "TopCount": (made,)}


shape_rule("deformable_psroi_pooling_grad")(gradient_types)


# Regions of feature maps pooled by exact integration of the interpolated map.

declare(
    "prroi_pool",
    "X ROIs BatchRoINums? -> Out",
    POOLED,
    rows="own",
    doc="Out = the integral of X over each part of a region, by its area (IoU-Net, arXiv 1807.11590)",
)
declare_gradient("prroi_pool", "X ROIs BatchRoINums? Out Out@GRAD -> X@GRAD ROIs@GRAD", result_lod="none")


@shape_rule("prroi_pool")
def _prroi_pool(op: Op, types: Types) -> Types:
    x, count, size = regions_of(op, types)
    return {"Out": (TensorType(x.dtype, (count, x.shape[1], *size)),)}


shape_rule("prroi_pool_grad")(gradient_types)


# Quadrilaterals of feature maps transformed to rectangles of one size.

declare(
    "roi_perspective_transform",
    "X ROIs -> Out Mask TransformMatrix Out2InIdx~ Out2InWeights~",
    {"spatial_scale": bounded(1.0, above=0), "transformed_height": bounded(1, 1), "transformed_width": bounded(1, 1)},
    rows="own",
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


# Mask targets of regions (Mask R-CNN, arXiv 1703.06870).

declare(
    "generate_mask_labels",
    "ImInfo GtClasses IsCrowd GtSegms Rois LabelsInt32 -> MaskRois RoiHasMaskInt32 MaskInt32",
    {"num_classes": INT, "resolution": INT},
    rows="own",
    doc="MaskInt32 = the polygon of each region's object as pixels, in the place of its class; -1 in all others",
)


@shape_rule("generate_mask_labels")
def _generate_mask_labels(op: Op, types: Types) -> Types:
    rois = one(types, "Rois")
    require_boxes(rois, "Rois")
    require_image_info(one(types, "ImInfo"))
    classes, side = int_attr(op, "num_classes"), int_attr(op, "resolution")
    if min(classes, side) < 1:
        raise ShapeError(f"num_classes is {classes}, resolution {side}, both must be above 0", "Rois")
    return {
        "MaskRois": (TensorType(rois.dtype, (-1, 4), rois.lod_level),),
        "RoiHasMaskInt32": (TensorType(DType.INT32, (-1, 1), rois.lod_level),),
        "MaskInt32": (TensorType(DType.INT32, (-1, classes * side * side), rois.lod_level),),
    }
