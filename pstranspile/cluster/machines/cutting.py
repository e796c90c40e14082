"""Values cut for servers and put together again, by rows along dim 0."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from pstranspile.ir.table_rules import takes_any_id
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.kernels.rows import cut_any_ids, in_sections, in_use, merge_rows
from pstranspile.runtime.large.index import beside
from pstranspile.runtime.values import Array, SelectedRows


def cut(value: Value, sections: Sequence[int]) -> list[Value]:
    """The value in sections of so many rows each: views of an array, rows counted from the section's start.

    Raises ValueError if the sections are not those of the value.
    """
    if len(sections) == 1:
        return [value]
    ends, spans_of_rows = _spans(tuple(sections))
    if isinstance(value, SelectedRows):
        if takes_any_id((int(ends[-1]), *value.value.shape[1:])):
            return [*cut_any_ids(value, ends)]
        if len(value.rows) and int(value.rows.max()) >= ends[-1]:
            raise ValueError(f"there is no row {int(value.rows.max())} in sections of {list(sections)} rows")
        order, starts = in_sections(value.rows, ends)
        rows, held = value.rows[order], in_use(value).take(order, axis=0)
        spans = zip(pairwise(starts), ends.tolist(), sections, strict=False)
        return [SelectedRows(rows[a:b] - first, held[a:b], height) for (a, b), first, height in spans]
    if ends[-1] != len(value):
        raise ValueError(f"{len(value)} rows can't be cut into {list(sections)}")
    return [value[span] for span in spans_of_rows]


@lru_cache(256)
def _spans(sections: tuple[int, ...]) -> tuple[Array, tuple[slice, ...]]:
    """The boundaries of sections with these numbers of rows, beginning with 0, and the sections as slices."""
    ends = np.cumsum((0, *sections))
    return ends, tuple(slice(start, end) for start, end in pairwise(ends.tolist()))


def join(parts: Sequence[Value]) -> Value:
    """The whole of arrays that are its sections."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def route_ids(ids: Array, ends: Array, width: int = 0) -> tuple[list[Array], Array]:
    """Ids of a table cut into sections that end at `ends` (after a 0): per section the ids counted from its start.

    With the order of all of them one after another in `ids`. A table that has a row for every id, of `width` elements,
    keeps the numbers of ids. Raises ValueError for an id that the table does not have.
    """
    if width and takes_any_id((int(ends[-1]), width)):
        order, starts = in_sections(beside(ids, width), ends)
        chosen = ids[order]
        return [chosen[a:b] for a, b in pairwise(starts)], order
    # as unsigned numbers, negative ids are too large as well, so one comparison finds both
    if ids.size and ids.view(f"u{ids.itemsize}").max() >= ends[-1]:
        wrong = ids[(ids < 0) | (ids >= ends[-1])]
        raise ValueError(f"Ids holds {int(wrong[0])}, but the table has {int(ends[-1])} rows")
    order, starts = in_sections(ids, ends)
    chosen = ids[order]
    return [chosen[a:b] - first for (a, b), first in zip(pairwise(starts), ends.tolist(), strict=False)], order


def merged(values: Sequence[Value], *, adds: bool) -> Value:
    """Several gradients of one variable as one: their sum or their average; rows of one number are added up."""
    if len(values) == 1:
        return values[0]
    if isinstance(values[0], SelectedRows):
        total = merge_rows(values)
        return total if adds else total._replace(value=total.value / total.value.dtype.type(len(values)))
    total = values[0] + values[1]
    for value in values[2:]:
        total += value
    if not adds:
        total /= total.dtype.type(len(values))
    return total
