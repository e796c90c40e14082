"""Embedding lookups."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.attributes import ints_attr
from pstranspile.ops.facts import AmongThose, Below
from pstranspile.ops.gradient import WantedGradients, gradient, like_forward, output_gradients
from pstranspile.ops.schema import LONGS, declare, declare_gradient, ints, later, long, longs, strings, words
from pstranspile.ops.shapes import ShapeError, Types, describe, one, outputs_like, ragged_type, shape_rule, size
from pstranspile.ops.tensors.fill import types_from_shape

SERVED_RANK = 2
"""The rank of the ids that a lookup on servers takes, as Fluid's fused lookup does."""

_TABLE = {
    "remote_prefetch": False,
    "trainer_id": 0,
    "height_sections": longs(),
    "epmap": strings(),
    "table_names": strings(),
    "is_sparse": False,
    "is_distributed": False,
    "padding_idx": long(-1),
    "merge_rows": later("bool", "an order of sums of this package"),
}

declare(
    "lookup_table",
    "W Ids -> Out",
    {"grad_inplace": False, **_TABLE},
    table_lookup=True,
    looks_up="W",
    domains={"Ids": Below("W", 0)},
    doc="Out = the rows of W at Ids [..., 1]; rows at padding_idx are zero; with merge_rows, a gradient of sparse rows "
    "has each row once, with the sum of its gradients in order",
)
declare_gradient("lookup_table", "W Ids Out@GRAD -> W@GRAD", linear=True, sparse_gradient="W@GRAD")
declare(
    "lookup_table_v2",
    "W Ids -> Out",
    _TABLE,
    table_lookup=True,
    looks_up="W",
    domains={"Ids": Below("W", 0)},
    doc="Out = the rows of W at Ids of any shape, as lookup_table gives them",
)
declare_gradient("lookup_table_v2", "W Ids Out@GRAD -> W@GRAD", linear=True, sparse_gradient="W@GRAD")
declare(
    "lookup_table_dequant",
    "W Ids -> Out",
    {"padding_idx": long(-1)},
    domains={"Ids": Below("W", 0)},
    doc="Out = the rows of W at Ids [..., 1]; a row of W is the least value, the greatest, and bytes between the two",
)
declare(
    "lookup_sparse_table",
    "W Ids -> Out",
    {"padding_idx": long(-1), "auto_grown_table": True, "is_test": False},
    domains={"Ids": Below("W", 0)},
    doc="Out = the rows of the SelectedRows W at Ids, taken in as they come when it grows by itself",
)
declare(
    "fused_embedding_seq_pool",
    "W Ids -> Out",
    {"combiner": words("sum"), "grad_inplace": False, "is_sparse": False, "padding_idx": long(-1)},
    domains={"Ids": Below("W", 0)},
    doc="Out = for each sequence, the sum of the rows of W at Ids; the columns of Ids are looked up side by side",
)
declare_gradient("fused_embedding_seq_pool", "W Ids Out@GRAD -> W@GRAD", sparse_gradient="W@GRAD")


def _table_width(table: TensorType, ids: TensorType) -> int:
    if len(table.shape) != 2:
        raise ShapeError(f"W is {describe(table)}, a table has two dims", "W")
    if ids.dtype not in (DType.INT64, DType.INT32):
        raise ShapeError(f"Ids is {describe(ids)}, ids are i64", "Ids")
    return table.shape[1]


@shape_rule("lookup_table")
def _lookup_table(_op: Op, types: Types) -> Types:
    table, ids = one(types, "W"), one(types, "Ids")
    width = _table_width(table, ids)
    if ids.shape[-1] not in (1, -1):
        raise ShapeError(f"Ids is {describe(ids)}, its last dim must be 1", "Ids")
    return {"Out": (TensorType(table.dtype, (*ids.shape[:-1], width), ids.lod_level),)}


@shape_rule("lookup_table_dequant")
def _lookup_table_dequant(_op: Op, types: Types) -> Types:
    table, ids = one(types, "W"), one(types, "Ids")
    width = _table_width(table, ids)
    if 0 <= width < 2:
        raise ShapeError(f"W is {describe(table)}, its rows begin with two values", "W")
    columns = width if width < 0 else (width - 2) * 4
    return {"Out": (TensorType(table.dtype, (*ids.shape[:-1], columns), ids.lod_level),)}


@shape_rule("lookup_table_v2")
def _lookup_table_v2(_op: Op, types: Types) -> Types:
    table, ids = one(types, "W"), one(types, "Ids")
    width = _table_width(table, ids)
    return {"Out": (TensorType(table.dtype, (*ids.shape, width), ids.lod_level),)}


@shape_rule("fused_embedding_seq_pool")
def _fused_embedding_seq_pool(_op: Op, types: Types) -> Types:
    table, ids = one(types, "W"), ragged_type(types, "Ids")
    columns = size(ids.shape[1:])
    width = _table_width(table, ids)
    return {"Out": (TensorType(table.dtype, (-1, -1 if columns < 0 else columns * width), ids.lod_level - 1),)}


# Large tables: their creation in startup programs, in place of the initialisers of a table and its states.

INITIALISERS = ("uniform_random", "gaussian_random", "truncated_gaussian_random", "fill_constant")
"""The op types that can initialise a row of a large table."""

declare(
    "large_table",
    "-> Out",
    {
        "shape": longs(),
        "initializer": "uniform_random",
        "min": -1.0,
        "max": 1.0,
        "mean": 0.0,
        "std": 1.0,
        "value": 0.0,
        "seed": 0,
        "dtype": 5,
        "enter_after": 1,
        "enter_chance": 1.0,
        "shrink_every": 0,
        "drop_unseen": 0,
        "drop_below": 0.0,
        "score_decay": 0.98,
        "any_id": False,
        "declared_rows": long(0),
    },
    draws=True,
    part_by_shape=True,
    doc="Out = a table of `shape` without rows; one begins, once it is trained, as `initializer` would have made it; "
    "with `any_id`, for any id of 64 bits, of which a script has declared `declared_rows`",
)
declare(
    "large_table_state",
    "Table -> Out",
    {"shape": longs(), "value": 0.0, "dtype": 5},
    doc="Out = what an optimizer keeps for each row of a large table, which begins with `value`",
)

shape_rule("large_table", "large_table_state")(types_from_shape)


# SelectedRows and ids split among servers and merged again.

declare("merge_selected_rows", "X -> Out", typed_by="X", doc="Out = X with rows of one index added up")
declare("get_tensor_from_selected_rows", "X -> Out", typed_by="X", doc="Out = the value of X")
declare(
    "split_selected_rows",
    "X -> Out*",
    {"height_sections": longs()},
    cuts=True,
    doc="Out = the rows of X sorted into sections of the height",
)
declare("split_ids", "Ids* -> Out*", cuts=True, doc="Out = Ids (or rows) sorted by id modulo the number of outputs")
declare("merge_ids", "Ids* Rows* X* -> Out*", doc="Out = the rows X at the ids Rows, in the order of Ids")
declare(
    "split_byref",
    "X -> Out*",
    {"sections": ints(), "num": 0},
    cuts=True,
    doc="Out = X cut along dim 0, sharing its memory",
)
declare(
    "ref_by_trainer_id",
    "X* TrainerId -> Out",
    domains={"TrainerId": AmongThose("X")},
    doc="Out = X of the number TrainerId",
)


declare(
    "fake_init", "-> Out", {"shape": LONGS}, doc="Out = a tensor of dims `shape` without memory, to be received later"
)


shape_rule("merge_selected_rows", "get_tensor_from_selected_rows")(outputs_like(Out="X"))


@shape_rule("ref_by_trainer_id")
def _ref_by_trainer_id(_op: Op, types: Types) -> Types:
    return {"Out": (one(types, "X"),)}


@shape_rule("split_byref")
def _split_byref(op: Op, types: Types) -> Types:
    x, sections = one(types, "X"), ints_attr(op, "sections")
    if not sections:
        return {}
    if x.shape[0] >= 0 and sum(sections) != x.shape[0]:
        raise ShapeError(f"X is {describe(x)}, which cannot be cut into {list(sections)} rows", "X")
    return {"Out": tuple(TensorType(x.dtype, (rows, *x.shape[1:])) for rows in sections)}


@gradient("split_byref")
def _split_byref_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    return (like_forward(op, "concat", {"X": output_gradients(op, "Out")}, {"Out": wanted.gradient_names(op, "X")}),)


@gradient("split_selected_rows")
def _split_selected_rows_gradient(op: Op, wanted: WantedGradients) -> tuple[Op, ...]:
    return (like_forward(op, "sum", {"X": output_gradients(op, "Out")}, {"Out": wanted.gradient_names(op, "X")}),)
