"""Reductions over dims, running sums, and questions about all elements."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import flag, int_attr, ints_attr
from pstranspile.ops.gradient import WantedGradients, bare_op, gradient, output_gradients
from pstranspile.ops.schema import INT, UNSCOPED, declare, declare_gradient, dim_of, element_type, ints
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    dtype_attr,
    fits,
    number_like,
    one,
    outputs_like,
    shape_rule,
    size,
)

declare(
    "cumsum",
    "X -> Out",
    {"axis": dim_of(-1, "X"), "exclusive": False, "reverse": False},
    doc="Out = the running sums of X along `axis`",
)
declare("isinf", "X -> Out", doc="Out = whether any element of X is infinite")
declare("isnan", "X -> Out", doc="Out = whether any element of X is not a number")

shape_rule("cumsum")(outputs_like(Out="X"))


@gradient("cumsum")
def _cumsum_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    """The sum from the other end of the dim. Of the attributes, the gradient op carries only `axis`, `exclusive` and
    `reverse`, as in Fluid.
    """
    attrs = {"axis": op.attrs["axis"], "exclusive": op.attrs["exclusive"], "reverse": not op.attrs["reverse"]}
    return (bare_op("cumsum", {"X": output_gradients(op, "Out")}, {"Out": wanted.gradient_names(op, "X")}, attrs),)


declare(
    "mean", "X -> Out", numbers="combined", mean_of_rows=True, typed_by="X", doc="Out = the mean of all elements of X"
)
declare_gradient("mean", "X Out@GRAD -> X@GRAD", UNSCOPED, linear=True)


@shape_rule("mean")
def _mean(_op: Op, types: Types) -> Types:
    x = types["X"][0] if types.get("X") else None  # of any dims, known or not
    return {} if x is None else {"Out": (TensorType(x.dtype, (1,)),)}


_REDUCE = {
    "dim": ints(0),
    "keep_dim": False,
    "reduce_all": False,
    "in_dtype": -1,
    "out_dtype": element_type(-1, unset=True),
}

declare("reduce_sum", "X -> Out", _REDUCE, numbers="combined", doc="Out = X summed over `dim`, or over all dims")
declare_gradient("reduce_sum", "X Out@GRAD -> X@GRAD")
declare("reduce_mean", "X -> Out", _REDUCE, numbers="combined", mean_of_rows=True, doc="Out = the mean of X over `dim`")
declare_gradient("reduce_mean", "X Out@GRAD -> X@GRAD")
declare("reduce_max", "X -> Out", _REDUCE, doc="Out = the largest elements of X over `dim`", branches=True)
declare_gradient("reduce_max", "X Out Out@GRAD -> X@GRAD")
declare("reduce_min", "X -> Out", _REDUCE, doc="Out = the smallest elements of X over `dim`", branches=True)
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


# Norms along dims and of whole tensors, and distances.

declare("squared_l2_norm", "X -> Out", doc="Out = the sum of the squares of X")
declare_gradient("squared_l2_norm", "X Out@GRAD -> X@GRAD")
declare(
    "squared_l2_distance",
    "X Y -> sub_result~ Out",
    doc="Out = the sum of (X - Y) squared of each row; sub_result = X - Y",
)
declare_gradient("squared_l2_distance", "X Y sub_result Out@GRAD -> X@GRAD Y@GRAD")
declare(
    "cos_sim",
    "X Y -> Out XNorm~ YNorm~",
    {"@ALL_KERNELS_MUST_COMPUTE_RUNTIME_SHAPE@": True},
    doc="Out = the cosine of each row of X with that row of Y (or the only row of Y)",
)
declare_gradient("cos_sim", "X Y Out XNorm YNorm Out@GRAD -> X@GRAD Y@GRAD", result_lod="none")


shape_rule("squared_l2_norm")(number_like("X"))


@shape_rule("squared_l2_distance")
def _squared_l2_distance(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    columns = size(x.shape[1:])
    return {
        "sub_result": (TensorType(x.dtype, (x.shape[0], columns)),),
        "Out": (TensorType(x.dtype, (x.shape[0], 1), x.lod_level),),
    }


@shape_rule("cos_sim")
def _cos_sim(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    if not fits(x.shape[1:], y.shape[1:]):
        disagree("Y", y, "X", x)
    column = TensorType(x.dtype, (x.shape[0], 1), x.lod_level)
    gives: Types = {
        "Out": (column,),
        "XNorm": (column._replace(lod_level=0),),
        "YNorm": (TensorType(x.dtype, (y.shape[0], 1)),),
    }
    if not (y.shape[0] in (1, -1) or fits(x.shape[:1], y.shape[:1])):
        disagree("Y", y, "X", x, gives)
    return gives


declare("norm", "X -> Norm~ Out", {"axis": INT, "epsilon": 1e-10}, doc="Out = X divided by its L2 norm along `axis`")
declare_gradient("norm", "X Norm Out@GRAD -> X@GRAD", result_lod="none")
declare(
    "p_norm",
    "X -> Out",
    {"porder": 2.0, "axis": dim_of(-1, "X"), "epsilon": 1e-12, "keepdim": False},
    doc="Out = the p-norm of X along `axis`",
)
declare_gradient("p_norm", "X Out Out@GRAD -> X@GRAD")
declare("l1_norm", "X -> Out", doc="Out = the sum of the absolute values of X")
declare_gradient("l1_norm", "X Out@GRAD -> X@GRAD")
declare(
    "frobenius_norm",
    "X -> Out",
    {"dim": ints(0), "keep_dim": False, "reduce_all": False, "in_dtype": -1, "out_dtype": element_type(-1, unset=True)},
    doc="Out = the square root of the sum of squares over `dim`",
)
declare_gradient("frobenius_norm", "X Out Out@GRAD -> X@GRAD")
declare("dist", "X Y -> Out", {"p": 2.0}, doc="Out = the p-norm of X - Y")
declare_gradient("dist", "X Y Out Out@GRAD -> X@GRAD Y@GRAD")


def _dim(x: TensorType, dim: int) -> int:
    """The dim as an index from 0 on. Raises ShapeError if X has no such dim."""
    rank = len(x.shape)
    if not -rank <= dim < rank:
        raise ShapeError(f"dim {dim} is not a dim of X, which is {describe(x)}", "X")
    return dim % rank


def _reduced_type(x: TensorType, reduced_dims: set[int], keep: bool) -> TensorType:
    """The type of X after a reduction: without the dims in `reduced_dims`, or, with `keep`, with 1 in their place."""
    if keep:
        dims = tuple(1 if at in reduced_dims else dim for at, dim in enumerate(x.shape))
    else:
        dims = tuple(dim for at, dim in enumerate(x.shape) if at not in reduced_dims)
    return TensorType(x.dtype, dims or (1,), 0 if 0 in reduced_dims else x.lod_level)


@shape_rule("norm")
def _norm(op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {
        "Norm": (_reduced_type(x, {_dim(x, int_attr(op, "axis"))}, True)._replace(lod_level=0),),
        "Out": (x._replace(lod_level=0),),
    }


@shape_rule("p_norm")
def _p_norm(op: Op, types: Types) -> Types:
    x = one(types, "X")
    return {"Out": (_reduced_type(x, {_dim(x, int_attr(op, "axis", -1))}, flag(op, "keepdim"))._replace(lod_level=0),)}


@shape_rule("frobenius_norm")
def _frobenius_norm(op: Op, types: Types) -> Types:
    x = one(types, "X")
    gone = {_dim(x, dim) for dim in ints_attr(op, "dim")}
    if op.attrs.get("reduce_all"):
        gone = set(range(len(x.shape)))
    return {"Out": (_reduced_type(x, gone, flag(op, "keep_dim")),)}


shape_rule("l1_norm", "dist")(number_like("X"))
