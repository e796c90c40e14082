"""The two sides of a check: the single machine, and the cluster, from the same start on the same data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pstranspile.checkpoint.api import scopes_of
from pstranspile.checkpoint.layout import layout_of
from pstranspile.checkpoint.state import gather
from pstranspile.compile import Compiled
from pstranspile.ir.model import STARTUP, Module
from pstranspile.lazy import lazy_import
from pstranspile.ops.values import SelectedRows
from pstranspile.proof.compare import Side, Snapshot, plain
from pstranspile.proof.course import Course
from pstranspile.proof.keeping import kept
from pstranspile.proof.replay import Replay
from pstranspile.run.api import run
from pstranspile.run.batch import Batch
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.scenario import Scenario
from pstranspile.run.cluster.simulate import cluster_of
from pstranspile.run.scope import Scope, own_copy
from pstranspile.run.step_feeds import GivenFeeds

np = lazy_import("numpy")


def train_alone(
    module: Module, course: Course, feeds: GivenFeeds, init: Mapping[str, Any], seed: int, how: str = ""
) -> Side:
    """The single machine; `how` is told with its steps."""
    scope = Scope()
    run(module[STARTUP], scope=scope, seed=seed)
    for name, value in init.items():
        scope[name] = value
    given = course.feeds(feeds)
    names = [name for name, var in course.whole.main_block.vars.items() if var.persistable]

    def held(before: Snapshot) -> Snapshot:
        return {name: kept(scope[name], before.get(name)) for name in names if isinstance(scope.get(name), np.ndarray)}

    side = Side([], {}, held({}))
    for step in course.each_step(f"the single machine{how}: step"):
        owner = course.turns.program(step)
        watched, program = course.watched[owner], course.programs[owner]
        out = run(program, feed=given.step(step), fetch=watched, scope=scope, seed=seed, step=step)
        side.snapshots.append(held(side.snapshots[-1] if side.snapshots else side.start))
        for name in watched:
            side.fetched.setdefault(course.label(owner, name), []).append([out[name]])
    return side


def start_cluster(
    result: Compiled,
    course: Course,
    feeds: GivenFeeds,
    init: Mapping[str, Any],
    seed: int,
    schedule: int | None = None,
    *,
    watch: bool = True,
    faults: Scenario | None = None,
) -> Cluster:
    """The cluster, before its first step; with `watch`, losses and results are fetched. `faults` go wrong."""
    fetch = [course.label(owner, name) for owner, names in course.watched.items() for name in names] if watch else []
    cluster = cluster_of(
        result,
        fetch=fetch,
        init=init,
        seed=seed,
        schedule=schedule,
        programs=course.given_turns,
        faults=faults,
        shares=course.shares,
    )
    cluster.feed(feeds)
    return cluster


class Held:
    """Whole values of a cluster's variables, wherever they lie. Rows of a table by id replace those in `start`."""

    def __init__(self, result: Compiled, start: Snapshot):
        self.start = start
        layout = layout_of(result)
        known = {name: placed for name, placed in layout.variables.items() if name in start}
        self.layout = replace(layout, variables=known)
        self.last = start

    def __call__(self, cluster: Cluster) -> Snapshot:
        """The values now, of the variables that the single machine has too. Raises DiagnosticError."""
        found: dict[str, Any] = {}
        for name, placed in self.layout.variables.items():  # one by one, as some take much memory
            state = gather(replace(self.layout, variables={name: placed}), scopes_of(cluster))
            whole = state.values.get(name)
            if state.tables:
                whole = own_copy(self.start[name])
                for part in state.tables[name]:
                    whole[part.rows] = part.value[: len(part.rows)]
            for copy in state.copies if whole is None else ():
                whole = copy.value
                break
            if whole is not None:
                found[name] = kept(whole, self.last.get(name))
        self.last = found
        return found

    def other_types(self, cluster: Cluster) -> list[str]:
        """What machines hold in other element types than the single machine, in words."""
        scopes, found = scopes_of(cluster), list[str]()
        for name, placed in self.layout.variables.items():
            wanted = plain(self.start[name])
            for part in placed.holders:
                held = scopes[part.machine].get(part.name)
                data = held.value if isinstance(held, SelectedRows) else plain(held)
                if data is not None and wanted is not None and data.dtype != wanted.dtype:
                    found.append(f"%{part.name} on {part.machine} is {data.dtype}, not {wanted.dtype}")
        return found


def train_together(cluster: Cluster, course: Course, held: Held, replay: Replay | None = None, how: str = "") -> Side:
    """The cluster, stopped after every step to look at its variables, and to hold the step to the source (`replay`)."""
    cluster.start()
    if replay is not None:
        replay.begin(held.start)
    counts: list[Mapping[str, list[Any]]] = []
    weights: dict[str, list[list[float]]] = {}
    side = Side([], {}, {}, counts, weights)
    for step in course.each_step(f"the cluster{how}: step"):
        cluster.run_to(step + 1)
        if replay is not None:
            replay.hold(step)
        side.snapshots.append(held(cluster))
        counts.append(
            {name: [own_copy(trainer.scope.get(name)) for trainer in cluster.trainers] for name in course.metrics}
        )
        owner = course.turns.program(step)
        for name in course.watched[owner]:
            label = course.label(owner, name)
            side.fetched.setdefault(label, []).append([t.results[step][name] for t in cluster.trainers])
            fed = [trainer.feed(step) for trainer in cluster.trainers]
            weights.setdefault(label, []).append([f.weight if isinstance(f, Batch) else 1.0 for f in fed])
    return side
