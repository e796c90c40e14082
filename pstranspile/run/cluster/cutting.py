"""Values cut for servers and put together again, by rows along dim 0 (FEATURES A4.36)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pstranspile.lazy import lazy_import
from pstranspile.ops.context import Value
from pstranspile.ops.rows import in_use, merge_rows
from pstranspile.ops.values import Array, SelectedRows

np = lazy_import("numpy")


def cut(value: Value, sections: Sequence[int]) -> list[Value]:
    """The value in sections of so many rows each: views of an array, rows counted from the section's start.

    Raises ValueError if the sections are not those of the value.
    """
    if isinstance(value, SelectedRows):
        return _cut_rows(value, sections)
    if len(sections) == 1:
        return [value]
    ends = np.cumsum((0, *sections))
    if ends[-1] != len(value):
        raise ValueError(f"{len(value)} rows can't be cut into {list(sections)}")
    return [value[start:end] for start, end in pairwise(ends)]


def _cut_rows(value: SelectedRows, sections: Sequence[int]) -> list[Value]:
    if len(sections) == 1:
        return [value]
    ends = np.cumsum((0, *sections))
    if len(value.rows) and int(value.rows.max()) >= ends[-1]:
        raise ValueError(f"there is no row {int(value.rows.max())} in sections of {list(sections)} rows")
    held = in_use(value)
    section = np.searchsorted(ends, value.rows, side="right") - 1
    parts: list[Value] = []
    for number, height in enumerate(sections):
        chosen = np.flatnonzero(section == number)
        parts.append(SelectedRows(value.rows[chosen] - ends[number], held[chosen], height))
    return parts


def join(parts: Sequence[Value]) -> Value:
    """The whole of arrays that are its sections."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def route_ids(ids: Array, sections: Sequence[int]) -> tuple[list[Array], list[Array]]:
    """For ids of a table cut into sections: per section the ids counted from its start, and their places in `ids`.

    Raises ValueError for an id that the table does not have.
    """
    ends = np.cumsum((0, *sections))
    wrong = (ids < 0) | (ids >= ends[-1])
    if wrong.any():
        raise ValueError(f"Ids holds {int(ids[wrong][0])}, but the table has {int(ends[-1])} rows")
    if len(sections) == 1:
        return [ids], [np.arange(len(ids))]
    section = np.searchsorted(ends, ids, side="right") - 1
    places = [np.flatnonzero(section == number) for number in range(len(sections))]
    return [ids[chosen] - ends[number] for number, chosen in enumerate(places)], places


def merged(values: Sequence[Value], *, adds: bool) -> Value:
    """Several gradients of one variable as one: their sum or their average; rows of one number are added up (A4.45)."""
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
