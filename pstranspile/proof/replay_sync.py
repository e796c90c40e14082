"""Replays of synchronous steps, in which gradients are combined before the second half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.compiler.plan.plan import PlannedParameter
from pstranspile.proof.compare import Snapshot, plain
from pstranspile.proof.given import Given
from pstranspile.proof.halves import Evaluation, Halves, combined, kept_of
from pstranspile.proof.machine_values import MachineValues, Place
from pstranspile.proof.replay import BY_ID, NO_ROWS, Replay
from pstranspile.proof.report import OWN_NORM
from pstranspile.proof.slices import SliceUpdates, owned_slices, piece_of
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.seeds import nothing_of
from pstranspile.runtime.values import SelectedRows

SINGLE = 2e-6
"""The tolerance in single precision, relative to a value and to the largest change in a step. The ops that are replayed
get the values that the machines had, so that only few results differ at all.
"""

ROUNDED = 2.0**-24
"""What rounding in single precision may change in a sum for each of its terms, relative to the sum of the terms'
absolute values.
"""


class SyncReplay(Replay):
    """A replay of trainers that combine gradients, through servers or rings, or average their parameters.

    In single precision a mean of gradients may be rounded otherwise than on the machines, and an optimizer that divides
    by the size of gradients makes much of that where they cancel out. What rounding can make there is computed: the
    step is repeated with gradients that are rounded up and down.
    """

    single = SINGLE

    def __init__(self, given: Given, cluster: Cluster):
        super().__init__(given, cluster)
        self.rows: dict[str, SelectedRows] = {}
        """The mean gradients of the step that are sparse rows."""
        collective = self.made.plan.collective
        self.averages = collective.averaged if collective is not None else ()
        """The parameters that trainers average instead of gradients."""
        self.rounded = 0
        """Whether means of gradients are taken as rounding may have them: 1 upwards, -1 downwards, 0 not."""

    def begin(self, start: Snapshot) -> None:
        """Checks before the first step. In single precision gradients are scaled where trainers scale them: what comes
        of scaling them later is rounded otherwise in every op between.
        """
        super().begin(start)
        collective = self.made.plan.collective
        doubles = any(getattr(value, "dtype", None) == "float64" for value in start.values())
        if collective is not None and collective.summed and not self.averages and not doubles:
            self.part = 1 / len(self.feeds)

    def expected(self, half: Halves, step: int) -> MachineValues:
        """The expected values of every machine after a step."""
        result = self.before.copy()
        runs = self._runs(half, step)
        for trainer, run in enumerate(runs):
            self.kept(result, run, f"trainer_{trainer}")
            self.results(run, trainer, step)
        if not self.made.plan.pservers:
            self._on_trainers(result, half, runs)
        elif half.facts is not None:
            self._on_servers(result, half, runs, step)
        return result

    def end(self) -> None:
        """Checks nothing: synchronous machines have nothing left to do."""

    def _runs(self, half: Halves, step: int) -> list[Evaluation]:
        return [self.share(half, trainer, step) for trainer in range(len(self.feeds))]

    def _on_trainers(self, result: MachineValues, half: Halves, runs: list[Evaluation]) -> None:
        """The second half on every trainer: with the mean gradients, or, where parameters are averaged, its own."""
        gradients = {} if self.averages else _means(half, runs, self.rounded, summed=self.part != 1.0)
        for trainer, run in enumerate(runs):
            self.kept(result, _finished(half, run, gradients), f"trainer_{trainer}")
        for name in self.averages:
            places = [(f"trainer_{trainer}", name) for trainer in range(len(runs))]
            learnt = [self.before[place] - result[place] for place in places]
            mean = self.before[places[0]] - combined(learnt)
            for trainer, place in enumerate(places):
                result[place] = mean
                snapshot = f"trainer_{trainer}", f"{name}@SNAPSHOT"
                if snapshot in result:
                    result[snapshot] = mean

    def _on_servers(self, result: MachineValues, half: Halves, runs: list[Evaluation], step: int) -> None:
        """The second half on the whole variables of the servers."""
        gradients = _means(half, runs, self.rounded)
        self.rows = {name: value for name, value in gradients.items() if isinstance(value, SelectedRows)}
        values = self.whole(kept_of(half, half.second))
        own = {name for name in values if self.before.release(name)} if not self.rounded else set[str]()
        run = Evaluation(half.program, values, seed=self.seed, step=step, own=own)
        table = None if half.plan is None else half.plan.table
        keep = {*self.layout.variables, *(() if table is None else (table.learning_rate,))}
        for name in [*gradients]:
            run.lend(name, gradients.pop(name))  # nobody else keeps them in memory
        run.go(half.second, keep=keep)
        trained = {p.name for p in half.plan.parameters} if half.plan is not None else set[str]()
        for name in {name for index in half.second for name in half.program.main_block.ops[index].output_names}:
            placed, value = self.layout.variables.get(name), run[name]
            if placed is None or placed.table or value is None:
                continue
            others = [(p.machine, p.name) for p in placed.holders if not p.machine.startswith("pserver")]
            stale = {place: result.get(place) for place in others if name not in trained}
            result.following(placed, value)
            result.own.update(stale)
        if table is not None and table.gradient in self.rows:
            if len(runs) > 1 or not _by_sgd(half, table.name):
                self.shown[table.name] = BY_ID
            mean = self.rows[table.gradient]
            total = mean._replace(value=mean.value * mean.value.dtype.type(len(runs)))
            for number in range(len(self.made.plan.pservers)):
                place = f"pserver_{number}", table.name
                rate, updates = run[table.learning_rate], self.updates[self.workload.turns.program(step)]
                result[place] = updates.update_table(self.before[place], total, rate, number)

    def not_rounded(
        self, wrong: list[Place], now: Mapping[Place, Value], wanted: MachineValues, step: int
    ) -> list[Place]:
        """The differences that rounding of the mean of gradients can't make."""
        if any(getattr(plain(wanted[place]), "dtype", None) == "float64" for place in wrong):
            return wrong
        half, problems = self.halves[self.workload.turns.program(step)], list(self.problems)
        shifted: list[Mapping[Place, Value]] = []
        for self.rounded in (1, -1):
            shifted.append(self.expected(half, step))
        self.rounded, self.problems = 0, problems
        return [place for place in wrong if not self._rounds(place, now[place], wanted[place], shifted)]

    def _rounds(self, place: Place, value: Value, wanted: Value, shifted: Sequence[Mapping[Place, Value]]) -> bool:
        """Whether a machine's value is the expected one, or as far from it as those for shifted gradients."""
        if self.fits(place, value, wanted):
            return True
        middle, ends = plain(wanted), [plain(made[place]) for made in shifted]
        if middle is None or middle.dtype.kind != "f" or any(end is None or end.shape != middle.shape for end in ends):
            return False
        return bool(ends) and self.fits(place, value, wanted, sum(2 * np.abs(end - middle) for end in ends))

    # differences by design

    def unexplained(
        self, wrong: list[Place], now: Mapping[Place, Value], wanted: MachineValues, step: int
    ) -> list[Place]:
        """The differences that remain if servers update the slices of a parameter separately, as if each were a whole
        parameter, and do not update slices without rows in the step. Records the parameters for which that is the
        reason.
        """
        updates = self.updates.get(self.workload.turns.program(step))
        if updates is None or updates.half.plan is None or not self.made.plan.pservers:
            return wrong
        bad, gradients = set(wrong), dict[str, Value](self.rows)
        for parameter in updates.half.plan.parameters:
            places = self._places(parameter, updates) & wanted.keys()
            if len(parameter.slices) < 2 or not places & bad:
                continue
            if parameter.gradient not in gradients:  # dense ones are not kept, as they are rarely asked for
                gradients = _means(updates.half, self._runs(updates.half, step))
            gradient = gradients[parameter.gradient]
            other, left = self._sliced(parameter, gradient, updates, step)
            shifted = [self._sliced(parameter, one, updates, step)[0] for one in _both_ways(gradient)]
            if all(self._rounds(place, now[place], value, shifted) for place, value in other.items() if place in now):
                if left:
                    self.shown[parameter.name] = NO_ROWS
                elif updates.uses_norm(parameter.name):
                    self.shown.setdefault(parameter.name, OWN_NORM)
                bad -= places
        return [place for place in wrong if place in bad]

    def _places(self, parameter: PlannedParameter, updates: SliceUpdates) -> set[Place]:
        """The places that the update of a parameter changes."""
        assert updates.half.plan is not None
        owned = [part for part in owned_slices(updates.half.plan) if part.parameter is parameter]
        trainers = {(f"trainer_{i}", parameter.name) for i in range(len(self.feeds))}
        return trainers.union(place for part in owned for place in updates.written(part).values())

    def _sliced(
        self, parameter: PlannedParameter, gradient: Value, updates: SliceUpdates, step: int
    ) -> tuple[dict[Place, Value], bool]:
        """The values of machines when slices are updated separately, and whether slices without rows are left out."""
        assert updates.half.plan is not None
        result: dict[Place, Value] = {}
        parts: list[Value] = []
        left = False
        for owned in owned_slices(updates.half.plan):
            if owned.parameter is parameter:
                piece = piece_of(gradient, owned.slice)
                left |= isinstance(piece, SelectedRows) and not len(piece.rows)
                result.update(updates.apply(self.before, owned, piece, step))
                parts.append(result[owned.server, owned.slice.name])
        whole = np.concatenate(parts)
        return {**result, **{(f"trainer_{i}", parameter.name): whole for i in range(len(self.feeds))}}, left


def _by_sgd(half: Halves, parameter: str) -> bool:
    """Whether the source updates a parameter by plain sgd."""
    types = [op.type for op in half.program.main_block.ops if op.input("Param") == parameter]
    return types == ["sgd"]


def _means(half: Halves, runs: list[Evaluation], rounded: int = 0, *, summed: bool = False) -> dict[str, Value]:
    """The mean (or sum) of the trainers' gradients by name. It takes them out of the runs; trainers without rows have
    zeros.

    With `rounded` it is what rounding may make of it, upwards (1) or downwards (-1).
    """
    result: dict[str, Value] = {}
    for gradient in dict.fromkeys(half.sent.values()):
        values = [value for run in runs if (value := run.take(gradient)) is not None]
        terms = sum(map(_terms, values)) if rounded else 0
        values = [_shifted(value, rounded * terms) for value in values] if rounded else values
        if values:
            result[gradient] = combined(values, len(runs) if any(run.idle for run in runs) else 0, summed=summed)
        elif runs and all(run.idle for run in runs):
            result[gradient] = nothing_of(half.program, next(iter(half.program.main_block.ops)), gradient)
    return result


def _both_ways(gradient: Value) -> list[Value]:
    """A mean in single precision as rounding may have it, upwards and downwards; none in double precision."""
    data = gradient.value if isinstance(gradient, SelectedRows) else plain(gradient)
    return [] if data.dtype == "float64" else [_shifted(gradient, by * _terms(gradient)) for by in (1, -1)]


def _terms(gradient: Value) -> int:
    """How many numbers may be added up for an element of a gradient: one, or as many as a row is repeated."""
    if not isinstance(gradient, SelectedRows) or not len(gradient.rows):
        return 1
    return int(np.unique(gradient.rows, return_counts=True)[1].max())


def _shifted(gradient: Value, terms: int) -> Value:
    """A gradient with each element shifted by what rounding may make in a sum of so many terms, and a scale."""
    if isinstance(gradient, SelectedRows):
        return gradient._replace(value=_shifted(gradient.value, terms))
    if not isinstance(gradient, np.ndarray):
        return gradient
    by = ROUNDED * (terms + (1 if terms > 0 else -1))
    return gradient + np.abs(gradient) * gradient.dtype.type(by)


def _finished(half: Halves, run: Evaluation, gradients: Mapping[str, Value]) -> Evaluation:
    """The second half after a run of the first, with other gradients."""
    for name, value in gradients.items():
        run.lend(name, value)
    return run.go(half.second) if gradients or not run.idle else run.without(half.second)
