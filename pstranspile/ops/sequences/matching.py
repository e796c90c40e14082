"""Sequences compared word by word: matrices of matches, and convolution over images of any size."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, one, shape_rule

declare(
    "match_matrix_tensor",
    "X Y W -> Out Tmp",
    {"dim_t": 1},
    doc="Out = X W Y^T of each sequence: a block [dim_t, words of X, words of Y]; Tmp = X W",
)
declare_gradient("match_matrix_tensor", "X Y W Tmp Out@GRAD -> X@GRAD Y@GRAD W@GRAD")


@shape_rule("match_matrix_tensor")
def _match_matrix_tensor(op: Op, types: Types) -> Types:
    x, y, w = one(types, "X"), one(types, "Y"), one(types, "W")
    for slot, words in (("X", x), ("Y", y)):
        if len(words.shape) != 2:
            raise ShapeError(f"{slot} is {describe(words)}, it must have two dims", slot)
    fitting = (x.shape[1], int_attr(op, "dim_t", 1), y.shape[1])
    if len(w.shape) != 3 or any(a != b and a >= 0 and b >= 0 for a, b in zip(w.shape, fitting, strict=True)):
        raise ShapeError(f"W is {describe(w)}, it must have the dims {list(fitting)}", "W")
    return {"Out": (TensorType(x.dtype, (-1, 1), x.lod_level),), "Tmp": (TensorType(x.dtype, (-1, 1)),)}


declare(
    "var_conv_2d",
    "X ROW COLUMN W -> Out Col",
    {"InputChannel": 1, "OutputChannel": 1, "StrideH": 1, "StrideW": 1, "KernelH": 1, "KernelW": 1},
    doc="Out = images of any size convolved: as many rows and columns as the sequences of ROW and COLUMN have",
)
declare_gradient("var_conv_2d", "X W ROW COLUMN Col Out Out@GRAD -> X@GRAD W@GRAD")


@shape_rule("var_conv_2d")
def _var_conv_2d(op: Op, types: Types) -> Types:
    x, w = one(types, "X"), one(types, "W")
    if len(x.shape) != 2:
        raise ShapeError(f"X is {describe(x)}, it must have two dims", "X")
    taken = int_attr(op, "InputChannel", 1) * int_attr(op, "KernelH", 1) * int_attr(op, "KernelW", 1)
    dims = (int_attr(op, "OutputChannel", 1), taken)
    if w.shape != dims:
        disagree("W", w, "a kernel of this size", TensorType(w.dtype, dims))
    return {slot: (TensorType(x.dtype, (-1, 1)),) for slot in ("Out", "Col")}
