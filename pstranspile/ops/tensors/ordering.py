"""Sorting, top-k and unique elements."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import flag, int_attr
from pstranspile.ops.schema import INT, LONG, UNSCOPED, declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, dtype_attr, one, shape_rule
from pstranspile.ops.tensors.concat import axis_of

declare(
    "top_k", "X K? -> Out Indices", {"k": 1}, doc="Out = the k largest elements of each row, Indices = where they were"
)
declare_gradient("top_k", "X Indices Out@GRAD -> X@GRAD", UNSCOPED)
declare(
    "arg_max",
    "X -> Out",
    {"axis": LONG, "keepdims": False, "dtype": -1},
    doc="Out = the index of the largest element along `axis`",
)


@shape_rule("top_k")
def _top_k(op: Op, types: Types) -> Types:
    x = one(types, "X")
    dims = (*x.shape[:-1], -1 if "K" in types else int_attr(op, "k"))
    if 0 <= x.shape[-1] < dims[-1]:
        raise ShapeError(f"k is {dims[-1]}, but X is {describe(x)}", "X")
    return {
        "Out": (TensorType(x.dtype, dims, x.lod_level),),
        "Indices": (TensorType(DType.INT64, dims, x.lod_level),),
    }


@shape_rule("arg_max")
def _arg_max(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axis = axis_of(op, x)
    kept = (1,) if op.attrs.get("keepdims") else ()
    dims = (*x.shape[:axis], *kept, *x.shape[axis + 1 :])
    return {"Out": (TensorType(dtype_attr(op, "dtype", DType.INT64), dims or (1,)),)}


declare(
    "arg_min",
    "X -> Out",
    {"axis": LONG, "keepdims": False, "dtype": -1},
    doc="Out = the index of the smallest element along `axis`",
)
declare(
    "argsort",
    "X -> Out Indices",
    {"axis": -1, "descending": False},
    doc="Out = X sorted along `axis`, Indices = where its elements were",
)
declare_gradient("argsort", "X Indices Out@GRAD -> X@GRAD")
declare(
    "unique", "X -> Out Index", {"dtype": INT}, doc="Out = the elements of X without repeats, Index = where each went"
)
declare("unique_with_counts", "X -> Out Index Count", {"dtype": INT}, doc="as unique, Count = how often each occurs")


@shape_rule("arg_min")
def _arg_min(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axis = axis_of(op, x)
    number = int_attr(op, "dtype", -1)
    kept = (1,) if flag(op, "keepdims") else ()
    dims = (*x.shape[:axis], *kept, *x.shape[axis + 1 :])
    return {"Out": (TensorType(DType.INT64 if number < 0 else dtype_attr(op), dims or (1,)),)}


@shape_rule("argsort")
def _argsort(op: Op, types: Types) -> Types:
    x = one(types, "X")
    axis_of(op, x)
    return {"Out": (x,), "Indices": (x._replace(dtype=DType.INT64),)}


@shape_rule("unique", "unique_with_counts")
def _unique(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if len(x.shape) != 1:
        raise ShapeError(f"X is {describe(x)}, it must have one dim", "X")
    counted = TensorType(dtype_attr(op), (-1,))
    return {
        "Out": (TensorType(x.dtype, (-1,)),),
        "Index": (TensorType(dtype_attr(op), x.shape),),
        "Count": (counted,),
    }
