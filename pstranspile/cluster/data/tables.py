"""Files of columns: Parquet by row group, Arrow by batch of records."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pstranspile.cluster.data.columns import Chunk, Column, ColumnMapping, Input, map_columns
from pstranspile.cluster.data.files import ReadRequest, Unit, data_file_error, open_file, require_pyarrow
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, name_list, raise_errors, shell_word
from pstranspile.ir.model import Location
from pstranspile.ir.reading import is_address
from pstranspile.runtime.run.step_feeds import LeftOut
from pstranspile.runtime.values import Array

# The sizes of the batches of an Arrow file (rows, values, and bytes once expanded) are read from its metadata, so that
# nothing has to be expanded.
#
# The metadata are flatbuffers (https://flatbuffers.dev/internals) of the tables Footer, Message and RecordBatch of
# Arrow's format (https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format).

_MAGIC = b"ARROW1"
_CONTINUES = 0xFFFFFFFF
"""Marks the beginning of a message, before its length, in versions of the format from 0.15 on."""

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
    """A batch of records: its rows, the number of values of its columns (each before its nested columns), and the bytes
    of their buffers once expanded, in the same order.
    """

    rows: int
    values: tuple[int, ...]
    buffers: tuple[int, ...]


Read: TypeAlias = Callable[[int, int], bytes]
"""Returns bytes of a file. The arguments are the offset and the number of bytes."""


def batches(read: Read, size: int) -> list[Batch]:
    """The batches of records of a file with `size` bytes. Raises ValueError if the metadata are damaged."""
    return _footer_batches(read, size, _BATCHES)


def dictionaries(read: Read, size: int) -> list[Batch]:
    """The batches of dictionaries, which are read before any rows. Raises ValueError if the metadata are damaged."""
    return _footer_batches(read, size, _DICTIONARIES)


def _footer_batches(read: Read, size: int, field: int) -> list[Batch]:
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
        expanded = tuple(_expanded_size(read, size, offset + length + at, held) for at, held in found)
    else:
        expanded = tuple(held for _, held in found)
    number = 0 if rows is None else _number("<q", message, rows)
    if min(number, *values, *expanded, 0) < 0:
        raise ValueError("a batch has fewer than no values")
    return Batch(number, values, expanded)


def _expanded_size(read: Read, size: int, at: int, held: int) -> int:
    """The number of bytes of a compressed buffer once it is expanded."""
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
    """The position to which the offset at `at` refers."""
    return at + _number("<I", data, at)


def _field(data: bytes, table: int, number: int) -> int | None:
    """The position of a field of a table; None if the table lacks it."""
    names = table - _number("<i", data, table)
    if 4 + 2 * number >= _number("<H", data, names):
        return None
    offset = _number("<H", data, names + 4 + 2 * number)
    return table + offset if offset else None


def _vector(data: bytes, table: int, number: int, width: int) -> tuple[int, int]:
    """The position of the first element of a vector in a field of a table, and the number of elements."""
    at = _field(data, table, number)
    if at is None:
        return 0, 0
    start = _indirect(data, at)
    count = _number("<I", data, start)
    if start + 4 + count * width > len(data):
        raise ValueError("its metadata end too early")
    return start + 4, count


def columns_of(values: Sequence[int], inside: Sequence[int]) -> list[int]:
    """Adds up the values or bytes of each column of a table, including its nested columns.

    `inside` says how many numbers of `values` belong to each column. Raises ValueError if there are not as many.
    """
    if len(values) != sum(inside):
        raise ValueError("a batch has other columns than the file")
    result: list[int] = []
    at = 0
    for count in inside:
        result.append(sum(values[at : at + count]))
        at += count
    return result


# Conversion of Arrow columns to inputs. A column of lists is ragged, or has one width; several stand side by side.


class ConvertedColumns(NamedTuple):
    """The columns by input, and the reason why a row can't be fed, by the row's number."""

    columns: dict[str, Column]
    bad: Mapping[int, str]


def convert(table: Any, mapped: Sequence[ColumnMapping], file: str) -> ConvertedColumns:
    """Converts the good rows of an Arrow table to the columns of inputs. Raises DiagnosticError for a wrong type."""
    numbers = np.arange(table.num_rows)
    bad: dict[int, str] = {}
    while True:
        made = [_Conversion(one, table, file) for one in mapped]
        columns = {one.input.name: conversion.column() for one, conversion in zip(mapped, made, strict=True)}
        wrong: dict[int, str] = {}
        for conversion in made:
            for row, reason in conversion.bad.items():
                wrong.setdefault(row, reason)
        if not wrong:
            return ConvertedColumns(columns, dict(sorted(bad.items())))
        bad.update((int(numbers[row]), reason) for row, reason in wrong.items())
        good = np.ones(len(numbers), bool)
        good[list(wrong)] = False
        numbers = numbers[good]
        table = table.take(np.flatnonzero(good))


class _Conversion:
    """The conversion of one input's column; `bad` are the rows that have no value for it."""

    def __init__(self, mapped: ColumnMapping, table: Any, file: str):
        self.input = mapped.input
        self.names = mapped.columns
        self.table = table
        self.file = file
        self.bad: dict[int, str] = {}

    def column(self) -> Column:
        """The converted column; the values of bad rows are arbitrary."""
        if self.input.levels:
            if len(self.names) > 1:
                self._refuse(f"{self.input.name} is ragged and takes one column, not {len(self.names)}")
            return self._ragged_column(self._array(self.names[0]), self.names[0])
        parts = [self._fixed_width_numbers(self._array(name), name) for name in self.names]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        if whole.shape[1] != self.input.width:
            self._refuse(other_width(self.input, self.names, whole.shape[1], self.table.column_names))
        return Column(whole.reshape(len(whole), *self.input.dims))

    def _array(self, name: str) -> Any:
        array = self.table.column(name).combine_chunks()
        if hasattr(array, "num_chunks"):
            import pyarrow

            array = pyarrow.concat_arrays(array.chunks) if array.num_chunks else pyarrow.array([], array.type)
        if hasattr(array, "dictionary_decode"):
            array = array.dictionary_decode()
        self._note(array, name, [])
        return array

    def _fixed_width_numbers(self, array: Any, name: str) -> Array:
        """The numbers of a column of one width, as [rows, width]."""
        from pyarrow import types

        if types.is_fixed_size_list(array.type):
            size = array.type.list_size
            return self._numbers(_children(array), name, [np.arange(len(array) + 1) * size]).reshape(len(array), size)
        if not _is_list(array.type):
            return self._numbers(array, name, []).reshape(len(array), 1)
        sizes = _sizes(array)
        width = self.input.width - (len(self.names) - 1)
        for row in np.flatnonzero(sizes != width).tolist():
            self.bad.setdefault(row, f"{name} has {sizes[row]} numbers, {self.input.name} takes {width}")
        if self.bad:
            return np.zeros((len(array), width), self.input.dtype)
        return self._numbers(array.flatten(), name, [np.arange(0, len(array) * width + 1, width)]).reshape(-1, width)

    def _ragged_column(self, array: Any, name: str) -> Column:
        """The column of nested lists, as deep as the input's LoD."""
        from pyarrow import types

        offsets: list[Array] = []
        for level in range(self.input.levels):
            if level == 0 and not _is_list(array.type):
                offsets.append(np.arange(len(array) + 1))
                continue
            if not _is_list(array.type):
                self._refuse(f"{self.input.name} has {self.input.levels} LoD levels, {name} has lists of depth {level}")
            offsets.append(np.concatenate([[0], np.cumsum(_sizes(array))]))
            array = array.flatten()
            self._note(array, name, offsets)
        width = self.input.width
        if types.is_fixed_size_list(array.type):
            if array.type.list_size != width:
                self._refuse(f"{self.input.name} takes {width} numbers, those of {name} have {array.type.list_size}")
            values = self._numbers(_children(array), name, [*offsets, np.arange(len(array) + 1) * width])
        else:
            values = self._numbers(array, name, offsets)
            if width > 1:
                self._require_whole(offsets, name)
                offsets[-1] = offsets[-1] // width
        if self.bad:
            values = np.zeros((int(offsets[-1][-1]), *self.input.dims), self.input.dtype)
        return Column(values.reshape(-1, *self.input.dims), tuple(offsets))

    def _require_whole(self, offsets: Sequence[Array], name: str) -> None:
        wrong = np.flatnonzero(np.diff(offsets[-1]) % self.input.width)
        for row in _rows(wrong, offsets[:-1]):
            self.bad.setdefault(row, f"{name} has a number of values that is no multiple of {self.input.width}")

    def _numbers(self, array: Any, name: str, offsets: Sequence[Array]) -> Array:
        """The numbers of an Arrow array in the input's type; `offsets` say to which rows they belong."""
        self._note(array, name, offsets)
        if array.null_count:
            array = array.fill_null(False if str(array.type) == "bool" else 0) if _is_number(array.type) else array
        if not _is_number(array.type):
            whole = self.table.schema.field(name).type  # such as lists of lists, of which `array` has the inner ones
            deep = f": its lists are nested deeper than those of {self.input.name}" if _is_list(array.type) else ""
            self._refuse(f"{self.input.name} is {self.input.dtype}, the column {name} is {whole}{deep}")
        values = array.to_numpy(zero_copy_only=False)
        wanted = np.dtype(self.input.dtype)
        if wanted.kind in "iu":
            if values.dtype.kind == "f":
                self._refuse(f"{self.input.name} is {self.input.dtype}, the column {name} is {array.type}")
            self._require_range(values, wanted, name, offsets)
        elif wanted.kind == "b" and values.dtype.kind != "b":
            self._refuse(f"{self.input.name} is bool, the column {name} is {array.type}")
        with np.errstate(over="ignore"):  # numbers too large for a float become infinite, as in text
            return values.astype(wanted, copy=False)

    def _require_range(self, values: Array, wanted: Any, name: str, offsets: Sequence[Array]) -> None:
        """Marks rows as bad whose numbers exceed the range of the input's type; ids of 64 bits keep their bits, as in
        Fluid.
        """
        if values.dtype.kind == "b" or values.dtype == wanted or (values.dtype, wanted) == (np.uint64, np.int64):
            return
        limits = np.iinfo(wanted)
        for row in _rows(np.flatnonzero((values < limits.min) | (values > limits.max)), offsets):
            self.bad.setdefault(row, f"{name} holds a number that {self.input.dtype} can't")

    def _note(self, array: Any, name: str, offsets: Sequence[Array]) -> None:
        """Marks rows with missing values as bad: a row without a value, or one with a list that lacks one."""
        reason = f"a value in the list of {name} is missing" if offsets else f"{name} has no value"
        if array.null_count:
            missing = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
            for row in _rows(missing, offsets):
                self.bad.setdefault(row, reason)

    def _refuse(self, message: str) -> None:
        raise DiagnosticError([error("data-column", message, Location(self.file))])


def _children(array: Any) -> Any:
    """The elements of fixed-size lists, including those of missing lists."""
    size = array.type.list_size
    return array.values.slice(array.offset * size, len(array) * size)


def _sizes(array: Any) -> Array:
    import pyarrow.compute

    return pyarrow.compute.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype("int64")


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind)


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _rows(elements: Array, offsets: Sequence[Array]) -> list[int]:
    """The rows to which elements belong."""
    for level in reversed(offsets):
        elements = np.searchsorted(level, elements, side="right") - 1
    return np.unique(elements).tolist()


def require_numbers(one: Input, name: str, kind: Any, file: str) -> None:
    """Raises DiagnosticError unless a column has numbers, lists of numbers, or dictionary-encoded numbers, whole ones
    for an input of whole numbers.
    """
    from pyarrow import types

    inner = kind
    while _is_list(inner) or types.is_fixed_size_list(inner) or types.is_dictionary(inner):
        inner = inner.value_type
    wanted = np.dtype(one.dtype).kind
    other = (wanted in "iu" and types.is_floating(inner)) or (wanted == "b" and not types.is_boolean(inner))
    if other or not _is_number(inner):
        message = f"{one.name} is {one.dtype}, the column {name} is {inner if other else kind}"
        raise DiagnosticError([error("data-column", message, Location(file))])


def type_of(one: Input) -> Any:
    """The type of Arrow for the numbers of an input."""
    import pyarrow

    return pyarrow.from_numpy_dtype(np.dtype(one.dtype))


def chunk_of(
    table: Any, mapped: Sequence[ColumnMapping], unit: Unit, line: Callable[[int], int] | None = None
) -> Chunk:
    """The rows of a unit, from the Arrow table with them; `line` gives the line of a row, if it has one."""
    with reading(unit.file):
        made = convert(table, mapped, unit.file)
    bad = {
        row: LeftOut(unit.file, unit.first_row + row + 1, reason, line(row) if line is not None else 0)
        for row, reason in made.bad.items()
    }
    return Chunk(table.num_rows, made.columns, bad, {one.input.name: one.columns for one in mapped})


@contextmanager
def reading(file: str) -> Generator[None]:
    """Turns an exception while an Arrow file is read into a DiagnosticError."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as problem:
        raise data_file_error(file, f"it can't be read: {str(problem).strip().splitlines()[0]}") from None


def _source(file: str) -> Any:
    """Opens a remote file; returns None for a local one, which the library opens.

    Raises DiagnosticError for a pipe or a device, for which the library would wait.
    """
    stream = open_file(file)
    if is_address(file):
        return stream
    stream.close()
    return None


FREE_BYTES = 1 << 28
"""The bytes that the values of a row group or batch may always take once they are read, whatever the size of the file.
"""

TIMES = 64
"""The largest ratio of the bytes of a larger row group or batch, once read, to those of the file."""

_WIDEST = 8
"""The size of the widest value of an input, in bytes."""


def _require_size(file: str, size: int, taken: int, what: str) -> None:
    """Raises DiagnosticError for a row group or batch whose expanded size exceeds the limits above."""
    if taken > max(FREE_BYTES, TIMES * size):
        limit = f"more than {FREE_BYTES >> 20} MiB and more than {TIMES} times the {size:,} bytes of the file"
        message = f"{what} takes {taken:,} bytes once it is read, {limit}"
        raise data_file_error(file, f"{message}; write smaller ones, of which one is read at a time")


def _require_types(mapped: Sequence[ColumnMapping], schema: Any, file: str) -> None:
    """Raises DiagnosticError for columns that hold no numbers, or other ones or more or fewer than the input takes,
    before they are read and expanded.
    """
    from pyarrow import types

    for one in mapped:
        for name in one.columns:
            require_numbers(one.input, name, schema.field(name).type, file)

    def width(name: str) -> int | None:
        kind = schema.field(name).type
        return kind.list_size if types.is_fixed_size_list(kind) else None if _is_list(kind) else 1

    require_widths(mapped, width, file, schema.names)


MOST_COLUMNS = 8
"""The most columns that a message names."""


def other_width(one: Input, columns: Sequence[str], width: int, held: Sequence[str]) -> str:
    """The message about an input whose columns hold more or fewer numbers than it takes; `held` are those of the
    file.
    """
    others = [name for name in held if name not in columns]
    there = f"; others in the file are {name_list(others, MOST_COLUMNS)}" if others else ""
    return f"{one.name} takes {one.width} numbers, its columns have {width}: {name_list(columns, MOST_COLUMNS)}{there}"


def require_widths(
    mapped: Sequence[ColumnMapping], width_of: Callable[[str], int | None], file: str, held: Sequence[str]
) -> None:
    """Raises DiagnosticError for inputs whose columns hold more or fewer numbers in a row than they take, as far as
    this is known before rows are read: `width_of` gives the numbers of a column, None where rows differ, and `held`
    are the columns of the file.
    """
    findings: list[Diagnostic] = []
    for one, columns in mapped:
        if one.levels:
            if len(columns) > 1:
                message = f"{one.name} is ragged and takes one column, not {len(columns)}"
                findings.append(error("data-column", message, Location(file)))
            continue
        widths = [width_of(name) for name in columns]
        known = [width for width in widths if width is not None]
        if len(known) == len(widths) and sum(known) != one.width:
            message = other_width(one, columns, sum(known), held)
            findings.append(error("data-column", message, Location(file)))
    raise_errors(findings)


def _shown_by(imports: str, schema: str, file: str) -> str:
    """A command that prints the names of a file's columns."""
    return f'python -c "{imports}, sys; print(*{schema}.names)" {shell_word(file)}'


def _columns_of(mapped: Sequence[ColumnMapping]) -> list[str]:
    return list(dict.fromkeys(name for one in mapped for name in one.columns))


class ParquetReader:
    """A Parquet file, a row group at a time; only the columns that are fed are read.

    The trainers of one process share it; a lock protects the library's object, which is not thread-safe.
    """

    def __init__(self, file: str, wanted: ReadRequest):
        require_pyarrow(file)
        from pyarrow import parquet

        self.file = file
        with reading(file):
            source = _source(file)
            self._parquet = parquet.ParquetFile(source or file, pre_buffer=True)
            schema = self._parquet.schema_arrow
            self._size: int = source.size() if source else os.path.getsize(file)
        self._lock = Lock()
        seeing = _shown_by("import pyarrow.parquet as p", "p.read_schema(sys.argv[1])", file)
        self._column_map = map_columns(
            wanted.inputs, wanted.columns, schema.names, file, shown_by=seeing, on_left=wanted.on_left
        )
        _require_types(self._column_map, schema, file)

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
        with reading(self.file), self._lock:
            taken = _WIDEST * self._values(unit)
            _require_size(self.file, self._size, taken, f"row group {unit.place + 1}")
            table = self._parquet.read_row_group(unit.place, columns=_columns_of(self._column_map))
        return chunk_of(table, self._column_map, unit)

    def _values(self, unit: Unit) -> int:
        """How many values the fed columns have in a row group."""
        group = self._parquet.metadata.row_group(unit.place)
        columns = map(group.column, range(group.num_columns))
        names = _columns_of(self._column_map)
        alike = tuple(f"{name}." for name in names)  # prefixes of columns of lists
        return sum(
            one.num_values for one in columns if one.path_in_schema in names or one.path_in_schema.startswith(alike)
        )


class ArrowReader:
    """A file of Arrow's (Feather), read one batch of records at a time; the trainers of one process share it."""

    def __init__(self, file: str, wanted: ReadRequest):
        require_pyarrow(file)
        import pyarrow

        self.file = file
        with reading(file):
            source = _source(file) or pyarrow.memory_map(file)
            schema = pyarrow.ipc.open_file(source).schema
        self._lock = Lock()
        seeing = _shown_by("import pyarrow as p", "p.ipc.open_file(sys.argv[1]).schema", file)
        self._column_map = map_columns(
            wanted.inputs, wanted.columns, schema.names, file, shown_by=seeing, on_left=wanted.on_left
        )
        _require_types(self._column_map, schema, file)
        self._size: int = source.size()
        fields = sorted(schema.names.index(name) for name in _columns_of(self._column_map))
        with reading(file):
            options = pyarrow.ipc.IpcReadOptions(included_fields=fields)
            self._arrow = pyarrow.ipc.open_file(source, options=options)
            self._batches, self._batch_bytes = self._measure_batches(source, schema, fields)

    def _measure_batches(self, source: Any, schema: Any, fields: Sequence[int]) -> tuple[list[Batch], list[int]]:
        """The batches, and the most bytes that each takes once its `fields` are read. Raises DiagnosticError."""

        def read(at: int, size: int) -> bytes:
            source.seek(max(at, 0))
            return source.read(size)

        kinds = [one.type for one in schema]
        known = [_buffers(kind) for kind in kinds]
        try:
            found = batches(read, self._size)
            values = [columns_of(batch.values, [_nodes(kind) for kind in kinds]) for batch in found]
            if None in known:  # columns of views, whose number of buffers differs between batches
                sizes_of_batches = [[sum(batch.buffers)] * len(kinds) for batch in found]
            else:
                sizes_of_batches = [columns_of(batch.buffers, [count or 0 for count in known]) for batch in found]
            shared = sum(sum(batch.buffers) for batch in dictionaries(read, self._size))
        except (ValueError, struct.error) as problem:
            raise data_file_error(self.file, f"it can't be read: {problem}") from None
        _require_size(self.file, self._size, shared, "what the dictionaries of columns hold")
        numbers = [_WIDEST * sum(counts[field] for field in fields) for counts in values]
        expanded = [sum(sizes[field] for field in fields) for sizes in sizes_of_batches]
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

        with reading(self.file), self._lock:
            _require_size(self.file, self._size, self._batch_bytes[unit.place], f"batch {unit.place + 1}")
            table = pyarrow.Table.from_batches([self._arrow.get_batch(unit.place)]).select(
                _columns_of(self._column_map)
            )
            table.validate(full=True)  # a file may hold lists that end outside of it
        return chunk_of(table, self._column_map, unit)


def _nodes(kind: Any) -> int:
    """How many columns a column of this type counts for in the metadata: itself, and its nested columns."""
    kind = getattr(kind, "storage_type", kind)
    return 1 + sum(_nodes(kind.field(number).type) for number in range(kind.num_fields))


def _buffers(kind: Any) -> int | None:
    """How many buffers a column of this type has in the metadata, including its nested columns; None if that varies."""
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
