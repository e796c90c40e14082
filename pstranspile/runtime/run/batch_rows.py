"""Which rows of the whole batch a value holds, from where they lie and what was fed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.kernels.random.row_numbers import Rows
from pstranspile.runtime.kernels.sequences.arrays import RankTable
from pstranspile.runtime.run.batch import Batch, Part, part_of, rows_of, sequence_starts
from pstranspile.runtime.run.batch_axis import UNKNOWN, Axis
from pstranspile.runtime.values import Array


def find_rows(
    axis: Axis | None,
    dims: tuple[int, ...],
    lod: list[list[int]] | None,
    feed: Mapping[str, Any],
    find: Callable[[str], Value | None],
) -> Rows | None:
    """The rows of a value of these dims. `axis` is where they lie, `lod` its LoD, if it has one.

    What has no axis is one row, the same on every machine. None if the rows are not known.
    """
    count = prod(dims)
    if axis is None:
        return Rows.one(count)
    if axis == UNKNOWN:
        return None
    if not count:
        return Rows(np.zeros(0, "int64"), 0)
    part = _part(axis.feed, feed)
    if part is None:
        return None
    if axis.table:
        return _sorted(part, find(axis.table), dims)
    if lod:
        return _ragged(part, lod, count)
    outer, present = axis.outer(dims), len(part.places)
    if not present or count % (outer * present) or (not axis.before and dims[0] % present):
        return None
    return Rows(part.places, count // present, outer, part.total)


def _part(name: str, feed: Mapping[str, Any]) -> Part | None:
    """Which rows of the batch were fed to an input (to any, if it has no name: all then have the same)."""
    if name:
        return part_of(feed, name) if name in feed else None
    parts_of: Mapping[str, Part | None] = feed.parts if isinstance(feed, Batch) else {}
    whole = [fed for fed in feed if fed not in parts_of]
    if len({rows_of(feed[fed]) for fed in whole}) > 1:
        return None
    parts = [part_of(feed, fed) for fed in feed if fed in parts_of or fed == whole[0]]  # one stands for those alike
    first = parts[0] if parts else None
    alike = all(p is not None and first is not None and np.array_equal(p.places, first.places) for p in parts)
    return first if alike else None


def _sorted(part: Part, table: Value | None, dims: tuple[int, ...]) -> Rows | None:
    """The rows of a step of ragged sequences, the longest first; shorter ones have ended."""
    if not isinstance(table, RankTable) or len(table.order) != len(part.places) or dims[0] > len(table.order):
        return None
    return Rows(part.places[table.order[: dims[0]]], prod(dims[1:]))


def _ragged(part: Part, lod: list[list[int]], count: int) -> Rows | None:
    """The sequences of a ragged value."""
    starts = sequence_starts(lod)
    if len(starts) != len(part.places) + 1 or count % max(int(starts[-1]), 1):
        return None
    inner = count // int(starts[-1]) if starts[-1] else 0
    sizes = np.diff(starts)
    return Rows(part.places, sizes * inner, 1, _starts(part, sizes, inner))


def _starts(part: Part, sizes: Array, inner: int) -> Array | None:
    """The elements that sequences begin with in the whole batch, if they are as long as those that were fed."""
    if part.starts is None or part.sizes is None or not np.array_equal(part.sizes, sizes):
        return None
    return part.starts * inner
