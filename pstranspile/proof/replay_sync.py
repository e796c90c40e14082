"""Replays of synchronous steps, in which gradients are combined before the second half."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pstranspile.kernels.context import Value
from pstranspile.plan.plan import PlannedParameter
from pstranspile.proof.given import Given
from pstranspile.proof.halves import Evaluation, Halves, combined, kept_of
from pstranspile.proof.machine_values import MachineValues, Place
from pstranspile.proof.replay import BY_ID, NO_ROWS, OWN_NORM, Replay
from pstranspile.proof.slices import SliceUpdates, owned_slices, piece_of
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.seeds import nothing_of
from pstranspile.values import SelectedRows


class SyncReplay(Replay):
    """A replay of trainers that combine gradients, through servers or rings, or average their parameters."""

    def __init__(self, given: Given, cluster: Cluster):
        super().__init__(given, cluster)
        self.rows: dict[str, SelectedRows] = {}
        """The mean gradients of the step that are sparse rows."""
        collective = self.made.plan.collective
        self.averages = collective.averaged if collective is not None else ()
        """The parameters that trainers average instead of gradients."""

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
        gradients = {} if self.averages else _means(half, runs)
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
        gradients = _means(half, runs)
        self.rows = {name: value for name, value in gradients.items() if isinstance(value, SelectedRows)}
        values = self.whole(kept_of(half, half.second))
        own = {name for name in values if self.before.release(name)}
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
            self.shown[table.name] = BY_ID
            mean = self.rows[table.gradient]
            total = mean._replace(value=mean.value * mean.value.dtype.type(len(runs)))
            for number in range(len(self.made.plan.pservers)):
                place = f"pserver_{number}", table.name
                rate, updates = run[table.learning_rate], self.updates[self.workload.turns.program(step)]
                result[place] = updates.update_table(self.before[place], total, rate, number)

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
            other, left = self._sliced(parameter, gradients[parameter.gradient], updates, step)
            if all(self.fits(place, now[place], value) for place, value in other.items() if place in now):
                self.shown[parameter.name] = NO_ROWS if left else OWN_NORM
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


def _means(half: Halves, runs: list[Evaluation]) -> dict[str, Value]:
    """The mean of the trainers' gradients by name. It takes them out of the runs; trainers without rows have zeros."""
    result: dict[str, Value] = {}
    for gradient in dict.fromkeys(half.sent.values()):
        values = [value for run in runs if (value := run.take(gradient)) is not None]
        if values:
            result[gradient] = combined(values, len(runs) if any(run.idle for run in runs) else 0)
        elif runs and all(run.idle for run in runs):
            result[gradient] = nothing_of(half.program, next(iter(half.program.main_block.ops)), gradient)
    return result


def _finished(half: Halves, run: Evaluation, gradients: Mapping[str, Value]) -> Evaluation:
    """The second half after a run of the first, with other gradients."""
    for name, value in gradients.items():
        run.lend(name, value)
    return run.go(half.second) if gradients or not run.idle else run.without(half.second)
