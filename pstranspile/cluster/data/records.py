"""CSV and JSON lines: blocks of lines that Arrow parses; bad lines are looked for by halves."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import numpy as np

from pstranspile.cluster.data.arrow_columns import type_of
from pstranspile.cluster.data.columns import Chunk, Input
from pstranspile.cluster.data.files import refused
from pstranspile.cluster.data.lines import Lines, first_line, lines_of, read_block, units_of
from pstranspile.cluster.data.mapping import Mapped, map_columns
from pstranspile.cluster.data.missing import require_pyarrow
from pstranspile.cluster.data.reader import Unit, Wanted
from pstranspile.cluster.data.tables import chunk_of, reading
from pstranspile.cluster.data.words import whole_number
from pstranspile.runtime.run.row_source import LeftOut

_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
"""A number of 64 bits as Arrow reads it, too."""

_LARGE = re.compile(rb"\d{19}")
"""As many digits as an id has that int64 may not hold."""


_NUMBERED = re.compile(r"In CSV column #([0-9]+): ")
"""How Arrow names a column of which it can't convert a value, by its number from 0 on."""


class LineReader:
    """A file of lines that `parse` makes a table of; it raises what Arrow does for lines that it can't take. `objects`
    says that they are JSON.
    """

    def __init__(
        self,
        file: str,
        mapped: Sequence[Mapped],
        header: int,
        parse: Callable[[bytes], Any],
        *,
        objects: bool = False,
    ):
        self.file = file
        self._objects = objects
        self._mapped = mapped
        self._header = header
        self._parse = parse

    def units(self) -> list[Unit]:
        """A unit for each block of lines."""
        return units_of(self.file, self._header)

    def read(self, unit: Unit) -> Chunk:
        """The rows of a block."""
        import pyarrow

        data = read_block(unit)
        reasons = _unfit(data, unit.place == 0, self._objects)
        if not reasons:
            with suppress(pyarrow.ArrowException):
                table = self._parse(data)
                if table.num_rows == unit.rows:
                    return self._chunk(table, unit, data, {})
        lines = lines_of(data)
        self._search(lines, [row for row in range(len(lines)) if row not in reasons], reasons)
        left = lines.without(reasons)
        with reading(self.file):
            table = self._parse(left)
        return self._chunk(table, unit, data, reasons)

    def _chunk(self, table: Any, unit: Unit, data: bytes, reasons: dict[int, str]) -> Chunk:
        kept = np.array([row for row in range(unit.rows) if row not in reasons]) if reasons else np.arange(unit.rows)
        made = chunk_of(table, self._mapped, unit)
        if not reasons and not made.bad:
            return made
        reasons = {**reasons, **{int(kept[row]): bad.reason for row, bad in made.bad.items()}}
        lines = lines_of(data)
        bad = {
            row: LeftOut(self.file, unit.first + row + 1, reasons[row], unit.line + int(lines.numbers[row]) + 1)
            for row in sorted(reasons)
        }
        return Chunk(unit.rows, made.columns, bad)

    def _search(self, lines: Lines, rows: Sequence[int], reasons: dict[int, str]) -> None:
        """Notes those of the rows that can't be parsed, and why."""
        import pyarrow

        if not rows:
            return
        reason = "it is more than one row"
        try:
            text = b"".join(lines.text(row) + b"\n" for row in rows)
            if self._parse(text).num_rows == len(rows):
                return
        except pyarrow.ArrowException as problem:
            reason = str(problem).strip().splitlines()[0]
        if len(rows) == 1:
            reasons[rows[0]] = _plain(reason)
            return
        middle = len(rows) // 2
        self._search(lines, rows[:middle], reasons)
        self._search(lines, rows[middle:], reasons)


_MARK = b"\xef\xbb\xbf"
"""The mark that says UTF-8, which a text may begin with."""

_NULL = re.compile(rb"(?:^|[}\n\xbf])[ \t\r]*null")
"""A null that may stand alone: on a line, or after an object."""


def _unfit(data: bytes, first: bool, objects: bool) -> dict[int, str]:
    """The rows of a block that Arrow should not see, and why; `first` says that the block begins the file,
    `objects` that its lines are JSON.

    Arrow passes over a byte order mark wherever a block begins, and breaks down over a JSON null that is no value.
    """
    marked = data.find(_MARK, len(_MARK) if first else 0) >= 0
    null = objects and b"null" in data and _NULL.search(data) is not None
    if not (marked or null):
        return {}
    result: dict[int, str] = {}
    lines = lines_of(data)
    for row in range(len(lines)):
        text = lines.text(row)
        if text.startswith(_MARK) and not (first and not row):
            result[row] = "it begins with a byte order mark"
        elif null and _NULL.search(text) is not None and not _is_object(text):
            result[row] = "it is no JSON object"
    return result


def _is_object(text: bytes) -> bool:
    """Whether a line is one JSON object."""
    import json

    try:
        return isinstance(json.loads(text.removeprefix(_MARK)), dict)
    except (ValueError, RecursionError):
        return False


def _plain(reason: str) -> str:
    """What Arrow says of one line, without where it stands in what was parsed."""
    for mark in ("Row #1: ", "in row 0: ", "JSON parse error: ", "CSV parse error: "):
        reason = reason.replace(mark, "")
    return reason.removesuffix(" in row 0")


def csv_reader(file: str, wanted: Wanted, delimiter: str = ",") -> LineReader:
    """A file of comma-separated values. Its first line has the names of the columns, unless these are given.

    The numbers of a ragged input stand in one cell, with white space between them; an empty cell is an empty list.
    Raises DiagnosticError.
    """
    require_pyarrow(file)
    import pyarrow
    from pyarrow import csv

    names, header = list(wanted.names), 0
    if not names:
        first = first_line(file)
        header = len(first)
        try:
            names = csv.read_csv(io.BytesIO(first), parse_options=csv.ParseOptions(delimiter=delimiter)).column_names
        except pyarrow.ArrowException:
            raise refused(file, "it has no first line with the names of its columns") from None
        except UnicodeDecodeError:
            raise refused(file, "its first line, with the names of its columns, is not UTF-8") from None
    mapped = map_columns(wanted.inputs, wanted.columns, names, file)
    ragged = {name: one for one, columns in mapped if one.levels for name in columns}

    def parse(data: bytes, ids: Any) -> Any:
        kinds = {name: _kind(one, ids) for one, columns in mapped for name in columns}
        singly = {name for one, columns in mapped for name in columns if ids is None and one.dtype == "int64"}
        types = {name: pyarrow.string() if name in {*ragged, *singly} else kind for name, kind in kinds.items()}
        if not data:
            listed = {name: pyarrow.list_(kind) if name in ragged else kind for name, kind in kinds.items()}
            return pyarrow.table({name: pyarrow.array([], kind) for name, kind in listed.items()})
        try:
            table = csv.read_csv(
                io.BytesIO(data),
                csv.ReadOptions(column_names=names, block_size=max(len(data), 1)),
                csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False),
                csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=[""]),
            )
        except pyarrow.ArrowInvalid as problem:
            raise pyarrow.ArrowInvalid(_NUMBERED.sub(lambda at: f"{names[int(at[1])]}: ", str(problem))) from None
        for name in types:
            column, kind = table.column(name), kinds[name]
            if name in ragged:
                kind, column = pyarrow.list_(kind), _words(column)
            try:
                if name in singly:
                    column = pyarrow.array(_signed(_numbers(column.to_pylist())), kind)
                elif name in ragged:
                    column = column.cast(kind)
            except pyarrow.ArrowException as problem:
                raise pyarrow.ArrowInvalid(f"{name}: {problem}") from None
            table = table.set_column(table.column_names.index(name), name, column)
        return table

    return LineReader(file, mapped, header, _with_large_ids(mapped, parse))


def _words(cells: Any) -> Any:
    """The words of each cell of a column, none for an empty one."""
    import pyarrow
    from pyarrow import compute

    cells = compute.utf8_trim_whitespace(pyarrow.chunked_array(cells).combine_chunks())
    words = compute.utf8_split_whitespace(cells)
    empty = compute.equal(cells, "").to_numpy(zero_copy_only=False)
    if not empty.any():
        return words
    sizes = compute.list_value_length(words).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(np.where(empty, 0, sizes))])
    kept = words.flatten().filter(compute.not_equal(words.flatten(), ""))
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets, "int32"), kept)


def json_reader(file: str, wanted: Wanted) -> LineReader:
    """A file with a JSON object on each line. Raises DiagnosticError."""
    require_pyarrow(file)
    import pyarrow
    from pyarrow import json

    example = _first_object(file)
    mapped = map_columns(wanted.inputs, wanted.columns, list(example), file) if example is not None else []
    ids_in = {name for one, names in mapped if one.dtype == "int64" for name in names}

    def parse(data: bytes, ids: Any) -> Any:
        fields = {name: _json_type(_kind(one, ids), (example or {})[name]) for one, names in mapped for name in names}
        if not data:
            return pyarrow.table({name: pyarrow.array([], kind) for name, kind in fields.items()})
        singly = {name: fields.pop(name) for name in sorted(ids_in)} if ids is None else {}
        columns = {name: pyarrow.array(_ids_of(data, name), kind) for name, kind in singly.items()}
        if fields:
            options = json.ParseOptions(
                explicit_schema=pyarrow.schema(list(fields.items())), unexpected_field_behavior="ignore"
            )
            table = json.read_json(io.BytesIO(data), json.ReadOptions(block_size=len(data) + 1), options)
            columns = {**{name: table.column(name) for name in fields}, **columns}
        return pyarrow.table(columns)

    return LineReader(file, mapped, 0, _with_large_ids(mapped, parse), objects=True)


def _ids_of(data: bytes, name: str) -> list[Any]:
    """The ids that a column of JSON lines has. Raises what Arrow does."""
    import json

    import pyarrow

    try:
        return [_signed(json.loads(line).get(name)) for line in data.split(b"\n") if line.strip()]
    except (ValueError, AttributeError, RecursionError):
        raise pyarrow.ArrowInvalid("a line is no JSON object") from None


def _with_large_ids(mapped: Sequence[Mapped], parse: Callable[[bytes, Any], Any]) -> Callable[[bytes], Any]:
    """What makes a table of lines, also of those with ids of 64 bits that int64 doesn't hold.

    `parse` is given lines and the type to read ids as, the last time None: one by one. It raises what Arrow does.
    """
    import pyarrow

    has_ids = any(one.dtype == "int64" for one, _ in mapped)

    def read(data: bytes) -> Any:
        try:
            return parse(data, pyarrow.int64())
        except pyarrow.ArrowException as problem:
            if has_ids and _LARGE.search(data):
                with suppress(pyarrow.ArrowException):
                    return parse(data, pyarrow.uint64())
                with suppress(pyarrow.ArrowException):
                    return parse(data, None)
            raise problem from None

    return read


def _kind(one: Input, ids: Any) -> Any:
    """The type of Arrow that the numbers of an input are read as; `ids` is that of int64, None for int64 itself."""
    return ids if ids is not None and one.dtype == "int64" else type_of(one)


def _signed(value: Any) -> Any:
    """Ids with the bits that they have unsigned, of numbers in lists; None stays. Raises what Arrow does."""
    import pyarrow

    if isinstance(value, list):
        return [_signed(one) for one in cast("list[Any]", value)]
    if value is None:
        return None
    if type(value) is not int or not -(1 << 63) <= value < 1 << 64:
        raise pyarrow.ArrowInvalid(f"{value!r} is no id of 64 bits")
    return value - (1 << 64) if value >= 1 << 63 else value


def _numbers(value: Any) -> Any:
    """The whole numbers of words in lists. A word that is none stays as it is, and an empty one is no value."""
    if isinstance(value, list):
        return [_numbers(one) for one in cast("list[Any]", value)]
    text = value.strip(" \t") if value else ""  # as Arrow reads numbers, which takes no sign but -
    if _HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    number = whole_number(text) if not text.startswith("+") else None
    return number if number is not None else value or None


def _first_object(file: str) -> dict[str, Any] | None:
    """The object on the first line: its names are those of the columns. None for a file without rows.

    Raises DiagnosticError.
    """
    import json

    first = first_line(file, blank=False)
    if not first:
        return None
    try:
        result = json.loads(first)
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict):
        raise refused(file, "its first line is no JSON object")
    return cast("dict[str, Any]", result)


def _json_type(kind: Any, example: Any) -> Any:
    """Numbers of a type, in lists as deep as those of an example."""
    import pyarrow

    while isinstance(example, list) and example:
        kind, example = pyarrow.list_(kind), cast("list[Any]", example)[0]
    return pyarrow.list_(kind) if example == [] else kind
