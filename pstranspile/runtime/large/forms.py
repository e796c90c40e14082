"""Other forms of large tables: whole arrays, where these are small enough, and rows in the order of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pstranspile.runtime.large.ids import lie_within
from pstranspile.runtime.large.table import LargeTable, TableRows, TableState
from pstranspile.runtime.values import SelectedRows

_PIECE = 1 << 16


def whole_in(value: Any, scope: Mapping[str, Any]) -> Any:
    """A large table as all its rows, and a state of one as that of all rows; any other value as it is.

    `scope` has the table that a state belongs to.
    """
    if value.__class__ is LargeTable:
        return value.whole()
    if value.__class__ is TableState:
        return scope[value.table].whole(value.number)
    return value


def rows_alone(value: Any, scope: Mapping[str, Any]) -> Any:
    """A large table, or a state of one, as its rows that exist; any other value as it is.

    `scope` has the table that a state belongs to.
    """
    if value.__class__ is LargeTable:
        return selected(value.rows(), value.numbered)
    if value.__class__ is TableState:
        table: LargeTable = scope[value.table]
        rows = table.rows()
        return SelectedRows(rows.ids, np.ascontiguousarray(rows.numbers[:, value.number]), table.numbered)
    return value


def filled(table: LargeTable, parts: Sequence[SelectedRows], start: int) -> LargeTable:
    """A table alike with the rows whose ids are from `start` on, as many as the table has; `parts` are their values,
    and what the optimizer keeps. Raises ValueError for parts that do not fit.
    """
    ids = parts[0].rows
    if any(not np.array_equal(part.rows, ids) for part in parts) or len(parts) != len(table.states) + 1:
        raise ValueError("the files of a table and its states hold other rows")
    if table.any_id:
        here, first = lie_within(ids, table.width, start, table.height), 0
    else:
        here, first = (ids >= start) & (ids < start + table.height), start
    rows = table.like().rows()
    rows = rows._replace(
        ids=ids[here] - first,
        numbers=np.stack([part.value[here] for part in parts], axis=1).astype(table.dtype),
        seen=np.zeros(int(here.sum()), np.uint32),
    )
    return table_with(rows, table)


def is_table(value: Any) -> bool:
    """Whether a value is a large table, or all that one holds."""
    return isinstance(value, LargeTable | TableRows)


def rows_of(value: LargeTable | TableRows) -> TableRows:
    """All that a table holds."""
    return value.rows() if isinstance(value, LargeTable) else value


def table_with(rows: TableRows, like: LargeTable) -> LargeTable:
    """A table of the same kind as another one that holds these rows. Raises ValueError for rows of other dims."""
    result, few = like.like(), rows._replace(ids=rows.ids[:0], numbers=rows.numbers[:0], seen=rows.seen[:0])
    few = few._replace(scores=rows.scores[:0])
    result.add_rows(few)
    few = few._replace(waiting=rows.waiting[:0], counts=rows.counts[:0], dropped=rows.dropped[:0])
    for at in range(0, len(rows.ids), _PIECE):
        piece = slice(at, at + _PIECE)
        ids, numbers, seen, scores = rows.ids[piece], rows.numbers[piece], rows.seen[piece], rows.scores[piece]
        result.add_rows(few._replace(ids=ids, numbers=numbers, seen=seen, scores=scores))
    return result


def joined(parts: Sequence[LargeTable | TableRows], starts: Sequence[int]) -> TableRows:
    """What the parts of a table hold together; the ids of part i begin at `starts[i]` of the whole.

    Parts of a table with a row for every id all begin at 0: each has some of the ids.
    """
    pairs = [(start, rows_of(part)) for start, part in zip(starts, parts, strict=True)]
    pairs.sort(key=lambda pair: pair[0])
    held = [
        rows._replace(ids=rows.ids + start, waiting=rows.waiting + start, dropped=rows.dropped + start)
        for start, rows in pairs
    ]
    arrays = {
        name: np.concatenate([getattr(rows, name) for rows in held])
        for name in ("ids", "numbers", "seen", "scores", "waiting", "counts", "dropped")
    }
    if len(set(starts)) < len(starts):
        _sort(arrays)
    updates, saved = max(rows.updates for rows in held), max(rows.saved for rows in held)
    return TableRows(**arrays, updates=updates, saved=saved)


def _sort(arrays: dict[str, Any]) -> None:
    """Puts the arrays of rows into the order of ids."""
    for first, others in (("ids", ("numbers", "seen", "scores")), ("waiting", ("counts",)), ("dropped", ())):
        order = arrays[first].argsort(kind="stable")
        for name in (first, *others):
            if len(arrays[name]):
                arrays[name] = arrays[name][order]


def rows_beside(rows: TableRows, width: int, start: int, height: int) -> TableRows:
    """What the part of a table with a row for every id holds that has so many rows from `start` on."""
    here, waits, left = (lie_within(ids, width, start, height) for ids in (rows.ids, rows.waiting, rows.dropped))
    return rows._replace(
        ids=rows.ids[here],
        numbers=rows.numbers[here],
        seen=rows.seen[here],
        scores=rows.scores[here] if len(rows.scores) else rows.scores,
        waiting=rows.waiting[waits],
        counts=rows.counts[waits],
        dropped=rows.dropped[left],
    )


def part_of_rows(rows: TableRows, start: int, stop: int) -> TableRows:
    """What the part of a table holds that has the ids from `start` up to `stop`; views, except of the ids."""
    here, waits, left = (slice(*ids.searchsorted((start, stop))) for ids in (rows.ids, rows.waiting, rows.dropped))
    return TableRows(
        rows.ids[here] - start,
        rows.numbers[here],
        rows.seen[here],
        rows.scores[here] if len(rows.scores) else rows.scores,
        rows.waiting[waits] - start,
        rows.counts[waits],
        rows.dropped[left] - start,
        rows.updates,
        rows.saved,
    )


def selected(rows: TableRows, height: int) -> SelectedRows:
    """The values of the rows that exist."""
    return SelectedRows(rows.ids, np.ascontiguousarray(rows.numbers[:, 0]), height)


def parameter_arrays(name: str, value: Any) -> dict[str, Any]:
    """A parameter as the arrays of a file of results: `param/<name>`, and of a large table `param/<name>@ROWS`, the ids
    of the rows that exist.
    """
    if isinstance(value, LargeTable):
        value = selected(value.rows(), value.numbered)
    if isinstance(value, SelectedRows):
        return {f"param/{name}": value.value, f"param/{name}@ROWS": value.rows}
    return {f"param/{name}": value}


def arrays_of(rows: TableRows) -> dict[str, Any]:
    """All of it as arrays by name, of element types that tensors can have."""
    signed = {name: value for name, value in rows._asdict().items() if name not in ("updates", "saved")}
    signed.update(seen=rows.seen.astype(np.int64), counts=rows.counts.astype(np.int64))
    return {**signed, "updates": np.array([rows.updates, rows.saved], np.int64)}


def rows_from(arrays: Mapping[str, Any]) -> TableRows:
    """The rows of what `arrays_of` gives. Raises ValueError for arrays that don't fit each other."""
    try:
        rows = TableRows(
            *(arrays[name] for name in TableRows._fields[:7]), *(int(number) for number in arrays["updates"])
        )
    except (KeyError, TypeError) as problem:
        raise ValueError(f"it holds no rows of a table: {problem}") from None
    count, ids = len(rows.ids), rows.ids
    lengths = len(rows.numbers), len(rows.seen), len(rows.scores) or count, len(rows.counts) - len(rows.waiting) + count
    if set(lengths) != {count} or rows.numbers.ndim != 3 or rows.counts.shape != (len(rows.waiting), 2):
        raise ValueError("it holds numbers of more or fewer rows than it has ids")
    if any((array[1:] <= array[:-1]).any() for array in (ids, rows.waiting, rows.dropped)):
        raise ValueError("its ids do not ascend")
    return rows._replace(seen=rows.seen.astype(np.uint32), counts=rows.counts.astype(np.uint32))
