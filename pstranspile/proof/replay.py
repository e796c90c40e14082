"""Every step of every machine, held to the source program at the values that the machines had before it.

A run may go anywhere: rounding is amplified, trainers are ahead of each other, shares are not the whole. A single step
may not: from the values before it, the source program says what comes next, and that is what must be there. So a
difference is found where it is made, in every mode; in double precision, with next to no bounds.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from pstranspile.checkpoint.api import scopes_of
from pstranspile.checkpoint.layout import Part, Placed, layout_of
from pstranspile.checkpoint.state import gather, part_of
from pstranspile.compile import Compiled
from pstranspile.ir.frozen import EMPTY
from pstranspile.kernels.context import Value
from pstranspile.proof.compare import Snapshot, moved, plain
from pstranspile.proof.course import Course
from pstranspile.proof.halves import Evaluation, Halves, combined, halves_of, kept_after_first
from pstranspile.proof.keeping import same_bits
from pstranspile.proof.report import ROUGH
from pstranspile.proof.slices import Place, SliceUpdates, owned_slices, piece_of
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.scope import own_copy
from pstranspile.run.seeds import nothing_of
from pstranspile.values import NUMPY_TYPES, LoDTensor, SelectedRows

PRECISE = 1e-12
"""The part of a value, and of the largest change in a step, by which doubles of the same maths may differ."""

LATE = 1e-9
"""The part of a machine's largest change in a step that rounding may make, where trainers scale before they add up."""

LEFT_ALONE = "a server leaves its slice alone in a step that brings no rows of it; one machine updates the table"
OWN_NORM = "each server uses the norm of its own slice"
COUNTS = "the servers count the steps of all trainers from 0, and may be ahead of a single machine"
BY_ID = "the servers update a distributed lookup table by sgd with the sum of the trainers' gradients"


class Replay:
    """Holds a cluster to its source, window by window: `begin` looks at all machines, `hold` at what has become of it.

    `problems` says what does not fit, in words.
    """

    waits = True
    """Whether machines wait for each other, so that a trainer without rows takes part in a step."""

    def __init__(self, made: Compiled, cluster: Cluster, course: Course, seed: int):
        self.made = made
        self.cluster = cluster
        self.course = course
        self.seed = seed
        self.layout = layout_of(made)
        self.halves: dict[str, Halves] = halves_of(made, course)
        self.problems: list[str] = []
        self.shown: dict[str, str] = {}
        """Parameters whose updates on servers are others than the source's, and why: so they fit."""
        self.updates = {name: SliceUpdates(h, self.layout, seed) for name, h in self.halves.items() if h.facts}
        self.scopes = scopes_of(cluster)
        self.feeds = [trainer.feed for trainer in cluster.trainers]
        self.before: dict[Place, Value] = {}
        self.origin: dict[Place, tuple[Placed, Part]] = {
            (part.machine, part.name): (placed, part)
            for placed in self.layout.variables.values()
            for part in placed.holders
        }
        self.gradients: Mapping[str, Value] = {}
        """The mean gradients of the last step, where trainers combine them."""
        self.averages = {p for p, _ in _averaged(made)}

    # what machines hold

    def live(self) -> dict[Place, Value]:
        """What every machine keeps from step to step, as it is now."""
        held = {place: self.scopes[place[0]].get(place[1]) for place in self.origin}
        return {place: value for place, value in held.items() if value is not None}

    def look(self, wanted: Mapping[Place, Value] = EMPTY) -> dict[Place, Value]:
        """A copy of what every machine keeps from step to step; what is as before or as `wanted` is not copied."""
        found: dict[Place, Value] = {}
        alike: dict[tuple[str, int, tuple[int, ...]], Value] = {}
        for place, value in self.live().items():
            placed, part = self.origin[place]
            peers = placed.name, part.offset, part.shape  # most of what machines keep they all have alike
            for like in (self.before.get(place), wanted.get(place), alike.get(peers)):
                if isinstance(value, np.ndarray) and isinstance(like, np.ndarray) and same_bits(value, like):
                    found[place] = like
                    break
            else:
                found[place] = own_copy(value)
            alike.setdefault(peers, found[place])
        return found

    def begin(self, start: Snapshot) -> None:
        """Before the first step: every machine must hold what a single machine starts with."""
        whole = {place: start.get(placed.name) for place, (placed, _) in self.origin.items()}
        self.before = self.look({place: value for place, value in whole.items() if value is not None})
        counters = {name for plan in self.plans for counter in plan.counters for name in (counter.name, *counter.own)}
        self.shown.update((counter.name, COUNTS) for plan in self.plans for counter in plan.counters)
        for updates in () if self.waits else self.updates.values():  # servers work rates out before they are asked
            ops = updates.half.program.main_block.ops
            counters.update(name for i in updates.rate_ops() for name in ops[i].output_names)
        own = {name for plan in self.plans for counter in plan.counters for name in counter.own}
        for place, value in self.before.items():
            placed, part = self.origin[place]
            wanted = start.get(placed.name)
            if placed.name in own and not close(value, np.ones_like(value)):
                self.tell(0, place, "does not start to count with 1")
            if placed.name in counters and plain(value).dtype != NUMPY_TYPES[placed.dtype]:
                self.tell(0, place, f"is {plain(value).dtype}, not {placed.dtype.text}")
            if wanted is None or placed.table or placed.name in counters:
                continue
            sized = wanted.size == prod(placed.shape) or (part.shape == placed.shape and wanted.shape == placed.started)
            if not sized or not close(value, part_of(placed, part, wanted)):
                self.tell(0, place, "does not start as on a single machine")

    @property
    def plans(self) -> list[Any]:
        """The plans of the programs that servers train, or that of the job."""
        return [half.plan for half in self.halves.values() if half.plan is not None] or [self.made.plan]

    def values_of(self, machine: str) -> dict[str, Value]:
        """What a machine held before the step, under the names of the source."""
        return {
            self.origin[place][0].name: value
            for place, value in self.before.items()
            if place[0] == machine and place[1] == self.origin[place][0].name
        }

    def whole(self, but: Container[str] = ()) -> dict[str, Value]:
        """What the servers held before the step, put together, but for these variables."""
        held: dict[str, dict[str, Value]] = {machine: {} for machine in self.layout.machines}
        for (machine, name), value in self.before.items():
            held[machine][name] = value
        known = {name: placed for name, placed in self.layout.variables.items() if name not in but}
        state = gather(replace(self.layout, variables=known), held)
        found = dict(state.values)
        for name, parts in state.tables.items():
            placed = self.layout.variables[name]
            table = found[name] = np.full(placed.shape, np.nan, parts[0].value.dtype)
            for part in parts:
                table[part.rows] = part.value[: len(part.rows)]
        return found

    # one step

    def hold(self, step: int) -> None:
        """Compares every machine with what the source program makes of the step (counted from 0)."""
        now = self.live()
        name = self.course.turns.program(step)
        wanted = self.expected(self.halves[name], step)
        wrong = self._misfits(now, wanted)
        if wrong and name in self.updates and self.gradients:
            wrong = self._by_slices(now, wanted, wrong, self.updates[name], step)
        for place in wrong:
            self.tell(step + 1, place, "is not what the source program makes of the values before the step")
        self.before = self.look(wanted)

    def _misfits(self, now: Mapping[Place, Value], wanted: Mapping[Place, Value]) -> list[Place]:
        scaled = not self.made.plan.pservers and not self.averages and len(self.feeds) > 1
        floors: dict[str, float] = {}
        for (machine, name), value in wanted.items() if scaled else ():
            change = moved(plain(value), plain(self.before.get((machine, name))))
            floors[machine] = max(floors.get(machine, 0.0), LATE * change)
        return [p for p, v in wanted.items() if p in now and not self.fits(p, now[p], v, floors.get(p[0], 0.0))]

    def _by_slices(
        self,
        now: Mapping[Place, Value],
        wanted: dict[Place, Value],
        wrong: list[Place],
        updates: SliceUpdates,
        step: int,
    ) -> list[Place]:
        """What is still wrong when servers update the slices of a parameter one by one, as if each were the whole, and
        leave alone those that a step brings no rows of. Notes for which parameters that is the reason.
        """
        plan = self.plans[0] if updates.half.plan is None else updates.half.plan
        bad = set(wrong)
        for parameter in plan.parameters:
            gradient = self.gradients.get(parameter.gradient)
            slices = [owned for owned in owned_slices(plan) if owned.parameter is parameter]
            places = {place for o in slices for place in updates.written(o).values()}
            places |= {(f"trainer_{i}", parameter.name) for i in range(len(self.feeds))} & wanted.keys()
            if gradient is None or len(slices) < 2 or not places & bad:
                continue
            other: dict[Place, Value] = {}
            left = False
            for owned in slices:
                piece = piece_of(gradient, owned.slice)
                left |= isinstance(piece, SelectedRows) and not len(piece.rows)
                other.update(updates.apply(self.before, owned, piece, step))
            whole = np.concatenate([other[o.server, o.slice.name] for o in slices])
            other.update((place, whole) for place in places if place[0].startswith("trainer"))
            if all(self.fits(place, now[place], value) for place, value in other.items() if place in now):
                self.shown[parameter.name] = LEFT_ALONE if left else OWN_NORM
                bad -= places
        return [place for place in wrong if place in bad]

    def fits(self, place: Place, value: Value, wanted: Value, floor: float = 0.0) -> bool:
        """Whether a machine's value is what is wanted."""
        return close(value, wanted, self.before.get(place), floor)

    def end(self) -> None:
        """After the last step, when all trainers have left."""

    def expected(self, half: Halves, step: int) -> dict[Place, Value]:
        """What every machine must hold after a step."""
        found = dict(self.before)
        runs = [self.share(half, trainer, step) for trainer in range(len(self.feeds))]
        for trainer, run in enumerate(runs):
            self.kept(found, run, f"trainer_{trainer}")
            self.results(run, trainer, step)
        if not self.made.plan.pservers:
            self._on_trainers(found, half, runs)
        elif half.facts is not None:
            self._on_servers(found, half, runs, step)
        return found

    def share(
        self,
        half: Halves,
        trainer: int,
        step: int,
        beside: Mapping[str, Value] | None = None,
        given: Mapping[int, Mapping[str, Value]] = EMPTY,
    ) -> Evaluation:
        """The first half on a trainer's share, with the values that it holds, and those on servers that it does not.
        Before some ops (by index) it is `given` others.
        """
        machine = f"trainer_{trainer}"
        own = self.values_of(machine)
        values = {**(self.whole(own) if beside is None else beside), **own}
        feed = self.feeds[trainer](step) or {}
        run = Evaluation(half.program, self._known(half, values), feed, seed=self.seed, stream=trainer, step=step)
        if not run.idle:
            return run.go(half.first, given, self._needed(half, trainer, step))
        return run.without(half.first) if self.waits else run

    def _needed(self, half: Halves, trainer: int, step: int) -> set[str]:
        """What is asked of a trainer's share after the first half."""
        held = {name for machine, name in self.origin if machine == f"trainer_{trainer}"}
        return {*kept_after_first(half), *held, *self.cluster.trainers[trainer].results[step]}

    def _known(self, half: Halves, values: Mapping[str, Value]) -> dict[str, Value]:
        variables = half.program.main_block.vars
        return {name: value for name, value in values.items() if name in variables and variables[name].persistable}

    def results(self, run: Evaluation, trainer: int, step: int) -> None:
        """Compares what a trainer has fetched in a step."""
        for name, value in self.cluster.trainers[trainer].results[step].items():
            wanted = run[name]
            if wanted is not None and not close(value, wanted):
                self.tell(step + 1, (f"trainer_{trainer}", name), "is fetched with another value than the source makes")

    def kept(self, found: dict[Place, Value], run: Evaluation, machine: str) -> None:
        """Notes what a run has made of the variables of a trainer."""
        for place in found:
            if place[0] == machine and (value := run[place[1]]) is not None and value is not run.lent.get(place[1]):
                found[place] = own_copy(value)

    def _on_trainers(self, found: dict[Place, Value], half: Halves, runs: list[Evaluation]) -> None:
        """The second half on every trainer: of the mean gradients, or, where parameters are averaged, of its own."""
        gradients = {} if self.averages else means(half, runs)
        for trainer, run in enumerate(runs):
            self.kept(found, _finished(half, run, gradients), f"trainer_{trainer}")
        for name in self.averages:
            places = [(f"trainer_{trainer}", name) for trainer in range(len(runs))]
            learnt = [self.before[place] - found[place] for place in places]
            mean = self.before[places[0]] - combined(learnt)
            for trainer, place in enumerate(places):
                found[place] = mean
                snapshot = f"trainer_{trainer}", f"{name}@SNAPSHOT"
                if snapshot in found:
                    found[snapshot] = mean

    def _on_servers(self, found: dict[Place, Value], half: Halves, runs: list[Evaluation], step: int) -> None:
        """The second half on the whole of what the servers hold."""
        values, self.gradients = self._known(half, self.whole()), means(half, runs)
        run = _finished(half, Evaluation(half.program, values, seed=self.seed, step=step), self.gradients)
        written = {name for index in half.second for name in half.program.main_block.ops[index].output_names}
        trained = {p.name for p in half.plan.parameters} if half.plan is not None else set[str]()
        for place in found:
            placed, part = self.origin[place]
            if placed.name not in written or placed.table or (value := run[placed.name]) is None:
                continue
            if place[0].startswith("pserver") or placed.name in trained:
                found[place] = part_of(placed, part, value)
        table = None if half.plan is None else half.plan.table
        if table is not None and table.gradient in self.gradients:
            self.shown[table.name] = BY_ID
            mean = self.gradients[table.gradient]
            total = mean._replace(value=mean.value * mean.value.dtype.type(len(runs)))
            for number in range(len(self.made.plan.pservers)):
                place = f"pserver_{number}", table.name
                rate, updates = run[table.learning_rate], self.updates[self.course.turns.program(step)]
                found[place] = updates.update_table(self.before[place], total, rate, number)

    def tell(self, step: int, place: Place, what: str) -> None:
        """Notes a difference."""
        self.problems.append(f"step {step}: %{place[1]} on {place[0]} {what}")


def _averaged(made: Compiled) -> Iterable[tuple[str, str]]:
    """The parameters that trainers average instead of gradients."""
    collective = made.plan.collective
    if collective is not None and made.plan.mode == "local-sgd":
        yield from ((summed.parameter, summed.variable) for summed in collective.summed)


def means(half: Halves, runs: list[Evaluation]) -> dict[str, Value]:
    """The mean of the trainers' gradients, by name; those without rows have zeros."""
    found: dict[str, Value] = {}
    for gradient in half.sent.values():
        values = [value for run in runs if (value := run[gradient]) is not None]
        if values:
            found[gradient] = combined(values, len(runs) if any(run.idle for run in runs) else 0)
        elif runs and all(run.idle for run in runs):
            found[gradient] = nothing_of(half.program, next(iter(half.program.main_block.ops)), gradient)
    return found


def _finished(half: Halves, run: Evaluation, gradients: Mapping[str, Value]) -> Evaluation:
    """The second half after a run of the first, with other gradients."""
    for name, value in gradients.items():
        run.give(name, value)
    return run.go(half.second) if gradients or not run.idle else run.without(half.second)


def close(ours: Value, theirs: Value, before: Value = None, floor: float = 0.0) -> bool:
    """Whether a value is another one, up to rounding of itself and of its largest change, and to `floor`."""
    if isinstance(ours, LoDTensor) and isinstance(theirs, LoDTensor) and ours.lod != theirs.lod:
        return False
    a, b, c = (plain(value) for value in (ours, theirs, before))
    if a is None or b is None or a.shape != b.shape:
        return a is None and b is None
    if a.dtype != b.dtype:
        return False
    if same_bits(a, b):
        return True
    if a.dtype.kind != "f" or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    change = moved(b, c) if c is not None else 0.0
    part = PRECISE if a.dtype == "float64" else ROUGH
    return bool((np.abs(a - b) <= part * (np.abs(b) + change) + floor).all())
