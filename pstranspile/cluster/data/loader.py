"""Batches that a function of the user gives to each trainer: `loader(rank, trainers)`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from pstranspile.cluster.data.columns import NAN, ODD, Column, odd_rows
from pstranspile.cluster.machines.feeding import share
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, name_list, quantity, raise_errors, warning
from pstranspile.ir.model import Location, Program, Var
from pstranspile.ir.reading import shown_path
from pstranspile.runtime.files.python_file import calling, function_of
from pstranspile.runtime.run.batch import rows_of
from pstranspile.runtime.run.feeds import FedInputs, declared_type, mismatch, overwritten_inputs
from pstranspile.runtime.run.step_feeds import Dealing, FeedOf, left_out_of_feed
from pstranspile.runtime.values import NUMPY_TYPES, LoDTensor, array_of

Loader: TypeAlias = "Callable[[int, int], Iterable[Any]]"
"""Called with the number of a trainer and how many there are; gives the trainer's own batches, one after another.

A batch is a mapping of arrays or tensors by input, or a sequence of them in the order of the inputs.
"""


EMPTY = "empty"
"""What is said of a batch without rows."""


class OddBatch(NamedTuple):
    """The first row of a trainer's batches in which an input is NaN, or infinite, as `defect` says; or the first batch
    without rows (`defect` is EMPTY, and there is no input). Steps and rows are counted from 1.
    """

    input: str
    step: int
    trainer: int
    row: int
    defect: str = NAN


class LoaderRows:
    """What each trainer is fed by a function: batches of its own, as many as there are.

    It is given itself, or as `FILE.py:NAME`, which every process looks up for itself. `inputs` are the names of the
    tensors of a batch that is a sequence. `steps` is how many batches are taken of each trainer's, at most; without it
    they are counted first, by going through them once, up to `batch_limit`, of which `counting` is told. Raises
    DiagnosticError.
    """

    def __init__(
        self,
        loader: Loader | str,
        inputs: Sequence[str] = (),
        steps: int | None = None,
        *,
        batch_limit: int | None = None,
        counting: Callable[[str], object] | None = None,
    ):
        self._inputs, self._steps, self._batch_limit, self._on_count = tuple(inputs), steps, batch_limit, counting
        self._batch_counts: dict[int, list[int]] = {}
        """How many batches each trainer has, where there are so many trainers."""
        self._place = loader if isinstance(loader, str) else getattr(loader, "__qualname__", "the loader")
        self._trainers = 0
        """How many trainers the batches are for."""
        self._unused_names: dict[str, None] = {}
        """What batches hold beside what is fed."""
        self._odd_batches: dict[tuple[str, str], OddBatch] = {}
        """The first row in which an input is NaN, or infinite, and the first batch without rows, of all trainers."""
        self.any_id = False
        """Whether ids may be such that no table has a row for them."""
        self._on_left: Callable[[str], object] | None = None
        self._on_odd: Callable[[OddBatch], object] | None = None
        self._loader = _looked_up(loader) if isinstance(loader, str) else loader
        self._file = "" if not isinstance(loader, str) else loader
        code = getattr(loader, "__code__", None)
        self._location = Location(self._file) if self._file else None
        if code is not None:
            self._location = Location(code.co_filename, code.co_firstlineno)

    def __getstate__(self) -> dict[str, Any]:
        """The loader for another process, which looks it up in its file."""
        return {**self.__dict__, "_loader": None if self._file else self._loader, "_on_left": None, "_on_odd": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The loader in another process."""
        self.__dict__.update(state)
        if self._file:
            self._loader = _looked_up(self._file)

    def feeds(self, programs: Sequence[Program]) -> tuple[list[FeedOf], int]:
        """What the trainers with these programs are fed, and the most steps that any of them has."""
        self._trainers = count = len(programs)
        counted = [] if self._steps else self._counts(count)
        steps = self._steps or max(counted)
        ends = counted or [0] * count
        return [_Batches(self, rank, programs, ends[rank]).of for rank in range(count)], steps

    def _counts(self, trainers: int) -> list[int]:
        """How many batches each trainer has, at most `most`. Raises DiagnosticError where none has any."""
        if trainers in self._batch_counts:
            return self._batch_counts[trainers]
        if self._on_count is not None:
            self._on_count(self._place)
        counts = [sum(1 for _ in islice(self.batches(rank, trainers), self._batch_limit)) for rank in range(trainers)]
        if not any(counts):
            raise self.loader_error("it gives no batches")
        self._batch_counts[trainers] = counts
        return counts

    def take_any_id(self) -> None:
        """From now on batches are given whatever ids they hold, also those that no table has a row for."""
        self.any_id = True

    @property
    def place(self) -> str:
        """The name of the function, with its file where that was given: `FILE.py:NAME`."""
        return shown_path(self._place)

    @property
    def location(self) -> Location | None:
        """The place of the function; None where its code is not known."""
        return self._location

    def loader_error(self, message: str) -> DiagnosticError:
        """An error about the loader, at its place in the user's code if that is known."""
        return DiagnosticError([error("data-source", message, self._location)])

    def dealing(self, trainers: int) -> Dealing:
        """How the batches are dealt: as the function says for so many trainers."""
        return Dealing(f"batches of {self._place}", ((0, trainers),))

    def continued(self, before: Dealing, step: int, trainers: int) -> LoaderRows:
        """The same batches from a step on. Raises DiagnosticError for others, or for another number of trainers: which
        rows were fed before only the function knows.
        """
        if before != self.dealing(trainers):
            message = f"the run that goes on was fed otherwise before step {step + 1}: {before.data} to "
            message += ", ".join(f"{count} trainers from step {first + 1} on" for first, count in before.dealt)
            raise DiagnosticError([error("data-source", message)])
        return self

    def warnings(self) -> list[Diagnostic]:
        """What is to be told of values in the batches so far that are not fed or are not finite, of batches
        without rows, and of rows that no trainer gets.
        """
        found = left_out_of_feed(self._unused_names, (), (), Location(self._place))
        left = self._loader.leftover_rows(self._trainers) if isinstance(self._loader, DatasetBatches) else 0
        if left:
            message = f"{self._place}: the last {quantity(left, 'row')} of each epoch "
            message += f"{'is' if left == 1 else 'are'} fewer than the {self._trainers} trainers, and left out"
            found.append(warning("feed-shares", message))
        for first in sorted(self._odd_batches.values(), key=lambda one: (one.step, one.trainer, one.input, one.defect)):
            whose = f" of the batch of trainer {first.trainer}" if self._trainers > 1 else ""
            message = f"{first.input} is {first.defect} in step {first.step}, row {first.row}{whose}"
            if first.defect == EMPTY:
                whose = f" of trainer {first.trainer}" if self._trainers > 1 else ""
                message = f"the batch{whose} in step {first.step} has no rows, so it trains nothing"
            found.append(warning(ODD.get(first.defect, "data-empty"), message, Location(self._place)))
        return found

    def tell_of_batches(self, on_left: Callable[[str], object], on_odd: Callable[[OddBatch], object]) -> None:
        """From now on `on_left` is called with the name of every value of batches that is not fed, and `on_odd` with
        what is odd in a trainer's batches, once each.
        """
        self._on_left, self._on_odd = on_left, on_odd

    def record_unfed_value(self, name: str) -> None:
        """Records that a value of the batches was not fed, here or in another process."""
        if name not in self._unused_names:
            self._unused_names[name] = None
            if self._on_left is not None:
                self._on_left(name)

    def holds_odd(self, found: OddBatch) -> None:
        """A trainer's batch holds NaN or infinity, or no rows, here or in another process. The first of all trainers is
        kept.
        """
        known = self._odd_batches.get((found.input, found.defect))
        if known is None or found[1:] < known[1:]:
            self._odd_batches[found.input, found.defect] = found
            if self._on_odd is not None:
                self._on_odd(found)

    def batches(self, rank: int, trainers: int) -> Iterator[dict[str, Any]]:
        """The batches of a trainer, as arrays by input. Raises DiagnosticError, with the user's line for what fails."""
        file = self._file.rpartition(":")[0] or (self._location.file if self._location else self._place)
        try:
            signature(self._loader).bind(rank, trainers)
        except TypeError:
            message = "it is called with the number of a trainer and how many there are, as loader(rank, trainers)"
            raise self.loader_error(f"{message}, which it does not take") from None
        except ValueError:  # of a function of another language nothing is known
            pass
        made: Any = calling(file, lambda: self._loader(rank, trainers), printing=sys.stderr)
        if not isinstance(made, Iterable):
            raise self.loader_error(f"it returns a value of type {type(made).__name__}; batches are needed, one by one")
        given = iter(cast("Iterable[Any]", made))
        while True:
            batch: Any = calling(file, lambda: next(given, _END), printing=sys.stderr)
            if batch is _END:
                return
            if batch is None:
                raise self.loader_error("it gives None as a batch; a mapping or a sequence of arrays is needed")
            yield self._arrays(batch)

    def _arrays(self, batch: Any) -> dict[str, Any]:
        if isinstance(batch, Mapping):
            return {
                str(name): self._convert_value(str(name), value)
                for name, value in cast("Mapping[Any, Any]", batch).items()
            }
        values = list(cast("Sequence[Any]", batch)) if isinstance(batch, tuple | list) else [batch]
        if len(values) != len(self._inputs):
            known = (
                f"the inputs {name_list(self._inputs)}" if self._inputs else "inputs whose order is not known (--names)"
            )
            raise self.loader_error(f"a batch of {len(values)} values is given for {known}; a mapping names them")
        return {name: self._convert_value(name, value) for name, value in zip(self._inputs, values, strict=True)}

    def _convert_value(self, name: str, value: Any) -> Any:
        """A value of a batch: numbers and lists as they are, all others as arrays. Raises DiagnosticError."""
        if isinstance(value, int | float | list | tuple):
            return cast("Any", value)
        if isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value)):
            raise self.loader_error(f"{name} has masked elements, which have no values; `.filled(0)` gives them one")
        return array_of(value)


_END = object()
"""What a function has given after its last batch."""


class DatasetBatches:
    """Batches of a dataset of torch, or of another sequence or iterable of rows, as a loader gives them.

    A step takes `batch` rows of all trainers together, of which each has its share, in order and as evenly as can be.
    The rows come `epochs` times, in their own order or in one that the seed `shuffle` draws anew in every epoch, which
    only a sequence can have. Rows at the end of an epoch that are fewer than the trainers are left out.
    """

    def __init__(self, rows: Any, batch: int, epochs: int = 1, shuffle: int | None = None):
        self._rows, self._batch, self._epochs, self._shuffle = rows, batch, epochs, shuffle
        self._kind = type(rows).__qualname__
        shuffled = "" if shuffle is None else f", shuffled by {shuffle}"
        self.__qualname__ = f"{self._kind}, {batch} rows in a step, {quantity(epochs, 'epoch')}{shuffled}"
        if shuffle is not None and not self._is_sequence:
            message = f"{self._kind} gives its rows one after another, which can't be shuffled"
            raise DiagnosticError([error("data-source", message)])

    @property
    def _is_sequence(self) -> bool:
        return hasattr(self._rows, "__getitem__") and hasattr(self._rows, "__len__")

    def leftover_rows(self, trainers: int) -> int:
        """The rows at the end of each epoch that no trainer of so many gets; 0 if it is not known before."""
        last = len(self._rows) % self._batch if self._is_sequence else 0
        return last if last < trainers else 0

    def __call__(self, rank: int, trainers: int) -> Iterator[Any]:
        """The batches of a trainer. Raises DiagnosticError for rows that are no numbers, or not alike."""
        for epoch in range(self._epochs):
            for rows in self._rows_by_step(epoch):
                if len(rows) < trainers:
                    break
                mine = rows[slice(*share(len(rows), rank, trainers))]
                yield _stack_rows([self._rows[at] for at in mine] if self._is_sequence else mine, self._kind)

    def _rows_by_step(self, epoch: int) -> Iterator[list[Any]]:
        """The rows of the steps of an epoch, of a sequence their numbers."""
        if not self._is_sequence:
            given: Iterator[Any] = iter(self._rows)
            while taken := list(islice(given, self._batch)):
                yield taken
            return
        order: Any = np.arange(len(self._rows))
        if self._shuffle is not None:
            seeds = np.random.SeedSequence((self._shuffle & (1 << 63) - 1, epoch))
            order = np.random.Generator(np.random.Philox(seeds)).permutation(len(self._rows))
        for first in range(0, len(order), self._batch):
            yield order[first : first + self._batch].tolist()


def _stack_rows(rows: Sequence[Any], what: str) -> Any:
    """Rows as a batch: a mapping or a tuple of arrays, with a first dim of rows. Raises DiagnosticError."""
    first = rows[0]
    try:
        if isinstance(first, Mapping):
            return {str(name): _column([row[name] for row in rows]) for name in cast("Mapping[Any, Any]", first)}
        if isinstance(first, tuple | list):
            return tuple(_column(values) for values in zip(*rows, strict=True))
        return (_column(rows),)
    except (KeyError, TypeError, ValueError) as problem:
        message = f"rows of {what} make no batch: {problem}"
        raise DiagnosticError([error("data-source", message)]) from None


def _column(values: Sequence[Any]) -> Any:
    """The values of several rows for one input. Raises ValueError for what is no number."""
    made = np.stack([value.detach().cpu().numpy() if hasattr(value, "detach") else value for value in values])
    if made.dtype.kind not in "biuf":
        raise ValueError(f"a value of type {type(values[0]).__name__} is no number, array or tensor")
    return made


def _looked_up(place: str) -> Loader:
    file, _, name = place.rpartition(":")
    return function_of(file, name)


def _column_of(value: Any) -> Column:
    if not isinstance(value, LoDTensor):
        return Column(value)
    return Column(value.data, tuple(np.array(level) for level in value.lod))


def _of_list(var: Var, value: Any) -> tuple[Any, str]:
    """A number or a list as an array of the declared element type, and the reason why it is none, "" if it is one."""
    try:
        array = array_of(value)
    except ValueError:
        return value, "is fed a list whose rows are not alike"
    if array.dtype.kind not in "biuf" or var.dtype is None:
        return array, "is fed a list that holds other things than numbers"
    with np.errstate(all="ignore"):
        result = array.astype(NUMPY_TYPES[var.dtype])
    if result.dtype.kind != "f" and not np.array_equal(result, array):
        return array, f"is fed a list of numbers that {var.dtype.text} does not hold"
    return result, ""


class _Batches:
    """The batches of one trainer, of which the last one is kept: it may be asked for again. What its program does not
    declare is left out of them.

    `counted` is how many there were when they were counted, 0 if they were not.
    """

    def __init__(self, rows: LoaderRows, rank: int, programs: Sequence[Program], counted: int):
        self._rows, self._rank, self._trainers, self._batch_count = rows, rank, len(programs), counted
        self._variables = programs[rank].main_block.vars
        self._any_dims = overwritten_inputs(programs[rank])
        self._fed_inputs = FedInputs(programs[rank], any_id=rows.any_id)
        self._reported_defects: set[tuple[str, str]] = set()
        """What has been told of inputs, and is not looked for once more."""
        self._begin()

    def _begin(self) -> None:
        self._iterator = self._rows.batches(self._rank, self._trainers)
        self._step, self._batch = -1, cast("dict[str, Any] | None", {})

    def of(self, step: int) -> Mapping[str, Any] | None:
        """What is fed in a step; None after the last. A step before that of the last call begins anew."""
        if step < self._step:
            self._begin()
        while self._step < step and self._batch is not None:
            self._batch = next(self._iterator, None)
            self._step += 1
            if self._batch is None and self._step < self._batch_count:
                raise self._rows.loader_error(
                    f"it gave {self._batch_count} batches to trainer {self._rank} when they were counted, and "
                    f"{self._step} when it was called once more; it must give the same each time, or --steps N says "
                    "how many it gives"
                )
            if self._batch is not None:
                for name in [known for known in self._batch if known not in self._variables]:
                    del self._batch[name]
                    self._rows.record_unfed_value(name)
                if self._step == step:  # batches that are passed over are fed to nobody
                    self._require_fit(self._batch)
                    self._look_for_odd(self._batch)
        return self._batch

    def _require_fit(self, batch: dict[str, Any]) -> None:
        """Raises DiagnosticError for every input that does not fit its declaration, and for rows that don't fit those
        of another input.
        """
        place = f"batch {self._step + 1} of {self._rows.place}"
        findings: list[Diagnostic] = []
        for name, value in batch.items():
            var, shown = self._variables[name], ""
            if isinstance(value, int | float | list | tuple) and not isinstance(value, LoDTensor):
                batch[name], shown = _of_list(var, value)
            problem = shown or mismatch(var, batch[name], any_dims=name in self._any_dims)
            if problem:
                message = f"{name} is declared {declared_type(var)}, but in {place} {problem}"
                findings.append(error("run-feed-mismatch", message, var.location or self._rows.location))
        raise_errors(findings)
        self._fed_inputs.require(batch, place)

    def _look_for_odd(self, batch: Mapping[str, Any]) -> None:
        rows = [rows_of(value) for name, value in batch.items() if self._variables[name].shape[:1] == (-1,)]
        if rows and not any(rows):
            self._report_odd_batch("", EMPTY, -1)
        for name, value in batch.items():
            for (_, what), found in odd_rows(_column_of(value), [name]).items():
                self._report_odd_batch(name, what, int(found[0]))

    def _report_odd_batch(self, name: str, what: str, row: int) -> None:
        if (name, what) not in self._reported_defects:
            self._reported_defects.add((name, what))
            self._rows.holds_odd(OddBatch(name, self._step + 1, self._rank, row + 1, what))
