"""How many rows and values the batches of a file of Arrow have, and how many bytes they take once they are expanded, as
its metadata say it: nothing is expanded for that.

The metadata are flatbuffers (https://flatbuffers.dev/internals) of the tables Footer, Message and RecordBatch of
Arrow's format (https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

_MAGIC = b"ARROW1"
_CONTINUES = 0xFFFFFFFF
"""Begins a message, before its length, in versions of the format from 0.15 on."""

_BLOCK = struct.Struct("<qi4xq")
"""A batch in the footer: its offset, the lengths of its metadata and its body."""

_NODE = struct.Struct("<qq")
"""A column: how many values it has, and how many are missing."""

_BUFFER = struct.Struct("<qq")
"""A buffer of a column: its offset in the body, and its length there."""

_DICTIONARIES = 2
"""The field of a Footer that lists the batches of dictionaries."""

_BATCHES = 3
"""The field of a Footer that lists the batches of records."""

_HEADER = 2
"""The field of a Message that holds a RecordBatch or DictionaryBatch."""

_DATA = 1
"""The field of a DictionaryBatch that holds a RecordBatch."""

_ROWS = 0
"""The field of a RecordBatch with the number of rows."""

_NODES = 1
"""The field of a RecordBatch with the columns, each followed by those inside of it."""

_BUFFERS = 2
"""The field of a RecordBatch with the buffers of its columns."""

_COMPRESSION = 3
"""The field of a RecordBatch with the way its buffers are compressed.

A compressed buffer begins with its expanded length, or with -1 if it is stored as it is.
"""


class Batch(NamedTuple):
    """A batch of records: its rows, how many values its columns have, each before those inside of it, and the bytes of
    their buffers once they are expanded, in the same order.
    """

    rows: int
    values: tuple[int, ...]
    buffers: tuple[int, ...]


Read: TypeAlias = Callable[[int, int], bytes]
"""Gives bytes of a file: from an offset on, so many."""


def batches(read: Read, size: int) -> list[Batch]:
    """The batches of records of a file of so many bytes. Raises ValueError if the metadata are damaged."""
    return _listed(read, size, _BATCHES)


def dictionaries(read: Read, size: int) -> list[Batch]:
    """The batches of dictionaries, which are read before any rows. Raises ValueError likewise."""
    return _listed(read, size, _DICTIONARIES)


def _listed(read: Read, size: int, field: int) -> list[Batch]:
    tail = read(size - 10, 10)
    length = _number("<i", tail, 0)
    if tail[4:] != _MAGIC or not 0 < length <= size - 10:
        raise ValueError("it has no footer")
    footer = read(size - 10 - length, length)
    blocks, count = _vector(footer, _indirect(footer, 0), field, _BLOCK.size)
    result: list[Batch] = []
    for number in range(count):
        offset, length, _ = _BLOCK.unpack_from(footer, blocks + _BLOCK.size * number)
        result.append(_batch(read, size, offset, length, inside=field == _DICTIONARIES))
    return result


def _batch(read: Read, size: int, offset: int, length: int, *, inside: bool) -> Batch:
    if not 0 <= offset <= size - length or length < 8:
        raise ValueError("a batch lies outside of the file")
    message = read(offset, length)
    root = 8 if _number("<I", message, 0) == _CONTINUES else 4
    header = _field(message, _indirect(message, root), _HEADER)
    if header is None:
        raise ValueError("a batch is empty")
    table = _indirect(message, header)
    if inside:
        data = _field(message, table, _DATA)
        if data is None:
            raise ValueError("a dictionary is empty")
        table = _indirect(message, data)
    rows = _field(message, table, _ROWS)
    first, count = _vector(message, table, _NODES, _NODE.size)
    values = tuple(_NODE.unpack_from(message, first + _NODE.size * n)[0] for n in range(count))
    first, count = _vector(message, table, _BUFFERS, _BUFFER.size)
    found = [_BUFFER.unpack_from(message, first + _BUFFER.size * n) for n in range(count)]
    if _field(message, table, _COMPRESSION) is not None:
        expanded = tuple(_expanded(read, size, offset + length + at, held) for at, held in found)
    else:
        expanded = tuple(held for _, held in found)
    number = 0 if rows is None else _number("<q", message, rows)
    if min(number, *values, *expanded, 0) < 0:
        raise ValueError("a batch has fewer than no values")
    return Batch(number, values, expanded)


def _expanded(read: Read, size: int, at: int, held: int) -> int:
    """The bytes of a compressed buffer once it is expanded."""
    if held <= 0:
        return 0
    if not 0 <= at <= size - 8:
        raise ValueError("a buffer lies outside of the file")
    length = _number("<q", read(at, 8), 0)
    return held if length == -1 else length


def _number(form: str, data: bytes, at: int) -> int:
    if at < 0 or at + struct.calcsize(form) > len(data):
        raise ValueError("its metadata end too early")
    return struct.unpack_from(form, data, at)[0]


def _indirect(data: bytes, at: int) -> int:
    """The position that an offset names."""
    return at + _number("<I", data, at)


def _field(data: bytes, table: int, number: int) -> int | None:
    """The position of a field of a table; None if the table lacks it."""
    names = table - _number("<i", data, table)
    if 4 + 2 * number >= _number("<H", data, names):
        return None
    offset = _number("<H", data, names + 4 + 2 * number)
    return table + offset if offset else None


def _vector(data: bytes, table: int, number: int, width: int) -> tuple[int, int]:
    """The position of the first element of a vector, and the number of elements."""
    at = _field(data, table, number)
    if at is None:
        return 0, 0
    start = _indirect(data, at)
    count = _number("<I", data, start)
    if start + 4 + count * width > len(data):
        raise ValueError("its metadata end too early")
    return start + 4, count


def columns_of(values: Sequence[int], inside: Sequence[int]) -> list[int]:
    """How many values or bytes each column of a table has, with those inside of it; `inside` are how many numbers are
    of each column. Raises ValueError if there are not as many.
    """
    if len(values) != sum(inside):
        raise ValueError("a batch has other columns than the file")
    result: list[int] = []
    at = 0
    for count in inside:
        result.append(sum(values[at : at + count]))
        at += count
    return result
