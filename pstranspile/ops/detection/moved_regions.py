"""Position-sensitive pooling of regions with learned offsets of the samples."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.detection.regions import regions_of
from pstranspile.ops.schema import BOOL, FLOAT, INT, INTS, declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, gradient_types, one, shape_rule

declare(
    "deformable_psroi_pooling",
    "Input ROIs Trans -> TopCount Output",
    {
        "no_trans": BOOL,
        "spatial_scale": FLOAT,
        "output_dim": INT,
        "group_size": INTS,
        "pooled_height": INT,
        "pooled_width": INT,
        "part_size": INTS,
        "sample_per_part": INT,
        "trans_std": FLOAT,
    },
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
