"""Reductions over dims, running sums, and questions about all elements."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.gradient import Wanted, bare_op, gradient, output_gradients
from pstranspile.ops.schema import UNSCOPED, declare, declare_gradient, ints
from pstranspile.ops.shapes import ShapeError, Types, describe, dtype_attr, one, outputs_like, shape_rule

declare(
    "cumsum",
    "X -> Out",
    {"axis": -1, "exclusive": False, "reverse": False},
    doc="Out = the running sums of X along `axis`",
)
declare("isinf", "X -> Out", doc="Out = whether any element of X is infinite")
declare("isnan", "X -> Out", doc="Out = whether any element of X is not a number")

shape_rule("cumsum")(outputs_like(Out="X"))


@gradient("cumsum")
def _cumsum_gradient(op: Op, wanted: Wanted) -> tuple[Op, ...]:
    """Sums from the other end. Fluid's `axis`, `exclusive` and `reverse` are the only attributes it carries."""
    attrs = {"axis": op.attrs["axis"], "exclusive": op.attrs["exclusive"], "reverse": not op.attrs["reverse"]}
    return (bare_op("cumsum", {"X": output_gradients(op, "Out")}, {"Out": wanted.kept(op, "X")}, attrs),)


declare("mean", "X -> Out", doc="Out = the mean of all elements of X")
declare_gradient("mean", "X Out@GRAD -> X@GRAD", UNSCOPED)


@shape_rule("mean")
def _mean(_op: Op, types: Types) -> Types:
    x = types["X"][0] if types.get("X") else None  # of any dims, known or not
    return {} if x is None else {"Out": (TensorType(x.dtype, (1,)),)}


_REDUCE = {"dim": ints(0), "keep_dim": False, "reduce_all": False, "in_dtype": -1, "out_dtype": -1}

declare("reduce_sum", "X -> Out", _REDUCE, doc="Out = X summed over `dim`, or over all dims")
declare_gradient("reduce_sum", "X Out@GRAD -> X@GRAD")
declare("reduce_mean", "X -> Out", _REDUCE, doc="Out = the mean of X over `dim`")
declare_gradient("reduce_mean", "X Out@GRAD -> X@GRAD")
declare("reduce_max", "X -> Out", _REDUCE, doc="Out = the largest elements of X over `dim`")
declare_gradient("reduce_max", "X Out Out@GRAD -> X@GRAD")
declare("reduce_min", "X -> Out", _REDUCE, doc="Out = the smallest elements of X over `dim`")
declare_gradient("reduce_min", "X Out Out@GRAD -> X@GRAD")
declare("reduce_prod", "X -> Out", _REDUCE, doc="Out = the product of X over `dim`")
declare_gradient("reduce_prod", "X Out Out@GRAD -> X@GRAD")
declare("reduce_all", "X -> Out", _REDUCE, doc="Out = whether all elements of X over `dim` are true")
declare("reduce_any", "X -> Out", _REDUCE, doc="Out = whether any element of X over `dim` is true")
declare("isfinite", "X -> Out", doc="Out = whether no element of X is infinite or not a number")


@shape_rule("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_all", "reduce_any")
def _reduce(op: Op, types: Types) -> Types:
    x = one(types, "X")
    rank = len(x.shape)
    dims_attr = ints_attr(op, "dim")
    for dim in dims_attr:
        if not -rank <= dim < rank:
            raise ShapeError(f"dim {dim} is not a dim of X, which is {describe(x)}", "X")
    gone = set(range(rank)) if op.attrs.get("reduce_all") else {dim % rank for dim in dims_attr}
    if op.attrs.get("keep_dim"):
        dims = tuple(1 if at in gone else dim for at, dim in enumerate(x.shape))
    else:
        dims = tuple(dim for at, dim in enumerate(x.shape) if at not in gone)
    return {"Out": (TensorType(dtype_attr(op, "out_dtype", x.dtype), dims or (1,), 0 if 0 in gone else x.lod_level),)}


@shape_rule("isfinite", "isinf", "isnan")
def _isfinite(_op: Op, types: Types) -> Types:
    one(types, "X")
    return {"Out": (TensorType(DType.BOOL, (1,)),)}
