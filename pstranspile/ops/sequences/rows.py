"""Ragged sequences expanded, concatenated, convolved and encoded."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.ops.facts import Below
from pstranspile.ops.gradient import from_declaration, gradient
from pstranspile.ops.schema import INT, INTS, bounded, declare, declare_gradient, ints, words
from pstranspile.ops.shapes import (
    ShapeError,
    Types,
    describe,
    disagree,
    fits,
    one,
    one_or_none,
    outputs_like,
    ragged_type,
    results_like,
    several,
    shape_rule,
    size,
)
from pstranspile.ops.work import elements, work_rule

declare("row_conv", "X Filter -> Out", doc="Out = X convolved with Filter over the rows that follow")
declare_gradient("row_conv", "X Filter Out@GRAD -> X@GRAD Filter@GRAD", result_lod="none")
shape_rule("row_conv")(outputs_like(Out="X"))

declare(
    "add_position_encoding",
    "X -> Out",
    {"alpha": 1.0, "beta": 1.0},
    doc="Out = alpha * X + beta * sines of the position",
)
declare_gradient("add_position_encoding", "Out@GRAD -> X@GRAD", result_lod="none")

declare(
    "sequence_expand",
    "X Y -> Out",
    {"ref_level": -1},
    numbers="moved",
    doc="Out = each sequence of X repeated as Y's level ref_level says",
)
declare_gradient("sequence_expand", "X Y Out@GRAD -> X@GRAD")
declare("sequence_concat", "X* -> Out", numbers="moved", doc="Out = the sequences of all X, joined one by one")
declare_gradient("sequence_concat", "X* Out@GRAD -> X@GRAD*", result_lod="none")
declare(
    "sequence_conv",
    "X PaddingData? Filter -> Out",
    {"paddingTrainable": False, "contextLength": bounded(INT, 1), "contextStart": 0, "contextStride": bounded(1, 1, 1)},
    doc="Out = the rows around each row, contextLength of them, times Filter",
)
declare_gradient("sequence_conv", "X Filter Out@GRAD -> X@GRAD Filter@GRAD")
declare(
    "lod_reset",
    "X Y? -> Out",
    {"target_lod": ints(), "append": False},
    row_order="by_values",
    numbers="moved",
    doc="Out = X with another LoD, from Y or target_lod",
)
declare_gradient("lod_reset", "X Out@GRAD -> X@GRAD")


@shape_rule("sequence_expand")
def _sequence_expand(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    made: Types = {"Out": (TensorType(x.dtype, (-1, *x.shape[1:]), x.lod_level),)}
    ragged_type(types, "Y", made)
    return made


@shape_rule("sequence_concat")
def _sequence_concat(_op: Op, types: Types) -> Types:
    parts = several(types, "X")
    first = parts[0]
    for part in parts[1:]:
        if not fits(part.shape[1:], first.shape[1:]):
            disagree("X", part, "the first part", first)
    rows = [part.shape[0] for part in parts]
    return {"Out": (first._replace(shape=(-1 if min(rows) < 0 else sum(rows), *first.shape[1:])),)}


@shape_rule("sequence_conv")
def _sequence_conv(op: Op, types: Types) -> Types:
    x, kernel = one(types, "X"), one(types, "Filter")
    rows = size(x.shape[1:]) * int_attr(op, "contextLength")
    if len(kernel.shape) != 2 or (rows >= 0 and kernel.shape[0] not in (rows, -1)):
        raise ShapeError(f"Filter is {describe(kernel)}, it needs {rows} rows for X, {describe(x)}", "Filter")
    made: Types = {"Out": (TensorType(x.dtype, (x.shape[0], kernel.shape[1]), x.lod_level),)}
    ragged_type(types, "X", made)
    return made


@shape_rule("lod_reset")
def _lod_reset(op: Op, types: Types) -> Types:
    x, like = one(types, "X"), one_or_none(types, "Y")
    level = max(like.lod_level, 1) if like is not None else 1
    return {"Out": (x._replace(lod_level=level + (x.lod_level if op.attrs.get("append") else 0)),)}


@shape_rule("add_position_encoding")
def _add_position_encoding(_op: Op, types: Types) -> Types:
    x = one(types, "X")
    if x.shape[-1] % 2 and x.shape[-1] > 0:
        raise ShapeError(f"X is {describe(x)}, its last dim must be even: half sines, half cosines", "X")
    return {"Out": (x,)}


shape_rule("add_position_encoding_grad")(results_like("Out@GRAD", "X@GRAD"))


declare("sequence_expand_as", "X Y -> Out", doc="Out = each row of X repeated as long as that sequence of Y")
declare_gradient("sequence_expand_as", "X Y Out@GRAD -> X@GRAD")


@shape_rule("sequence_expand_as")
def _sequence_expand_as_types(_op: Op, types: Types) -> Types:
    x, y = one(types, "X"), one(types, "Y")
    return {"Out": (TensorType(x.dtype, (-1, *x.shape[1:]), y.lod_level),)}


# Pooling and softmax of ragged sequences.

declare(
    "sequence_pool",
    "X -> Out MaxIndex~",
    {"is_test": False, "pooltype": words("AVERAGE", "SUM", "SQRT", "MAX", "LAST", "FIRST"), "pad_value": 0.0},
    numbers="combined",
    mean_of_rows=True,
    doc="Out = one row of each sequence: its sum, average, maximum, first, ...",
)
declare_gradient("sequence_pool", "X MaxIndex- Out@GRAD -> X@GRAD")
declare(
    "sequence_softmax",
    "X -> Out",
    {"use_cudnn": False, "data_format": words("AnyLayout", "NCHW", "NHWC")},
    doc="Out = softmax within each sequence",
)
declare_gradient("sequence_softmax", "X Out Out@GRAD -> X@GRAD", result_lod="none")


@shape_rule("sequence_pool")
def _sequence_pool(_op: Op, types: Types) -> Types:
    x = ragged_type(types, "X")
    # MaxIndex has the dims of X, but Fluid declares it without dims and with the element type of X.
    return {"Out": (TensorType(x.dtype, (-1, *x.shape[1:]), x.lod_level - 1),)}


@shape_rule("sequence_softmax")
def _sequence_softmax(_op: Op, types: Types) -> Types:
    return {"Out": (ragged_type(types, "X", {"Out": types.get("X", ())}),)}


def _takes_maximum(op: Op) -> bool:
    return op.attrs.get("pooltype") == "MAX"


gradient("sequence_pool")(from_declaration("sequence_pool_grad", MaxIndex=_takes_maximum))


@shape_rule("sequence_topk_avg_pooling")
def _pool_types(op: Op, types: Types) -> Types:
    x, row = one(types, "X"), one_or_none(types, "ROW")
    width = len(ints_attr(op, "topks")) * int_attr(op, "channel_num")
    return {"Out": (TensorType(x.dtype, (-1, width), row.lod_level if row is not None else x.lod_level),)}


declare(
    "sequence_topk_avg_pooling",
    "X ROW COLUMN -> Out pos~",
    {"topks": bounded(INTS, 1), "channel_num": bounded(INT, 1)},
    rows="own",
    doc="Out = averages of the largest elements",
)
declare_gradient("sequence_topk_avg_pooling", "X ROW COLUMN pos Out@GRAD -> X@GRAD")


# Sequences compared word by word: matrices of matches, and convolution over images of any size.

declare(
    "match_matrix_tensor",
    "X Y W -> Out Tmp",
    {"dim_t": bounded(1, 1)},
    rows="own",
    doc="Out = X W Y^T of each sequence: a block [dim_t, words of X, words of Y]; Tmp = X W",
)
declare_gradient("match_matrix_tensor", "X Y W Tmp Out@GRAD -> X@GRAD Y@GRAD W@GRAD")


@shape_rule("match_matrix_tensor")
def _match_matrix_tensor(op: Op, types: Types) -> Types:
    x, y, w = one(types, "X"), one(types, "Y"), one(types, "W")
    for slot, texts in (("X", x), ("Y", y)):
        if len(texts.shape) != 2:
            raise ShapeError(f"{slot} is {describe(texts)}, it must have two dims", slot)
    fitting = (x.shape[1], int_attr(op, "dim_t", 1), y.shape[1])
    if len(w.shape) != 3 or any(a != b and a >= 0 and b >= 0 for a, b in zip(w.shape, fitting, strict=True)):
        raise ShapeError(f"W is {describe(w)}, it must have the dims {list(fitting)}", "W")
    return {"Out": (TensorType(x.dtype, (-1, 1), x.lod_level),), "Tmp": (TensorType(x.dtype, (-1, 1)),)}


declare(
    "var_conv_2d",
    "X ROW COLUMN W -> Out Col",
    {
        "InputChannel": bounded(1, 1),
        "OutputChannel": bounded(1, 1),
        "StrideH": bounded(1, 1),
        "StrideW": bounded(1, 1),
        "KernelH": bounded(1, 1),
        "KernelW": bounded(1, 1),
    },
    rows="own",
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


# Convolution over the nodes of trees.

declare(
    "tree_conv",
    "NodesVector EdgeSet Filter -> Out",
    {"max_depth": bounded(2, 1)},
    domains={"EdgeSet": Below("NodesVector", 1)},
    doc="Out = for each node its subtree of max_depth levels, weighted by place, times Filter (arXiv 1409.5718)",
)
declare_gradient("tree_conv", "Out@GRAD Filter EdgeSet NodesVector -> NodesVector@GRAD Filter@GRAD")


@shape_rule("tree_conv")
def _tree_conv(_op: Op, types: Types) -> Types:
    nodes, edges, kernel = one(types, "NodesVector"), one(types, "EdgeSet"), one(types, "Filter")
    if len(nodes.shape) != 3:
        raise ShapeError(f"NodesVector is {describe(nodes)}, it must have three dims", "NodesVector")
    if len(edges.shape) != 3 or not fits(edges.shape[2:], (2,)):
        raise ShapeError(f"EdgeSet is {describe(edges)}, it must have three dims, the last of them 2", "EdgeSet")
    if len(kernel.shape) != 4 or not fits(kernel.shape[:2], (nodes.shape[2], 3)):
        message = f"Filter is {describe(kernel)}, it must have four dims, the first [{nodes.shape[2]}, 3]"
        raise ShapeError(message, "Filter")
    return {"Out": (TensorType(nodes.dtype, (*nodes.shape[:2], *kernel.shape[2:])),)}


# The work of convolutions over the rows of sequences.


@work_rule("row_conv", factors="X Filter", family="products")
def _row_conv_work(_op: Op, types: Types) -> float:
    return 2.0 * elements(types, "X") * one(types, "Filter").shape[0]


@work_rule("sequence_conv", factors="X Filter", family="products")
def _sequence_conv_work(_op: Op, types: Types) -> float:
    return 2.0 * one(types, "X").shape[0] * elements(types, "Filter")
