"""The two sides of a check: the single machine, and the cluster, from the same start on the same data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pstranspile.checkpoint.api import scopes_of
from pstranspile.checkpoint.layout import layout_of
from pstranspile.checkpoint.state import gather
from pstranspile.compile import Compiled
from pstranspile.ir.model import STARTUP, Module, Program
from pstranspile.ir.roles import OpRole
from pstranspile.lazy import lazy_import
from pstranspile.proof.compare import Side, Snapshot
from pstranspile.run.api import run
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.feeding import divided
from pstranspile.run.cluster.simulate import cluster_of
from pstranspile.run.files import LENGTHS, Feeds
from pstranspile.run.scope import Scope, own_copy

np = lazy_import("numpy")


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


class Held:
    """Whole values of a cluster's variables, wherever they lie. Rows of a table by id replace those in `start`."""

    def __init__(self, result: Compiled, start: Snapshot):
        self.start = start
        layout = layout_of(result)
        known = {name: placed for name, placed in layout.variables.items() if name in start}
        self.layout = replace(layout, variables=known)

    def __call__(self, cluster: Cluster) -> Snapshot:
        """The values now, of the variables that the single machine has too. Raises DiagnosticError."""
        state = gather(self.layout, scopes_of(cluster))
        found: dict[str, Any] = dict(state.values)
        for name, parts in state.tables.items():
            whole = found[name] = own_copy(self.start[name])
            for part in parts:
                whole[part.rows] = part.value[: len(part.rows)]
        for copy in state.copies:
            found.setdefault(copy.origin, copy.value)
        return found


def train_together(cluster: Cluster, held: Held, steps: int, loss: str | None) -> Side:
    """The cluster, stopped after every step to look at its variables."""
    cluster.start()
    side = Side([], [], {})
    for step in range(1, steps + 1):
        cluster.run_to(step)
        side.snapshots.append(held(cluster))
        if loss:
            found = [trainer.results[step - 1][loss] for trainer in cluster.trainers]
            side.losses.append(np.mean([np.asarray(value, "float64") for value in found], axis=0))
    return side


def reordered(main: Program, feeds: Mapping[str, Any], way: int) -> dict[str, Any]:
    """The same data with the rows (or sequences) of every batch in another order: backwards, or moved on by `way`."""
    found: dict[str, Any] = {}
    for name, array in feeds.items():
        if name.endswith(LENGTHS) and name[: -len(LENGTHS)] in feeds:
            continue
        lengths = feeds.get(name + LENGTHS)
        if lengths is not None:
            ends = np.cumsum(lengths.reshape(-1)).reshape(lengths.shape)
            order = _order(lengths.shape[1], way)
            parts = [slice(row[i] - sizes[i], row[i]) for row, sizes in zip(ends, lengths, strict=True) for i in order]
            found[name] = np.concatenate([array[part] for part in parts])
            found[name + LENGTHS] = lengths[:, order]
        else:
            mixed = array.ndim > 1 and divided(main, name)
            found[name] = array[:, _order(array.shape[1], way)] if mixed else array
    return found


def _order(size: int, way: int) -> Any:
    """An order of so many rows."""
    return np.arange(size)[::-1] if way == 0 else np.roll(np.arange(size), way)
