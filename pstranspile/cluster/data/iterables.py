"""Rows that Python iterates over, as what programs are fed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from pstranspile.cluster.data.columns import Column, Input, inputs
from pstranspile.cluster.machines.feeding import share_of
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error
from pstranspile.ir.expect import expect_number
from pstranspile.ir.model import Program
from pstranspile.runtime.run.step_feeds import ENDLESS, Dealing, FeedOf

GivenRows: TypeAlias = "Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]]"


class Rows:
    """Rows that Python iterates over, `batch` of them in a step, divided over the trainers in order.

    A row is a mapping with a value for every input: a number, an array of its dims, or for a ragged input a list of
    these. `rows` is iterated over once in every epoch; a function is called for that. What can be iterated over only
    once is fed once, to trainers that never go back. Raises TypeError for other arguments.
    """

    def __init__(self, rows: GivenRows, *, batch: int, epochs: int = 1):
        expect_number(batch, "Rows", "a number of rows", least=1)
        expect_number(epochs, "Rows", "a number of epochs", least=1)
        if not callable(rows) and not isinstance(rows, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Rows takes what gives rows, or a function that returns it, not {rows!r}")
        self._rows, self.batch, self.epochs = rows, batch, epochs

    def feeds(self, programs: Sequence[Program]) -> tuple[list[FeedOf], int]:
        """What the trainers with these programs are fed in each step; how many steps there are nobody knows.

        Raises DiagnosticError.
        """
        count = len(programs)
        batches = _Batches(self._rows, self.batch, self.epochs, inputs(programs[0]), count)

        def of(trainer: int) -> FeedOf:
            def feed(step: int) -> Mapping[str, Any] | None:
                whole = batches.of(step, trainer)
                return None if whole is None else share_of(whole, programs[trainer], trainer, count)

            return feed

        return [of(trainer) for trainer in range(count)], ENDLESS

    def dealing(self, trainers: int) -> Dealing:
        """How the rows are dealt, which does not depend on how many trainers there were before."""
        return Dealing(f"rows of Python, {self.batch} in a step", ((0, trainers),))

    def continued(self, before: Dealing, step: int, trainers: int) -> Rows:
        """The same rows for so many trainers from a step on. Raises DiagnosticError if there were others before."""
        if before.data != self.dealing(trainers).data:
            raise DiagnosticError([error("data-source", f"the run that goes on was fed others before step {step + 1}")])
        return self

    def __getstate__(self) -> dict[str, Any]:
        """The rows for another process. Raises DiagnosticError for what can be iterated over only once."""
        if isinstance(self._rows, Iterator):
            message = (
                "rows that can be iterated over only once stay in their process; give a function that returns them"
            )
            raise DiagnosticError([error("data-source", message)])
        return self.__dict__

    def warnings(self) -> list[Diagnostic]:
        """An empty list: rows that can't be fed are refused instead."""
        return []


class _Batches:
    """The batches of rows, each kept until every trainer has taken it."""

    def __init__(self, rows: GivenRows, batch: int, epochs: int, wanted: Sequence[Input], trainers: int):
        self._given, self._batch, self._epochs, self._inputs = rows, batch, epochs, wanted
        self._taken = [-1] * trainers
        self._known: dict[int, dict[str, Any] | None] = {}
        self._begin()

    def _begin(self) -> None:
        self._step = 0
        self._number = 0
        self._iterator = self._cut()

    def _cut(self) -> Iterator[list[Mapping[str, Any]]]:
        """The rows of one step after another's."""
        for _ in range(self._epochs):
            rows = iter(self._given() if callable(self._given) else self._given)
            while taken := list(islice(rows, self._batch)):
                yield taken

    def of(self, step: int, trainer: int) -> dict[str, Any] | None:
        """What is fed in a step; None after the last. Raises DiagnosticError."""
        if step < self._step and step not in self._known:
            if isinstance(self._given, Iterator):
                message = f"the rows of step {step + 1} are gone: they could be iterated over only once"
                raise DiagnosticError([error("data-source", message)])
            self._begin()
        while self._step <= step:
            rows = next(self._iterator, None)
            if self._step == step:
                self._known[step] = None if rows is None else self._values(rows)
            self._number += len(rows or ())
            self._step += 1
        self._taken[trainer] = step
        result = self._known[step]
        for old in [known for known in self._known if known < min(self._taken)]:
            del self._known[old]
        return result

    def _values(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        made = {one.name: [self._value(one, row, at) for at, row in enumerate(rows)] for one in self._inputs}
        return {one.name: _column(one, made[one.name]).value() for one in self._inputs}

    def _value(self, one: Input, row: Mapping[str, Any], at: int) -> Any:
        """The value of an input in a row, as an array, or lists of these. Raises DiagnosticError."""
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
    return array.astype(one.dtype).reshape(one.dims)


def _column(one: Input, values: Sequence[Any]) -> Column:
    offsets: list[Any] = []
    for _ in range(one.levels):
        offsets.append(np.concatenate([[0], np.cumsum([len(value) for value in values], dtype="int64")]))
        values = [inner for value in values for inner in value]
    stacked = np.stack(values) if values else np.zeros((0, *one.dims), one.dtype)
    return Column(stacked, tuple(offsets))
