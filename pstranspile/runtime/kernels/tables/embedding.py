"""Kernels. Lookups in tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ops.attributes import flag, int_attr
from pstranspile.runtime.arithmetic import sum_runs
from pstranspile.runtime.kernels.context import ExecutionContext
from pstranspile.runtime.kernels.kernel import Run, kernel
from pstranspile.runtime.kernels.numeric import all_ids
from pstranspile.runtime.kernels.ragged import plain, runs_between, sequences, upper
from pstranspile.runtime.kernels.rows import AS_ROWS, add_rows, find_rows, positions
from pstranspile.runtime.large.table import LargeTable
from pstranspile.runtime.values import Array, SelectedRows


def _looked_up(table: Array | SelectedRows | LargeTable, ids: Array) -> Array:
    """The rows of a table at ids of any shape. Raises ValueError for an id that the table does not have."""
    if isinstance(table, LargeTable):
        return table.look_up(ids.reshape(-1).astype("int64", copy=False)).reshape(*ids.shape, table.width)
    if isinstance(table, SelectedRows):
        return table.value[positions(table, ids.astype("int64", copy=False), "W")]
    ids = np.ascontiguousarray(ids)
    _require_rows(table, ids)
    return table.take(ids, axis=0)


def _require_rows(table: Array, ids: Array) -> None:
    """Raises ValueError for an id that the table does not have."""
    if not all_ids(ids, len(table)):
        wrong = ids[(ids < 0) | (ids >= len(table))][0]
        raise ValueError(f"Ids holds {int(wrong)}, but W has {len(table)} rows")


@kernel("lookup_table lookup_table_v2")
def _lookup(op: Op) -> Run:
    padding, last = int_attr(op, "padding_idx", -1), op.type == "lookup_table"

    def run(W: Array | SelectedRows | LargeTable, Ids: Array) -> Array:
        ids = Ids.reshape(Ids.shape[:-1]) if last else Ids
        if padding < 0:
            return _looked_up(W, ids)
        absent = ids == padding
        out = _looked_up(
            W, np.where(absent, 0, ids) if isinstance(W, SelectedRows | LargeTable) and absent.any() else ids
        )
        out[absent] = 0
        return out

    return run


@kernel("lookup_table_dequant")
def _lookup_dequant(op: Op) -> Run:
    padding = int_attr(op, "padding_idx", -1)

    def run(W: Array, Ids: Array) -> Array:
        ids = Ids.reshape(Ids.shape[:-1])
        absent = ids == padding if padding >= 0 else np.zeros(ids.shape, "bool")
        rows = _looked_up(W, np.where(absent, 0, ids))
        least, greatest = rows[..., :1], rows[..., 1:2]
        levels = np.ascontiguousarray(rows[..., 2:]).view("uint8")
        out = levels * ((greatest - least) / rows.dtype.type(256)) + least
        out[absent] = 0
        return out.astype(rows.dtype, copy=False)

    return run


LOOKUP_GRADIENTS = ("lookup_table_grad", "lookup_table_v2_grad")


@kernel(" ".join(LOOKUP_GRADIENTS), "W@GRAD", lod="none")
def _lookup_grad(op: Op) -> Run:
    padding, sparse, as_rows = int_attr(op, "padding_idx", -1), flag(op, "is_sparse"), AS_ROWS in op.attrs

    def run(W: Array | SelectedRows | LargeTable, Ids: Array, Out_GRAD: Array) -> Array | SelectedRows:
        rows = Ids.reshape(-1).astype("int64", copy=False)
        if isinstance(W, LargeTable):
            if not sparse:
                raise ValueError("W is a large table, whose gradient must be sparse (is_sparse)")
            return SelectedRows(rows, Out_GRAD.reshape(len(rows), W.width), W.height)
        height, table = (W.height, W.value) if isinstance(W, SelectedRows) else (len(W), W)
        value = Out_GRAD.reshape(len(rows), *table.shape[1:])
        if sparse:
            if table is W:
                _require_rows(table, rows)
            return SelectedRows(rows, value, height)
        kept = rows != padding if padding >= 0 else slice(None)
        if as_rows:
            return SelectedRows(rows[kept], value[kept], height)
        total = np.zeros((height, *table.shape[1:]), table.dtype)
        add_rows(total, rows[kept], value[kept])
        return total

    return run


def _require_sum(op: Op) -> None:
    """Raises ValueError for another combiner: Fluid 1.8.5 has none."""
    if op.attrs["combiner"] != "sum":
        raise ValueError(f"combiner is {op.attrs['combiner']!r}, it must be 'sum'")


@kernel("fused_embedding_seq_pool", lod="own")
def _fused_embedding_seq_pool(op: Op) -> Run:
    _require_sum(op)
    padding = int_attr(op, "padding_idx", -1)

    def run(W: Array, Ids: Any) -> object:
        ids, lod = sequences(Ids, "Ids")
        rows = _looked_up(W, ids)
        if padding >= 0:
            rows[ids == padding] = 0
        rows = rows.reshape(len(ids), -1)
        starts, lengths, full, _ = runs_between(tuple(lod[-1]))
        if full:
            return upper(sum_runs(rows, starts, lengths), lod)
        out = np.zeros((len(lengths), rows.shape[1]), rows.dtype)
        filled = lengths > 0
        if filled.any():
            out[filled] = sum_runs(rows, starts[filled], lengths[filled])
        return upper(out, lod)

    return run


@kernel("fused_embedding_seq_pool_grad", "W@GRAD", lod="own")
def _fused_embedding_seq_pool_grad(op: Op) -> Run:
    _require_sum(op)
    padding, sparse = int_attr(op, "padding_idx", -1), flag(op, "is_sparse")

    def run(W: Array, Ids: Any, Out_GRAD: Any) -> Array | SelectedRows:
        ids, lod = sequences(Ids, "Ids")
        value = np.repeat(plain(Out_GRAD), np.diff(lod[-1]), axis=0).reshape(-1, W.shape[1])
        rows = ids.reshape(-1).astype("int64", copy=False)
        if sparse:
            return SelectedRows(rows, value, len(W))
        kept = rows != padding if padding >= 0 else slice(None)
        total = np.zeros_like(W)
        add_rows(total, rows[kept], value[kept])
        return total

    return run


@kernel("lookup_sparse_table")
def _lookup_sparse_table(op: Op) -> Run:
    test, table = flag(op, "is_test"), op.inputs["W"][0]

    def run(W: SelectedRows, Ids: Array, context: ExecutionContext) -> Array:
        ids = Ids.reshape(-1)
        places, result = find_rows(W, ids)
        if result.all():
            return W.value[places]
        if test:
            return np.where(result[:, None], W.value[places], 0).astype(W.value.dtype)
        unknown = ids[~result]
        new = unknown[np.sort(np.unique(unknown, return_index=True)[1])]  # in the order of their first occurrence
        room = len(W.value) - len(W.rows)
        if len(new) > room:
            raise ValueError(f"W has room for {room} more rows, but Ids brings {len(new)} new ids")
        grown = W._replace(rows=np.concatenate([W.rows, new]))
        context.write(table, grown)
        return grown.value[positions(grown, ids, "W")]

    return run
