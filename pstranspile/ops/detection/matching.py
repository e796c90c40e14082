"""Matching of boxes with objects, and the choice of boxes without objects that count in a loss."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import text
from pstranspile.ops.schema import declare
from pstranspile.ops.shapes import ShapeError, Types, describe, one, require_alike, shape_rule

declare(
    "bipartite_match",
    "DistMat -> ColToRowMatchIndices ColToRowMatchDist",
    {"match_type": "bipartite", "dist_threshold": 0.5},
    doc="ColToRowMatchIndices = the row of DistMat that each column is matched with, the nearest pairs first; or -1",
)
declare(
    "target_assign",
    "X MatchIndices NegIndices? -> Out OutWeight",
    {"mismatch_value": 0},
    doc="Out = the row of X that each box is matched with, or mismatch_value; OutWeight = whether the box counts",
)
declare(
    "mine_hard_examples",
    "ClsLoss LocLoss? MatchIndices MatchDist -> NegIndices UpdatedMatchIndices",
    {"neg_pos_ratio": 1.0, "neg_dist_threshold": 0.5, "sample_size": 0, "mining_type": "max_negative"},
    doc="NegIndices = the boxes without object that have the largest losses",
)

MATCH_TYPES = ("bipartite", "per_prediction")
MINING_TYPES = ("max_negative", "hard_example")


def matrix(types: Types, slot: str) -> TensorType:
    """The type of an input with two dims. Raises ShapeError for another number."""
    x = one(types, slot)
    if len(x.shape) != 2:
        raise ShapeError(f"{slot} is {describe(x)}, it must have 2 dims", slot)
    return x


def one_of(op: Op, name: str, values: tuple[str, ...], slot: str) -> str:
    """A STRING attribute. Raises ShapeError if it is none of the values."""
    tensor = text(op, name)
    if tensor not in values:
        raise ShapeError(f"{name} is {tensor!r}, it must be {' or '.join(map(repr, values))}", slot)
    return tensor


@shape_rule("bipartite_match")
def _bipartite_match(op: Op, types: Types) -> Types:
    dist = matrix(types, "DistMat")
    one_of(op, "match_type", MATCH_TYPES, "DistMat")
    dims = (-1, dist.shape[1])  # a row for each sequence of DistMat
    return {
        "ColToRowMatchIndices": (TensorType(DType.INT32, dims),),
        "ColToRowMatchDist": (TensorType(dist.dtype, dims),),
    }


@shape_rule("target_assign")
def _target_assign(_op: Op, types: Types) -> Types:
    x, matched = one(types, "X"), matrix(types, "MatchIndices")
    if len(x.shape) != 3:
        raise ShapeError(f"X is {describe(x)}, it must have 3 dims", "X")
    out = TensorType(x.dtype, (*matched.shape, x.shape[2]))
    return {"Out": (out,), "OutWeight": (TensorType(DType.FP32, (*matched.shape, 1)),)}


@shape_rule("mine_hard_examples")
def _mine_hard_examples(op: Op, types: Types) -> Types:
    matrix(types, "ClsLoss")
    matched = matrix(types, "MatchIndices")
    one_of(op, "mining_type", MINING_TYPES, "ClsLoss")
    require_alike(types, "ClsLoss", "LocLoss")
    return {"NegIndices": (TensorType(DType.INT32, (-1, 1)),), "UpdatedMatchIndices": (matched,)}
