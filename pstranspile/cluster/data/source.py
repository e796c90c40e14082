"""Data that programs are fed, as users name it: files of rows, or what Python iterates over."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from hashlib import sha256
from typing import Any, Literal, TypeAlias

from pstranspile.cluster.data.columns import Chunk, Input
from pstranspile.cluster.data.cursor import Cursor, Schedule
from pstranspile.cluster.data.deal import Dealt
from pstranspile.cluster.data.files import FORMATS, files_of
from pstranspile.cluster.data.mapping import inputs
from pstranspile.cluster.data.opening import open_rows
from pstranspile.cluster.data.order import Order
from pstranspile.cluster.data.reader import Reader, Unit, Wanted
from pstranspile.ir.counts import counted
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, warning
from pstranspile.ir.expect import expect_number
from pstranspile.ir.model import Location, Program
from pstranspile.runtime.run.row_source import Dealing, FeedOf, LeftOut

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
BadRows: TypeAlias = Literal["refuse", "skip"]

SHOWN = 10
"""Bad rows that are shown one by one."""


class Data:
    """Rows of files that a program is fed, `batch` of them in a step, of all trainers together.

    `paths` are files, folders and patterns (`clicks/*.parquet`), or URIs that Arrow knows (`s3://bucket/clicks`): of
    Parquet, Arrow, CSV, JSON lines, or Fluid's MultiSlot text, as the names of files or `format` say. An input takes
    the column of its name, or those that `columns` names for it, one beside another; ragged inputs take columns of
    lists. `names` are those of the columns (of MultiSlot text, of the slots) where files don't say them. All rows are
    fed `epochs` times, each once in an epoch, in the order of the files or one that the seed `shuffle` gives, whatever
    the number of trainers; the last step of an epoch may have fewer. Bad rows end the run ("refuse"), or are left out
    of their batch and counted ("skip").

    Raises DiagnosticError if no files are there, ValueError and TypeError for other arguments.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        batch: int,
        columns: Mapping[str, str | Sequence[str]] | None = None,
        names: Sequence[str] = (),
        format: str = "",
        epochs: int = 1,
        shuffle: int | None = None,
        bad_rows: BadRows = "refuse",
    ):
        expect_number(batch, "Data", "a number of rows")
        expect_number(epochs, "Data", "a number of epochs")
        if format and format not in FORMATS:
            raise ValueError(f"Data has no format {format!r}; there are {', '.join(FORMATS)}")
        if bad_rows not in ("refuse", "skip"):
            raise ValueError(f"bad_rows is {bad_rows!r}; it must be 'refuse' or 'skip'")
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        self.files = files_of([os.fspath(path) for path in given], format)
        self.batch, self.epochs, self.shuffle = batch, epochs, shuffle
        self.dealt: Dealt = ()
        """Since which step how many trainers there were, where the run goes on from one that was saved."""
        self._columns = {
            name: (taken,) if isinstance(taken, str) else tuple(taken) for name, taken in (columns or {}).items()
        }
        self._names, self._format = tuple(names), format
        self._skip = bad_rows == "skip"
        self._rows: tuple[Sequence[Input], _Rows] | None = None
        self._bad: dict[tuple[str, int], LeftOut] = {}
        self.on_bad: Callable[[LeftOut], object] | None = None
        """Is told of every bad row that is left out, once."""

    def feeds(self, programs: Sequence[Program]) -> tuple[list[FeedOf], int]:
        """What the trainers with these programs are fed in each step, and how many steps there are.

        Raises DiagnosticError.
        """
        rows = self._opened(inputs(programs[0]))
        order = Order([unit.rows for unit in rows.units], self.shuffle)
        if not order.rows:
            raise DiagnosticError([error("data-source", "there are no rows in it", Location(self.files[0]))])
        schedule = Schedule(order, self.batch, self.epochs, self.dealt or ((0, len(programs)),))
        cursors = [Cursor(schedule, trainer, rows.read, self._note) for trainer in range(len(programs))]
        return list(cursors), schedule.steps

    def _opened(self, wanted: Sequence[Input]) -> _Rows:
        """The units of all files, found once."""
        if self._rows is None or self._rows[0] != wanted:
            self._rows = wanted, _Rows(self.readers(Wanted(wanted, self._columns, self._names)))
        return self._rows[1]

    def readers(self, wanted: Wanted) -> dict[str, Reader]:
        """What reads each file. Raises DiagnosticError."""
        return {file: open_rows(file, wanted, self._format) for file in self.files}

    def __getstate__(self) -> dict[str, Any]:
        """The data for another process, which opens the files itself, and may have another working folder."""
        files = [os.path.abspath(file) if os.path.exists(file) else file for file in self.files]
        return {**self.__dict__, "files": files, "_rows": None, "on_bad": None}

    def dealing(self, trainers: int) -> Dealing:
        """How the rows are dealt where there are so many trainers."""
        return Dealing(self._fingerprint(), self.dealt or ((0, trainers),), self._settings())

    def continued(self, before: Dealing, step: int, trainers: int) -> Data:
        """The same rows for so many trainers from a step on; `before` says how they were dealt until then.

        Raises DiagnosticError if `before` is of other data.
        """
        if before.data != self._fingerprint():
            message = f"the run that goes on was fed {_differing(before.settings, self._settings())}"
            raise DiagnosticError([error("data-source", message, Location(self.files[0]))])
        result = copy(self)
        known = tuple(entry for entry in before.dealt if entry[0] < step or entry[0] == 0)
        result.dealt = known if known[-1][1] == trainers else (*known, (step, trainers))
        return result

    @property
    def bad(self) -> list[LeftOut]:
        """The bad rows that were left out so far, by file and number."""
        return [self._bad[key] for key in sorted(self._bad)]

    def warnings(self) -> list[Diagnostic]:
        """What is to be told of the bad rows so far."""
        shown = [
            warning("data-row", f"{_which(row)} is left out: {row.reason}", _place(row)) for row in self.bad[:SHOWN]
        ]
        if len(self._bad) > SHOWN:
            shown.append(warning("data-row", f"{len(self._bad) - SHOWN} more rows are left out"))
        return shown

    def _fingerprint(self) -> str:
        """What tells this data from other data that goes by other steps: sizes of files, batch, order."""
        return sha256(repr((self.sizes(), self.batch, self.shuffle)).encode()).hexdigest()

    def _settings(self) -> tuple[str, ...]:
        """What the fingerprint is made of, in words: the batch, the order, then each file."""
        order = "without --shuffle" if self.shuffle is None else f"with --shuffle {self.shuffle}"
        files = [f"{name} ({size:,} bytes)" if size else name for name, size in self.sizes()]
        return (f"with --batch {self.batch}", order, *files)

    def sizes(self) -> list[tuple[str, int]]:
        """The names of the files, and their bytes (0 for those of other file systems)."""
        return [(os.path.basename(file), os.path.getsize(file) if os.path.exists(file) else 0) for file in self.files]

    def _note(self, rows: Sequence[LeftOut]) -> None:
        if not self._skip:
            raise DiagnosticError(
                [error("data-row", f"{_which(row)} can't be fed: {row.reason}", _place(row)) for row in rows[:SHOWN]]
            )
        for row in rows:
            self.left_out(row)

    def left_out(self, row: LeftOut) -> None:
        """A row was left out, here or in another process."""
        if (row.file, row.number) not in self._bad:
            self._bad[row.file, row.number] = row
            if self.on_bad is not None:
                self.on_bad(row)


def _differing(before: Sequence[str], now: Sequence[str]) -> str:
    """What was another where a run began than it is now, both as in the settings of a Dealing."""
    if not before:  # by an earlier version, which recorded only the fingerprint
        return "other files, or in other steps (--batch, --shuffle)"
    found = [f"{had}, now it is {has}" for had, has in zip(before[:2], now[:2], strict=True) if had != has]
    had, has = before[2:], now[2:]
    if len(had) != len(has):
        found.append(f"{counted(len(had), 'file')}, now there are {len(has):,}")
    else:
        pairs = [f"{old}, now it is {new}" for old, new in zip(had, has, strict=True) if old != new]
        more = [f"{len(pairs) - SHOWN} more files differ"] if len(pairs) > SHOWN else []
        found += [*pairs[:SHOWN], *more]
    return "; ".join(found)


def _which(row: LeftOut) -> str:
    return "the row" if row.line else f"row {row.number}"


def _place(row: LeftOut) -> Location:
    return Location(row.file, row.line, int(row.line > 0))


class _Rows:
    """The units of all files."""

    def __init__(self, readers: Mapping[str, Reader]):
        self._readers = readers
        self.units: list[Unit] = [unit for reader in readers.values() for unit in reader.units()]

    def read(self, number: int) -> Chunk:
        """The rows of a unit."""
        unit = self.units[number]
        return self._readers[unit.file].read(unit)
