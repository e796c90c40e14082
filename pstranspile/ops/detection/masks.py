"""Mask targets of regions (Mask R-CNN, arXiv 1703.06870)."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.detection.boxes import require_boxes, require_image_info
from pstranspile.ops.schema import INT, declare
from pstranspile.ops.shapes import ShapeError, Types, one, shape_rule

declare(
    "generate_mask_labels",
    "ImInfo GtClasses IsCrowd GtSegms Rois LabelsInt32 -> MaskRois RoiHasMaskInt32 MaskInt32",
    {"num_classes": INT, "resolution": INT},
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
