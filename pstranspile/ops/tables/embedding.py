"""Embedding lookups."""

from __future__ import annotations

from pstranspile.ir.model import Op, TensorType
from pstranspile.ir.types import DType
from pstranspile.ops.schema import declare, declare_gradient, long, longs, strings
from pstranspile.ops.shapes import ShapeError, Types, describe, one, ragged, shape_rule, size

_TABLE = {
    "remote_prefetch": False,
    "trainer_id": 0,
    "height_sections": longs(),
    "epmap": strings(),
    "table_names": strings(),
    "is_sparse": False,
    "is_distributed": False,
    "padding_idx": long(-1),
}

declare(
    "lookup_table",
    "W Ids -> Out",
    {"grad_inplace": False, **_TABLE},
    table_lookup=True,
    doc="Out = the rows of W at Ids [..., 1]; rows at padding_idx are zero",
)
declare_gradient("lookup_table", "W Ids Out@GRAD -> W@GRAD")
declare(
    "lookup_table_v2",
    "W Ids -> Out",
    _TABLE,
    table_lookup=True,
    doc="Out = the rows of W at Ids of any shape",
)
declare_gradient("lookup_table_v2", "W Ids Out@GRAD -> W@GRAD")
declare(
    "lookup_table_dequant",
    "W Ids -> Out",
    {"padding_idx": long(-1)},
    doc="Out = the rows of W at Ids [..., 1]; a row of W is the least value, the greatest, and bytes between the two",
)
declare(
    "lookup_sparse_table",
    "W Ids -> Out",
    {"padding_idx": long(-1), "auto_grown_table": True, "is_test": False},
    doc="Out = the rows of the SelectedRows W at Ids, taken in as they come when it grows by itself",
)
declare(
    "fused_embedding_seq_pool",
    "W Ids -> Out",
    {"combiner": "sum", "grad_inplace": False, "is_sparse": False, "padding_idx": long(-1)},
    doc="Out = for each sequence, the sum of the rows of W at Ids; the columns of Ids are looked up side by side",
)
declare_gradient("fused_embedding_seq_pool", "W Ids Out@GRAD -> W@GRAD")


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
    table, ids = one(types, "W"), ragged(types, "Ids")
    columns = size(ids.shape[1:])
    width = _table_width(table, ids)
    return {"Out": (TensorType(table.dtype, (-1, -1 if columns < 0 else columns * width), ids.lod_level - 1),)}
