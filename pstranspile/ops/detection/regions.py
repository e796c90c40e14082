"""Pooling of regions to one size: by the maximum of each part, by samples, or position-sensitive.

ROIs are [regions, 4] in pixels of the image: left, top, right, bottom. The regions of each image are a sequence, or
RoisLod holds their offsets.
"""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.detection.boxes import require_boxes
from pstranspile.ops.schema import INT, declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, gradient_types, one, shape_rule

POOLED = {"spatial_scale": 1.0, "pooled_height": 1, "pooled_width": 1}
"""The attributes of all region poolings."""

declare(
    "roi_pool",
    "X ROIs RoisLod? -> Out Argmax~",
    POOLED,
    doc="Out = the largest element of each part of a region (Fast R-CNN, arXiv 1504.08083), Argmax = where it was",
)
declare_gradient("roi_pool", "X ROIs RoisLod? Argmax Out@GRAD -> X@GRAD")
declare(
    "roi_align",
    "X ROIs RoisLod? -> Out",
    {**POOLED, "sampling_ratio": -1},
    doc="Out = the mean of samples in each part of a region (Mask R-CNN, arXiv 1703.06870)",
)
declare_gradient("roi_align", "X ROIs RoisLod? Out@GRAD -> X@GRAD")
declare(
    "psroi_pool",
    "X ROIs -> Out",
    {"output_channels": INT, **POOLED},
    doc="Out = the mean of each part of a region, of channels of its own (R-FCN, arXiv 1605.06409)",
)
declare_gradient("psroi_pool", "X ROIs Out@GRAD -> X@GRAD")


def regions_of(op: Op, types: Types, slot: str = "X") -> tuple[TensorType, int, tuple[int, int]]:
    """The feature map, the number of regions, and the dims of the results. Raises ShapeError if they don't fit."""
    x, rois = one(types, slot), one(types, "ROIs")
    if len(x.shape) != 4:
        raise ShapeError(f"{slot} is {describe(x)}, images have four dims", slot)
    require_boxes(rois, "ROIs")
    size = int_attr(op, "pooled_height"), int_attr(op, "pooled_width")
    if min(size) < 1:
        raise ShapeError(f"regions can't be brought to {list(size)}", "ROIs")
    return x, rois.shape[0], size


@shape_rule("roi_pool", "roi_align")
def _pooled(op: Op, types: Types) -> Types:
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
