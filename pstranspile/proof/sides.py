"""The two sides of a check: the single machine, and the cluster, from the same start on the same data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pstranspile.compile import Compiled
from pstranspile.ir.model import STARTUP, Module, Program
from pstranspile.ir.roles import OpRole
from pstranspile.lazy import lazy_import
from pstranspile.proof.compare import Snapshot
from pstranspile.run.api import run
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.simulate import cluster_of
from pstranspile.run.files import Feeds
from pstranspile.run.scope import Scope, own_copy

np = lazy_import("numpy")


class Side(NamedTuple):
    """Values after each step, losses of each step (the mean over trainers), and what the first step began with."""

    snapshots: list[Snapshot]
    losses: list[Any]
    start: Snapshot


def loss_of(main: Program) -> str | None:
    """The variable that the program trains on: what its op with the role of the loss makes."""
    for op in main.main_block.ops:
        if op.role is not None and op.role == OpRole.FORWARD | OpRole.LOSS:
            return next(iter(op.output_names), None)
    return None


def train_alone(
    module: Module, feeds: Mapping[str, Any], steps: int, init: Mapping[str, Any], seed: int, loss: str | None
) -> Side:
    """The single machine."""
    scope = Scope()
    run(module[STARTUP], scope=scope, seed=seed)
    for name, value in init.items():
        scope[name] = value
    given = Feeds(module.main, feeds, "")
    names = [name for name, var in module.main.main_block.vars.items() if var.persistable]

    def held() -> Snapshot:
        return {name: own_copy(scope[name]) for name in names if isinstance(scope.get(name), np.ndarray)}

    side = Side([], [], held())
    for step in range(steps):
        fetch = [loss] if loss else []
        out = run(module.main, feed=given.step(step), fetch=fetch, scope=scope, seed=seed)
        side.snapshots.append(held())
        side.losses.extend([out[loss]] if loss else [])
    return side


def start_cluster(
    result: Compiled,
    feeds: Mapping[str, Any],
    init: Mapping[str, Any],
    seed: int,
    loss: str | None,
    schedule: int | None = None,
) -> Cluster:
    """The cluster, before its first step."""
    cluster = cluster_of(result, fetch=[loss] if loss else [], init=init, seed=seed, schedule=schedule)
    cluster.feed(feeds)
    return cluster


def train_together(cluster: Cluster, names: Sequence[str], steps: int, loss: str | None) -> Side:
    """The cluster, stopped after every step to look at the variables called `names`."""
    cluster.start()
    side = Side([], [], {})
    for step in range(1, steps + 1):
        cluster.run_to(step)
        side.snapshots.append(values_of(cluster, names))
        if loss:
            found = [trainer.results[step - 1][loss] for trainer in cluster.trainers]
            side.losses.append(np.mean([np.asarray(value, "float64") for value in found], axis=0))
    return side


def values_of(cluster: Cluster, names: Sequence[str]) -> Snapshot:
    """Whole values of those variables that the cluster has: as the servers hold them, else as trainer 0 does."""
    scopes = {server.endpoint: server.scope for server in cluster.servers}
    mine = cluster.trainers[0].scope
    found: dict[str, Any] = {}
    for name in names:
        if name in cluster.placement.by_origin:
            found[name] = own_copy(cluster.placement.whole(name, scopes))
        elif isinstance(mine.get(name), np.ndarray):
            found[name] = own_copy(mine[name])
    return found
