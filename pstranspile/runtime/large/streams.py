"""What the parts of a large table hold, piece by piece, so that it is written without being in memory twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.runtime.large.forms import arrays_of, joined, rows_of
from pstranspile.runtime.large.table import LargeTable, TableRows
from pstranspile.runtime.values import Array
from pstranspile.runtime.values.writing import encode, encode_pieces

AT_ONCE = 1 << 16
"""Rows in a piece."""


class TablePart(NamedTuple):
    """A part of a table: the ids from `start` of the whole on; 0 for each part of a table with a row for every id."""

    start: int
    held: LargeTable | TableRows


class Stream(NamedTuple):
    """An array that comes in pieces, which follow each other along its first dim."""

    dtype: Any
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[Array]]


def written(value: Stream | Array) -> Iterator[bytes | memoryview]:
    """The bytes of an array, or of one that comes in pieces, as those of a variable."""
    if isinstance(value, Stream):
        return encode_pieces(value.dtype.name, value.shape, value.pieces())
    return encode(value)


def together(parts: Sequence[TablePart]) -> TableRows:
    """What all parts hold, as arrays."""
    if len(parts) == 1 and parts[0].start == 0:
        return rows_of(parts[0].held)
    return joined([part.held for part in parts], [part.start for part in parts])


def streams_of(parts: Sequence[TablePart]) -> dict[str, Stream | Array]:
    """What `arrays_of` gives for the rows of all parts, the large arrays as streams, in the order of ids.

    The parts may not be changed before all is written.
    """
    parts = sorted(parts, key=lambda part: part.start)
    orders = [part.held.order() if isinstance(part.held, LargeTable) else None for part in parts]
    few = [_without_rows(part.held) for part in parts]
    result: dict[str, Any] = {**arrays_of(joined(few, [part.start for part in parts]))}
    for name in ("ids", "numbers", "seen", "scores"):
        empty: Array = result[name]
        length = sum(len(part.held) if isinstance(part.held, LargeTable) else len(part.held.ids) for part in parts)
        if name == "scores" and not all(_has_scores(part.held) for part in parts):
            length = 0
        result[name] = Stream(empty.dtype, (length, *empty.shape[1:]), _pieces(parts, orders, name, length))
    return result


def _has_scores(held: LargeTable | TableRows) -> bool:
    return held.keeps_scores if isinstance(held, LargeTable) else bool(len(held.scores))


def _without_rows(held: LargeTable | TableRows) -> TableRows:
    """What a part holds beside its rows."""
    if isinstance(held, LargeTable):
        return held.without_rows()
    return held._replace(ids=held.ids[:0], numbers=held.numbers[:0], seen=held.seen[:0], scores=held.scores[:0])


def _field(held: LargeTable | TableRows, name: str, places: Array) -> Array:
    return held.field(name, places) if isinstance(held, LargeTable) else getattr(held, name)[places]


def mingled(parts: Sequence[LargeTable | TableRows], orders: Sequence[Array], name: str) -> Iterator[Array]:
    """`ids`, `numbers`, `seen` or `scores` of rows of several parts, in pieces and in the order of all their ids.

    `orders` are the places of the rows of each part.
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
                np.arange(len(part.held.ids)) if isinstance(part.held, TableRows) else part.held.order()
                for part in parts
            ]
            for piece in mingled([part.held for part in parts], places, name):
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
