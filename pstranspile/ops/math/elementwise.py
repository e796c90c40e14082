"""Elementwise arithmetic of two tensors, with Fluid's axis broadcasting."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.gradient import Wanted, gradient, output_gradients, scaled
from pstranspile.ops.schema import declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, one, outputs_like, shape_rule

_BINARY = {"axis": -1, "use_mkldnn": False, "x_data_format": "", "y_data_format": ""}

declare(
    "elementwise_add",
    "X Y -> Out",
    _BINARY,
    row_wise=True,
    doc="Out = X + Y; the dims of Y lie on those of X from `axis` on (-1: the last ones), the rest is broadcast",
)
declare_gradient("elementwise_add", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_sub", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X - Y")
declare_gradient("elementwise_sub", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_mul", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X * Y")
declare_gradient("elementwise_mul", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_div", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X / Y; integers truncate toward zero")
declare_gradient("elementwise_div", "X Y Out Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_max", "X Y -> Out", _BINARY, row_wise=True, doc="Out = the larger of X and Y")
declare_gradient("elementwise_max", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_min", "X Y -> Out", _BINARY, row_wise=True, doc="Out = the smaller of X and Y")
declare_gradient("elementwise_min", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare("elementwise_pow", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X to the power of Y")
declare_gradient("elementwise_pow", "X Y Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "elementwise_mod",
    "X Y -> Out",
    _BINARY,
    row_wise=True,
    doc="Out = the remainder of X / Y; of integers with the sign of X, of floats with the sign of Y",
)
declare("elementwise_floordiv", "X Y -> Out", _BINARY, row_wise=True, doc="Out = X / Y, truncated toward zero")


def broadcast(op: Op, types: Types) -> TensorType:
    """The type of X op Y: the dims of Y are aligned with those of X from `axis` on, and dims of size 1 are broadcast.

    Raises ShapeError when dims or dtypes differ, Unknown when one is not known.
    """
    x, y = one(types, "X"), one(types, "Y")
    if x.dtype is not y.dtype:
        disagree("Y", y, "X", x)
    if x.shape == y.shape:
        return x
    wide, narrow = (x, y) if len(x.shape) >= len(y.shape) else (y, x)
    axis = op.attrs.get("axis", -1)
    start = axis if isinstance(axis, int) and axis >= 0 else len(wide.shape) - len(narrow.shape)
    if start + len(narrow.shape) > len(wide.shape):
        raise ShapeError(f"axis is {start}, but Y is {describe(y)} and X is {describe(x)}", "Y")
    dims = list(wide.shape)
    for at, dim in enumerate(narrow.shape, start):
        if dim > 1 and dims[at] > 1 and dim != dims[at]:
            raise ShapeError(f"Y is {describe(y)}, which does not fit X, {describe(x)}, from dim {start} on", "Y")
        dims[at] = dims[at] if dim == 1 else dim if dims[at] == 1 else max(dim, dims[at])
    return TensorType(x.dtype, tuple(dims), x.lod_level)


@shape_rule(
    "elementwise_add",
    "elementwise_sub",
    "elementwise_mul",
    "elementwise_div",
    "elementwise_max",
    "elementwise_min",
    "elementwise_pow",
    "elementwise_mod",
    "elementwise_floordiv",
)
def _elementwise(op: Op, types: Types) -> Types:
    return {"Out": (broadcast(op, types),)}


declare("minus", "X Y -> Out", row_wise=True, doc="Out = X - Y")


@gradient("minus")
def _minus_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    (out,) = output_gradients(op, "Out")
    signs = (("X", 1.0), ("Y", -1.0))
    return tuple(scaled(out, name, sign) for slot, sign in signs for name in wanted.kept(op, slot))


shape_rule("minus")(outputs_like(Out="X"))
