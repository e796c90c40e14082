"""Comparisons and logic."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.ir.types import DType
from pstranspile.lazy import lazy_import
from pstranspile.ops.broadcasting import align
from pstranspile.ops.elementwise import broadcast
from pstranspile.ops.kernel import Run, kernel
from pstranspile.ops.numeric import formula
from pstranspile.ops.schema import declare
from pstranspile.ops.shapes import Types, disagree, fits, given, int_attr, one, shape_rule
from pstranspile.ops.values import Array

np = lazy_import("numpy")

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
    return {"Out": (broadcast(op, types)._replace(dtype=DType.BOOL),)}


@shape_rule("logical_and", "logical_or", "logical_xor", "logical_not")
def _logical(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), given(types, "Y")
    if y is not None and not fits(x.shape, y.shape):
        disagree("Y", y, "X", x)
    return {"Out": (x._replace(dtype=DType.BOOL),)}


# Kernels

_UFUNCS = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less_than": "less",
    "less_equal": "less_equal",
    "greater_than": "greater",
    "greater_equal": "greater_equal",
}


def _plain(op: Op) -> str | None:
    """With axis -1 numpy's own broadcasting is Fluid's."""
    return f"np.{_UFUNCS[op.type]}({{X}}, {{Y}})" if int_attr(op, "axis", -1) < 0 else None


@kernel(" ".join(_UFUNCS), inline=_plain)
def _compare_values(op: Op) -> Run:
    axis = int_attr(op, "axis", -1)
    ufunc = getattr(np, _UFUNCS[op.type])

    def run(X: Array, Y: Array) -> Array:
        return ufunc(*align(X, Y, axis))

    return run


formula("logical_and", "np.logical_and({X}, {Y})")
formula("logical_or", "np.logical_or({X}, {Y})")
formula("logical_xor", "np.logical_xor({X}, {Y})")
formula("logical_not", "np.logical_not({X})")
