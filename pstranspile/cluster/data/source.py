"""The data that programs are fed, as users name it: files of rows, or iterables of Python.

Rows whose ids are not those of a table in which the program looks them up can't be fed.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from hashlib import sha256
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from pstranspile.cluster.data.columns import NAN, ODD, Chunk, Column, Input, Taken, concat_columns, inputs, odd_rows
from pstranspile.cluster.data.files import FORMATS, FileReader, ReadRequest, Unit, data_file_error, files_of, format_of
from pstranspile.cluster.data.tables import ArrowReader, ParquetReader
from pstranspile.cluster.data.text_files import MultiSlotReader, csv_reader, json_reader, lines_of, read_block
from pstranspile.cluster.machines.feeding import share, share_of
from pstranspile.ir.argument_checks import MOST_STEPS, check_arguments, expect_number, is_separator, wrong_type
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, name_list, quantity, warning
from pstranspile.ir.model import Location, Program
from pstranspile.ir.reading import is_address, misspelt
from pstranspile.runtime.run.batch import Batch, Part, unchecked_batch
from pstranspile.runtime.run.feeds import Table, tables_of
from pstranspile.runtime.run.step_feeds import ENDLESS, Dealing, FeedOf, LeftOut, left_out_of_feed
from pstranspile.runtime.values import Array

if TYPE_CHECKING:
    from concurrent.futures import Future

GivenRows: TypeAlias = "Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]]"


@check_arguments
class Rows:
    """Rows that Python iterates over, `batch` of them in a step, divided over the trainers in order.

    A row is a mapping with a value for every input: a number, an array of its dims, or for a ragged input a list of
    these. `rows` is iterated over once in every epoch; a function is called for that. What can be iterated over only
    once is fed once, to trainers that never go back. Raises TypeError for other arguments.
    """

    def __init__(self, rows: GivenRows, *, batch: int, epochs: int = 1):
        expect_number(batch, "Rows", "a number of rows", MOST_STEPS, least=1)
        expect_number(epochs, "Rows", "a number of epochs", MOST_STEPS, least=1)
        if not callable(rows) and not isinstance(rows, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Rows takes what gives rows, or a function that returns it, not {rows!r}")
        self._rows, self.batch, self.epochs = rows, batch, epochs

    def __repr__(self) -> str:
        """`<Rows of a list: batch 2, 3 epochs>`."""
        of = getattr(self._rows, "__qualname__", None) or f"a {type(self._rows).__name__}"
        return f"<Rows of {of}: {_how(self.batch, self.epochs)}>"

    @check_arguments
    def feeds(self, programs: Sequence[Program]) -> tuple[list[FeedOf], int]:
        """Returns, for each trainer, the function that gives its feed in a step, and ENDLESS as the number of steps,
        which is unknown.

        `programs` are the trainers' programs. Raises DiagnosticError.
        """
        count = _require_trainers(programs)
        batches = _Batches(self._rows, self.batch, self.epochs, inputs(programs[0]), count)

        def of(trainer: int) -> FeedOf:
            def feed(step: int) -> Mapping[str, Any] | None:
                whole = batches.of(step, trainer)
                return None if whole is None else share_of(whole, programs[trainer], trainer, count)

            return feed

        return [of(trainer) for trainer in range(count)], ENDLESS

    @check_arguments
    def dealing(self, trainers: int) -> Dealing:
        """A record of how the rows are dealt, which does not depend on earlier numbers of trainers."""
        expect_number(trainers, "dealing", "a number of trainers", least=1)
        return Dealing(f"rows of Python, {self.batch} in a step", ((0, trainers),))

    @check_arguments
    def continued(self, before: Dealing, step: int, trainers: int) -> Rows:
        """The same rows for `trainers` trainers from a step on. Raises DiagnosticError if `before` is of other rows."""
        expect_number(step, "continued", "a number of steps", least=0)
        if before.data != self.dealing(trainers).data:
            raise DiagnosticError([error("data-source", f"the run that goes on was fed others before step {step + 1}")])
        return self

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling, for use in another process. Raises DiagnosticError for rows that can be iterated over
        only once.
        """
        if isinstance(self._rows, Iterator):
            message = (
                "rows that can be iterated over only once stay in their process; give a function that returns them"
            )
            raise DiagnosticError([error("data-source", message)])
        return self.__dict__

    def warnings(self) -> list[Diagnostic]:
        """An empty list: rows that can't be fed are refused instead."""
        return []


def _require_trainers(programs: Sequence[Program]) -> int:
    """How many trainers there are. Raises ValueError if there is none."""
    if not programs:
        raise ValueError("feeds takes the programs of the trainers, at least one")
    return len(programs)


class _Batches:
    """The batches of rows, each kept until every trainer has taken it."""

    def __init__(self, rows: GivenRows, batch: int, epochs: int, wanted: Sequence[Input], trainers: int):
        self._row_source, self._batch, self._epochs, self._inputs = rows, batch, epochs, wanted
        self._last_steps = [-1] * trainers
        self._step_values: dict[int, dict[str, Any] | None] = {}
        self._begin()

    def _begin(self) -> None:
        self._step = 0
        self._number = 0
        self._iterator = self._rows_by_step()

    def _rows_by_step(self) -> Iterator[list[Mapping[str, Any]]]:
        """Yields the rows of each step."""
        for _ in range(self._epochs):
            given: Any = self._row_source() if callable(self._row_source) else self._row_source
            if not hasattr(given, "__iter__"):
                raise wrong_type("Rows", "a function that gives a list of rows", given)
            rows: Iterator[Mapping[str, Any]] = iter(given)
            while taken := list(islice(rows, self._batch)):
                yield taken

    def of(self, step: int, trainer: int) -> dict[str, Any] | None:
        """The arrays that a trainer is fed in a step, by input; None after the last step.

        Raises DiagnosticError for rows that can't be fed, or that are gone because they could be iterated over only
        once.
        """
        if step < self._step and step not in self._step_values:
            if isinstance(self._row_source, Iterator):
                message = f"the rows of step {step + 1} are gone: they could be iterated over only once"
                raise DiagnosticError([error("data-source", message)])
            self._begin()
        while self._step <= step:
            rows = next(self._iterator, None)
            if self._step == step:
                self._step_values[step] = None if rows is None else self._values(rows)
            self._number += len(rows or ())
            self._step += 1
        self._last_steps[trainer] = step
        result = self._step_values[step]
        for old in [known for known in self._step_values if known < min(self._last_steps)]:
            del self._step_values[old]
        return result

    def _values(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        made = {one.name: [self._value(one, row, at) for at, row in enumerate(rows)] for one in self._inputs}
        return {one.name: _column(one, made[one.name]).value() for one in self._inputs}

    def _value(self, one: Input, row: Mapping[str, Any], at: int) -> Any:
        """The value of an input in a row, as an array, or for ragged inputs as lists of arrays. Raises
        DiagnosticError.
        """
        try:
            return _array(one, row[one.name], one.levels)
        except KeyError:
            reason = f"it has no {one.name}"
        except (TypeError, ValueError, OverflowError) as problem:
            reason = f"{one.name} is {one.dtype} of dims {[*one.dims]}: {problem}"
        raise DiagnosticError([error("data-row", f"row {self._number + at + 1} can't be fed: {reason}")])


def _array(one: Input, value: Any, levels: int) -> Any:
    if levels:
        return [_array(one, inner, levels - 1) for inner in value]
    array = np.asarray(value)
    if array.dtype.kind == "f" and np.dtype(one.dtype).kind != "f":
        raise ValueError(f"{value!r} is no whole number")
    if array.size != one.width:
        raise ValueError(f"the value has {array.size} number{'' if array.size == 1 else 's'}, a row takes {one.width}")
    return array.astype(one.dtype).reshape(one.dims)


def _column(one: Input, values: Sequence[Any]) -> Column:
    offsets: list[Any] = []
    for _ in range(one.levels):
        offsets.append(np.concatenate([[0], np.cumsum([len(value) for value in values], dtype="int64")]))
        values = [inner for value in values for inner in value]
    stacked = np.stack(values) if values else np.zeros((0, *one.dims), one.dtype)
    return Column(stacked, tuple(offsets))


# The rows of an epoch form one line, which is cut into a piece for each trainer.
#
# A step takes `batch` rows of all trainers together, and each trainer its share of them, off the front of its own
# piece. Pieces are as long as these shares add up to, so that all end in the same step, and a trainer reads few files.
# When the number of trainers changes, what is left of all pieces is the line that is cut anew.

# The rows of an epoch come in the order of the files, or shuffled by a seed, differently in every epoch.


class Order:
    """The order of units, and of the rows in each. `sizes` are the numbers of rows of the units; `seed` None keeps the
    order of the files.
    """

    def __init__(self, sizes: Sequence[int], seed: int | None):
        self.sizes = tuple(sizes)
        self.seed = seed
        self.rows = sum(sizes)

    def line(self, epoch: int) -> list[UnitRows]:
        """The units of an epoch, in order, each as a span of all its rows."""
        count = len(self.sizes)
        units = range(count) if self.seed is None else self._random(epoch).permutation(count).tolist()
        return [UnitRows(unit, 0, self.sizes[unit]) for unit in units if self.sizes[unit]]

    def row_order(self, epoch: int, unit: int) -> Array | None:
        """The numbers of a unit's rows in the order of an epoch; None for the order of the file."""
        return None if self.seed is None else self._random(epoch, unit).permutation(self.sizes[unit])

    def _random(self, *place: int) -> Any:
        """A generator of random numbers for a place (such as an epoch and a unit), equal on every machine."""
        assert self.seed is not None
        return np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed & (1 << 63) - 1, *place))))


class UnitRows(NamedTuple):
    """The rows `start` to `stop` (without the latter) of a unit, in its order in the epoch."""

    unit: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows the span has."""
        return self.stop - self.start


Dealt: TypeAlias = "tuple[tuple[int, int], ...]"
"""History of the number of trainers, as pairs of first step and number: `((0, 2), (500, 4))`."""


class Line:
    """Spans one after another."""

    def __init__(self, spans: Sequence[UnitRows]):
        self.spans = tuple(spans)
        self._ends = list(accumulate(span.rows for span in spans))
        self._next: dict[int, int] = {}
        for span, following in pairwise(spans):
            self._next.setdefault(span.unit, following.unit)

    @property
    def rows(self) -> int:
        """How many rows the line has."""
        return self._ends[-1] if self._ends else 0

    def unit_after(self, unit: int) -> int | None:
        """The unit that follows `unit` in the line at its first occurrence; None if there is none."""
        return self._next.get(unit)

    def spans_between(self, start: int, stop: int) -> list[UnitRows]:
        """The rows `start` to `stop` of the line, as spans."""
        result: list[UnitRows] = []
        place = bisect_right(self._ends, start)
        while start < stop and place < len(self.spans):
            span, end = self.spans[place], self._ends[place]
            begin = end - span.rows
            result.append(UnitRows(span.unit, span.start + start - begin, span.start + min(stop, end) - begin))
            start, place = end, bisect_right(self._ends, end, place)
        return result


class RowAssignment:
    """The rows of a line of spans, dealt to a number of trainers in steps of `batch` rows."""

    def __init__(self, line: Sequence[UnitRows], trainers: int, batch: int):
        self.trainers = trainers
        self.batch = batch
        self.rows = sum(span.rows for span in line)
        self.steps = -(-self.rows // batch)
        """How many steps the deal has; the last one may have fewer rows."""
        counts = [self._rows_before(self.steps, trainer) for trainer in range(trainers)]
        ends = [sum(counts[: trainer + 1]) for trainer in range(trainers)]
        whole = Line(line)
        self._pieces = [Line(whole.spans_between(end - count, end)) for count, end in zip(counts, ends, strict=True)]

    def total(self, step: int) -> int:
        """How many rows all trainers together are fed in a step."""
        return min(self.batch, self.rows - step * self.batch)

    def places(self, step: int, trainer: int) -> tuple[int, int]:
        """The range (start, stop) of a trainer's rows within the whole batch of a step."""
        return share(self.total(step), trainer, self.trainers)

    def spans(self, step: int, trainer: int) -> list[UnitRows]:
        """The rows that a trainer is fed in a step."""
        return self._pieces[trainer].spans_between(
            self._rows_before(step, trainer), self._rows_before(step + 1, trainer)
        )

    def remaining_spans(self, step: int) -> list[UnitRows]:
        """The rows that the trainers have not been fed before a step, one trainer's after another's."""
        return [
            span
            for trainer, piece in enumerate(self._pieces)
            for span in piece.spans_between(self._rows_before(step, trainer), self._rows_before(self.steps, trainer))
        ]

    def piece(self, trainer: int) -> Line:
        """All rows that a trainer is fed, as a line."""
        return self._pieces[trainer]

    def _rows_before(self, step: int, trainer: int) -> int:
        """How many rows a trainer has been fed before a step."""
        full, last = divmod(min(step * self.batch, self.rows), self.batch)
        start, stop = share(self.batch, trainer, self.trainers)
        first, end = share(last, trainer, self.trainers)
        return full * (stop - start) + end - first


def deals(
    line: Sequence[UnitRows], batch: int, dealt: Dealt, first: int, steps: int
) -> list[tuple[int, RowAssignment]]:
    """The deals of an epoch of `steps` steps that begins with the step `first`, each with the step it begins with."""
    ends = [*(step for step, _ in dealt[1:]), first + steps]
    changes = [(max(step, first), trainers) for (step, trainers), end in zip(dealt, ends, strict=True) if end > first]
    changes = [(step, trainers) for step, trainers in changes if step < first + steps]
    result = [(first, RowAssignment(line, changes[0][1], batch))]
    for (before, _), (step, trainers) in pairwise(changes):
        if step > before:
            result.append((step, RowAssignment(result[-1][1].remaining_spans(step - before), trainers, batch)))
        else:
            result[-1] = (step, RowAssignment(line, trainers, batch))
    return result


# Readers of files by their format.

_READERS: dict[str, Callable[[str, ReadRequest], FileReader]] = {
    "parquet": ParquetReader,
    "arrow": ArrowReader,
    "csv": csv_reader,
    "tsv": lambda file, wanted: csv_reader(file, wanted, "\t"),
    "jsonl": json_reader,
    "multislot": MultiSlotReader,
}


_NAMELESS = ("csv", "tsv", "multislot")
"""Formats whose files may lack the names of their columns."""


def open_rows(file: str, wanted: ReadRequest, format: str = "") -> FileReader:
    """The reader of a file. Raises DiagnosticError."""
    found = format_of(file, format)
    if wanted.names and found not in _NAMELESS:
        raise data_file_error(file, f"its columns have names; others (--names) are for {', '.join(_NAMELESS)}")
    if wanted.separator and found not in ("csv", "tsv"):
        raise data_file_error(file, "it has no sign between fields; one (--separator) is for csv and tsv")
    return _READERS[found](file, wanted)


# The batches of one trainer. Units are read in the background, while earlier steps run.

Read = Callable[[int], Chunk]
"""Reads a unit, by its number."""


class StepFeed(NamedTuple):
    """The feed of a step, and its rows that can't be fed."""

    batch: Batch
    bad: Sequence[LeftOut]


class Schedule:
    """The rows fed in each step: all rows, `epochs` times, in steps of `batch` rows, dealt as `dealt` says."""

    def __init__(self, order: Order, batch: int, epochs: int, dealt: Dealt):
        self.order = order
        self.batch = batch
        self.dealt = dealt
        self.in_epoch = -(-order.rows // batch)
        """Steps of an epoch."""
        self.steps = self.in_epoch * epochs
        self._epoch_deals: tuple[int, list[tuple[int, RowAssignment]]] = (-1, [])

    def deal(self, step: int) -> tuple[int, int, RowAssignment]:
        """The epoch of a step, the number of the step within its deal, and this deal."""
        epoch = step // self.in_epoch
        known, result = self._epoch_deals
        if known != epoch:
            first = epoch * self.in_epoch
            result = deals(self.order.line(epoch), self.batch, self.dealt, first, self.in_epoch)
            self._epoch_deals = (epoch, result)
        begin, deal = next(item for item in reversed(result) if item[0] <= step)
        return epoch, step - begin, deal


class Cursor:
    """The batches of a trainer.

    `read` reads a unit. `on_bad` is called with the bad rows of every batch that is fed, `on_odd` with a unit, a
    column, and the rows of the unit that hold NaN, or infinity, in this column.
    """

    def __init__(
        self,
        schedule: Schedule,
        trainer: int,
        read: Read,
        on_bad: Callable[[Sequence[LeftOut]], object],
        on_odd: Callable[[int, str, str, Array], object],
    ):
        self._schedule = schedule
        self._trainer = trainer
        self._read_unit = read
        self._on_bad = on_bad
        self._on_odd = on_odd
        self._units: dict[int, Future[Chunk]] = {}
        self._orders: dict[tuple[int, int], Array | None] = {}
        from concurrent.futures import ThreadPoolExecutor  # imported here, because servers read no rows

        # One thread converts a unit to columns while another one reads the file.
        self._read_pool = ThreadPoolExecutor(2, "data")

    def __call__(self, step: int) -> Mapping[str, Any] | None:
        """The feed of a step; None after the last. Raises DiagnosticError."""
        if step >= self._schedule.steps:
            return None
        self._begin(step)
        made = self._make(step)
        if made.bad:
            self._on_bad(made.bad)
        return made.batch

    def _begin(self, step: int) -> None:
        """Begins to read the units of this step and the next, and the unit after them. Earlier units are dropped."""
        wanted: dict[int, None] = {}
        for near in range(step, min(step + 2, self._schedule.steps)):
            _, number, deal = self._schedule.deal(near)
            for span in deal.spans(number, self._trainer):
                following = deal.piece(self._trainer).unit_after(span.unit)
                wanted.update({span.unit: None} if following is None else {span.unit: None, following: None})
        for old in [known for known in self._units if known not in wanted]:
            del self._units[old]
        for unit in wanted:
            self._unit(unit)

    def close(self) -> None:
        """Shuts down the threads that read files; no more steps can be requested."""
        self._read_pool.shutdown(wait=False, cancel_futures=True)

    def _make(self, step: int) -> StepFeed:
        epoch, number, deal = self._schedule.deal(step)
        spans = deal.spans(number, self._trainer)
        start, stop = deal.places(number, self._trainer)
        taken = [self._unit(span.unit).result().take(self._rows(epoch, span)) for span in spans]
        for span, (columns, _, kept) in zip(spans, taken, strict=True):
            self._look_for_odd(span.unit, columns, self._rows(epoch, span), kept)
        places = np.arange(start, stop)
        bad = [row for _, rows, _ in taken for row in rows]
        if bad:
            good = [
                np.ones(s.rows, bool) if kept is None else kept for s, (_, _, kept) in zip(spans, taken, strict=True)
            ]
            places = places[np.concatenate(good)]
        columns = [columns for columns, _, _ in taken] or [self._nothing(deal)]
        values = {name: concat_columns([one[name] for one in columns]).value() for name in columns[0]}
        part = Part(places, deal.total(number))
        whole = deal.trainers == 1 and not bad
        return StepFeed(unchecked_batch(values, {} if whole else dict.fromkeys(values, part)), bad)

    def _look_for_odd(self, unit: int, columns: Mapping[str, Column], rows: Taken, kept: Array | None) -> None:
        """Reports NaN and infinity in rows of a unit that are fed. `kept` marks the good ones among `rows` (None:
        all).
        """
        names = self._unit(unit).result().names
        for name, column in columns.items():
            for (shown, what), wrong in odd_rows(column, names.get(name, (name,))).items():
                fed = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
                self._on_odd(unit, shown, what, (fed if kept is None else fed[kept])[wrong])

    def _nothing(self, deal: RowAssignment) -> Any:
        """The columns of an empty batch."""
        span = (deal.piece(self._trainer).spans or self._schedule.order.line(0))[0]
        return self._unit(span.unit).result().take(range(0))[0]

    def _rows(self, epoch: int, span: UnitRows) -> Taken:
        """The numbers of a span's rows within their unit."""
        key = (epoch, span.unit)
        if key not in self._orders:
            self._orders = {known: order for known, order in self._orders.items() if known[1] in self._units}
            self._orders[key] = self._schedule.order.row_order(epoch, span.unit)
        order = self._orders[key]
        return range(span.start, span.stop) if order is None else order[span.start : span.stop]

    def _unit(self, unit: int) -> Future[Chunk]:
        """The rows of a unit, as a future. Reading begins with the first call."""
        if unit not in self._units:
            self._units[unit] = self._read_pool.submit(self._read_unit, unit)
        return self._units[unit]


Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
BadRows: TypeAlias = Literal["refuse", "skip"]

SHOWN = 10
"""How many bad rows are reported one by one."""

MOST_COUNTED = 1000
"""How many rows with NaN, or with infinity, are counted for a column, at most."""


class NotFinite(NamedTuple):
    """A row of a file (its number, counted from 1) that holds NaN in a column, or infinity, as `defect` says."""

    file: str
    column: str
    number: int
    defect: str = NAN


@check_arguments
class Data:
    """Rows of files that a program is fed, `batch` of them in a step, of all trainers together.

    `paths` are files, folders and patterns (`clicks/*.parquet`), or URIs that Arrow knows (`s3://bucket/clicks`): of
    Parquet, Arrow, CSV, JSON lines, or Fluid's MultiSlot text, as the names of files or `format` say. An input takes
    the column of its name, or those that `columns` names for it, one beside another; ragged inputs take columns of
    lists. `names` are those of the columns (of MultiSlot text, of the slots) where files don't say them,
    `separator` is the sign between the fields of CSV where it is no comma. All rows are
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
        separator: str = "",
        epochs: int = 1,
        shuffle: int | None = None,
        bad_rows: BadRows = "refuse",
    ):
        expect_number(batch, "Data", "a number of rows", MOST_STEPS, least=1)
        expect_number(epochs, "Data", "a number of epochs", MOST_STEPS, least=1)
        if format and format not in FORMATS:
            raise ValueError(f"Data has no format {format!r}; there are {', '.join(FORMATS)}")
        if bad_rows not in ("refuse", "skip"):
            raise ValueError(f"bad_rows is {bad_rows!r}; it must be 'refuse' or 'skip'")
        if separator and not is_separator(separator):
            raise ValueError(f"separator is {separator!r}; it must be a sign between fields, such as ';'")
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        self.files = files_of([os.fspath(path) for path in given], format)
        self.batch, self.epochs, self.shuffle = batch, epochs, shuffle
        self.dealt: Dealt = ()
        """The history of the numbers of trainers, each with its first step, if the run resumes from a saved one; else
        empty.
        """
        self._columns = {
            name: (taken,) if isinstance(taken, str) else tuple(taken) for name, taken in (columns or {}).items()
        }
        self._names, self._format, self._separator = tuple(names), format, separator
        self._skips_bad_rows = bad_rows == "skip"
        self._known_ids = False
        self._rows: tuple[Sequence[Input], _AllUnits] | None = None
        self._schedule: Schedule | None = None
        self._bad: dict[tuple[str, int], LeftOut] = {}
        self._odd_rows: dict[tuple[str, str, str], dict[int, None]] = {}
        self._unused_columns: dict[tuple[str, ...], str] = {}
        """The columns that no input takes, with the first file that has them."""
        self._on_bad: Callable[[LeftOut], object] | None = None
        self._on_odd: Callable[[NotFinite], object] | None = None

    def __repr__(self) -> str:
        """`<Data of clicks.csv: batch 2, 3 epochs, shuffle 7, columns x=f0,f1, bad rows skipped>`."""
        parts = [_how(self.batch, self.epochs)]
        parts += [f"shuffle {self.shuffle}"] if self.shuffle is not None else []
        parts += [f"format {self._format}"] if self._format else []
        parts += [f"separator {self._separator!r}"] if self._separator else []
        parts += [f"names {name_list(self._names, SHOWN)}"] if self._names else []
        if self._columns:
            pairs = [f"{name}={','.join(taken)}" for name, taken in self._columns.items()]
            parts.append(f"columns {name_list(pairs, SHOWN)}")
        parts += ["bad rows skipped"] if self._skips_bad_rows else []
        return f"<Data of {name_list(self.files, SHOWN)}: {', '.join(parts)}>"

    @check_arguments
    def tell_of_rows(self, on_bad: Callable[[LeftOut], object], on_odd: Callable[[NotFinite], object]) -> None:
        """Sets the function to call once with every bad row that is left out, and the one to call with rows that hold
        NaN or infinity.
        """
        self._on_bad, self._on_odd = on_bad, on_odd

    @check_arguments
    def deal(self, dealt: Dealt) -> None:
        """Sets the history of the numbers of trainers to which rows are dealt, each with its first step."""
        self.dealt = dealt

    @check_arguments
    def feeds(self, programs: Sequence[Program]) -> tuple[list[FeedOf], int]:
        """Returns, for each trainer, the function that gives its feed in a step, and the number of steps.

        Raises DiagnosticError.
        """
        _require_trainers(programs)
        rows = self._find_rows(inputs(programs[0]), tables_of(programs[0]) if self._known_ids else {})
        order = Order([unit.rows for unit in rows.units], self.shuffle)
        if not order.rows:
            raise DiagnosticError([error("data-source", "there are no rows in it", Location(self.files[0]))])
        schedule = self._schedule = Schedule(order, self.batch, self.epochs, self.dealt or ((0, len(programs)),))

        def on_odd(number: int, column: str, what: str, numbers: Array) -> None:
            unit = rows.units[number]
            for row in numbers.tolist():
                self.holds_odd(NotFinite(unit.file, column, unit.first_row + row + 1, what))

        cursors = [Cursor(schedule, trainer, rows.read, self._note, on_odd) for trainer in range(len(programs))]
        return list(cursors), schedule.steps

    @check_arguments
    def row_of(self, step: int, place: int) -> tuple[str, int]:
        """The file and the number, counted from 1, of a row of a step. `step`, and `place`, the row's number in the
        batch of a single trainer, count from 0. Raises IndexError if the step has no such row.
        """
        if self._schedule is None or self._rows is None:
            raise ValueError("row_of takes the place of a row that is fed; feeds(programs) has not been called")
        epoch, number, deal = self._schedule.deal(step)
        first = 0
        for span in deal.spans(number, 0):
            if first <= place < first + span.rows:
                order, unit = self._schedule.order.row_order(epoch, span.unit), self._rows[1].units[span.unit]
                row = span.start + place - first
                return unit.file, unit.first_row + (row if order is None else int(order[row])) + 1
            first += span.rows
        raise IndexError(f"step {step} has no row {place} (steps and rows count from 0 here)")

    @check_arguments
    def require(self, program: Program) -> None:
        """Raises DiagnosticError if a file is missing, can't be read, or lacks an input of a program."""
        self.readers(self._read_request(inputs(program)))

    def _find_rows(self, wanted: Sequence[Input], tables: Mapping[str, Sequence[Table]]) -> _AllUnits:
        """The units of all files, which are found at the first call. `tables` are those in which inputs are looked
        up.
        """
        if self._rows is None or self._rows[0] != wanted:
            self._rows = wanted, _AllUnits(self.readers(self._read_request(wanted)))
        self._rows[1].look_up(tables)
        return self._rows[1]

    def require_known_ids(self) -> None:
        """From now on rows are bad that hold ids for which a table of the program has no row."""
        self._known_ids = True

    def _read_request(self, wanted: Sequence[Input]) -> ReadRequest:
        return ReadRequest(wanted, self._columns, self._names, self._separator, self._note_left)

    def _note_left(self, file: str, columns: Sequence[str]) -> None:
        if columns:
            self._unused_columns.setdefault(tuple(columns), file)

    @check_arguments
    def readers(self, wanted: ReadRequest) -> dict[str, FileReader]:
        """A reader for each file. Raises DiagnosticError: first for missing files, then for a missing library."""
        for file in self.files:
            if not is_address(file) and not os.path.exists(file):
                raise data_file_error(file, f"the file can't be read: {os.strerror(errno.ENOENT)}{misspelt(file)}")
        return {file: open_rows(file, wanted, self._format) for file in self.files}

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickling: another process opens the files itself, and may have another working folder."""
        files = [os.path.abspath(file) if os.path.exists(file) else file for file in self.files]
        return {**self.__dict__, "files": files, "_rows": None, "_schedule": None, "_on_bad": None, "_on_odd": None}

    @check_arguments
    def dealing(self, trainers: int) -> Dealing:
        """A record of how the rows are dealt to this number of trainers."""
        expect_number(trainers, "dealing", "a number of trainers", least=1)
        return Dealing(self._fingerprint(), self.dealt or ((0, trainers),), self._settings())

    @check_arguments
    def continued(self, before: Dealing, step: int, trainers: int) -> Data:
        """The same rows for `trainers` trainers from a step on; `before` says how they were dealt until then.

        Raises DiagnosticError if `before` is of other data.
        """
        expect_number(step, "continued", "a number of steps", least=0)
        expect_number(trainers, "continued", "a number of trainers", least=1)
        if before.data != self._fingerprint():
            message = f"the run that goes on was fed {_differing(before.settings, self._settings())}"
            raise DiagnosticError([error("data-source", message, Location(self.files[0]))])
        result = copy(self)
        known = tuple(entry for entry in before.dealt if entry[0] < step or entry[0] == 0)
        result.deal(known if known[-1][1] == trainers else (*known, (step, trainers)))
        return result

    @property
    def bad(self) -> list[LeftOut]:
        """The bad rows that were left out so far, by file and number."""
        return [self._bad[key] for key in sorted(self._bad)]

    def warnings(self) -> list[Diagnostic]:
        """Warnings about columns that are not fed, and about the bad rows so far."""
        left = [
            one
            for names, file in self._unused_columns.items()
            for one in left_out_of_feed(names, (), (), Location(file))
        ]
        shown = [
            warning("data-row", f"{_which(row)} is left out: {row.reason}", _place(row)) for row in self.bad[:SHOWN]
        ]
        if len(self._bad) > SHOWN:
            shown.append(warning("data-row", f"{len(self._bad) - SHOWN} more rows are left out"))
        return [*left, *shown, *(self._of_odd(*key, self._odd_rows[key]) for key in sorted(self._odd_rows))]

    def _of_odd(self, file: str, column: str, what: str, rows: Collection[int]) -> Diagnostic:
        first, more = min(rows), ""
        if len(rows) > 1:
            more = f" (and in {len(rows) - 1:,}{' or' if len(rows) == MOST_COUNTED else ''} more)"
        line = 0 if self._rows is None else self._rows[1].line_of(file, first)
        place = Location(file, line, min(line, 1))
        return warning(ODD[what], f"the column {column} is {what} in row {first:,}{more}", place)

    def _fingerprint(self) -> str:
        """A hash of everything that decides which rows a step has: sizes of files, batch, order."""
        return sha256(repr((self.sizes(), self.batch, self.shuffle)).encode()).hexdigest()

    def _settings(self) -> tuple[str, ...]:
        """The texts from which the fingerprint is computed: the batch, the order, then each file."""
        order = "without --shuffle" if self.shuffle is None else f"with --shuffle {self.shuffle}"
        files = [f"{name} ({size:,} bytes)" if size else name for name, size in self.sizes()]
        return (f"with --batch {self.batch}", order, *files)

    def sizes(self) -> list[tuple[str, int]]:
        """The names of the files, and their bytes (0 for those of other file systems)."""
        return [(os.path.basename(file), os.path.getsize(file) if os.path.exists(file) else 0) for file in self.files]

    def _note(self, rows: Sequence[LeftOut]) -> None:
        if not self._skips_bad_rows:
            order = {file: number for number, file in enumerate(self.files)}
            ordered = sorted(rows, key=lambda row: (order.get(row.file, len(order)), row.number))
            told = [
                error("data-row", f"{_which(row)} can't be fed: {row.reason}", _place(row)) for row in ordered[:SHOWN]
            ]
            if len(ordered) > SHOWN:
                more = len(ordered) - SHOWN
                told.append(error("data-row", f"and {quantity(more, 'more row')} of the batch can't be fed"))
            raise DiagnosticError(told)
        for row in rows:
            self.left_out(row)

    @check_arguments
    def holds_odd(self, row: NotFinite) -> None:
        """Records that a row with NaN or infinity was fed, here or in another process."""
        row = row._replace(file=self._as_named(row.file))
        known = self._odd_rows.setdefault((row.file, row.column, row.defect), {})
        if row.number not in known and len(known) < MOST_COUNTED:
            known[row.number] = None
            if self._on_odd is not None:
                self._on_odd(row)

    def _as_named(self, file: str) -> str:
        """The name that this process uses for a file; other processes name it by its absolute path."""
        return next((known for known in self.files if known == file or os.path.abspath(known) == file), file)

    @check_arguments
    def left_out(self, row: LeftOut) -> None:
        """Records that a bad row was left out, here or in another process, and reports it once."""
        row = row._replace(file=self._as_named(row.file))
        if (row.file, row.number) not in self._bad:
            self._bad[row.file, row.number] = row
            if self._on_bad is not None:
                self._on_bad(row)


def _how(batch: int, epochs: int) -> str:
    return f"batch {batch:,}" + (f", {epochs:,} epochs" if epochs > 1 else "")


def _differing(before: Sequence[str], now: Sequence[str]) -> str:
    """A sentence on the first difference between the settings of a run at its beginning and now, both as in a
    Dealing.
    """
    if not before:  # an earlier version recorded only the fingerprint
        return "other files, or in other steps (--batch, --shuffle)"
    found = [f"{had}, now it is {has}" for had, has in zip(before[:2], now[:2], strict=True) if had != has]
    had, has = before[2:], now[2:]
    if len(had) != len(has):
        found.append(f"{quantity(len(had), 'file')}, now there are {len(has):,}")
    else:
        pairs = [f"{old}, now it is {new}" for old, new in zip(had, has, strict=True) if old != new]
        more = [f"{len(pairs) - SHOWN} more files differ"] if len(pairs) > SHOWN else []
        found += [*pairs[:SHOWN], *more]
    return "; ".join(found)


def _which(row: LeftOut) -> str:
    return "the row" if row.line else f"row {row.number}"


def _place(row: LeftOut) -> Location:
    return Location(row.file, row.line, max(row.column, int(row.line > 0)))


class _AllUnits:
    """The units of all files."""

    def __init__(self, readers: Mapping[str, FileReader]):
        self._readers = readers
        self._tables: Mapping[str, Sequence[Table]] = {}
        self.units: list[Unit] = [unit for reader in readers.values() for unit in reader.units()]

    def read(self, number: int) -> Chunk:
        """The rows of a unit."""
        unit = self.units[number]
        return without_unknown_ids(self._readers[unit.file].read(unit), unit, self._tables)

    def line_of(self, file: str, row: int) -> int:
        """The line of a row of a file, both counted from 1; 0 for files whose rows are no lines, or that are others
        now.
        """
        for unit in self.units:
            if unit.file == file and 0 < row - unit.first_row <= unit.rows and unit.size:
                try:
                    return unit.line + int(lines_of(read_block(unit)).numbers[row - unit.first_row - 1]) + 1
                except (DiagnosticError, IndexError):
                    return 0
        return 0

    def look_up(self, tables: Mapping[str, Sequence[Table]]) -> None:
        """From now on rows are bad that hold ids for which one of these tables, by input, has no row."""
        self._tables = tables


# Rows whose ids are not those of a table in which the program looks them up: they can't be fed.


def without_unknown_ids(chunk: Chunk, unit: Unit, tables: Mapping[str, Sequence[Table]]) -> Chunk:
    """The rows of a unit, of which those are bad that hold an id for which a table has no row."""
    reasons: dict[int, str] = {}
    for name, known in tables.items():
        column = chunk.columns.get(name)
        if column is None or column.values.dtype.kind != "i":
            continue
        for table in known:
            wrong = table.missing_ids_mask(column.values)
            if wrong is None:
                continue
            good = chunk.good
            places = np.argwhere(wrong)
            for row, place in zip(_rows_of(column, places[:, 0]).tolist(), places.tolist(), strict=True):
                reasons.setdefault(int(good[row]), table.describe(name, int(column.values[tuple(place)])))
    if not reasons:
        return chunk
    lines = lines_of(read_block(unit)).numbers if unit.size else None
    bad: dict[int, LeftOut] = {}
    for row, reason in sorted(reasons.items()):
        line = 0 if lines is None else unit.line + int(lines[row]) + 1
        bad[row] = LeftOut(unit.file, unit.first_row + row + 1, reason, line)
    return chunk.with_bad_rows(bad)


def _rows_of(column: Column, elements: Array) -> Array:
    """The rows to which elements of a column's first dim belong."""
    for level in reversed(column.offsets):
        elements = np.searchsorted(level, elements, side="right") - 1
    return elements
