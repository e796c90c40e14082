"""Other forms of large tables: whole arrays, where these are small enough, and rows in the order of ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.runtime.large.table import LargeTable, TableRows, TableState, lie_within
from pstranspile.runtime.values import Array, SelectedRows
from pstranspile.runtime.values.encoding import encode, encode_pieces

# The content of the parts of a large table, piece by piece, so that it can be written without a second copy in memory.

AT_ONCE = 1 << 16
"""The number of rows in a piece."""


class TablePart(NamedTuple):
    """A part of a table. Its ids count from the id `start` of the whole table; `start` is 0 for parts of a table that
    has a row for every 64-bit id.
    """

    start: int
    rows: LargeTable | TableRows


class Stream(NamedTuple):
    """An array in pieces, which follow each other along its first dim."""

    dtype: Any
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[Array]]


def written(value: Stream | Array) -> Iterator[bytes | memoryview]:
    """The bytes of an array or a stream in the layout of variables' values."""
    if isinstance(value, Stream):
        return encode_pieces(value.dtype.name, value.shape, value.pieces())
    return encode(value)


def combine_parts(parts: Sequence[TablePart]) -> TableRows:
    """The rows of all parts of a table as arrays."""
    if len(parts) == 1 and parts[0].start == 0:
        return rows_of(parts[0].rows)
    return concat_tables([part.rows for part in parts], [part.start for part in parts])


def streams_of(parts: Sequence[TablePart]) -> dict[str, Stream | Array]:
    """The arrays that `arrays_of` gives for all parts together, the large ones as streams, in ascending order of ids.

    The parts may not be changed until the streams have been written.
    """
    parts = sorted(parts, key=lambda part: part.start)
    orders = [part.rows.order() if isinstance(part.rows, LargeTable) else None for part in parts]
    few = [_without_rows(part.rows) for part in parts]
    result: dict[str, Any] = {**arrays_of(concat_tables(few, [part.start for part in parts]))}
    for name in ("ids", "numbers", "seen", "scores"):
        empty: Array = result[name]
        length = sum(len(part.rows) if isinstance(part.rows, LargeTable) else len(part.rows.ids) for part in parts)
        if name == "scores" and not all(_has_scores(part.rows) for part in parts):
            length = 0
        result[name] = Stream(empty.dtype, (length, *empty.shape[1:]), _pieces(parts, orders, name, length))
    return result


def _has_scores(held: LargeTable | TableRows) -> bool:
    return held.keeps_scores if isinstance(held, LargeTable) else bool(len(held.scores))


def _without_rows(held: LargeTable | TableRows) -> TableRows:
    """The content of a part apart from its rows."""
    if isinstance(held, LargeTable):
        return held.without_rows()
    return held._replace(ids=held.ids[:0], numbers=held.numbers[:0], seen=held.seen[:0], scores=held.scores[:0])


def _field(held: LargeTable | TableRows, name: str, places: Array) -> Array:
    return held.field(name, places) if isinstance(held, LargeTable) else getattr(held, name)[places]


def merge_by_id(parts: Sequence[LargeTable | TableRows], orders: Sequence[Array], name: str) -> Iterator[Array]:
    """`ids`, `numbers`, `seen` or `scores` of the rows of several parts, in pieces and in ascending order of all ids.

    `orders` are the places of the rows of each part, in ascending order of its ids.
    """
    bounds = np.cumsum((0, *map(len, orders)))
    ids = [_field(held, "ids", order) for held, order in zip(parts, orders, strict=True)]
    whole = np.concatenate(ids).argsort(kind="stable")
    for at in range(0, len(whole), AT_ONCE):
        chosen = whole[at : at + AT_ONCE]
        owner = bounds.searchsorted(chosen, side="right") - 1
        found = [
            _field(held, name, order[chosen[owner == number] - bounds[number]])
            for number, (held, order) in enumerate(zip(parts, orders, strict=True))
        ]
        piece = np.empty((len(chosen), *found[0].shape[1:]), found[0].dtype)
        for number, rows in enumerate(found):
            piece[owner == number] = rows
        yield piece


def _pieces(
    parts: Sequence[TablePart], orders: Sequence[Array | None], name: str, length: int
) -> Callable[[], Iterator[Array]]:
    def pieces() -> Iterator[Array]:
        if length and len({start for start, _ in parts}) < len(parts):
            places = [
                np.arange(len(part.rows.ids)) if isinstance(part.rows, TableRows) else part.rows.order()
                for part in parts
            ]
            for piece in merge_by_id([part.rows for part in parts], places, name):
                yield piece.astype(np.int64) if name == "seen" else piece
            return
        for (start, held), order in zip(parts, orders, strict=True) if length else ():
            count = len(held.ids) if isinstance(held, TableRows) else len(held)
            for at in range(0, count, AT_ONCE):
                if isinstance(held, TableRows):
                    piece = getattr(held, name)[at : at + AT_ONCE]
                else:
                    assert order is not None
                    piece = held.field(name, order[at : at + AT_ONCE])
                yield piece + start if name == "ids" else piece.astype(np.int64) if name == "seen" else piece

    return pieces


_PIECE = 1 << 16


def whole_in(value: Any, scope: Mapping[str, Any]) -> Any:
    """A large table as the array of all its rows, and a state of a table as the array of this state for all rows; any
    other value unchanged.

    `scope` has the table that a state belongs to.
    """
    if value.__class__ is LargeTable:
        return value.whole()
    if value.__class__ is TableState:
        return scope[value.table].whole(value.number)
    return value


def rows_alone(value: Any, scope: Mapping[str, Any]) -> Any:
    """A large table, or a state of one, as SelectedRows of the rows that exist; any other value unchanged.

    `scope` has the table that a state belongs to.
    """
    if value.__class__ is LargeTable:
        return _selected_rows(value)
    if value.__class__ is TableState:
        table: LargeTable = scope[value.table]
        rows = table.rows()
        return SelectedRows(rows.ids, np.ascontiguousarray(rows.numbers[:, value.number]), table.total_height)
    return value


def _selected_rows(table: LargeTable) -> SelectedRows:
    """The values of the rows that exist, as SelectedRows."""
    ids, values = table.values()
    return SelectedRows(ids, values, table.total_height)


def table_from_parts(table: LargeTable, parts: Sequence[SelectedRows], start: int) -> LargeTable:
    """A table like `table` that holds the rows with ids from `start` on, as many as the height of `table`. `parts` are
    the values of all rows and then each of the optimizer's states. Raises ValueError if the parts don't fit.
    """
    ids = parts[0].rows
    if any(not np.array_equal(part.rows, ids) for part in parts) or len(parts) != len(table.states) + 1:
        raise ValueError("the files of a table and of its states hold different rows")
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
    """Whether a value is a large table, or the content of one."""
    return isinstance(value, LargeTable | TableRows)


def rows_of(value: LargeTable | TableRows) -> TableRows:
    """The content of a table."""
    return value.rows() if isinstance(value, LargeTable) else value


def table_with(rows: TableRows, like: LargeTable) -> LargeTable:
    """A table of the same kind as `like` with this content. Raises ValueError for rows of other dims."""
    result, few = like.like(), rows._replace(ids=rows.ids[:0], numbers=rows.numbers[:0], seen=rows.seen[:0])
    few = few._replace(scores=rows.scores[:0])
    result.add_rows(few)
    few = few._replace(waiting=rows.waiting[:0], counts=rows.counts[:0], dropped=rows.dropped[:0])
    for at in range(0, len(rows.ids), _PIECE):
        piece = slice(at, at + _PIECE)
        ids, numbers, seen, scores = rows.ids[piece], rows.numbers[piece], rows.seen[piece], rows.scores[piece]
        result.add_rows(few._replace(ids=ids, numbers=numbers, seen=seen, scores=scores))
    return result


def concat_tables(parts: Sequence[LargeTable | TableRows], starts: Sequence[int]) -> TableRows:
    """The combined content of the parts of a table; the ids of part i count from `starts[i]` of the whole.

    Parts of a table that has a row for every 64-bit id all start at 0: each has some of the ids.
    """
    pairs = [(start, rows_of(part)) for start, part in zip(starts, parts, strict=True)]
    pairs.sort(key=lambda pair: pair[0])
    if len(pairs) == 1 and not pairs[0][0]:
        return pairs[0][1]
    row_parts = [
        rows._replace(ids=rows.ids + start, waiting=rows.waiting + start, dropped=rows.dropped + start)
        for start, rows in pairs
    ]
    arrays = {
        name: np.concatenate([getattr(rows, name) for rows in row_parts])
        for name in ("ids", "numbers", "seen", "scores", "waiting", "counts", "dropped")
    }
    if len(set(starts)) < len(starts):
        _sort(arrays)
    updates, saved = max(rows.updates for rows in row_parts), max(rows.saved for rows in row_parts)
    return TableRows(**arrays, updates=updates, saved=saved)


def _sort(arrays: dict[str, Any]) -> None:
    """Sorts the arrays of rows by their ids."""
    for first, others in (("ids", ("numbers", "seen", "scores")), ("waiting", ("counts",)), ("dropped", ())):
        order = arrays[first].argsort(kind="stable")
        for name in (first, *others):
            if len(arrays[name]):
                arrays[name] = arrays[name][order]


def rows_beside(rows: TableRows, width: int, start: int, height: int) -> TableRows:
    """The content of a part of a table that has a row for every 64-bit id: the part with the `height` rows from `start`
    on.
    """
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
    """The content of the part of a table with the ids from `start` up to `stop`; views, except for the ids."""
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


def concat_values(parts: Sequence[LargeTable | TableRows], starts: Sequence[int], height: int) -> SelectedRows:
    """The values of the rows that the parts of a table have, as SelectedRows of a matrix with `height` rows, in
    ascending order of ids. The ids of part i count from `starts[i]` of the whole, as those of `concat_tables` do.
    """
    pairs = sorted(zip(starts, parts, strict=True), key=lambda pair: pair[0])
    rows = [part.values() if isinstance(part, LargeTable) else (part.ids, part.numbers[:, 0]) for _, part in pairs]
    if len(pairs) == 1:
        ids, values = rows[0]
        return SelectedRows(ids + pairs[0][0] if pairs[0][0] else ids, np.ascontiguousarray(values), height)
    ids = np.concatenate([ids + start for (start, _), (ids, _) in zip(pairs, rows, strict=True)])
    values = np.concatenate([values for _, values in rows])
    if len(set(starts)) < len(starts):
        order = ids.argsort(kind="stable")
        ids, values = ids[order], values[order]
    return SelectedRows(ids, values, height)


def to_selected_rows(rows: TableRows, height: int) -> SelectedRows:
    """The values of the rows that exist, as SelectedRows of a matrix with `height` rows."""
    return SelectedRows(rows.ids, np.ascontiguousarray(rows.numbers[:, 0]), height)


def parameter_arrays(name: str, value: Any) -> dict[str, Any]:
    """A parameter as the arrays of a file of results: `param/<name>`, and of a large table `param/<name>@ROWS`, the ids
    of the rows that exist.
    """
    if isinstance(value, LargeTable):
        value = _selected_rows(value)
    if isinstance(value, SelectedRows):
        return {f"param/{name}": value.value, f"param/{name}@ROWS": value.rows}
    return {f"param/{name}": value}


def arrays_of(rows: TableRows) -> dict[str, Any]:
    """The content of a table as arrays by name, with element types that tensors can have."""
    signed = {name: value for name, value in rows._asdict().items() if name not in ("updates", "saved")}
    signed.update(seen=rows.seen.astype(np.int64), counts=rows.counts.astype(np.int64))
    return {**signed, "updates": np.array([rows.updates, rows.saved], np.int64)}


def rows_from(arrays: Mapping[str, Any]) -> TableRows:
    """The inverse of `arrays_of`. Raises ValueError for arrays that don't fit each other."""
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
