"""Kernels. Lookups in tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ir.table_rules import Rules, takes_any_id
from pstranspile.ops import with_defaults
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real, text
from pstranspile.ops.shapes import Dims
from pstranspile.ops.tables.embedding import INITIALISERS
from pstranspile.runtime.arithmetic import loops, sum_runs
from pstranspile.runtime.kernels.kernel import ExecutionContext, Run, Surroundings, kernel, per_op, plain_kernel
from pstranspile.runtime.kernels.numeric import (
    all_ids,
    check_ids,
    first_number,
    numpy_dtype,
    plain,
    runs_between,
    sequences,
    upper,
)
from pstranspile.runtime.kernels.random import ScatteredRows, chances
from pstranspile.runtime.kernels.rows import (
    AS_ROWS,
    add_rows,
    cut_any_ids,
    few_rows,
    find_rows,
    in_sections,
    in_use,
    merge_repeats,
    merge_rows,
    positions,
)
from pstranspile.runtime.kernels.tensors.fill import Draw, copy_value, drawer
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.values import NUMPY_TYPES, Array, LoDTensor, SelectedRows


def _looked_up(table: Array | SelectedRows | LargeTable, ids: Array) -> Array:
    """The rows of a table at ids of any shape. Raises ValueError for an id that the table does not have."""
    if isinstance(table, LargeTable):
        return table.look_up(ids.reshape(-1).astype("int64", copy=False)).reshape(*ids.shape, table.width)
    if isinstance(table, SelectedRows):
        return table.value[positions(table, ids.astype("int64", copy=False), "W")]
    out = np.empty((*ids.shape, *table.shape[1:]), table.dtype)
    if loops.take_rows(table, ids, out):
        return out
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


@plain_kernel("lookup_table_dequant")
def _lookup_dequant(W: Array, Ids: Array, *, padding_idx: int = -1) -> Array:
    ids = Ids.reshape(Ids.shape[:-1])
    absent = ids == padding_idx if padding_idx >= 0 else np.zeros(ids.shape, "bool")
    rows = _looked_up(W, np.where(absent, 0, ids))
    least, greatest = rows[..., :1], rows[..., 1:2]
    levels = np.ascontiguousarray(rows[..., 2:]).view("uint8")
    out = levels * ((greatest - least) / rows.dtype.type(256)) + least
    out[absent] = 0
    return out.astype(rows.dtype, copy=False)


LOOKUP_GRADIENTS = ("lookup_table_grad", "lookup_table_v2_grad")


@kernel(" ".join(LOOKUP_GRADIENTS), "W@GRAD", lod="none")
def _lookup_grad(op: Op) -> Run:
    padding, sparse, as_rows = int_attr(op, "padding_idx", -1), flag(op, "is_sparse"), AS_ROWS in op.attrs
    merges = flag(op, "merge_rows")

    def given(part: SelectedRows) -> SelectedRows:
        return merge_repeats(part) if merges else part

    def run(W: Array | SelectedRows | LargeTable, Ids: Array, Out_GRAD: Array) -> Array | SelectedRows:
        rows = Ids.reshape(-1).astype("int64", copy=False)
        if isinstance(W, LargeTable):
            if not sparse:
                raise ValueError("W is a large table, whose gradient must be sparse (is_sparse)")
            return given(SelectedRows(rows, Out_GRAD.reshape(len(rows), W.width), W.height))
        height, table = (W.height, W.value) if isinstance(W, SelectedRows) else (len(W), W)
        value = Out_GRAD.reshape(len(rows), *table.shape[1:])
        if sparse:
            if table is W:
                _require_rows(table, rows)
            return given(SelectedRows(rows, value, height))
        kept = rows != padding if padding >= 0 else slice(None)
        if as_rows and few_rows(len(rows), table):
            return SelectedRows(rows[kept], value[kept], height)
        total = np.zeros((height, *table.shape[1:]), table.dtype)
        add_rows(total, rows[kept], value[kept])
        return total

    return run


def _require_sum(op: Op) -> None:
    """Raises ValueError for any combiner but `sum`, the only one of Fluid 1.8.5."""
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
        starts, lengths, full, _, _ = runs_between(tuple(lod[-1]))
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


# Kernels. Creation of large tables, whose rows are drawn on first use as the whole table would draw them.

_MOST = 1 << 63
"""The largest number of elements of a table."""

_AT_ONCE = 1 << 12
"""The number of rows whose initial values are drawn at once: a draw takes many times the memory of its result."""


def _drawer(op: Op) -> Draw | None:
    """A function that draws the elements of rows; None if all elements start with one value. Raises ValueError for a
    bad setting.
    """
    kind = text(op, "initializer")
    if kind not in INITIALISERS:
        raise ValueError(f"initializer is {kind!r}; it takes {', '.join(INITIALISERS)}")
    return None if kind == "fill_constant" else drawer(with_defaults(op._replace(type=kind)), kind)


def _rules(op: Op) -> Rules:
    return Rules(
        int_attr(op, "enter_after", 1),
        real(op, "enter_chance"),
        int_attr(op, "shrink_every"),
        int_attr(op, "drop_unseen"),
        real(op, "drop_below"),
        real(op, "score_decay"),
    )


@kernel("large_table", lod="none")
def _large_table(op: Op) -> Run:
    dims, kind, draw, rules = ints_attr(op, "shape"), numpy_dtype(int_attr(op, "dtype", 5)), _drawer(op), _rules(op)
    if len(dims) != 2 or min(dims) < 1 or dims[0] * dims[1] >= _MOST:
        raise ValueError(f"shape is {list(dims)}, not the dims of a table")
    if rules.mistake():
        raise ValueError(rules.mistake())
    (height, width), name = dims, op.outputs["Out"][0]
    any_id = flag(op, "any_id") or takes_any_id(dims)

    def run(surroundings: Surroundings) -> LargeTable:
        key, first = surroundings.stream(name, int_attr(op, "seed"))
        assert isinstance(key, int)  # the initial values do not belong to rows of a batch, so the key is a number
        first = 0 if any_id else first  # with any_id, ids count from the start of the whole table

        def initial(ids: Array) -> Array:
            if draw is None:
                return np.full((len(ids), width), real(op, "value"), kind)
            out = np.empty((len(ids), width), kind)
            for start in range(0, len(ids), _AT_ONCE):
                rows = ScatteredRows(key, first, ids[start : start + _AT_ONCE], width)
                drawn = draw(rows, 0, len(rows.ids) * width).reshape(-1, width)
                if len(drawn) == len(ids):
                    return drawn.astype(kind, copy=False)
                out[start : start + _AT_ONCE] = drawn
            return out

        def enters(ids: Array, update: int) -> Array:
            return chances(key, ids + first // width, update)

        return LargeTable(height, width, initial, chances=enters, rules=rules, dtype=kind, any_id=any_id)

    return run


@plain_kernel("large_table_state", lod="none")
def _large_table_state(
    Table: LargeTable, *, shape: Dims, value: float, table: str = per_op(lambda op: op.inputs["Table"][0])
) -> TableState:
    if not isinstance(Table, LargeTable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError("Table is no large table")
    if shape != (Table.height, Table.width):
        raise ValueError(f"shape is {list(shape)}, Table is {[Table.height, Table.width]}")
    return TableState(table, Table.add_state(value), value)


# Kernels. SelectedRows and ids split among servers and merged again.


@plain_kernel("merge_selected_rows")
def _merge_selected_rows(X: SelectedRows) -> SelectedRows:
    return merge_rows([X])


@plain_kernel("get_tensor_from_selected_rows")
def _get_tensor_from_selected_rows(X: SelectedRows) -> Array:
    return X.value.copy()


@kernel("split_selected_rows")
def _split_selected_rows(op: Op) -> Run:
    sections = ints_attr(op, "height_sections")
    ends = np.cumsum((0, *sections))
    total = int(ends[-1])
    firsts: list[int] = ends[:-1].tolist()

    def run(X: SelectedRows) -> list[SelectedRows]:
        if takes_any_id((total, *X.value.shape[1:])):
            return cut_any_ids(X, ends)
        values = in_use(X)
        begins, local, moved = np.empty_like(ends), np.empty_like(X.rows), np.empty(values.shape, values.dtype)
        if loops.split_rows(X.rows, values, ends, begins, local, moved):
            return [
                SelectedRows(local[a:b], moved[a:b], height)
                for (a, b), height in zip(pairwise(begins.tolist()), sections, strict=True)
            ]
        check_ids(X.rows, total, "row")
        order, starts = in_sections(X.rows, ends)
        rows, value = X.rows.take(order), values.take(order, axis=0)
        return [
            SelectedRows(rows[a:b] - first if first else rows[a:b], value[a:b], height)
            for (a, b), first, height in zip(pairwise(starts), firsts, sections, strict=True)
        ]

    return run


@plain_kernel("split_ids", lod="none")
def _split_ids(Ids: list[Any], *, count: int = per_op(lambda op: len(op.outputs["Out"]))) -> list[Array | SelectedRows]:
    given = Ids[0]
    if isinstance(given, SelectedRows):
        if len(Ids) > 1:
            raise ValueError("Ids takes one variable of sparse rows, or any number of tensors")
        shards = [np.flatnonzero(given.rows % count == shard) for shard in range(count)]
        value = in_use(given)
        return [SelectedRows(given.rows[chosen], value[chosen], given.height) for chosen in shards]
    ids = np.unique(np.concatenate([tensor.reshape(-1) for tensor in Ids]))
    return [ids[ids % count == shard].reshape(-1, 1) for shard in range(count)]


@plain_kernel("merge_ids", lod="own")
def _merge_ids(
    Ids: list[Array | LoDTensor], Rows: list[Array | LoDTensor], X: list[Array | LoDTensor]
) -> list[Array | LoDTensor]:
    rows = np.concatenate([plain(part).reshape(-1) for part in Rows])
    answers = SelectedRows(rows, np.concatenate([plain(part) for part in X]), 0)
    if len(answers.rows) != len(answers.value):
        raise ValueError(f"Rows holds {len(answers.rows)} ids, but X {len(answers.value)} rows")
    merged: list[Array | LoDTensor] = []
    for ids in Ids:
        value = answers.value[positions(answers, plain(ids).reshape(-1), "Rows")]
        merged.append(LoDTensor(value, ids.lod) if isinstance(ids, LoDTensor) else value)
    return merged


def _spans(sections: Sequence[int]) -> list[slice]:
    """Slices of the rows of consecutive sections."""
    return [slice(start, end) for start, end in pairwise(accumulate(sections, initial=0))]


@kernel("split_byref", lod="none")
def _split_byref_values(op: Op) -> Run:
    sections, number = ints_attr(op, "sections"), int_attr(op, "num")
    rows, spans = sum(sections), _spans(sections)

    def run(X: Array) -> list[Array]:
        if len(X) == rows and sections:
            return [X[span] for span in spans]
        parts = (len(X) // max(number, 1),) * number
        if sections or sum(parts) != len(X):
            raise ValueError(f"X cannot be cut into {list(sections or parts) or number} rows")
        return [X[span] for span in _spans(parts)]

    return run


@plain_kernel("ref_by_trainer_id")
def _ref_by_trainer_id_values(X: list[Array], TrainerId: Array) -> Array:
    number = int(first_number(TrainerId))
    if not 0 <= number < len(X):
        raise ValueError(f"TrainerId is {number}, but X has {len(X)} variables")
    return copy_value(X[number])


@kernel("fake_init")
def _fake_init(op: Op) -> Run:
    dims, name = ints_attr(op, "shape"), op.outputs["Out"][0]
    if not dims or min(dims) < 0:
        raise ValueError(f"shape is {list(dims)}, not the dims of a table")

    def run(surroundings: Surroundings) -> SelectedRows:
        var = surroundings.declaration(name)
        kind = NUMPY_TYPES[var.tensor.dtype] if var is not None and var.tensor is not None else "float32"
        # a table without local rows: it only provides dims for gradients, and lookups in it are refused
        return SelectedRows(np.empty(0, "int64"), np.empty((0, *dims[1:]), kind), dims[0])

    return run
