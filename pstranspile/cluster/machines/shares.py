"""How much the trainers' shares of a batch count.

The programs say that every trainer counts the same: servers, and sums over rings, take the mean of the trainers'
gradients. Each of them is of a mean over the rows of a share. So where shares have different numbers of rows, a row on
one trainer counts more than on another, and the cluster does not train as one machine does. Weighted shares begin their
gradients with rows times trainers by all rows instead of 1, and then it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from pstranspile.cluster.machines.feeding import Runs
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, error, warning
from pstranspile.ir.model import MAIN
from pstranspile.runtime.run.batch import Batch
from pstranspile.runtime.run.seeds import LossRows
from pstranspile.runtime.run.step_feeds import FeedOf

Weighing: TypeAlias = Literal["equal", "weighted"]
"""Whether all shares count the same, as the programs say, or by their rows."""


class Uneven(NamedTuple):
    """The first step, counted from 1, whose shares have different numbers of rows, these numbers (None: the trainer has
    left), and how many such steps there were.
    """

    step: int
    rows: tuple[int | None, ...]
    steps: int

    def describe(self, weighing: Weighing) -> str:
        """A sentence with the consequence of the weights."""
        rows = ", ".join("left" if count is None else str(count) for count in self.rows)
        more = f" (and in {self.steps - 1} more)" if self.steps > 1 else ""
        shares = f"in step {self.step}{more} the trainers' losses are means over different numbers of rows: {rows}"
        if weighing == "weighted":
            return f"{shares}; they are weighted by these, which trainers of Fluid don't do"
        return f"{shares}; each counts the same, as in Fluid, so this is no mean over all rows (--shares weighted is)"


class Shares:
    """Hands the trainers what they are fed, and notes how many rows that is.

    `feeds` are those of the trainers, `together` says whether the cluster takes the mean of their gradients. Raises
    DiagnosticError for weighted shares where it doesn't.
    """

    def __init__(self, feeds: Sequence[FeedOf], trainers: Sequence[Runs], weighing: Weighing, *, together: bool):
        self.weighing: Weighing = weighing
        self._feeds = feeds
        self._trainers = trainers
        self._together = together and len(trainers) > 1
        self._counters: dict[str, list[LossRows]] = {}
        self._rows: dict[int, dict[int, int | None]] = {}
        """The rows of the trainers by step, without those of even steps."""
        self._uneven: dict[int, dict[int, int | None]] = {}
        if weighing == "weighted" and not together:
            message = (
                "shares can be weighted where the mean of all trainers' gradients is taken in each step; here it isn't"
            )
            raise DiagnosticError([error("feed-shares", message)])

    def of(self, trainer: int) -> FeedOf:
        """What a trainer is fed in a step, with the rows and the weight of its share."""

        def feed(step: int) -> Mapping[str, Any] | None:
            given = self._feeds[trainer](step)
            if given is None:
                return None
            rows = self._count(trainer, step, given)
            return _batch(given, trainer, rows, self._weight(trainer, step, rows))

        return feed

    def _count(self, trainer: int, step: int, given: Mapping[str, Any]) -> int | None:
        machine = self._trainers[trainer]
        name = machine.turns.program(step) if machine.turns is not None else MAIN
        known = self._counters.get(name)
        if known is None:
            known = self._counters[name] = [LossRows(machine.programs[name]) for machine in self._trainers]
        return known[trainer](given)

    def _weight(self, trainer: int, step: int, rows: int | None) -> float:
        """What a share counts, as a multiple of what it counts by the programs; notes steps that are uneven."""
        if not self._together or rows is None:
            return 1.0
        known, weighted = self._rows.setdefault(step, {}), self.weighing == "weighted"
        if weighted and not known:
            known.update((other, self._rows_of(other, step)) for other in range(len(self._trainers)))
        known[trainer] = rows
        there = [count for count in known.values() if count is not None] if weighted else [rows]
        if len({*there}) > 1 if weighted else rows != next(iter(known.values())):
            self._uneven[step] = known
        elif len(known) == len(self._trainers) and step not in self._uneven:
            del self._rows[step]
        total = sum(there)
        return rows * len(there) / total if weighted and total else 1.0

    def _rows_of(self, trainer: int, step: int) -> int | None:
        given = self._feeds[trainer](step)
        return None if given is None else self._count(trainer, step, given)

    def uneven(self) -> Uneven | None:
        """The steps whose shares had different numbers of rows; None if there were none."""
        if not self._uneven:
            return None
        step = min(self._uneven)
        rows = tuple(self._uneven[step].get(trainer) for trainer in range(len(self._trainers)))
        return Uneven(step + 1, rows, len(self._uneven))

    def warnings(self) -> list[Diagnostic]:
        """Warnings about the steps so far."""
        result = self.uneven()
        return (
            []
            if result is None or self.weighing == "weighted"
            else [warning("feed-shares", result.describe(self.weighing))]
        )


def _batch(given: Mapping[str, Any], trainer: int, rows: int | None, weight: float) -> Batch:
    """What is fed as a batch with the rows and the weight of a share. Of a machine among others it is just a part."""
    parts = given.parts if isinstance(given, Batch) else dict.fromkeys(given) if trainer else {}
    return Batch(given, parts, rows=rows, weight=weight)
