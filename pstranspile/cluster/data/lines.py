"""Files with a row on each line, in blocks of whole lines. Blank lines are no rows."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import NamedTuple

import numpy as np

from pstranspile.cluster.data.files import open_file, refused
from pstranspile.cluster.data.reader import Unit
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values import Array

BLOCK = 1 << 22
"""Bytes that a block has, and what its last line has beyond them."""

LONGEST = 1 << 28
"""Bytes that a line may have. A file without line ends, as one that is nothing but a hole, is no file of rows."""

_NEWLINE, _RETURN = 10, 13


class Lines(NamedTuple):
    """The rows of a block: where their text starts and stops, and which line of the block each is, counted from 0."""

    data: bytes
    starts: Array
    stops: Array
    numbers: Array

    def __len__(self) -> int:
        return len(self.starts)

    def text(self, row: int) -> bytes:
        """The text of a row, without the end of its line."""
        return self.data[int(self.starts[row]) : int(self.stops[row])]

    def without(self, rows: Iterable[int]) -> bytes:
        """The text of all other rows, each with the end of its line."""
        left = set(rows)
        return b"".join(self.text(row) + b"\n" for row in range(len(self)) if row not in left)


def lines_of(data: bytes) -> Lines:
    """The rows of a block."""
    array = np.frombuffer(data, "uint8")
    ends = np.flatnonzero(array == _NEWLINE)
    if len(array) and array[-1] != _NEWLINE:
        ends = np.append(ends, len(array))
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    stops = ends - ((ends > starts) & (array[np.maximum(ends - 1, 0)] == _RETURN)) if len(ends) else ends
    full = stops > starts
    return Lines(data, starts[full], stops[full], np.flatnonzero(full))


def blocks(file: str) -> Generator[tuple[int, bytes]]:
    """The blocks of a file, each with the byte that it begins with. Raises DiagnosticError."""
    with open_file(file) as stream:
        at, left, rest = 0, 0, list[bytes]()
        while data := stream.read(BLOCK):
            end = data.rfind(b"\n") + 1
            if end:
                yield at, b"".join([*rest, data[:end]])
                at += left + end
                left, rest = len(data) - end, [data[end:]]
            else:
                left += len(data)
                rest.append(data)
            if left > LONGEST:
                raise too_long(file)
        if left:
            yield at, b"".join(rest)


def first_line(file: str, *, blank: bool = True) -> bytes:
    """The first line of a file, with its end; without `blank` the first that is not blank. Raises DiagnosticError."""
    with open_file(file) as stream:
        while line := stream.readline(LONGEST + 1):
            if len(line) > LONGEST:
                raise too_long(file)
            if blank or line.strip():
                return line
    return b""


def too_long(file: str) -> DiagnosticError:
    """The error for a file with a line that no row has."""
    return refused(file, f"it has a line of more than {LONGEST >> 20} MiB, which no row has")


def read_block(unit: Unit) -> bytes:
    """The bytes of a unit. Raises DiagnosticError."""
    with open_file(unit.file) as stream:
        stream.seek(unit.place)
        return stream.read(unit.size)


def units_of(file: str, header: int = 0) -> list[Unit]:
    """The units of a file, which are its blocks; `header` is how many bytes the line of names has."""
    result: list[Unit] = []
    first = line = 0
    for place, data in blocks(file):
        start = min(max(header - place, 0), len(data))
        rows = len(lines_of(data[start:]))
        if rows:
            before = line + data.count(b"\n", 0, start)
            result.append(Unit(file, rows, first, place + start, len(data) - start, before))
            first += rows
        line += data.count(b"\n")
    return result
