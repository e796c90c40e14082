"""The values that an input has in the rows of a unit: numbers of one shape, or ragged ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

import numpy as np

from pstranspile.ir.codes import Code
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, error, name_list
from pstranspile.ir.model import EMPTY, Location, Program
from pstranspile.ir.types import VarKind
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.feeds import declared_type, near
from pstranspile.runtime.run.seeds import is_divided
from pstranspile.runtime.run.step_feeds import LeftOut, inputs_of
from pstranspile.runtime.values import NUMPY_TYPES, Array, LoDTensor

# The file columns for each input of a program: those that the user names, else the one of the input's name.


class ColumnMapping(NamedTuple):
    """An input, and the names of the file's columns that it takes, side by side."""

    input: Input
    columns: Sequence[str]


def inputs(program: Program) -> list[Input]:
    """The inputs of a program that rows are fed to, in the order in which they are declared. Raises DiagnosticError."""
    known = inputs_of(program)
    read = {name for block in program.blocks for op in block.ops for name in op.input_names}
    result: list[Input] = []
    findings: list[Diagnostic] = []
    for name, var in program.main_block.vars.items():
        if name not in known or name not in read or var.kind is not VarKind.LOD_TENSOR or var.tensor is None:
            continue
        dims = tuple(var.shape[1:])
        if not is_divided(program, name) or not var.shape or any(size < 0 for size in dims):
            message = (
                f"{name} is declared {declared_type(var)}; rows are fed to [-1, ...], where the first dim alone is open"
            )
            findings.append(error("data-column", message, var.location))
        else:
            result.append(Input(name, dims, NUMPY_TYPES[var.tensor.dtype], var.tensor.lod_level))
    if findings:
        raise DiagnosticError(findings)
    return result


OnUnusedColumns: TypeAlias = "Callable[[str, Sequence[str]], object]"
"""Called with a file and the names of its columns that no input takes."""


def ignore_unused_columns(_file: str, _columns: Sequence[str]) -> None:
    """An `OnUnusedColumns` that does nothing."""


MOST_LISTED = 12
"""How many of a file's columns a message names if a column is missing."""


def _hint(name: str, given: Mapping[str, Sequence[str]]) -> list[Note]:
    """Notes that say how to name the column of an input, where the user has named none."""
    if name in given:
        return []
    return [Note(f"another column is named with --columns {name}=COLUMN (in Python: columns={{{name!r}: 'COLUMN'}})")]


def map_columns(
    wanted: Sequence[Input],
    given: Mapping[str, Sequence[str]],
    there: Sequence[str],
    file: str,
    *,
    shown_by: str = "",
    notes: Sequence[Note] = (),
    on_left: OnUnusedColumns = ignore_unused_columns,
) -> list[ColumnMapping]:
    """The columns of each input; `there` are those of the file. A name may be a pattern: `f*`, in the file's order.
    `on_left` is called with those that no input takes.

    Raises DiagnosticError for inputs and columns that are not there. Where there are many, the message has the first
    ones and `shown_by`, a command that shows them all. `notes` are about the names of the file's columns.
    """
    findings: list[Diagnostic] = []
    place = Location(file)
    names = [one.name for one in wanted]
    times = Counter(there)
    for name in given:
        if name not in names:
            hint = near(name, names) or (f"; inputs are {name_list(names)}" if names else "; the program has none")
            findings.append(error("data-column", f"columns are given for {name}, which is no input{hint}"))
    result: list[ColumnMapping] = []
    missing = False
    for one in wanted:
        columns: list[str] = []
        for name in given.get(one.name, (one.name,)):
            matching = [name] if name in times else [other for other in there if fnmatchcase(other, name)]
            columns += matching
            findings += [
                error("data-column", f"{one.name} takes the column {taken}, which is there several times", place)
                for taken in matching
                if times[taken] > 1
            ]
            if not matching:
                shown = name_list(there, MOST_LISTED)
                left, equals, right = name.partition("=")
                two = equals and (left in names or any(fnmatchcase(column, right) for column in there))
                hint = f"; each input has an option of its own: --columns {name}" if two else near(name, there)
                message = f"{one.name} takes the column {name}, which is not among {shown}{hint}"
                findings.append(error("data-column", message, place, notes=_hint(one.name, given)))
                missing = True
        result.append(ColumnMapping(one, tuple(columns)))
    if missing:
        more = [Note(f"all {len(there):,} columns are shown by: {shown_by}")] if len(there) > MOST_LISTED else []
        last = findings[-1]
        findings[-1] = last._replace(notes=(*last.notes, *(more if shown_by else []), *notes))
    if findings:
        raise DiagnosticError(findings)
    taken = {column for mapped in result for column in mapped.columns}
    on_left(file, [column for column in times if column not in taken])
    return result


NAN = "NaN"
"""What is said of a number that is none."""

INFINITE = "infinite"
"""What is said of an infinite number."""

ODD: Mapping[str, Code] = {NAN: "data-nan", INFINITE: "data-infinite"}
"""What numbers of data may be that are no finite ones, and the code of the warning about them."""


def rows_with_nan(column: Column, names: Sequence[str]) -> dict[str, Array]:
    """The numbers of the rows in which NaN occurs, for each column of the file that the input takes.

    `names` are these columns. Where the values of several columns can't be told apart, their names are joined by
    commas.
    """
    return {name: rows for (name, what), rows in odd_rows(column, names).items() if what == NAN}


def odd_rows(column: Column, names: Sequence[str]) -> dict[tuple[str, str], Array]:
    """The numbers of the rows in which NaN occurs, and of those in which infinity does, by column and what it is."""
    values = column.values
    if values.dtype.kind != "f" or not values.size:
        return {}
    least, greatest = values.min(), values.max()
    if np.isfinite(least) and np.isfinite(greatest):
        return {}
    result: dict[tuple[str, str], Array] = {}
    for what, elements in ((NAN, np.isnan(values)), (INFINITE, np.isinf(values))):
        for name, rows in _rows_where(column, names, elements.reshape(len(values), -1)).items():
            result[name, what] = rows
    return result


def _rows_where(column: Column, names: Sequence[str], elements: Array) -> dict[str, Array]:
    """The rows of marked elements, for each column of the file."""
    if column.offsets or len(names) != elements.shape[1]:
        names, elements = [", ".join(names)], elements.any(axis=1, keepdims=True)
    result: dict[str, Array] = {}
    for number, name in enumerate(names):
        rows = np.flatnonzero(elements[:, number])
        for level in reversed(column.offsets):
            rows = np.searchsorted(level, rows, side="right") - 1
        if len(rows):
            result[name] = np.unique(rows)
    return result


Taken: TypeAlias = "range | Array"
"""The numbers of the rows to take: an array, or a range with step 1."""


class Input(NamedTuple):
    """An input of a program that rows are fed to: the dims of one row, the numpy dtype's name, and the number of LoD
    levels.
    """

    name: str
    dims: tuple[int, ...]
    dtype: str
    levels: int

    @property
    def width(self) -> int:
        """How many numbers a row has; for ragged inputs, how many an element of the innermost sequences has."""
        return int(np.prod(self.dims, dtype="int64"))


class Column(NamedTuple):
    """`values` [rows, ...], or of ragged rows all elements one after another, with the `offsets` of each LoD level.

    `offsets[0]` has an entry more than there are rows.
    """

    values: Array
    offsets: tuple[Array, ...] = ()

    def take(self, rows: Taken) -> Column:
        """Some of the rows, in this order; those of a range are not copied."""
        if isinstance(rows, range):
            return self._part(rows.start, rows.stop)
        if not self.offsets:
            return Column(self.values[rows])
        level_offsets: list[Array] = []
        for offsets in self.offsets:
            starts = offsets[rows]
            sizes = offsets[rows + 1] - starts
            ends = np.cumsum(sizes)
            level_offsets.append(np.concatenate([[0], ends]))
            total = int(ends[-1]) if len(ends) else 0
            rows = np.arange(total) + np.repeat(starts - ends + sizes, sizes)
        return Column(self.values[rows], tuple(level_offsets))

    def _part(self, start: int, stop: int) -> Column:
        """The rows `start` to `stop`, without the latter."""
        made: list[Array] = []
        for offsets in self.offsets:
            level = offsets[start : stop + 1]
            start, stop = int(level[0]), int(level[-1])
            made.append(level - start)
        return Column(self.values[start:stop], tuple(made))

    def value(self) -> Value:
        """The array or LoDTensor to feed."""
        return LoDTensor(self.values, [level.tolist() for level in self.offsets]) if self.offsets else self.values


def concat_columns(columns: Sequence[Column]) -> Column:
    """One column with the rows of several columns, in order."""
    if len(columns) == 1:
        return columns[0]
    levels: list[Array] = []
    for offsets in zip(*(column.offsets for column in columns), strict=True):
        ends = np.cumsum([level[-1] for level in offsets])
        later = [level[1:] + end for level, end in zip(offsets[1:], ends, strict=False)]
        levels.append(np.concatenate([offsets[0], *later]))
    return Column(np.concatenate([column.values for column in columns]), tuple(levels))


class Chunk:
    """The rows of a unit: the columns of the good ones by input, and the bad ones by their number in the unit."""

    def __init__(
        self,
        rows: int,
        columns: dict[str, Column],
        bad: dict[int, LeftOut],
        names: Mapping[str, Sequence[str]] = EMPTY,
    ):
        self.rows = rows
        self.names = names
        """The columns of the file that each input takes."""
        self.columns = columns
        self.bad = bad
        self._places: Array | None = None
        if bad:
            good = np.ones(rows, bool)
            good[list(bad)] = False
            self._places = np.where(good, np.cumsum(good) - 1, -1)

    @property
    def good(self) -> Array:
        """The numbers in the unit of the good rows."""
        return np.arange(self.rows) if self._places is None else np.flatnonzero(self._places >= 0)

    def with_bad_rows(self, bad: Mapping[int, LeftOut]) -> Chunk:
        """The same rows, with these marked as bad, too, by their numbers in the unit."""
        good = np.flatnonzero([row not in bad for row in self.good.tolist()])
        columns = {name: column.take(good) for name, column in self.columns.items()}
        return Chunk(self.rows, columns, {**self.bad, **bad}, self.names)

    def take(self, rows: Taken) -> tuple[dict[str, Column], list[LeftOut], Array | None]:
        """Some of the rows: the columns of the good ones by input, the bad ones, and a mask of the good ones among
        `rows` (None: all).
        """
        bad: list[LeftOut] = []
        kept: Array = None
        if self._places is not None:
            numbers = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
            places = self._places[numbers]
            kept = places >= 0
            bad = [self.bad[int(number)] for number in numbers[~kept]]
            rows = places[kept]
        return {name: column.take(rows) for name, column in self.columns.items()}, bad, kept
