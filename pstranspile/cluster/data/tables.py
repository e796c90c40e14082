"""Files of columns: Parquet by row group, Arrow by batch of records."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from pstranspile.cluster.data.arrow_columns import convert, require_numbers
from pstranspile.cluster.data.arrow_metadata import Batch, batches, columns_of, dictionaries
from pstranspile.cluster.data.columns import Chunk
from pstranspile.cluster.data.files import is_remote, open_file, refused
from pstranspile.cluster.data.mapping import Mapped, map_columns
from pstranspile.cluster.data.missing import require_pyarrow
from pstranspile.cluster.data.reader import Unit, Wanted
from pstranspile.runtime.run.row_source import LeftOut


def chunk_of(table: Any, mapped: Sequence[Mapped], unit: Unit, line: Callable[[int], int] | None = None) -> Chunk:
    """The rows of a unit, from a table of Arrow that has them; `line` gives the line of a row, if it has one."""
    with reading(unit.file):
        made = convert(table, mapped, unit.file)
    bad = {
        row: LeftOut(unit.file, unit.first + row + 1, reason, line(row) if line is not None else 0)
        for row, reason in made.bad.items()
    }
    return Chunk(table.num_rows, made.columns, bad)


@contextmanager
def reading(file: str) -> Generator[None]:
    """Turns what goes wrong in reading a file of Arrow into a DiagnosticError."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as problem:
        raise refused(file, f"it can't be read: {str(problem).strip().splitlines()[0]}") from None


def _source(file: str) -> Any:
    """A remote file, opened; None for one of this system, which the library opens. Raises DiagnosticError if it is a
    pipe or a device, which would keep the library waiting.
    """
    stream = open_file(file)
    if is_remote(file):
        return stream
    stream.close()
    return None


FREE_BYTES = 1 << 28
"""Bytes that the values of a row group or batch may take once they are read, whatever the size of the file."""

TIMES = 64
"""How many times the bytes of the file the values of a larger row group or batch may take."""

_WIDEST = 8
"""The bytes of the widest value that inputs take."""


def _require_size(file: str, size: int, taken: int, what: str) -> None:
    """Raises DiagnosticError for a row group or batch that expands to more bytes than may be."""
    if taken > max(FREE_BYTES, TIMES * size):
        limit = f"more than {FREE_BYTES >> 20} MiB and more than {TIMES} times the {size:,} bytes of the file"
        message = f"{what} takes {taken:,} bytes once it is read, {limit}"
        raise refused(file, f"{message}; write smaller ones, of which one is read at a time")


def _require_types(mapped: Sequence[Mapped], schema: Any, file: str) -> None:
    """Raises DiagnosticError for columns that hold no numbers: they are not read, whatever they would expand to."""
    for one in mapped:
        for name in one.columns:
            require_numbers(one.input, name, schema.field(name).type, file)


def _columns_of(mapped: Sequence[Mapped]) -> list[str]:
    return list(dict.fromkeys(name for one in mapped for name in one.columns))


class ParquetReader:
    """A Parquet file, a row group at a time; only the columns that are fed are read.

    Trainers of one process share it and read side by side, which the library's object does not bear.
    """

    def __init__(self, file: str, wanted: Wanted):
        require_pyarrow(file)
        from pyarrow import parquet

        self.file = file
        with reading(file):
            source = _source(file)
            self._parquet = parquet.ParquetFile(source or file, pre_buffer=True)
            schema = self._parquet.schema_arrow
            self._size: int = source.size() if source else os.path.getsize(file)
        self._alone = Lock()
        self._mapped = map_columns(wanted.inputs, wanted.columns, schema.names, file)
        _require_types(self._mapped, schema, file)

    def units(self) -> list[Unit]:
        """A unit for each row group."""
        result: list[Unit] = []
        first = 0
        for place in range(self._parquet.num_row_groups):
            rows = self._parquet.metadata.row_group(place).num_rows
            result.append(Unit(self.file, rows, first, place))
            first += rows
        return result

    def read(self, unit: Unit) -> Chunk:
        """The rows of a row group."""
        with reading(self.file), self._alone:
            taken = _WIDEST * self._values(unit)
            _require_size(self.file, self._size, taken, f"row group {unit.place + 1}")
            table = self._parquet.read_row_group(unit.place, columns=_columns_of(self._mapped))
        return chunk_of(table, self._mapped, unit)

    def _values(self, unit: Unit) -> int:
        """How many values the columns that are fed have in a row group."""
        group = self._parquet.metadata.row_group(unit.place)
        columns = map(group.column, range(group.num_columns))
        names = _columns_of(self._mapped)
        alike = tuple(f"{name}." for name in names)  # of lists
        return sum(
            one.num_values for one in columns if one.path_in_schema in names or one.path_in_schema.startswith(alike)
        )


class ArrowReader:
    """A file of Arrow's (Feather), a batch of records at a time, shared by the trainers of one process."""

    def __init__(self, file: str, wanted: Wanted):
        require_pyarrow(file)
        import pyarrow

        self.file = file
        with reading(file):
            source = _source(file) or pyarrow.memory_map(file)
            schema = pyarrow.ipc.open_file(source).schema
        self._alone = Lock()
        self._mapped = map_columns(wanted.inputs, wanted.columns, schema.names, file)
        _require_types(self._mapped, schema, file)
        self._size: int = source.size()
        fields = sorted(schema.names.index(name) for name in _columns_of(self._mapped))
        with reading(file):
            options = pyarrow.ipc.IpcReadOptions(included_fields=fields)
            self._arrow = pyarrow.ipc.open_file(source, options=options)
            self._batches, self._taken = self._measured(source, schema, fields)

    def _measured(self, source: Any, schema: Any, fields: Sequence[int]) -> tuple[list[Batch], list[int]]:
        """The batches, and the bytes that each takes at most once its `fields` are read. Raises DiagnosticError."""

        def read(at: int, size: int) -> bytes:
            source.seek(max(at, 0))
            return source.read(size)

        kinds = [one.type for one in schema]
        known = [_buffers(kind) for kind in kinds]
        try:
            found = batches(read, self._size)
            values = [columns_of(batch.values, [_nodes(kind) for kind in kinds]) for batch in found]
            if None in known:  # views, of which each batch says how many buffers they have
                held = [[sum(batch.buffers)] * len(kinds) for batch in found]
            else:
                held = [columns_of(batch.buffers, [count or 0 for count in known]) for batch in found]
            shared = sum(sum(batch.buffers) for batch in dictionaries(read, self._size))
        except (ValueError, struct.error) as problem:
            raise refused(self.file, f"it can't be read: {problem}") from None
        _require_size(self.file, self._size, shared, "what the dictionaries of columns hold")
        numbers = [_WIDEST * sum(counts[field] for field in fields) for counts in values]
        expanded = [sum(sizes[field] for field in fields) for sizes in held]
        return found, [max(pair) for pair in zip(numbers, expanded, strict=True)]

    def units(self) -> list[Unit]:
        """A unit for each batch of records."""
        result: list[Unit] = []
        first = 0
        for place, batch in enumerate(self._batches):
            result.append(Unit(self.file, batch.rows, first, place))
            first += batch.rows
        return result

    def read(self, unit: Unit) -> Chunk:
        """The rows of a batch of records."""
        import pyarrow

        with reading(self.file), self._alone:
            _require_size(self.file, self._size, self._taken[unit.place], f"batch {unit.place + 1}")
            table = pyarrow.Table.from_batches([self._arrow.get_batch(unit.place)]).select(_columns_of(self._mapped))
            table.validate(full=True)  # a file may hold lists that end outside of it
        return chunk_of(table, self._mapped, unit)


def _nodes(kind: Any) -> int:
    """How many columns a column of this type counts for in the metadata: itself, and those inside of it."""
    kind = getattr(kind, "storage_type", kind)
    return 1 + sum(_nodes(kind.field(number).type) for number in range(kind.num_fields))


def _buffers(kind: Any) -> int | None:
    """How many buffers a column of this type has in the metadata, with those inside of it; None if they vary."""
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)
    inner = [_buffers(kind.field(number).type) for number in range(kind.num_fields)]
    if "view" in str(kind) or None in inner:
        return None
    own = 2
    if types.is_null(kind) or types.is_run_end_encoded(kind):
        own = 0
    elif types.is_struct(kind) or types.is_fixed_size_list(kind) or (types.is_union(kind) and kind.mode == "sparse"):
        own = 1
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        own = 3
    return own + sum(count or 0 for count in inner)
