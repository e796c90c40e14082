"""CSV and JSON lines: blocks of lines that Arrow parses; bad lines are looked for by halves."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from pstranspile.data.arrow_columns import type_of
from pstranspile.data.columns import Chunk, Input
from pstranspile.data.files import open_file, refused
from pstranspile.data.lines import Lines, lines_before, lines_of, read_block, units_of
from pstranspile.data.mapping import Mapped, map_columns
from pstranspile.data.missing import require_pyarrow
from pstranspile.data.reader import Unit, Wanted
from pstranspile.data.tables import chunk_of
from pstranspile.run.row_source import LeftOut


class LineReader:
    """A file of lines that `parse` makes a table of; it raises what Arrow does for lines that it can't take."""

    def __init__(self, file: str, mapped: Sequence[Mapped], header: int, parse: Callable[[bytes], Any]):
        self.file = file
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
        try:
            table = self._parse(data)
            if table.num_rows == unit.rows:
                return self._chunk(table, unit, data, {})
        except pyarrow.ArrowException:
            pass
        lines = lines_of(data)
        reasons = dict[int, str]()
        self._search(lines, 0, len(lines), reasons)
        left = lines.without(reasons)
        return self._chunk(self._parse(left), unit, data, reasons)

    def _chunk(self, table: Any, unit: Unit, data: bytes, reasons: dict[int, str]) -> Chunk:
        kept = np.array([row for row in range(unit.rows) if row not in reasons]) if reasons else np.arange(unit.rows)
        made = chunk_of(table, self._mapped, unit)
        if not reasons and not made.bad:
            return made
        reasons = {**reasons, **{int(kept[row]): bad.reason for row, bad in made.bad.items()}}
        lines, before = lines_of(data), lines_before(unit)
        bad = {
            row: LeftOut(self.file, unit.first + row + 1, reasons[row], before + int(lines.numbers[row]) + 1)
            for row in sorted(reasons)
        }
        return Chunk(unit.rows, made.columns, bad)

    def _search(self, lines: Lines, start: int, stop: int, reasons: dict[int, str]) -> None:
        """Notes the rows between that can't be parsed, and why."""
        import pyarrow

        if start == stop:
            return
        reason = "it is more than one row"
        try:
            text = b"".join(lines.text(row) + b"\n" for row in range(start, stop))
            if self._parse(text).num_rows == stop - start:
                return
        except pyarrow.ArrowException as problem:
            reason = str(problem).strip().splitlines()[0]
        if stop - start == 1:
            reasons[start] = _plain(reason)
            return
        middle = (start + stop) // 2
        self._search(lines, start, middle, reasons)
        self._search(lines, middle, stop, reasons)


def _plain(reason: str) -> str:
    """What Arrow says of one line, without where it stands in what was parsed."""
    for mark in ("Row #1: ", "in row 0: ", "JSON parse error: ", "CSV parse error: "):
        reason = reason.replace(mark, "")
    return reason.removesuffix(" in row 0")


def csv_reader(file: str, wanted: Wanted, delimiter: str = ",") -> LineReader:
    """A file of comma-separated values. Its first line has the names of the columns, unless these are given.

    The numbers of a ragged input stand in one cell, with white space between them. Raises DiagnosticError.
    """
    require_pyarrow(file)
    import pyarrow
    from pyarrow import compute, csv

    names, header = list(wanted.names), 0
    if not names:
        with open_file(file) as stream:
            first = stream.readline()
        header = len(first)
        try:
            names = csv.read_csv(io.BytesIO(first), parse_options=csv.ParseOptions(delimiter=delimiter)).column_names
        except pyarrow.ArrowException:
            raise refused(file, "it has no first line with the names of its columns") from None
    mapped = map_columns(wanted.inputs, wanted.columns, names, file)
    types = {name: pyarrow.string() if one.levels else type_of(one) for one, columns in mapped for name in columns}
    ragged = {name: one for one, columns in mapped if one.levels for name in columns}

    def parse(data: bytes) -> Any:
        if not data:
            return pyarrow.table({name: pyarrow.array([], kind) for name, kind in types.items()})
        table = csv.read_csv(
            io.BytesIO(data),
            csv.ReadOptions(column_names=names, block_size=max(len(data), 1)),
            csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False),
            csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=[""]),
        )
        for name, one in ragged.items():
            words = compute.utf8_split_whitespace(compute.utf8_trim_whitespace(table.column(name)))
            place = table.column_names.index(name)
            table = table.set_column(place, name, words.cast(pyarrow.list_(type_of(one))))
        return table

    return LineReader(file, mapped, header, parse)


def json_reader(file: str, wanted: Wanted) -> LineReader:
    """A file with a JSON object on each line. Raises DiagnosticError."""
    require_pyarrow(file)
    import pyarrow
    from pyarrow import json

    example = _first_object(file)
    mapped = map_columns(wanted.inputs, wanted.columns, list(example), file) if example is not None else []
    fields = {name: _json_type(one, (example or {})[name]) for one, names in mapped for name in names}
    options = json.ParseOptions(
        explicit_schema=pyarrow.schema(list(fields.items())), unexpected_field_behavior="ignore"
    )

    def parse(data: bytes) -> Any:
        if not data:
            return pyarrow.table({name: pyarrow.array([], kind) for name, kind in fields.items()})
        return json.read_json(io.BytesIO(data), json.ReadOptions(block_size=len(data) + 1), options)

    return LineReader(file, mapped, 0, parse)


def _first_object(file: str) -> dict[str, Any] | None:
    """The object on the first line: its names are those of the columns. None for a file without rows.

    Raises DiagnosticError.
    """
    import json

    with open_file(file) as stream:
        first = next((line for line in iter(stream.readline, b"") if line.strip()), b"")
    if not first:
        return None
    try:
        result = json.loads(first)
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict):
        raise refused(file, "its first line is no JSON object")
    return cast("dict[str, Any]", result)


def _json_type(one: Input, example: Any) -> Any:
    """The numbers of an input, in lists as deep as those of an example."""
    import pyarrow

    kind = type_of(one)
    while isinstance(example, list) and example:
        kind, example = pyarrow.list_(kind), cast("list[Any]", example)[0]
    return pyarrow.list_(kind) if example == [] else kind
