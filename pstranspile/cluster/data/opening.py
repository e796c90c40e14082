"""Readers of files by their format."""

from __future__ import annotations

from collections.abc import Callable

from pstranspile.cluster.data.files import format_of, refused
from pstranspile.cluster.data.multislot import MultiSlotReader
from pstranspile.cluster.data.reader import Reader, Wanted
from pstranspile.cluster.data.records import csv_reader, json_reader
from pstranspile.cluster.data.tables import ArrowReader, ParquetReader

_READERS: dict[str, Callable[[str, Wanted], Reader]] = {
    "parquet": ParquetReader,
    "arrow": ArrowReader,
    "csv": csv_reader,
    "tsv": lambda file, wanted: csv_reader(file, wanted, "\t"),
    "jsonl": json_reader,
    "multislot": MultiSlotReader,
}


_NAMELESS = ("csv", "tsv", "multislot")
"""Formats whose files may lack the names of their columns."""


def open_rows(file: str, wanted: Wanted, format: str = "") -> Reader:
    """The reader of a file. Raises DiagnosticError."""
    found = format_of(file, format)
    if wanted.names and found not in _NAMELESS:
        raise refused(file, f"its columns have names; others (--names) are for {', '.join(_NAMELESS)}")
    return _READERS[found](file, wanted)
