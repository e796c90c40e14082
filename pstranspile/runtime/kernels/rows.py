"""SelectedRows: which rows they hold, their sums, and their addition to dense tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from pstranspile.ir.model import Var
from pstranspile.ir.types import VarKind
from pstranspile.runtime.arithmetic import loops
from pstranspile.runtime.arithmetic.loops import Reach, RowGradient, RowUpdate
from pstranspile.runtime.kernels.numeric import all_ids, check_ids
from pstranspile.runtime.large.table import beside
from pstranspile.runtime.values import Array, SelectedRows

AS_ROWS = "@as_rows"
"""The attribute that makes a lookup's gradient op give only the rows that were looked up, instead of a dense gradient.

A sum of such gradients and the optimizer that reads them have the attribute as well. It promises that all other rows
are 0. Where `few_rows` is false the gradient is dense all the same.
"""

FEWEST_ELEMENTS = 1 << 13
"""Up to this many elements of a table, to make its zeros and to read them takes less time than to handle rows."""

LARGE_TABLE = 1 << 15
"""Above this many elements of a table, its gradient has rows however many were looked up."""

_ROW_SHARE = 8
"""In a smaller table, a gradient has rows if an op has looked up at most one row in this many."""


def few_rows(count: int, table: Array) -> bool:
    """Whether a gradient of `count` looked-up rows is handled faster as rows than as a dense array."""
    return table.size > LARGE_TABLE or count * _ROW_SHARE <= len(table)


class RowsNotFound(Exception):
    """Raised where the rows of a `TableGradient` are not found, or are needed by numpy; nothing has changed then."""


class TableGradient(SelectedRows):
    """A gradient of a large table by ids, whose rows compiled loops find as they update them, by `apply`."""

    apply: Callable[[RowUpdate], bool]

    @property
    def rows(self) -> Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Raises RowsNotFound."""
        raise RowsNotFound


def row_gradient(part: SelectedRows, reach: Reach) -> RowGradient:
    """A sparse gradient as compiled loops take it, which changes the rows of a table that `reach` says."""
    if isinstance(part, TableGradient):
        return RowGradient(part[0], part.value, reach, part.apply)
    return RowGradient(part.rows, in_use(part), reach)


GIVEN_ROWS = "@given_rows"
"""The attribute that makes an optimizer with the fact `updates_given_rows` update only the rows of a sparse gradient,
as updates of large tables do. An optimizer that always does may ignore it.
"""


def as_declared(value: Array, var: Var | None) -> Array | SelectedRows:
    """The value of a variable declared as `var` after an op fills it with `value`.

    For sparse rows, `value` is the capacity for further rows; no row is in use yet.
    """
    if var is None or var.kind is not VarKind.SELECTED_ROWS:
        return value
    return SelectedRows(np.empty(0, "int64"), value, len(value))


def in_use(part: SelectedRows) -> Array:
    """The values of the rows that are in use, without the spare capacity of a growing table."""
    return part.value if len(part.value) == len(part.rows) else part.value[: len(part.rows)]


def in_sections(rows: Array, ends: Array) -> tuple[Array, list[int]]:
    """(order that sorts row numbers into sections of the table and keeps ties in order, start of each section).

    `ends` are 0 and the ends of the sections. Section i has the rows `rows[order][starts[i]:starts[i + 1]]`.
    """
    if len(ends) == 2:
        return np.arange(len(rows)), [0, len(rows)]
    if len(ends) == 3:
        upper = rows >= ends[1]
        return upper.argsort(kind="stable"), [0, len(rows) - int(np.count_nonzero(upper)), len(rows)]
    section = ends.searchsorted(rows, side="right").astype("uint16")  # the type that numpy sorts fastest
    order = section.argsort(kind="stable")
    return order, section[order].searchsorted(np.arange(1, len(ends) + 1, dtype="uint16")).tolist()


def cut_any_ids(part: SelectedRows, ends: Array) -> list[SelectedRows]:
    """The rows of a table that has a row for every 64-bit id, divided like the table into sections, whose ends are
    `ends` (after a 0).

    Ids keep their number, and each part has the height of the whole.
    """
    order, starts = in_sections(beside(part.rows, part.value.shape[1]), ends)
    rows, value = part.rows.take(order), in_use(part).take(order, axis=0)
    return [SelectedRows(rows[a:b], value[a:b], int(ends[-1])) for a, b in pairwise(starts)]


def concat_rows(parts: Sequence[SelectedRows]) -> SelectedRows:
    """All rows of the parts in order, including repeats, in new memory. The height is that of the first part."""
    if len(parts) == 1:
        return SelectedRows(parts[0].rows.copy(), in_use(parts[0]).copy(), parts[0].height)
    rows = np.concatenate([part.rows for part in parts])
    return SelectedRows(rows, np.concatenate([in_use(part) for part in parts]), parts[0].height)


_FEW = 64
"""Up to this many rows, a Python set is the fastest test for repeats."""

_SOME = 256
"""Up to this many rows, repeats are rare, and sorting only the numbers tests for them faster than argsort."""


def _starts(ascending: Array) -> Array:
    """A mask of ascending row numbers: those that differ from the previous one."""
    new = np.empty(len(ascending), bool)
    new[:1] = True
    np.not_equal(ascending[1:], ascending[:-1], out=new[1:])
    return new


def _ascending(rows: Array) -> tuple[Array, Array]:
    """(row numbers in ascending order, their indices in `rows`); ties keep their order."""
    bits = len(rows).bit_length()
    if len(rows) <= _SOME or rows.dtype != np.int64 or not all_ids(rows, 1 << (63 - bits)):
        order = rows.argsort(kind="stable")
        return rows.take(order), order
    # numbers that combine row and index are sorted faster than indices by their rows
    both = rows << bits
    both |= np.arange(len(rows))
    both.sort()
    return both >> bits, both & ((1 << bits) - 1)


def _all_differ(rows: Array) -> bool:
    """Whether no row occurs twice. For many rows, False may also mean that this is not known."""
    if len(rows) <= _FEW:
        return len(set(rows.tolist())) == len(rows)
    if len(rows) > _SOME:
        return False
    ascending = np.sort(rows)
    return not np.count_nonzero(ascending[1:] == ascending[:-1])


def merge_rows(parts: Sequence[SelectedRows]) -> SelectedRows:
    """The sum of the parts with every row once, in new memory.

    As in Fluid, rows keep their order if none occurs twice; otherwise they are sorted. Repeated rows are added in
    order.
    """
    whole = concat_rows(parts)
    return _merged(whole) or whole


def merge_repeats(part: SelectedRows) -> SelectedRows:
    """The part with every row once, as `merge_rows` gives it, in memory of its own only if a row repeats."""
    return _merged(part) or part


def _merged(whole: SelectedRows) -> SelectedRows | None:
    """Rows with every row once, sorted, in new memory; None if none repeats."""
    if len(whole.rows) <= _FEW and _all_differ(whole.rows):
        return None
    value = in_use(whole)
    merged, sums = np.empty(len(whole.rows), np.int64), np.empty(value.shape, value.dtype)
    if count := loops.merge_rows(whole.rows, value, merged, sums):
        return None if count == len(value) else SelectedRows(merged[:count], sums[:count], whole.height)
    rows, order = _ascending(whole.rows)
    new = _starts(rows)
    starts = new.nonzero()[0]
    if len(starts) == len(rows):
        return None
    total = value.take(order.take(starts), axis=0)
    again = (~new).nonzero()[0]
    add_rows(total, (new.cumsum() - 1).take(again), value.take(order.take(again), axis=0))
    return SelectedRows(rows.take(starts), total, whole.height)


def sum_tables(parts: Sequence[SelectedRows]) -> SelectedRows:
    """The sum of the parts with every row once, sorted, bit for bit equal to the sum of the dense tables.

    Repeated rows of one part are added in order before the parts are added to each other.
    """
    given, values = tuple([part.rows for part in parts]), tuple([in_use(part) for part in parts])
    total = sum(map(len, given))
    merged, sums = np.empty(total, np.int64), np.empty((total, *values[0].shape[1:]), values[0].dtype)
    if count := loops.sum_tables(given, values, merged, sums):
        return SelectedRows(merged[:count], sums[:count], parts[0].height)
    rows = np.concatenate(given)
    ascending, order = _ascending(rows)
    new = _starts(ascending)
    places = np.empty(len(rows), np.int64)
    places[order] = new.cumsum() - 1
    result = ascending[new]
    total = np.zeros((len(result), *parts[0].value.shape[1:]), parts[0].value.dtype)
    end = 0
    for number, part in enumerate(parts):
        mine, end = places[end : end + len(part.rows)], end + len(part.rows)
        if number and not _all_differ(mine):
            table = np.zeros(total.shape, total.dtype)
            add_rows(table, mine, in_use(part))
            total += table
        else:
            add_rows(total, mine, in_use(part))
    return SelectedRows(result, total, parts[0].height)


_SINGLY = 8
"""Up to this many rows, plus one for this many elements of a row, a loop over rows is faster than a vectorised
addition.
"""


@lru_cache(64)
def _columns(width: int) -> Array:
    """The array of 0 to width - 1."""
    columns = np.arange(width)
    columns.setflags(write=False)
    return columns


def add_rows(target: Array, rows: Array, value: Array) -> None:
    """Adds `value[i]` to `target[rows[i]]` for each i, in place and in order. Rows may repeat.

    Raises ValueError for a row that the target does not have, and for rows of another width.
    """
    if value.size * len(target) != target.size * len(rows):
        raise ValueError(
            f"rows of dims {list(value.shape[1:])} can't be added to rows of dims {list(target.shape[1:])}"
        )
    if loops.add_rows(target, rows, value):
        return
    if not all_ids(rows, len(target)):
        check_ids(rows, len(target), "row")
    if len(rows) > _SINGLY and value.shape[1:] == target.shape[1:] and (rows[1:] > rows[:-1]).all():  # each row once
        here = target.take(rows, axis=0)
        here += value
        target[rows] = here
    elif target.ndim > 1 and value.shape[1:] == target.shape[1:] and len(rows) <= _SINGLY + target.shape[1] // _SINGLY:
        for row, given in zip(rows.tolist(), value, strict=True):
            here = target[row]
            np.add(here, given, here)
    elif target.flags.c_contiguous and target.ndim > 1:  # numpy adds fastest with a single index
        width = target.size // max(len(target), 1)
        places = (rows.reshape(-1, 1) * width + _columns(width)).reshape(-1)
        np.add.at(target.reshape(-1), places, value.reshape(-1))
    else:
        np.add.at(target, rows, value)


def scatter(part: SelectedRows, shape: tuple[int, ...]) -> Array:
    """A dense tensor of these dims: the sum of the rows, and zeros elsewhere."""
    dense = np.zeros(shape, part.value.dtype)
    add_rows(dense, part.rows, in_use(part).reshape(len(part.rows), *shape[1:]))
    return dense


def update_rows(part: SelectedRows, step: Callable[..., None], *tables: Array, from_zero: bool = False) -> None:
    """Calls `step(gradient, *rows of the tables)` for the rows of the gradient `part`. `step` changes the rows of the
    tables in place.

    With `from_zero` the sums of repeated rows begin with 0, as those of a dense gradient do: -0 becomes 0.
    """
    merged = merge_rows([part])
    check_ids(merged.rows, len(tables[0]), "row")
    taken = [table.take(merged.rows, axis=0) for table in tables]
    value = in_use(merged).reshape(taken[0].shape)
    step(value + 0.0 if from_zero else value, *taken)
    for table, changed in zip(tables, taken, strict=True):
        table[merged.rows] = changed


def find_rows(part: SelectedRows, rows: Array) -> tuple[Array, Array]:
    """(for each of `rows` its index in `part`, a mask of those that `part` has)."""
    if not len(part.rows):
        return np.zeros(rows.shape, "int64"), np.zeros(rows.shape, bool)
    order = np.argsort(part.rows, kind="stable")
    ascending = part.rows[order]
    places = np.minimum(np.searchsorted(ascending, rows), len(order) - 1)
    return order[places], ascending[places] == rows


def positions(part: SelectedRows, rows: Array, slot: str) -> Array:
    """The indices in `part` that `find_rows` gives. Raises ValueError naming the slot if a row is missing."""
    places, result = find_rows(part, rows)
    if not result.all():
        raise ValueError(f"{slot} has no row {int(rows[~result][0])}")
    return places
