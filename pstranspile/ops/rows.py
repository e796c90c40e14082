"""Arithmetic on rows of a matrix given by their numbers: SelectedRows, and scattering into dense arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pstranspile.ir.model import Var
from pstranspile.ir.types import VarKind
from pstranspile.lazy import lazy_import
from pstranspile.ops.numeric import check_ids
from pstranspile.ops.values import Array, SelectedRows

np = lazy_import("numpy")


def as_declared(value: Array, var: Var | None) -> Array | SelectedRows:
    """What a variable declared as `var` holds when an op fills it with `value`.

    Sparse rows get `value` as room for rows to come: none is in use yet.
    """
    if var is None or var.kind is not VarKind.SELECTED_ROWS:
        return value
    return SelectedRows(np.empty(0, "int64"), value, len(value))


def in_use(part: SelectedRows) -> Array:
    """The values of the rows, without the room that a growing table has left."""
    return part.value if len(part.value) == len(part.rows) else part.value[: len(part.rows)]


def in_sections(rows: Array, ends: Array) -> tuple[Array, list[int]]:
    """Row numbers sorted into sections of a height: an order that does so and keeps equals, and where sections begin.

    `ends` are 0 and the ends of the sections. Section i has the rows `rows[order][starts[i]:starts[i + 1]]`.
    """
    if len(ends) == 3:
        upper = rows >= ends[1]
        return upper.argsort(kind="stable"), [0, len(rows) - int(np.count_nonzero(upper)), len(rows)]
    section = ends.searchsorted(rows, side="right").astype("uint16")  # which numpy sorts fastest
    order = section.argsort(kind="stable")
    return order, section[order].searchsorted(np.arange(1, len(ends) + 1, dtype="uint16")).tolist()


def concat_rows(parts: Sequence[SelectedRows]) -> SelectedRows:
    """All rows of the parts in order, repeats kept, in new memory. The height is that of the first."""
    rows = np.concatenate([part.rows for part in parts])
    return SelectedRows(rows, np.concatenate([in_use(part) for part in parts]), parts[0].height)


def merge_rows(parts: Sequence[SelectedRows]) -> SelectedRows:
    """The sum of the parts with every row once, in new memory.

    As in Fluid, rows keep their order if none occurs twice in all parts; otherwise they are sorted. What a row has
    several times is added up in order.
    """
    whole = concat_rows(parts)
    order = np.argsort(whole.rows, kind="stable")
    rows = whole.rows[order]
    if not (rows[1:] == rows[:-1]).any():
        return whole
    new = np.ones(len(rows), dtype=bool)
    np.not_equal(rows[1:], rows[:-1], out=new[1:])
    starts = np.flatnonzero(new)
    total = whole.value[order[starts]]
    again = np.flatnonzero(~new)
    add_rows(total, (np.cumsum(new) - 1)[again], whole.value[order[again]])
    return SelectedRows(rows[starts], total, whole.height)


def add_rows(target: Array, rows: Array, value: Array) -> None:
    """Adds each `value[i]` to `target[rows[i]]`, in place and in order; rows may repeat.

    Raises ValueError for a row that the target does not have, and for rows of another width.
    """
    if value.size * len(target) != target.size * len(rows):
        raise ValueError(
            f"rows of dims {list(value.shape[1:])} can't be added to rows of dims {list(target.shape[1:])}"
        )
    # as unsigned numbers, negative rows are too large as well, so one comparison finds both
    if len(rows) and rows.view(f"u{rows.itemsize}").max() >= len(target):
        check_ids(rows, len(target), "row")
    if target.flags.c_contiguous and target.ndim > 1:  # numpy adds fastest with a single index
        width = target.size // max(len(target), 1)
        places = (rows.reshape(-1, 1) * width + np.arange(width)).reshape(-1)
        np.add.at(target.reshape(-1), places, value.reshape(-1))
    else:
        np.add.at(target, rows, value)


def scatter(part: SelectedRows, shape: tuple[int, ...]) -> Array:
    """The dense tensor of these dims with the rows added in and zeros elsewhere."""
    dense = np.zeros(shape, part.value.dtype)
    add_rows(dense, part.rows, in_use(part).reshape(len(part.rows), *shape[1:]))
    return dense


def update_rows(part: SelectedRows, step: Callable[..., None], *tables: Array) -> None:
    """Applies `step(gradient, *rows of the tables)`, which changes the rows in place, to the rows that `part` has."""
    merged = merge_rows([part])
    check_ids(merged.rows, len(tables[0]), "row")
    taken = [table[merged.rows] for table in tables]
    step(in_use(merged).reshape(taken[0].shape), *taken)
    for table, changed in zip(tables, taken, strict=True):
        table[merged.rows] = changed


def find_rows(part: SelectedRows, rows: Array) -> tuple[Array, Array]:
    """For each of `rows` the position in `part` that holds it, and whether there is one."""
    if not len(part.rows):
        return np.zeros(rows.shape, "int64"), np.zeros(rows.shape, bool)
    order = np.argsort(part.rows, kind="stable")
    ascending = part.rows[order]
    places = np.minimum(np.searchsorted(ascending, rows), len(order) - 1)
    return order[places], ascending[places] == rows


def positions(part: SelectedRows, rows: Array, slot: str) -> Array:
    """As `find_rows`. Raises ValueError naming the slot that lacks a row."""
    places, found = find_rows(part, rows)
    if not found.all():
        raise ValueError(f"{slot} has no row {int(rows[~found][0])}")
    return places
