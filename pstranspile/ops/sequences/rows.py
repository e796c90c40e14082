"""Ragged sequences expanded, concatenated, convolved and encoded."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.schema import INT, declare, declare_gradient, ints
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    given,
    one,
    outputs_like,
    ragged,
    results_like,
    several,
    shape_rule,
    size,
)

declare("row_conv", "X Filter -> Out", doc="Out = X convolved with Filter over the rows that follow")
declare_gradient("row_conv", "X Filter Out@GRAD -> X@GRAD Filter@GRAD")
shape_rule("row_conv")(outputs_like(Out="X"))

declare(
    "add_position_encoding",
    "X -> Out",
    {"alpha": 1.0, "beta": 1.0},
    doc="Out = alpha * X + beta * sines of the position",
)
declare_gradient("add_position_encoding", "Out@GRAD -> X@GRAD")

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


@shape_rule("sequence_expand")
def _sequence_expand(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    made: Types = {"Out": (TensorType(x.dtype, (-1, *x.shape[1:]), x.lod_level),)}
    ragged(types, "Y", made)
    return made


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
    x, kernel = one(types, "X"), one(types, "Filter")
    rows = size(x.shape[1:]) * int_attr(op, "contextLength")
    if len(kernel.shape) != 2 or (rows >= 0 and kernel.shape[0] not in (rows, -1)):
        raise ShapeError(f"Filter is {describe(kernel)}, it needs {rows} rows for X, {describe(x)}", "Filter")
    made: Types = {"Out": (TensorType(x.dtype, (x.shape[0], kernel.shape[1]), x.lod_level),)}
    ragged(types, "X", made)
    return made


@shape_rule("lod_reset")
def _lod_reset(op: Op, types: Types) -> Types:
    x, like = one(types, "X"), given(types, "Y")
    level = max(like.lod_level, 1) if like is not None else 1
    return {"Out": (x._replace(lod_level=level + (x.lod_level if op.attrs.get("append") else 0)),)}


@shape_rule("add_position_encoding")
def _add_position_encoding(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    if x.shape[-1] % 2 and x.shape[-1] > 0:
        raise ShapeError(f"X is {describe(x)}, its last dim must be even: half sines, half cosines", "X")
    return {"Out": (x,)}


shape_rule("add_position_encoding_grad")(results_like("Out@GRAD", "X@GRAD"))


declare("sequence_expand_as", "X Y -> Out", doc="Out = each row of X repeated as long as that sequence of Y")
declare_gradient("sequence_expand_as", "X Y Out@GRAD -> X@GRAD")


@shape_rule("sequence_expand_as")
def _sequence_expand_as_types(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    return {"Out": (TensorType(x.dtype, (-1, *x.shape[1:]), y.lod_level),)}
