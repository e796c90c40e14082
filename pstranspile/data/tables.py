"""Files of columns: Parquet by row group, Arrow by batch of records."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from pstranspile.data.arrow_columns import convert
from pstranspile.data.columns import Chunk
from pstranspile.data.files import is_remote, open_file, refused
from pstranspile.data.mapping import Mapped, map_columns
from pstranspile.data.missing import require_pyarrow
from pstranspile.data.reader import Unit, Wanted
from pstranspile.run.row_source import LeftOut


def chunk_of(table: Any, mapped: Sequence[Mapped], unit: Unit, line: Callable[[int], int] | None = None) -> Chunk:
    """The rows of a unit, from a table of Arrow that has them; `line` gives the line of a row, if it has one."""
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
            self._parquet = parquet.ParquetFile(_source(file) or file, pre_buffer=True)
            names = self._parquet.schema_arrow.names
        self._alone = Lock()
        self._mapped = map_columns(wanted.inputs, wanted.columns, names, file)

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
            table = self._parquet.read_row_group(unit.place, columns=_columns_of(self._mapped))
        return chunk_of(table, self._mapped, unit)


class ArrowReader:
    """A file of Arrow's (Feather), a batch of records at a time, shared by the trainers of one process."""

    def __init__(self, file: str, wanted: Wanted):
        require_pyarrow(file)
        import pyarrow

        self.file = file
        with reading(file):
            self._arrow = pyarrow.ipc.open_file(_source(file) or pyarrow.memory_map(file))
            names = self._arrow.schema.names
        self._alone = Lock()
        self._mapped = map_columns(wanted.inputs, wanted.columns, names, file)

    def units(self) -> list[Unit]:
        """A unit for each batch of records."""
        result: list[Unit] = []
        first = 0
        for place in range(self._arrow.num_record_batches):
            with reading(self.file):
                rows = self._arrow.get_batch(place).num_rows
            result.append(Unit(self.file, rows, first, place))
            first += rows
        return result

    def read(self, unit: Unit) -> Chunk:
        """The rows of a batch of records."""
        import pyarrow

        with reading(self.file), self._alone:
            table = pyarrow.Table.from_batches([self._arrow.get_batch(unit.place)]).select(_columns_of(self._mapped))
            table.validate(full=True)  # a file may hold lists that end outside of it
        return chunk_of(table, self._mapped, unit)
