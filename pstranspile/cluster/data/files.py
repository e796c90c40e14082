"""Files of rows: which files there are, and the format of each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from glob import glob, has_magic
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from pstranspile.cluster.data.columns import Chunk, Input, OnUnusedColumns, ignore_unused_columns
from pstranspile.ir.diagnostics import DiagnosticError, error, installing
from pstranspile.ir.model import Location
from pstranspile.ir.reading import is_address, open_regular, reason_for

# pyarrow, which reads columnar files, is optional.


def require_pyarrow(file: str) -> None:
    """Raises DiagnosticError if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        message = f"such files are read by pyarrow, which is not installed; get it with: {installing('data')}"
        raise DiagnosticError([error("data-library", message, Location(file))])


FORMATS = {
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".feather", ".ipc"),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "jsonl": (".jsonl", ".ndjson"),
    "multislot": (".multislot",),
}
"""The formats of rows, and the endings of their files' names."""


def format_of(file: str, given: str = "") -> str:
    """The format of a file: `given` if it is not empty, else the one that the file's name says. Raises
    DiagnosticError.
    """
    if given:
        return given
    for name, endings in FORMATS.items():
        if file.lower().endswith(endings):
            return name
    known = ", ".join(ending for endings in FORMATS.values() for ending in endings)
    raise data_file_error(file, f"its name does not say its format (it ends in none of {known}); give it (--format)")


def data_file_error(file: str, message: str) -> DiagnosticError:
    """The error for a file of data that can't be read."""
    return DiagnosticError([error("data-source", message, Location(file))])


def files_of(paths: Sequence[str], format: str = "") -> list[str]:
    """The files that paths, folders and patterns name, in the order of their names. Raises DiagnosticError.

    A folder stands for all files below it whose names don't begin with `.` or `_` and, if `format` is empty, end as
    those of a format do.
    """
    result: list[str] = []
    for path in paths:
        files = _remote(path) if is_address(path) else _local(path)
        inside = files != [path]
        kept = [file for file in files if not inside or format or has_format(file)]
        if not kept:
            raise data_file_error(path, "no files of rows are there")
        result += kept
    return result


def has_format(file: str) -> bool:
    """Whether the name of a file ends as those of a format do."""
    return file.lower().endswith(tuple(ending for endings in FORMATS.values() for ending in endings))


def _local(path: str) -> list[str]:
    if os.path.isdir(path):
        files = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names]
        return sorted(file for file in files if not _hidden(os.path.relpath(file, path)))
    if has_magic(path) and not os.path.exists(path):
        return sorted(file for file in glob(path, recursive=True) if os.path.isfile(file))
    return [path]


def _hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in relative.split(os.sep))


def _remote(path: str) -> list[str]:
    require_pyarrow(path)
    from pyarrow import fs

    try:
        system, inner = fs.FileSystem.from_uri(path)
        info = system.get_file_info(inner)
        if info.type != fs.FileType.Directory:
            return [path]
        entries: Any = system.get_file_info(fs.FileSelector(inner, recursive=True))
    except (OSError, ValueError) as problem:
        raise data_file_error(path, f"it can't be looked into: {problem}") from None
    scheme = path.partition("://")[0]
    files: list[str] = [
        str(one.path) for one in entries if one.is_file and not _hidden(os.path.relpath(str(one.path), str(inner)))
    ]
    return sorted(f"{scheme}://{file.lstrip('/')}" if scheme != "file" else file for file in files)


def open_file(path: str) -> Any:
    """Opens a file for reading at any offset; the result has `read`, `seek`, `size` and `close`.

    Raises DiagnosticError, also for a pipe or a device, which has no offsets and may never end.
    """
    try:
        if is_address(path):
            from pyarrow import fs

            system, inner = fs.FileSystem.from_uri(path)
            return system.open_input_file(inner)
        return open_regular(path)
    except (OSError, ValueError) as problem:
        raise data_file_error(path, f"the file can't be read: {reason_for(problem, path)}") from None


# Readers give the rows of a file in units, which are read one at a time and in any order.


class Unit(NamedTuple):
    """Rows that are read together: a row group, a batch of records, or a block of lines.

    `first_row` is the number of its first row in the file, counted from 0. `place` is its number among the units of the
    file, or the byte that it begins with; `size` its bytes and `line` the lines before it, where it is a block, and
    `returns` says that its lines end in carriage returns alone.
    """

    file: str
    rows: int
    first_row: int
    place: int
    size: int = 0
    line: int = 0
    returns: bool = False


class ReadRequest(NamedTuple):
    """What a reader is to find in files: the inputs, the columns named for some, the names of the columns (empty: the
    files have them), the separator of CSV fields (empty: that of the format), and the function that is called with
    columns that no input takes.
    """

    inputs: Sequence[Input]
    columns: Mapping[str, Sequence[str]]
    names: Sequence[str] = ()
    separator: str = ""
    on_left: OnUnusedColumns = ignore_unused_columns


class FileReader(Protocol):
    """A reader of one file. Both methods raise DiagnosticError."""

    def units(self) -> list[Unit]:
        """The units of the file, in order."""
        ...

    def read(self, unit: Unit) -> Chunk:
        """The rows of a unit."""
        ...
