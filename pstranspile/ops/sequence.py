"""Ragged sequences: rows held together by LoD."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.gradient import from_declaration, gradient
from pstranspile.ops.schema import INT, declare, declare_gradient, ints
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    given,
    int_attr,
    one,
    several,
    shape_rule,
    size,
)

declare(
    "sequence_pool",
    "X -> Out MaxIndex",
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
declare(
    "sequence_expand",
    "X Y -> Out",
    {"ref_level": -1},
    doc="Out = each sequence of X repeated as Y's level ref_level says",
)
declare_gradient("sequence_expand", "X Y Out@GRAD -> X@GRAD")
declare("sequence_concat", "X* -> Out", doc="Out = the sequences of all X, joined one by one")
declare_gradient("sequence_concat", "X* Out@GRAD -> X@GRAD*")
declare(
    "sequence_conv",
    "X PaddingData? Filter -> Out",
    {"paddingTrainable": False, "contextLength": INT, "contextStart": 0, "contextStride": 1},
    doc="Out = the rows around each row, contextLength of them, times Filter",
)
declare_gradient("sequence_conv", "X Filter Out@GRAD -> X@GRAD Filter@GRAD")
declare(
    "lod_reset",
    "X Y? -> Out",
    {"target_lod": ints(), "append": False},
    doc="Out = X with another LoD, from Y or target_lod",
)
declare_gradient("lod_reset", "X Out@GRAD -> X@GRAD")


def _ragged(types: Types, slot: str) -> TensorType:
    x = one(types, slot)
    if x.lod_level < 1:
        raise ShapeError(f"{slot} is {describe(x)} without LoD, a ragged sequence is needed", slot)
    return x


@shape_rule("sequence_pool")
def _sequence_pool(_op: Op, types: Types) -> Types:
    x = _ragged(types, "X")
    # MaxIndex has the dims of X, but Fluid declares it without dims and with the element type of X.
    return {"Out": (TensorType(x.dtype, (-1, *x.shape[1:]), x.lod_level - 1),)}


@shape_rule("sequence_softmax")
def _sequence_softmax(_op: Op, types: Types) -> Types:
    return {"Out": (_ragged(types, "X"),)}


@shape_rule("sequence_expand")
def _sequence_expand(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    _ragged(types, "Y")
    return {"Out": (TensorType(x.dtype, (-1, *x.shape[1:]), max(x.lod_level, 1)),)}


@shape_rule("sequence_concat")
def _sequence_concat(_op: Op, types: Types) -> Types:
    parts = several(types, "X")
    first = parts[0]
    for part in parts[1:]:
        if not fits(part.shape[1:], first.shape[1:]):
            disagree("X", part, "the first part", first)
    rows = [part.shape[0] for part in parts]
    return {"Out": (first._replace(shape=(-1 if min(rows) < 0 else sum(rows), *first.shape[1:])),)}


@shape_rule("sequence_conv")
def _sequence_conv(op: Op, types: Types) -> Types:
    x, kernel = _ragged(types, "X"), one(types, "Filter")
    rows = size(x.shape[1:]) * int_attr(op, "contextLength")
    if len(kernel.shape) != 2 or (rows >= 0 and kernel.shape[0] not in (rows, -1)):
        raise ShapeError(f"Filter is {describe(kernel)}, it needs {rows} rows for X, {describe(x)}", "Filter")
    return {"Out": (TensorType(x.dtype, (x.shape[0], kernel.shape[1]), x.lod_level),)}


@shape_rule("lod_reset")
def _lod_reset(op: Op, types: Types) -> Types:
    x, like = one(types, "X"), given(types, "Y")
    level = max(like.lod_level, 1) if like is not None else 1
    return {"Out": (x._replace(lod_level=level + (x.lod_level if op.attrs.get("append") else 0)),)}


def _takes_maximum(op: Op) -> bool:
    return op.attrs.get("pooltype") == "MAX"


gradient("sequence_pool")(from_declaration("sequence_pool_grad", MaxIndex=_takes_maximum))
