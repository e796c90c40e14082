"""What one trainer is fed, step by step: rows of units that are read beside the steps before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.data.columns import Chunk, Taken, joined
from pstranspile.cluster.data.deal import Deal, Dealt, Span, deals
from pstranspile.cluster.data.order import Order
from pstranspile.runtime.run.batch import Batch, Part
from pstranspile.runtime.run.row_source import LeftOut
from pstranspile.runtime.values import Array

Read = Callable[[int], Chunk]
"""Reads a unit, by its number."""


class Made(NamedTuple):
    """What is fed in a step, and the rows of it that can't be."""

    batch: Batch
    bad: Sequence[LeftOut]


class Schedule:
    """Which rows are fed in which step: `epochs` times all, in steps of `batch`, dealt as `dealt` says."""

    def __init__(self, order: Order, batch: int, epochs: int, dealt: Dealt):
        self.order = order
        self.batch = batch
        self.dealt = dealt
        self.in_epoch = -(-order.rows // batch)
        """Steps of an epoch."""
        self.steps = self.in_epoch * epochs
        self._known: tuple[int, list[tuple[int, Deal]]] = (-1, [])

    def deal(self, step: int) -> tuple[int, int, Deal]:
        """The epoch of a step, the number of the step in its deal, and this deal."""
        epoch = step // self.in_epoch
        known, result = self._known
        if known != epoch:
            first = epoch * self.in_epoch
            result = deals(self.order.line(epoch), self.batch, self.dealt, first, self.in_epoch)
            self._known = (epoch, result)
        begin, deal = next(item for item in reversed(result) if item[0] <= step)
        return epoch, step - begin, deal


class Cursor:
    """The batches of a trainer. `read` reads a unit; `on_bad` is handed the bad rows of every batch that is fed."""

    def __init__(self, schedule: Schedule, trainer: int, read: Read, on_bad: Callable[[Sequence[LeftOut]], object]):
        self._schedule = schedule
        self._trainer = trainer
        self._read = read
        self._on_bad = on_bad
        self._units: dict[int, Future[Chunk]] = {}
        self._orders: dict[tuple[int, int], Array | None] = {}
        self._reading = ThreadPoolExecutor(
            2, "data"
        )  # one turns a unit into columns while the file is read for another

    def __call__(self, step: int) -> Mapping[str, Any] | None:
        """What is fed in a step; None after the last. Raises DiagnosticError."""
        if step >= self._schedule.steps:
            return None
        self._begin(step)
        made = self._make(step)
        if made.bad:
            self._on_bad(made.bad)
        return made.batch

    def _begin(self, step: int) -> None:
        """Begins to read what this step and the next are fed, and the unit after that. Units of before are let go."""
        wanted: dict[int, None] = {}
        for near in range(step, min(step + 2, self._schedule.steps)):
            _, number, deal = self._schedule.deal(near)
            for span in deal.spans(number, self._trainer):
                following = deal.piece(self._trainer).after(span.unit)
                wanted.update({span.unit: None} if following is None else {span.unit: None, following: None})
        for old in [known for known in self._units if known not in wanted]:
            del self._units[old]
        for unit in wanted:
            self._unit(unit)

    def close(self) -> None:
        """Nothing more will be asked for."""
        self._reading.shutdown(wait=False, cancel_futures=True)

    def _make(self, step: int) -> Made:
        epoch, number, deal = self._schedule.deal(step)
        spans = deal.spans(number, self._trainer)
        start, stop = deal.places(number, self._trainer)
        taken = [self._unit(span.unit).result().take(self._rows(epoch, span)) for span in spans]
        places = np.arange(start, stop)
        bad = [row for _, rows, _ in taken for row in rows]
        if bad:
            good = [
                np.ones(s.rows, bool) if kept is None else kept for s, (_, _, kept) in zip(spans, taken, strict=True)
            ]
            places = places[np.concatenate(good)]
        columns = [columns for columns, _, _ in taken] or [self._nothing(deal)]
        values = {name: joined([one[name] for one in columns]).value() for name in columns[0]}
        part = Part(places, deal.total(number))
        whole = deal.trainers == 1 and not bad
        return Made(Batch(values, {} if whole else dict.fromkeys(values, part)), bad)

    def _nothing(self, deal: Deal) -> Any:
        """The columns of no rows."""
        span = (deal.piece(self._trainer).spans or self._schedule.order.line(0))[0]
        return self._unit(span.unit).result().take(range(0))[0]

    def _rows(self, epoch: int, span: Span) -> Taken:
        """The rows of a span in its unit."""
        key = (epoch, span.unit)
        if key not in self._orders:
            self._orders = {known: order for known, order in self._orders.items() if known[1] in self._units}
            self._orders[key] = self._schedule.order.within(epoch, span.unit)
        order = self._orders[key]
        return range(span.start, span.stop) if order is None else order[span.start : span.stop]

    def _unit(self, unit: int) -> Future[Chunk]:
        """The rows of a unit, which begins to be read if it has not."""
        if unit not in self._units:
            self._units[unit] = self._reading.submit(self._read, unit)
        return self._units[unit]
