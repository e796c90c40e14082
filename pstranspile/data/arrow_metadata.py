"""How many rows and values the batches of a file of Arrow have, as its metadata say it: nothing is expanded for that.

The metadata are flatbuffers (https://flatbuffers.dev/internals) of the tables Footer, Message and RecordBatch of
Arrow's format (https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

_MAGIC = b"ARROW1"
_CONTINUES = 0xFFFFFFFF
"""Begins a message, before its length, in versions of the format from 0.15 on."""

_BLOCK, _NODE = struct.Struct("<qi4xq"), struct.Struct("<qq")
"""A batch in the footer: its offset, the lengths of its metadata and its body; and a column: its values, the missing
ones.
"""

_BATCHES = 3
"""The field of a Footer that lists the batches of records."""

_HEADER = 2
"""The field of a Message that holds a RecordBatch."""

_ROWS, _NODES = 0, 1
"""The fields of a RecordBatch: the number of rows, and the columns with those inside of them."""


class Batch(NamedTuple):
    """A batch of records: its rows, and how many values its columns have, each before those inside of it."""

    rows: int
    values: tuple[int, ...]


def batches(read: Callable[[int, int], bytes], size: int) -> list[Batch]:
    """The batches of a file of so many bytes; `read` gives those from an offset on, so many.

    Raises ValueError if the metadata are damaged.
    """
    tail = read(size - 10, 10)
    length = _number("<i", tail, 0)
    if tail[4:] != _MAGIC or not 0 < length <= size - 10:
        raise ValueError("it has no footer")
    footer = read(size - 10 - length, length)
    blocks, count = _vector(footer, _indirect(footer, 0), _BATCHES, _BLOCK.size)
    return [_batch(read, size, *_BLOCK.unpack_from(footer, blocks + _BLOCK.size * n)[:2]) for n in range(count)]


def _batch(read: Callable[[int, int], bytes], size: int, offset: int, length: int) -> Batch:
    if not 0 <= offset <= size - length or length < 8:
        raise ValueError("a batch lies outside of the file")
    message = read(offset, length)
    root = 8 if _number("<I", message, 0) == _CONTINUES else 4
    header = _field(message, _indirect(message, root), _HEADER)
    if header is None:
        raise ValueError("a batch is empty")
    table = _indirect(message, header)
    rows = _field(message, table, _ROWS)
    first, count = _vector(message, table, _NODES, _NODE.size)
    values = tuple(_NODE.unpack_from(message, first + _NODE.size * n)[0] for n in range(count))
    return Batch(0 if rows is None else _number("<q", message, rows), values)


def _number(form: str, data: bytes, at: int) -> int:
    if at < 0 or at + struct.calcsize(form) > len(data):
        raise ValueError("its metadata end too early")
    return struct.unpack_from(form, data, at)[0]


def _indirect(data: bytes, at: int) -> int:
    """Where that lies which an offset names."""
    return at + _number("<I", data, at)


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a field of a table lies; None if the table has not got it."""
    names = table - _number("<i", data, table)
    if 4 + 2 * number >= _number("<H", data, names):
        return None
    offset = _number("<H", data, names + 4 + 2 * number)
    return table + offset if offset else None


def _vector(data: bytes, table: int, number: int, width: int) -> tuple[int, int]:
    """Where the elements of a vector begin, and how many there are."""
    at = _field(data, table, number)
    if at is None:
        return 0, 0
    start = _indirect(data, at)
    count = _number("<I", data, start)
    if start + 4 + count * width > len(data):
        raise ValueError("its metadata end too early")
    return start + 4, count


def columns_of(values: Sequence[int], inside: Sequence[int]) -> list[int]:
    """How many values each column of a table has, with those inside of it; `inside` are as many for each column.

    Raises ValueError if there are not as many.
    """
    if len(values) != sum(inside):
        raise ValueError("a batch has other columns than the file")
    result: list[int] = []
    at = 0
    for count in inside:
        result.append(sum(values[at : at + count]))
        at += count
    return result
