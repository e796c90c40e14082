"""Kernels. SelectedRows and ids split among servers and merged again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.ops.attributes import int_attr, ints_attr
from pstranspile.runtime.kernels.kernel import Run, kernel, plain_kernel
from pstranspile.runtime.kernels.numeric import check_ids, first
from pstranspile.runtime.kernels.rows import cut_any_ids, in_sections, in_use, merge_rows, positions
from pstranspile.runtime.kernels.tensors.fill import copied
from pstranspile.runtime.values import Array, LoDTensor, SelectedRows


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
        check_ids(X.rows, total, "row")
        order, starts = in_sections(X.rows, ends)
        rows, value = X.rows.take(order), in_use(X).take(order, axis=0)
        return [
            SelectedRows(rows[a:b] - first if first else rows[a:b], value[a:b], height)
            for (a, b), first, height in zip(pairwise(starts), firsts, sections, strict=True)
        ]

    return run


@kernel("split_ids", lod="none")
def _split_ids(op: Op) -> Run:
    count = len(op.outputs["Out"])

    def run(Ids: list[Any]) -> list[Array | SelectedRows]:
        given = Ids[0]
        if isinstance(given, SelectedRows):
            if len(Ids) > 1:
                raise ValueError("Ids takes one variable of sparse rows, or any number of tensors")
            shards = [np.flatnonzero(given.rows % count == shard) for shard in range(count)]
            value = in_use(given)
            return [SelectedRows(given.rows[chosen], value[chosen], given.height) for chosen in shards]
        ids = np.unique(np.concatenate([tensor.reshape(-1) for tensor in Ids]))
        return [ids[ids % count == shard].reshape(-1, 1) for shard in range(count)]

    return run


def _data(value: Array | LoDTensor) -> Array:
    return value.data if isinstance(value, LoDTensor) else value


@plain_kernel("merge_ids", lod="own")
def _merge_ids(
    Ids: list[Array | LoDTensor], Rows: list[Array | LoDTensor], X: list[Array | LoDTensor]
) -> list[Array | LoDTensor]:
    rows = np.concatenate([_data(part).reshape(-1) for part in Rows])
    answers = SelectedRows(rows, np.concatenate([_data(part) for part in X]), 0)
    if len(answers.rows) != len(answers.value):
        raise ValueError(f"Rows holds {len(answers.rows)} ids, but X {len(answers.value)} rows")
    merged: list[Array | LoDTensor] = []
    for ids in Ids:
        value = answers.value[positions(answers, _data(ids).reshape(-1), "Rows")]
        merged.append(LoDTensor(value, ids.lod) if isinstance(ids, LoDTensor) else value)
    return merged


def _spans(sections: Sequence[int]) -> list[slice]:
    """The rows of sections that lie one after the other."""
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
    number = int(first(TrainerId))
    if not 0 <= number < len(X):
        raise ValueError(f"TrainerId is {number}, but X has {len(X)} variables")
    return copied(X[number])
