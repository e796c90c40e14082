"""What reads the rows of a file: in units, which are read one at a time, and in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from pstranspile.cluster.data.columns import Chunk, Input


class Unit(NamedTuple):
    """Rows that are read together: a row group, a batch of records, or a block of lines.

    `first` is the number of its first row in the file, counted from 0. `place` is its number among the units of the
    file, or the byte that it begins with; `size` its bytes and `line` the lines before it, where it is a block.
    """

    file: str
    rows: int
    first: int
    place: int
    size: int = 0
    line: int = 0


class Wanted(NamedTuple):
    """What is wanted of files: the inputs, the columns given for some, and how columns are called (empty: the files
    say it themselves).
    """

    inputs: Sequence[Input]
    columns: Mapping[str, Sequence[str]]
    names: Sequence[str] = ()


class Reader(Protocol):
    """Reads a file. Both methods raise DiagnosticError."""

    def units(self) -> list[Unit]:
        """The units of the file, in order."""
        ...

    def read(self, unit: Unit) -> Chunk:
        """The rows of a unit."""
        ...
