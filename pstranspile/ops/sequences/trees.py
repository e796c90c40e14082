"""Convolution over the nodes of trees."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, fits, one, shape_rule

declare(
    "tree_conv",
    "NodesVector EdgeSet Filter -> Out",
    {"max_depth": 2},
    doc="Out = for each node its subtree of max_depth levels, weighted by place, times Filter (arXiv 1409.5718)",
)
declare_gradient("tree_conv", "Out@GRAD Filter EdgeSet NodesVector -> NodesVector@GRAD Filter@GRAD")


@shape_rule("tree_conv")
def _tree_conv(_op: Op, types: Types) -> Types:
    nodes, edges, kernel = one(types, "NodesVector"), one(types, "EdgeSet"), one(types, "Filter")
    if len(nodes.shape) != 3:
        raise ShapeError(f"NodesVector is {describe(nodes)}, it must have three dims", "NodesVector")
    if len(edges.shape) != 3 or not fits(edges.shape[2:], (2,)):
        raise ShapeError(f"EdgeSet is {describe(edges)}, it must have three dims, the last of them 2", "EdgeSet")
    if len(kernel.shape) != 4 or not fits(kernel.shape[:2], (nodes.shape[2], 3)):
        message = f"Filter is {describe(kernel)}, it must have four dims, the first [{nodes.shape[2]}, 3]"
        raise ShapeError(message, "Filter")
    return {"Out": (TensorType(nodes.dtype, (*nodes.shape[:2], *kernel.shape[2:])),)}
