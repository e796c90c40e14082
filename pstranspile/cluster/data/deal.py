"""Which rows each trainer is fed in each step: the rows of an epoch in one line, cut into a piece for each trainer.

A step takes `batch` rows of all trainers together, and each trainer its share of them, off the front of its own piece.
Pieces are as long as these shares add up to, so that all end in the same step, and a trainer reads few files. When the
number of trainers changes, what is left of all pieces is the line that is cut anew.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

from pstranspile.cluster.machines.feeding import share


class Span(NamedTuple):
    """The rows `start` to `stop` (without it) of a unit, as they come in its order in the epoch."""

    unit: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.stop - self.start


Dealt: TypeAlias = "tuple[tuple[int, int], ...]"
"""Since which step how many trainers there are: `((0, 2), (500, 4))`."""


class Line:
    """Spans one after another."""

    def __init__(self, spans: Sequence[Span]):
        self.spans = tuple(spans)
        self._ends = list(accumulate(span.rows for span in spans))
        self._next: dict[int, int] = {}
        for span, following in pairwise(spans):
            self._next.setdefault(span.unit, following.unit)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._ends[-1] if self._ends else 0

    def after(self, unit: int) -> int | None:
        """The unit whose rows come after those of a unit, where they come first."""
        return self._next.get(unit)

    def cut(self, start: int, stop: int) -> list[Span]:
        """The rows `start` to `stop` of the line."""
        result: list[Span] = []
        place = bisect_right(self._ends, start)
        while start < stop and place < len(self.spans):
            span, end = self.spans[place], self._ends[place]
            begin = end - span.rows
            result.append(Span(span.unit, span.start + start - begin, span.start + min(stop, end) - begin))
            start, place = end, bisect_right(self._ends, end, place)
        return result


class Deal:
    """The rows of a line of spans, dealt to so many trainers in steps of `batch` rows."""

    def __init__(self, line: Sequence[Span], trainers: int, batch: int):
        self.trainers = trainers
        self.batch = batch
        self.rows = sum(span.rows for span in line)
        self.steps = -(-self.rows // batch)
        """How many steps there are; the last may have fewer rows."""
        counts = [self._before(self.steps, trainer) for trainer in range(trainers)]
        ends = [sum(counts[: trainer + 1]) for trainer in range(trainers)]
        whole = Line(line)
        self._pieces = [Line(whole.cut(end - count, end)) for count, end in zip(counts, ends, strict=True)]

    def total(self, step: int) -> int:
        """How many rows all trainers together are fed in a step."""
        return min(self.batch, self.rows - step * self.batch)

    def places(self, step: int, trainer: int) -> tuple[int, int]:
        """Which rows of the whole batch of a step are a trainer's."""
        return share(self.total(step), trainer, self.trainers)

    def spans(self, step: int, trainer: int) -> list[Span]:
        """The rows that a trainer is fed in a step."""
        return self._pieces[trainer].cut(self._before(step, trainer), self._before(step + 1, trainer))

    def rest(self, step: int) -> list[Span]:
        """What is left before a step: what the trainers have not been fed, one trainer's after another's."""
        return [
            span
            for trainer, piece in enumerate(self._pieces)
            for span in piece.cut(self._before(step, trainer), self._before(self.steps, trainer))
        ]

    def piece(self, trainer: int) -> Line:
        """All that a trainer is fed."""
        return self._pieces[trainer]

    def _before(self, step: int, trainer: int) -> int:
        """How many rows a trainer has been fed before a step."""
        full, last = divmod(min(step * self.batch, self.rows), self.batch)
        start, stop = share(self.batch, trainer, self.trainers)
        first, end = share(last, trainer, self.trainers)
        return full * (stop - start) + end - first


def deals(line: Sequence[Span], batch: int, dealt: Dealt, first: int, steps: int) -> list[tuple[int, Deal]]:
    """The deals of an epoch of `steps` steps that begins with the step `first`, each with the step it begins with."""
    ends = [*(step for step, _ in dealt[1:]), first + steps]
    changes = [(max(step, first), trainers) for (step, trainers), end in zip(dealt, ends, strict=True) if end > first]
    changes = [(step, trainers) for step, trainers in changes if step < first + steps]
    result = [(first, Deal(line, changes[0][1], batch))]
    for (before, _), (step, trainers) in pairwise(changes):
        if step > before:
            result.append((step, Deal(result[-1][1].rest(step - before), trainers, batch)))
        else:
            result[-1] = (step, Deal(line, trainers, batch))
    return result
