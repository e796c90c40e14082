"""Ragged sequences padded, cut, reversed and enumerated."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.gradient import Wanted, gradient, like_forward, output_gradients
from pstranspile.ops.schema import INT, INTS, declare, declare_gradient
from pstranspile.ops.shapes import Types, dtype_attr, one, outputs_like, shape_rule

declare(
    "sequence_enumerate",
    "X -> Out",
    {"win_size": INT, "pad_value": 0, "@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@": True},
    doc="Out = the windows of ids around each position",
)
declare("sequence_erase", "X -> Out", {"tokens": INTS}, doc="Out = X without the listed tokens")

declare(
    "sequence_mask",
    "X MaxLenTensor? -> Y",
    {"maxlen": -1, "out_dtype": INT},
    doc="Y = ones up to each length of X, zeros after it",
)
declare(
    "sequence_pad",
    "X PadValue -> Out Length",
    {"padded_length": -1},
    doc="Out = the sequences of X, padded to one length, Length = their lengths",
)
declare_gradient("sequence_pad", "X Out@GRAD -> X@GRAD")
declare("sequence_unpad", "X Length -> Out", doc="Out = the rows of X up to Length, joined")
declare_gradient("sequence_unpad", "X Out@GRAD -> X@GRAD")
declare(
    "sequence_reshape", "X -> Out", {"new_dim": INT}, doc="Out = the rows of X at width new_dim, sequence by sequence"
)
declare_gradient("sequence_reshape", "X Out@GRAD -> X@GRAD")
declare("sequence_reverse", "X -> Y", doc="Y = each sequence of X in reverse order")
declare("sequence_scatter", "X Ids Updates -> Out", doc="Out = X with Updates added at Ids, sequence by sequence")
declare_gradient("sequence_scatter", "Ids Updates Out@GRAD -> X@GRAD Updates@GRAD")
declare("sequence_slice", "X Offset Length -> Out", doc="Out = a part of each sequence of X")
declare_gradient("sequence_slice", "X Offset Length Out@GRAD -> X@GRAD")

shape_rule("sequence_erase")(outputs_like(Out="X"))
shape_rule("sequence_reverse")(outputs_like(Y="X"))


@shape_rule("sequence_enumerate")
def _sequence_enumerate_types(op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (x._replace(shape=(x.shape[0], int_attr(op, "win_size"))),)}


@shape_rule("sequence_mask")
def _sequence_mask_types(op: Op, types: Types) -> Types:
    width = -1 if op.inputs.get("MaxLenTensor") else int_attr(op, "maxlen", -1)
    return {"Y": (TensorType(dtype_attr(op, "out_dtype"), (*one(types, "X").shape, width if width > 0 else -1)),)}


@shape_rule("sequence_pad")
def _sequence_pad_types(op: Op, types: Types) -> Types:
    x, rows = one(types, "X"), int_attr(op, "padded_length", -1)
    # Fluid declares 1 row for each sequence where the longest one decides
    return {"Out": (TensorType(x.dtype, (-1, rows, *x.shape[1:])),), "Length": (TensorType(DType.INT64, (-1,)),)}


@shape_rule("sequence_unpad")
def _sequence_unpad_types(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (TensorType(x.dtype, (-1, *(x.shape[2:] or (1,))), 1),)}


@shape_rule("sequence_reshape")
def _sequence_reshape_types(op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (x._replace(shape=(-1, int_attr(op, "new_dim"))),)}


@shape_rule("sequence_scatter", "sequence_slice")
def _rows_of_x(_op: Op, types: Types) -> Types:
    return {"Out": (one(types, "X")._replace(lod_level=0),)}  # for sequence_slice, as many at most


@gradient("sequence_reverse")
def _sequence_reverse_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    return (like_forward(op, "sequence_reverse", {"X": output_gradients(op, "Y")}, {"Y": wanted.kept(op, "X")}),)
