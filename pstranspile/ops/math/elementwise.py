"""Elementwise arithmetic of two tensors, with Fluid's axis broadcasting."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.gradient import Wanted, gradient, output_gradients, scaled
from pstranspile.ops.schema import AttrSpec, declare, declare_gradient, later
from pstranspile.ops.shapes import ShapeError, Types, describe, disagree, one, outputs_like, shape_rule

_BINARY = {"axis": -1, "use_mkldnn": False, "x_data_format": "", "y_data_format": ""}


def _declare(op_type: str, doc: str, reads: str = "X Y Out@GRAD", **attrs: AttrSpec) -> None:
    """Declares a binary op and, unless `reads` is "", its gradient op, which reads these slots."""
    declare(op_type, "X Y -> Out", {**_BINARY, **attrs}, row_wise=True, doc=doc)
    if reads:
        declare_gradient(op_type, f"{reads} -> X@GRAD Y@GRAD")
    shape_rule(op_type)(lambda op, types: {"Out": (broadcast(op, types),)})


_declare(
    "elementwise_add",
    "Out = X + Y; the dims of Y lie on those of X from `axis` on (-1: the last ones), the rest is broadcast",
)
_declare("elementwise_sub", "Out = X - Y")
_declare("elementwise_mul", "Out = X * Y")
_declare("elementwise_div", "Out = X / Y; integers truncate toward zero", "X Y Out Out@GRAD")
_declare("elementwise_max", "Out = the larger of X and Y")
_declare("elementwise_min", "Out = the smaller of X and Y")
_declare("elementwise_pow", "Out = X to the power of Y")
_declare(
    "elementwise_mod",
    "Out = the remainder of X / Y; of integers with the sign of X, of floats or if floored with the sign of Y",
    reads="",
    floored=later("bool"),
)
_declare(
    "elementwise_floordiv",
    "Out = X / Y, truncated toward zero, or if floored rounded down",
    reads="",
    floored=later("bool"),
)


def broadcast(op: Op, types: Types, made: DType | None = None) -> TensorType:
    """The type of X op Y: the dims of Y are aligned with those of X from `axis` on, and dims of size 1 are broadcast.

    Its elements are of the type `made` (default: that of X).

    Raises ShapeError when dims or dtypes differ, Unknown when one is not known.
    """
    x, y = one(types, "X"), one(types, "Y")
    if x.dtype is not y.dtype:
        alike = {**types, "Y": (y._replace(dtype=x.dtype),)}
        disagree("Y", y, "X", x, declares={"Out": (broadcast(op, alike, made),)})
    dtype = made or x.dtype
    if x.shape == y.shape:
        return x._replace(dtype=dtype)
    wide, narrow = (x, y) if len(x.shape) >= len(y.shape) else (y, x)
    axis = op.attrs.get("axis", -1)
    start = axis if isinstance(axis, int) and axis >= 0 else len(wide.shape) - len(narrow.shape)
    if start + len(narrow.shape) > len(wide.shape):
        raise ShapeError(f"axis is {start}, but Y is {describe(y)} and X is {describe(x)}", "Y")
    after = len(wide.shape) - start - len(narrow.shape)
    dims: list[int] = []
    for one_dim, other in zip(wide.shape, (*[1] * start, *narrow.shape, *[1] * after), strict=True):
        if one_dim > 1 and other > 1 and one_dim != other:
            raise ShapeError(f"Y is {describe(y)}, which does not fit X, {describe(x)}, from dim {start} on", "Y")
        dims.append(max(one_dim, other) if max(one_dim, other) > 1 or one_dim == other == 1 else -1)
    return TensorType(dtype, tuple(dims), x.lod_level)


declare("minus", "X Y -> Out", row_wise=True, doc="Out = X - Y")


@gradient("minus")
def _minus_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    (out,) = output_gradients(op, "Out")
    signs = (("X", 1.0), ("Y", -1.0))
    return tuple(scaled(out, name, sign) for slot, sign in signs for name in wanted.kept(op, slot))


shape_rule("minus")(outputs_like(Out="X"))
