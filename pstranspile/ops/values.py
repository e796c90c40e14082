"""What variables hold at run time beside plain numpy arrays: ragged tensors and sparse rows."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.arithmetic.numpy import Array as Array


class LoDTensor(NamedTuple):
    """A tensor whose rows are grouped into sequences: `lod` holds one list of offsets per level.

    `LoDTensor(data, [[0, 2, 5]])`: the first sequence is rows 0 and 1, the second rows 2 to 4.
    """

    data: Array
    lod: list[list[int]]


class SelectedRows(NamedTuple):
    """Some rows of a tall matrix: `value[i]` belongs to row `rows[i]`; rows may repeat.

    `rows` is int64 [n], `value` [n, ...], `height` the number of rows of the whole. A table that grows may have room
    for more: its `value` then has more than n rows, of which the first n are in use.
    """

    rows: Array
    value: Array
    height: int
