"""Sequences step by step: tensor arrays, recurrences over ragged sequences with one step of all sequences at a time,
and beam search, the best continuations of every prefix and the resulting sentences.
"""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import int_attr
from pstranspile.ops.facts import Below
from pstranspile.ops.gradient import WantedGradients, bare_op, gradient, like_forward, output_gradients
from pstranspile.ops.schema import INT, UNSCOPED, bounded, declare, declare_gradient
from pstranspile.ops.shapes import ShapeError, Types, describe, one, one_or_none, outputs_like, shape_rule

declare("lod_rank_table", "X -> Out", {"level": 0}, rows="own", doc="Out = the sequences of X by length")
declare("lod_array_length", "X -> Out", rows="own", constant=True, doc="Out = the length of the array X")
declare("max_sequence_len", "RankTable -> Out", rows="own", doc="Out = the longest sequence of RankTable")
declare(
    "reorder_lod_tensor_by_rank",
    "X RankTable -> Out",
    row_order="ranked",
    doc="Out = the sequences of X in the order of RankTable",
)
declare_gradient("reorder_lod_tensor_by_rank", "X RankTable -> Out", UNSCOPED)
declare(
    "shrink_rnn_memory",
    "X RankTable I -> Out",
    rows="own",
    row_order="ranked",
    doc="Out = the rows of X that still have a step I",
)
declare_gradient("shrink_rnn_memory", "X Out@GRAD -> X@GRAD")

declare(
    "tensor_array_to_tensor",
    "X -> Out OutIndex",
    {"axis": 0, "use_stack": False},
    row_order="handed_on",
    doc="Out = the tensors of X, concatenated or stacked",
)
declare_gradient("tensor_array_to_tensor", "X Out@GRAD -> X@GRAD")


@gradient("reorder_lod_tensor_by_rank")
def _reorder_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "RankTable": op.inputs["RankTable"]}
    return (bare_op("reorder_lod_tensor_by_rank_grad", inputs, {"Out": wanted.gradient_names(op, "X")}),)


declare(
    "lod_tensor_to_array",
    "X RankTable -> Out",
    rows="own",
    row_order="ranked",
    doc="Out = an array of the steps of X, ordered by RankTable",
)
declare(
    "array_to_lod_tensor",
    "X RankTable -> Out",
    row_order="handed_on",
    doc="Out = the tensor that lod_tensor_to_array came from",
)
declare("write_to_array", "X I -> Out", rows="own", row_order="handed_on", typed_by="X", doc="Out[I] = X")
declare("read_from_array", "X I X_W? -> Out", may_lack="X X_W", rows="own", row_order="handed_on", doc="Out = X[I]")


shape_rule("write_to_array", "read_from_array", "shrink_rnn_memory", "reorder_lod_tensor_by_rank")(
    outputs_like(Out="X")
)


@shape_rule("array_to_lod_tensor")
def _array_to_lod_tensor(_op: Op, types: Types) -> Types:
    steps = one(types, "X")
    return {"Out": (steps._replace(lod_level=steps.lod_level + 1),)}


@shape_rule("max_sequence_len", "lod_array_length")
def _number(_op: Op, _types: Types) -> Types:
    return {"Out": (TensorType(DType.INT64, (1,)),)}


@shape_rule("tensor_array_to_tensor")
def _as_tensor(op: Op, types: Types) -> Types:
    x, axis = one(types, "X"), int_attr(op, "axis")
    if not x.shape:  # nothing has been written to the array, so its dims are not known
        return {}
    dims, stacked = list(x.shape), op.attrs.get("use_stack") is True
    rank = len(dims) + stacked
    if not -rank <= axis < rank:
        raise ShapeError(f"axis is {axis}, but the tensors of X are {describe(x)}", "X")
    axis %= rank
    dims[axis : axis + (not stacked)] = [-1]
    return {"Out": (TensorType(x.dtype, tuple(dims)),)}


@gradient("lod_tensor_to_array")
def _lod_tensor_to_array_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "RankTable": op.inputs["RankTable"]}
    return (like_forward(op, "array_to_lod_tensor", inputs, {"Out": wanted.gradient_names(op, "X")}),)


@gradient("array_to_lod_tensor")
def _array_to_lod_tensor_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "RankTable": op.inputs["RankTable"]}
    return (like_forward(op, "lod_tensor_to_array", inputs, {"Out": wanted.gradient_names(op, "X")}),)


@gradient("write_to_array")
def _write_to_array_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "I": op.inputs["I"], "X_W": op.inputs["X"]}
    return (like_forward(op, "read_from_array", inputs, {"Out": wanted.gradient_names(op, "X")}),)


@gradient("read_from_array")
def _read_from_array_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    inputs = {"X": output_gradients(op, "Out"), "I": op.inputs["I"]}
    return (like_forward(op, "write_to_array", inputs, {"Out": wanted.gradient_names(op, "X")}),)


# Beam search.


declare(
    "beam_search",
    "pre_ids pre_scores ids? scores -> selected_ids selected_scores parent_idx?",
    {"level": INT, "beam_size": bounded(INT, 1), "end_id": INT, "is_accumulated": True},
    rows="own",
    row_order="by_values",
    doc="the best continuations of each beam",
)
declare(
    "beam_search_decode",
    "Ids Scores -> SentenceIds SentenceScores",
    {"beam_size": bounded(INT, 1), "end_id": INT},
    rows="own",
    row_order="by_values",
    doc="the sentences of all beams",
)
declare(
    "gather_tree",
    "Ids Parents -> Out",
    domains={"Parents": Below("Ids", 2)},
    doc="Out = the sentences behind the last step of beams",
)


shape_rule("gather_tree")(outputs_like(Out="Ids"))


@shape_rule("beam_search")
def _beam_search(_op: Op, types: Types) -> Types:
    ids, scores = one(types, "pre_ids"), one_or_none(types, "pre_scores")
    result: dict[str, tuple[TensorType | None, ...]] = {"selected_ids": (TensorType(ids.dtype, (-1, 1)),)}
    if scores is not None:
        result["selected_scores"] = (TensorType(scores.dtype, (-1, 1)),)
    return result | {"parent_idx": (TensorType(DType.INT32, (-1,)),)}
