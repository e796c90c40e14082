"""Regions of feature maps pooled by exact integration."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.detection.regions import POOLED, regions_of
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import Types, gradient_types, shape_rule

declare(
    "prroi_pool",
    "X ROIs BatchRoINums? -> Out",
    POOLED,
    doc="Out = the integral of X over each part of a region, by its area (IoU-Net, arXiv 1807.11590)",
)
declare_gradient("prroi_pool", "X ROIs BatchRoINums? Out Out@GRAD -> X@GRAD ROIs@GRAD")


@shape_rule("prroi_pool")
def _prroi_pool(op: Op, types: Types) -> Types:
    x, count, size = regions_of(op, types)
    return {"Out": (TensorType(x.dtype, (count, x.shape[1], *size)),)}


shape_rule("prroi_pool_grad")(gradient_types)
