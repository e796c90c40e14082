"""Pooling and softmax of ragged sequences."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.gradient import from_declaration, gradient
from pstranspile.ops.schema import INT, INTS, declare, declare_gradient
from pstranspile.ops.shapes import Types, given, one, ragged, shape_rule

declare(
    "sequence_pool",
    "X -> Out MaxIndex~",
    {"is_test": False, "pooltype": "AVERAGE", "pad_value": 0.0},
    doc="Out = one row of each sequence: its sum, average, maximum, first, ...",
)
declare_gradient("sequence_pool", "X MaxIndex- Out@GRAD -> X@GRAD")
declare(
    "sequence_softmax",
    "X -> Out",
    {"use_cudnn": False, "data_format": "AnyLayout"},
    doc="Out = softmax within each sequence",
)
declare_gradient("sequence_softmax", "X Out Out@GRAD -> X@GRAD")


@shape_rule("sequence_pool")
def _sequence_pool(_op: Op, types: Types) -> Types:
    x = ragged(types, "X")
    # MaxIndex has the dims of X, but Fluid declares it without dims and with the element type of X.
    return {"Out": (TensorType(x.dtype, (-1, *x.shape[1:]), x.lod_level - 1),)}


@shape_rule("sequence_softmax")
def _sequence_softmax(_op: Op, types: Types) -> Types:
    return {"Out": (ragged(types, "X", {"Out": types.get("X", ())}),)}


def _takes_maximum(op: Op) -> bool:
    return op.attrs.get("pooltype") == "MAX"


gradient("sequence_pool")(from_declaration("sequence_pool_grad", MaxIndex=_takes_maximum))


@shape_rule("sequence_topk_avg_pooling")
def _pool_types(op: Op, types: Types) -> Types:
    x, row = one(types, "X"), given(types, "ROW")
    width = len(ints_attr(op, "topks")) * int_attr(op, "channel_num")
    return {"Out": (TensorType(x.dtype, (-1, width), row.lod_level if row is not None else x.lod_level),)}


declare(
    "sequence_topk_avg_pooling",
    "X ROW COLUMN -> Out pos~",
    {"topks": INTS, "channel_num": INT},
    doc="Out = averages of the largest elements",
)
declare_gradient("sequence_topk_avg_pooling", "X ROW COLUMN pos Out@GRAD -> X@GRAD")
