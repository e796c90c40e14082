"""Comparisons and logic."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.math.elementwise import broadcast
from pstranspile.ops.schema import declare
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, fits, given, one, require_alike, shape_rule

_COMPARE = {"axis": -1, "force_cpu": False}

declare("equal", "X Y -> Out", _COMPARE, row_wise=True, doc="Out = X == Y, broadcast as elementwise ops are")
declare("not_equal", "X Y -> Out", _COMPARE, row_wise=True, doc="Out = X != Y")
declare("less_than", "X Y -> Out", _COMPARE, row_wise=True, doc="Out = X < Y")
declare("less_equal", "X Y -> Out", _COMPARE, row_wise=True, doc="Out = X <= Y")
declare("greater_than", "X Y -> Out", _COMPARE, row_wise=True, doc="Out = X > Y")
declare("greater_equal", "X Y -> Out", _COMPARE, row_wise=True, doc="Out = X >= Y")
declare("logical_and", "X Y -> Out", row_wise=True, doc="Out = X and Y")
declare("logical_or", "X Y -> Out", row_wise=True, doc="Out = X or Y")
declare("logical_xor", "X Y -> Out", row_wise=True, doc="Out = X or Y, not both")
declare("logical_not", "X -> Out", row_wise=True, doc="Out = not X")


@shape_rule("equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal")
def _compare(op: Op, types: Types) -> Types:
    made = broadcast(op, types, DType.BOOL)
    return {"Out": (made._replace(shape=one(types, "X").shape),)}  # as Fluid declares it, also where Y is larger


@shape_rule("logical_and", "logical_or", "logical_xor", "logical_not")
def _logical(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), given(types, "Y")
    if y is not None and not fits(x.shape, y.shape):
        disagree("Y", y, "X", x)
    return {"Out": (x._replace(dtype=DType.BOOL),)}


declare("bitwise_and", "X Y -> Out", row_wise=True, doc="Out = the bits that X and Y have, broadcast as numpy does")
declare("bitwise_or", "X Y -> Out", row_wise=True, doc="Out = the bits that X or Y has")
declare("bitwise_xor", "X Y -> Out", row_wise=True, doc="Out = the bits that one of X and Y has")
declare("bitwise_not", "X -> Out", row_wise=True, doc="Out = the bits that X does not have")


@shape_rule("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not")
def _bitwise(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if x.dtype.text.startswith("f"):
        raise ShapeError(f"X is {describe(x)}; whole numbers and booleans have bits", "X")
    return {"Out": (x if op.type == "bitwise_not" else broadcast(op, types),)}


declare(
    "allclose",
    "Input Other -> Out",
    {"rtol": 1e-05, "atol": 1e-08, "equal_nan": False},
    doc="Out = whether all elements of Input and Other are nearly equal",
)


@shape_rule("allclose")
def _allclose(_op: Op, types: Types) -> Types:
    require_alike(types, "Other", "Input")
    one(types, "Input")
    return {"Out": (TensorType(DType.BOOL, (1,)),)}
