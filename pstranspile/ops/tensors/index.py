"""Elements and rows gathered and scattered by index."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import flag, int_attr
from pstranspile.ops.facts import AmongThose, Below, Within
from pstranspile.ops.schema import INT, LONG, UNSCOPED, bounded, declare, declare_gradient, element_type
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    dtype_attr,
    fits,
    one,
    one_or_none,
    outputs_like,
    several,
    shape_rule,
)
from pstranspile.ops.tensors.shape import axis_of

declare(
    "gather",
    "X Index -> Out",
    {"overwrite": True},
    row_order="by_values",
    domains={"Index": Below("X", 0)},
    doc="Out = the rows of X at Index",
)
declare_gradient("gather", "X Index Out@GRAD -> X@GRAD", linear=True)
declare(
    "scatter",
    "X Ids Updates -> Out",
    {"overwrite": True},
    rows="own",
    domains={"Ids": Below("X", 0)},
    doc="Out = X with the rows at Ids replaced by Updates, or Updates added to them",
)
declare_gradient("scatter", "Ids Updates Out@GRAD -> X@GRAD Updates@GRAD", result_lod="none")

declare(
    "one_hot",
    "X depth_tensor? -> Out",
    {"depth": -1, "dtype": element_type(5), "allow_out_of_range": False},
    domains={"X": Below("depth")},
    constant=True,
    doc="Out = a row of `depth` elements for each id of X (whose last dim is 1), 1 at the id and 0 elsewhere",
)
declare(
    "one_hot_v2",
    "X depth_tensor? -> Out",
    {"depth": -1, "dtype": element_type(5), "allow_out_of_range": False},
    domains={"X": Below("depth")},
    constant=True,
    doc="as one_hot, for X of any shape",
)


@shape_rule("gather")
def _gather(_op: Op, types: Types) -> Types:
    x, index = one(types, "X"), one(types, "Index")
    return {"Out": (TensorType(x.dtype, (index.shape[0], *x.shape[1:])),)}


@shape_rule("scatter")
def _scatter(_op: Op, types: Types) -> Types:
    return {"Out": (one(types, "X")._replace(lod_level=0),)}


@shape_rule("scatter_grad")
def _scatter_grad(_op: Op, types: Types) -> Types:
    return {"X@GRAD": types.get("Out@GRAD", ()), "Updates@GRAD": types.get("Updates", ())}


@shape_rule("one_hot", "one_hot_v2")
def _one_hot(op: Op, types: Types) -> Types:
    x = one(types, "X")
    if op.type == "one_hot" and len(x.shape) < 2:
        raise ShapeError(f"X is {describe(x)}: its last dim must be 1, after at least one other")
    leading = x.shape[:-1] if op.type == "one_hot" else x.shape
    depth = -1 if "depth_tensor" in types else int_attr(op, "depth")
    return {"Out": (TensorType(dtype_attr(op), (*leading, depth), x.lod_level),)}


declare(
    "gather_nd",
    "X Index -> Out",
    row_order="by_values",
    domains={"Index": Within("X")},
    doc="Out = the elements of X at the positions in the last dim of Index",
)
declare_gradient("gather_nd", "X Index Out@GRAD -> X@GRAD")
declare(
    "scatter_nd_add",
    "X Index Updates -> Out",
    rows="own",
    domains={"Index": Within("X")},
    doc="Out = X with Updates added at the positions in the last dim of Index",
)
declare_gradient("scatter_nd_add", "Index Updates Out@GRAD -> X@GRAD Updates@GRAD", result_lod="none")
declare(
    "index_select",
    "X Index -> Out",
    {"dim": 0},
    domains={"Index": Below("X", "dim")},
    doc="Out = the slices of X at Index along `dim`",
)
declare_gradient("index_select", "X Index Out@GRAD -> X@GRAD")
declare(
    "index_sample",
    "X Index -> Out",
    domains={"Index": Below("X", 1)},
    doc="Out = the elements of each row of X at that row of Index",
)
declare_gradient("index_sample", "X Index Out@GRAD -> X@GRAD", UNSCOPED)
declare(
    "multiplex",
    "Ids X* -> Out",
    domains={"Ids": AmongThose("X")},
    doc="Out = for each row, that row of the X whose number Ids tells",
)
declare_gradient("multiplex", "Ids Out@GRAD -> X@GRAD*")
declare("where", "Condition X Y -> Out", doc="Out = X where Condition is true, else Y")
declare_gradient("where", "Condition X Y Out@GRAD -> X@GRAD Y@GRAD", UNSCOPED)
declare(
    "where_index",
    "Condition -> Out",
    rows="own",
    row_order="by_values",
    doc="Out = the positions at which Condition is true",
)
declare(
    "shard_index",
    "X -> Out",
    {"index_num": bounded(INT, 1), "nshards": bounded(INT, 1), "shard_id": bounded(INT, 0), "ignore_value": -1},
    domains={"X": Below("index_num")},
    constant=True,
    doc="Out = X less the start of its shard, ignore_value outside this shard",
)


def _gathered_dims(x: TensorType, index: TensorType) -> tuple[int, ...]:
    """The dims of the slices of x at the positions in `index`. Raises ShapeError if positions have more numbers than x
    has dims.
    """
    depth = index.shape[-1]
    if len(index.shape) < 2:
        raise ShapeError(f"Index is {describe(index)}, it must have at least two dims", "Index")
    if depth > len(x.shape):
        raise ShapeError(f"Index is {describe(index)}, its positions have more numbers than X, {describe(x)}", "Index")
    return (*index.shape[:-1], *x.shape[depth:])


@shape_rule("gather_nd")
def _gather_nd(_op: Op, types: Types) -> Types:
    x, index = one(types, "X"), one(types, "Index")
    return {"Out": (TensorType(x.dtype, _gathered_dims(x, index) if index.shape[-1] >= 0 else (), x.lod_level),)}


@shape_rule("scatter_nd_add")
def _scatter_nd_add(_op: Op, types: Types) -> Types:
    x, index, updates = one(types, "X"), one_or_none(types, "Index"), one_or_none(types, "Updates")
    if index is not None and updates is not None and index.shape[-1] >= 0:
        dims = _gathered_dims(x, index)
        if not fits(updates.shape, dims):
            raise ShapeError(f"Updates is {describe(updates)}, but Index picks {list(dims)}", "Updates")
    return {"Out": (x,)}


@shape_rule("scatter_nd_add_grad")
def _scatter_nd_add_grad(_op: Op, types: Types) -> Types:
    return {"X@GRAD": types.get("Out@GRAD", ()), "Updates@GRAD": types.get("Updates", ())}


@shape_rule("index_select")
def _index_select(op: Op, types: Types) -> Types:
    x, index = one(types, "X"), one(types, "Index")
    axis, rank = int_attr(op, "dim"), len(x.shape)
    if not -rank <= axis < rank:
        raise ShapeError(f"dim is {axis}, but X is {describe(x)}", "X")
    axis %= rank
    return {"Out": (x._replace(shape=(*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :])),)}


@shape_rule("index_sample")
def _index_sample(_op: Op, types: Types) -> Types:
    x, index = one(types, "X"), one(types, "Index")
    if len(x.shape) != 2 or len(index.shape) != 2 or not fits(x.shape[:1], index.shape[:1]):
        disagree("X", x, "Index", index)
    return {"Out": (TensorType(x.dtype, index.shape),)}


@shape_rule("multiplex")
def _multiplex(_op: Op, types: Types) -> Types:
    parts = several(types, "X")
    for part in parts[1:]:
        if part.dtype is not parts[0].dtype or not fits(part.shape, parts[0].shape):
            disagree("X", part, "the first part", parts[0])
    return {"Out": (parts[0]._replace(lod_level=0),)}


@shape_rule("multiplex_grad")
def _multiplex_grad(op: Op, types: Types) -> Types:
    return {"X@GRAD": (one(types, "Out@GRAD"),) * len(op.outputs["X@GRAD"])}


@shape_rule("where")
def _where(_op: Op, types: Types) -> Types:
    x, y, condition = one(types, "X"), one_or_none(types, "Y"), one_or_none(types, "Condition")
    if y is not None and (y.dtype is not x.dtype or not fits(y.shape, x.shape)):
        disagree("Y", y, "X", x)
    if condition is not None and not fits(condition.shape, x.shape):
        disagree("Condition", condition, "X", x)
    return {"Out": (x,)}


@shape_rule("where_index")
def _where_index(_op: Op, types: Types) -> Types:
    return {"Out": (TensorType(DType.INT64, (-1, len(one(types, "Condition").shape))),)}


shape_rule("shard_index")(outputs_like(Out="X"))


# Sorting, top-k and unique elements.

declare(
    "top_k",
    "X K? -> Out Indices",
    {"k": 1},
    constant=True,
    doc="Out = the k largest elements of each row, Indices = where they were",
    branches=True,
)
declare_gradient("top_k", "X Indices Out@GRAD -> X@GRAD", UNSCOPED)
declare(
    "arg_max",
    "X -> Out",
    {"axis": LONG, "keepdims": False, "dtype": element_type(-1, unset=True)},
    constant=True,
    doc="Out = the index of the largest element along `axis`",
    branches=True,
)


@shape_rule("top_k")
def _top_k(op: Op, types: Types) -> Types:
    x = one(types, "X")
    dims = (*x.shape[:-1], -1 if "K" in types else int_attr(op, "k"))
    if 0 <= x.shape[-1] < dims[-1] or ("K" not in types and dims[-1] < 1):
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
    {"axis": LONG, "keepdims": False, "dtype": element_type(-1, unset=True)},
    constant=True,
    doc="Out = the index of the smallest element along `axis`",
    branches=True,
)
declare(
    "argsort",
    "X -> Out Indices",
    {"axis": -1, "descending": False},
    constant=True,
    doc="Out = X sorted along `axis`, Indices = where its elements were",
    branches=True,
)
declare_gradient("argsort", "X Indices Out@GRAD -> X@GRAD")
declare(
    "unique",
    "X -> Out Index",
    {"dtype": element_type(INT)},
    rows="own",
    row_order="by_values",
    doc="Out = the elements of X without repeats, Index = where each went",
)
declare(
    "unique_with_counts",
    "X -> Out Index Count",
    {"dtype": element_type(INT)},
    rows="own",
    row_order="by_values",
    doc="as unique, Count = how often each occurs",
)


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
