"""Replays of geo-SGD: local steps of trainers, and their exchanges in the order of delivery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from pstranspile.cluster.machines.message import SEND
from pstranspile.compiler.modes.geo_programs.trainer import delta_name
from pstranspile.proof.halves import Halves
from pstranspile.proof.machine_values import MachineValues, Place
from pstranspile.proof.replay_events import ANSWERED, EventReplay
from pstranspile.proof.slices import Owned
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import SelectedRows


class GeoReplay(EventReplay):
    """A replay of trainers that train locally, and servers that add up their changes."""

    def begin(self, start: Mapping[str, Value]) -> None:
        """Checks before the first step. The initial values of trainers count as exchanged."""
        super().begin(start)
        self.taken()
        names = {owned.parameter.name for owned in self.slices.values()}
        self.trainers = range(len(self.feeds))
        self.old = {(t, name): own_copy(self.before[f"trainer_{t}", name]) for t in self.trainers for name in names}
        self.touched: dict[tuple[int, str], list[Value]] = {}
        self.since = 0
        geo = self.made.plan.geo
        assert geo is not None
        self.every = geo.need_push_nums
        self.deltas = {(owned.server, delta_name(owned.slice.name)): owned for owned in self.slices.values()}

    def expected(self, half: Halves, step: int) -> MachineValues:
        """The expected values of every machine after the step."""
        result = dict(self.before)
        for trainer in self.trainers:
            run = self.share(half, trainer, step)
            self.results(run, trainer, step)
            if run.idle:
                run.without(half.second)
            else:
                run.go(half.second)
            self.kept(result, run, f"trainer_{trainer}")
            for name, gradient in half.sent.items():
                if not run.idle and isinstance(value := run[gradient], SelectedRows):
                    self.touched.setdefault((trainer, name), []).append(np.array(value.rows))
        self.since += bool(half.sent)
        self._exchange(result, due=self.since >= self.every, step=step + 1)
        return MachineValues(self.origin, own=result)

    def end(self) -> None:
        """Checks the exchange at the end: trainers that leave send their changes since the last exchange."""
        result = dict(self.before)
        self._exchange(result, due=self.since > 0, step=self.workload.steps)
        now = self.live()
        for place, value in result.items():
            if place in now and not self.fits(place, now[place], value):
                self.note(self.workload.steps, place, "does not end as what trainers have learnt comes to")

    def _exchange(self, result: dict[Place, Value], *, due: bool, step: int) -> None:
        sent: Counter[tuple[int, Place]] = Counter()
        got: dict[int, dict[Place, Value]] = {}
        deltas: dict[tuple[int, str], Value] = {}
        for event in self.taken():
            place = event.server, event.variable
            if event.kind == SEND and place in self.deltas:
                owned = self.deltas[place]
                home = owned.server, owned.slice.name
                sent[event.trainer, home] += 1
                delta = self._delta(result, deltas, event.trainer, owned.parameter.name)
                result[home] = result[home] + delta[owned.slice.start : owned.slice.stop]
            elif event.kind in ANSWERED and place in self.slices:
                got.setdefault(event.trainer, {})[place] = result[place]
        self._complete(sent, got, due, step)
        for trainer, places in got.items():
            for place, value in places.items():
                self._take_over(result, trainer, self.slices[place], value)
        if due:
            self.since = 0

    def _delta(self, result: Mapping[Place, Value], deltas: dict[Any, Value], trainer: int, name: str) -> Any:
        """A trainer's share of the change of a parameter since the last exchange; it counts as exchanged then."""
        if (trainer, name) not in deltas:
            old = self.old[trainer, name]
            delta = (result[f"trainer_{trainer}", name] - old) / old.dtype.type(len(self.trainers))
            if any(owned.parameter.sparse for owned in self.slices.values() if owned.parameter.name == name):
                used = np.zeros(len(delta), "bool")
                for rows in self.touched.pop((trainer, name), []):
                    used[rows] = True
                delta[~used] = 0
            old += delta
            deltas[trainer, name] = delta
        return deltas[trainer, name]

    def _take_over(self, result: dict[Place, Value], trainer: int, owned: Owned, value: Value) -> None:
        """Adds the changes of other trainers to a trainer's value."""
        place = f"trainer_{trainer}", owned.parameter.name
        train = own_copy(result[place])
        here = slice(owned.slice.start, owned.slice.stop)
        old = self.old[trainer, owned.parameter.name]
        train[here] += value - old[here]
        old[here] = value
        result[place] = train

    def _complete(self, sent: Counter[Any], got: Mapping[int, Any], due: bool, step: int) -> None:
        wanted = int(due)
        for trainer in self.trainers:
            for place, owned in self.slices.items():
                count = sent[trainer, place]
                fetched = place in got.get(trainer, {})
                if count != wanted or (fetched != due and step < self.workload.steps):  # at the end nobody needs it
                    what = f"{owned.slice.name} {count} times" + ("" if fetched else ", and did not fetch it")
                    self.problems.append(f"step {step}: trainer_{trainer} sent what it learnt of %{what}")
