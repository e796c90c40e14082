"""A replay: the comparison of every step of every machine with the source program, from the values before the step.

The results of whole runs may differ: rounding is amplified, trainers are ahead of each other, shares are not the whole.
A single step may not: the source program determines its result from the values before it. So a difference is detected
in the step that makes it, in every mode; in double precision, with very small tolerances.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping
from math import prod
from typing import Any

import numpy as np

from pstranspile.cluster.checkpoint.api import scopes_of
from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.state import part_of
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.ir.frozen import EMPTY
from pstranspile.proof.arrays import same_arrays, same_bits
from pstranspile.proof.compare import Snapshot, moved, plain
from pstranspile.proof.given import Given
from pstranspile.proof.halves import Evaluation, Halves, halves_of, kept_after_first, kept_of
from pstranspile.proof.machine_values import MachineValues, Place, values_kept
from pstranspile.proof.report import ROUGH
from pstranspile.proof.slices import SliceUpdates
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.large.forms import whole_in
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import NUMPY_TYPES, LoDTensor

PRECISE = 1e-12
"""The tolerance for doubles, relative to a value and to the largest change in a step."""

LATE = 1e-9
"""The tolerance relative to a machine's largest change in a step, where trainers scale before they add up."""

NO_ROWS = "a server leaves its slice alone in a step that brings no rows of it; one machine updates the table"
COUNTS = "the servers count the steps of all trainers from 0, and may be ahead of a single machine"
BY_ID = "the servers update a distributed lookup table by sgd with the sum of the trainers' gradients"


class Replay(ABC):
    """Compares a cluster with its source step by step: `begin` takes the values of all machines, `hold` compares.

    `problems` describes the differences.
    """

    waits = True
    """Whether machines wait for each other, so that a trainer without rows takes part in a step."""

    single = ROUGH
    """The tolerance in single precision, relative to a value and to the largest change in a step."""

    part = 1.0
    """The number by which trainers multiply what gradients begin with."""

    def __init__(self, given: Given, cluster: Cluster):
        self.made, self.workload, self.seed = given.made, given.workload, given.seed
        self.cluster = cluster
        self.layout = layout_of(self.made)
        self.halves: dict[str, Halves] = halves_of(self.made, self.workload)
        self.problems: list[str] = []
        self.shown: dict[str, str] = {}
        """The parameters whose updates on servers differ from the source by design, and why."""
        self.updates = {name: SliceUpdates(h, self.layout, self.seed) for name, h in self.halves.items() if h.facts}
        self.scopes = scopes_of(cluster)
        self.feeds = [trainer.feed for trainer in cluster.trainers]
        self.origin = {
            (part.machine, part.name): (placed, part)
            for placed in self.layout.variables.values()
            for part in placed.holders
        }
        self.start: Snapshot = {}
        self.before = MachineValues(self.origin)

    # what machines hold

    def live(self) -> dict[Place, Value]:
        """The persistable values of every machine now; of large tables all rows."""
        scopes = self.scopes
        held = {place: whole_in(scopes[place[0]].get(place[1]), scopes[place[0]]) for place in self.origin}
        return {place: value for place, value in held.items() if value is not None}

    def look(self, wanted: MachineValues) -> None:
        """Takes the persistable values of every machine for the next step. Values that equal those in `wanted` or those
        before are moved from there instead of copied, so both are empty afterwards.
        """
        self.before = values_kept(self.layout, self.origin, self.live(), [wanted, self.before], self.start)

    def begin(self, start: Snapshot) -> None:
        """Checks before the first step that every machine has the initial values of a single machine."""
        self.start = start
        self.look(MachineValues(self.origin, {n: v for n, v in start.items() if self._sized(n, v)}))
        counters = {name for plan in self.plans for counter in plan.counters for name in (counter.name, *counter.own)}
        self.shown.update((counter.name, COUNTS) for plan in self.plans for counter in plan.counters)
        for updates in () if self.waits else self.updates.values():  # servers compute rates before the first gradient
            ops = updates.half.program.main_block.ops
            counters.update(name for i in updates.rate_ops() for name in ops[i].output_names)
        own = {name for plan in self.plans for counter in plan.counters for name in counter.own}
        for place, value in self.before.items():
            placed, part = self.origin[place]
            wanted = start.get(placed.name)
            if placed.name in own and not close(value, np.ones_like(value)):
                self.note(0, place, "does not start to count with 1")
            numbers = plain(value) if placed.name in counters else None  # scopes of a block have none
            if numbers is not None and numbers.dtype != NUMPY_TYPES[placed.dtype]:
                self.note(0, place, f"is {numbers.dtype}, not {placed.dtype.text}")
            if wanted is None or placed.table or placed.name in counters:
                continue
            started = part.shape == placed.shape and wanted.shape == placed.started
            sized = started or self._sized(placed.name, wanted)
            if not sized or not close(value, part_of(placed, part, wanted)):
                self.note(0, place, "does not start as on a single machine")

    def _sized(self, name: str, value: Any) -> bool:
        """Whether a value has as many elements as a variable of the job."""
        placed = self.layout.variables.get(name)
        return placed is not None and not placed.table and value.size == prod(placed.shape)

    @property
    def plans(self) -> list[Any]:
        """The plans of the programs that servers train, or that of the job."""
        return [half.plan for half in self.halves.values() if half.plan is not None] or [self.made.plan]

    def values_of(self, machine: str, names: Iterable[str]) -> dict[str, Value]:
        """The values of variables on a machine before the step, under the names of the source."""
        held = {name: self.origin.get((machine, name)) for name in names}
        own = [name for name, result in held.items() if result is not None and result[0].name == name]
        return {name: value for name in own if (value := self.before.get((machine, name))) is not None}

    def whole(self, names: Iterable[str]) -> dict[str, Value]:
        """The whole values of variables on the servers before the step."""
        result: dict[str, Value] = {}
        for name in names:
            placed = self.layout.variables.get(name)
            if placed is not None and placed.table:
                parts = [self.before[part.machine, part.name] for part in placed.parts]
                table = result[name] = np.full(placed.shape, np.nan, parts[0].value.dtype)
                for part in parts:
                    table[part.rows] = part.value[: len(part.rows)]
            elif (value := self.before.whole(name)) is not None:
                result[name] = value
        return result

    # one step

    def hold(self, step: int) -> None:
        """Compares every machine with the source program after the step (counted from 0)."""
        now = self.live()
        name = self.workload.turns.program(step)
        wanted = self.expected(self.halves[name], step)
        wrong = self._misfits(now, wanted)
        wrong = self.not_rounded(wrong, now, wanted, step) if wrong else wrong
        for place in self.unexplained(wrong, now, wanted, step) if wrong else ():
            self.note(step + 1, place, "is not what the source program makes of the values before the step")
        self.look(wanted)

    def _misfits(self, now: Mapping[Place, Value], wanted: Mapping[Place, Value]) -> list[Place]:
        collective = self.made.plan.collective
        scaled = collective is not None and not collective.averaged and len(self.feeds) > 1
        floors: dict[str, float] = {}
        for (machine, name), value in wanted.items() if scaled else ():
            change = moved(plain(value), plain(self.before.get((machine, name))))
            floors[machine] = max(floors.get(machine, 0.0), LATE * change)
        places = (place for place in wanted if place in now and not self._by_row(place))
        return [p for p in places if not self.fits(p, now[p], wanted[p], floors.get(p[0], 0.0))]

    def _by_row(self, place: Place) -> bool:
        """Whether a value is kept for each existing row of a large table. The source has no ops for it, so it is only
        compared with the single machine.
        """
        return isinstance(self.scopes[place[0]].get(place[1]), LargeTable | TableState)

    def fits(self, place: Place, value: Value, wanted: Value, floor: Any = 0.0) -> bool:
        """Whether a machine's value is the expected one."""
        return same_arrays(value, wanted) or close(value, wanted, self.before.get(place), floor, self.single)

    @abstractmethod
    def end(self) -> None:
        """Checks after the last step, when all trainers have left."""

    @abstractmethod
    def expected(self, half: Halves, step: int) -> MachineValues:
        """The expected values of every machine after a step."""

    def not_rounded(
        self, wrong: list[Place], now: Mapping[Place, Value], wanted: MachineValues, step: int
    ) -> list[Place]:
        """The differences that rounding of gradients can't make."""
        return wrong

    def unexplained(
        self, wrong: list[Place], now: Mapping[Place, Value], wanted: MachineValues, step: int
    ) -> list[Place]:
        """The differences that are not by design of the mode."""
        return wrong

    def share(
        self,
        half: Halves,
        trainer: int,
        step: int,
        remote: Mapping[str, Value] | None = None,
        given: Mapping[int, Mapping[str, Value]] = EMPTY,
    ) -> Evaluation:
        """The first half on a trainer's share, with the trainer's values, and those of servers that it lacks. Before
        some ops (by index) variables get the `given` values.
        """
        names = kept_of(half, (*half.first, *half.second))
        own = self.values_of(f"trainer_{trainer}", names)
        values = {**(self.whole(kept_of(half, half.first) - own.keys()) if remote is None else remote), **own}
        feed = self.feeds[trainer](step) or {}
        run = Evaluation(half.program, values, feed, seed=self.seed, stream=trainer, step=step, part=self.part)
        if not run.idle:
            return run.go(half.first, given, self._needed(half, trainer, step))
        return run.without(half.first) if self.waits else run

    def _needed(self, half: Halves, trainer: int, step: int) -> set[str]:
        """The variables that are needed after the first half on a trainer's share."""
        held = {name for machine, name in self.origin if machine == f"trainer_{trainer}"}
        return {*kept_after_first(half), *held, *self.cluster.trainers[trainer].results[step].values}

    def results(self, run: Evaluation, trainer: int, step: int) -> None:
        """Compares the values that a trainer has fetched in a step."""
        for name, value in self.cluster.trainers[trainer].results[step].values.items():
            wanted = run[name]
            if wanted is not None and not close(value, wanted):
                self.note(step + 1, (f"trainer_{trainer}", name), "is fetched with another value than the source makes")

    def kept(self, result: MutableMapping[Place, Value], run: Evaluation, machine: str) -> None:
        """Takes the values of a trainer's variables from a run."""
        for place in [place for place in result if place[0] == machine]:
            value = run[place[1]]
            if value is not None and value is not run.lent.get(place[1]):
                owner = isinstance(value, np.ndarray) and value.flags.owndata
                result[place] = value if owner else own_copy(value)

    def note(self, step: int, place: Place, what: str) -> None:
        """Notes a difference."""
        self.problems.append(f"step {step}: %{place[1]} on {place[0]} {what}")


def close(value: Value, wanted: Value, before: Value = None, floor: Any = 0.0, single: float = ROUGH) -> bool:
    """Whether a value is the wanted one, up to rounding of the value and of its largest change, and to
    `floor`, one number or one for each element.

    `single` is the tolerance in single precision.
    """
    if isinstance(value, LoDTensor) and isinstance(wanted, LoDTensor) and value.lod != wanted.lod:
        return False
    a, b, c = map(plain, (value, wanted, before))
    if a is None or b is None or a.shape != b.shape:
        return a is None and b is None
    if a.dtype != b.dtype:
        return False
    if same_bits(a, b):
        return True
    if a.dtype.kind != "f" or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    change = moved(b, c) if c is not None else 0.0
    part = PRECISE if a.dtype == "float64" else single
    return bool((np.abs(a - b) <= part * (np.abs(b) + change) + floor).all())
