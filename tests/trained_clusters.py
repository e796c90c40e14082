"""A cluster stepped batch by batch, and one machine to hold it against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.machines.feeding import share_of
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.model import Module, Role
from pstranspile.runtime.run.prepared import run
from pstranspile.runtime.run.scope import Scope

SEED = 7
Feed = Mapping[str, Any]


class Machine(NamedTuple):
    role: Role
    scope: Scope


def train_alone(module: Module, feeds: Sequence[Feed]) -> Scope:
    """One machine, one step per feed; gives its variables."""
    scope = Scope()
    startup = module.startup
    assert startup is not None
    run(startup, scope=scope, seed=SEED)
    for feed in feeds:
        run(module.main, feed=feed, scope=scope, seed=SEED)
    return scope


class Cluster:
    """The machines of a job after their start-up programs; `step` takes the next batch."""

    def __init__(self, compiled: Compiled):
        self.plan = compiled.plan
        self.trainers_main = compiled.trainer(0).main
        self.cluster = cluster_of(compiled, seed=SEED)
        self.batches: list[Feed] = []
        self.cluster.feed(self._part)
        self.cluster.start()
        by_endpoint = self.cluster.by_endpoint
        self.servers = {e: Machine(compiled.pserver(e), by_endpoint[e].scope) for e in self.plan.pservers}
        self.trainers = [Machine(compiled.trainer(t.index), t.scope) for t in self.cluster.trainers]

    def _part(self, trainer: int, step: int) -> Feed:
        return share_of(self.batches[step], self.trainers_main, trainer, self.plan.trainers)

    def step(self, feed: Feed) -> None:
        """One step: the batch is divided evenly over the trainers in order."""
        self.batches.append(feed)
        self.cluster.run_to(len(self.batches))

    def fetch(self, trainer: Machine, _startup: Any) -> None:
        """Gives a trainer what the servers hold now, as its start-up program does at the beginning."""
        scopes = {endpoint: server.scope for endpoint, server in self.servers.items()}
        for server in self.cluster.servers:
            server.forget_all_copies()
        for name in self.cluster.placement.origins():
            trainer.scope[name] = self.cluster.placement.whole(name, scopes)

    def parameters(self) -> dict[str, Any]:
        """Every parameter as trainer 0 holds it."""
        return {p.name: np.asarray(self.trainers[0].scope[p.name]) for p in self.plan.parameters}
