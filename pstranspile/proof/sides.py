"""The two sides of a check: the single machine, and the cluster, from the same start on the same data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pstranspile.checkpoint.api import scopes_of
from pstranspile.checkpoint.layout import layout_of
from pstranspile.checkpoint.state import gather
from pstranspile.compile import Compiled
from pstranspile.ir.model import STARTUP, Module
from pstranspile.lazy import lazy_import
from pstranspile.ops.arithmetic import fluid_arithmetic, rounds_as_fluid
from pstranspile.proof.compare import Side, Snapshot, plain
from pstranspile.proof.course import Course
from pstranspile.proof.replay import Replay
from pstranspile.run.api import run
from pstranspile.run.batch import reordered, rows_of
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.feeding import divided
from pstranspile.run.cluster.scenario import Scenario
from pstranspile.run.cluster.simulate import cluster_of
from pstranspile.run.scope import Scope, own_copy

np = lazy_import("numpy")


def train_alone(
    module: Module,
    course: Course,
    feeds: Mapping[str, Any],
    init: Mapping[str, Any],
    seed: int,
    order: Callable[[int], Any] | None = None,
    what: str = "the single machine: step",
) -> Side:
    """The single machine. `order` gives another order for the rows of a batch, from how many there are; `what` says
    what it is trained for.
    """
    scope = Scope()
    run(module[STARTUP], scope=scope, seed=seed)
    for name, value in init.items():
        scope[name] = value
    given = course.feeds(feeds)
    names = [name for name, var in course.whole.main_block.vars.items() if var.persistable]

    def held() -> Snapshot:
        return {name: own_copy(scope[name]) for name in names if isinstance(scope.get(name), np.ndarray)}

    side = Side([], {}, held(), {})
    for step in course.each_step(what):
        owner = course.turns.program(step)
        watched, terms = course.watched[owner], course.terms[owner]
        fetch = dict.fromkeys((*watched, *terms))
        program, feed = course.programs[owner], given.step(step)
        if order is not None:
            feed = reordered(feed, [name for name in feed if divided(program, name) and rows_of(feed[name])], order)
        out = run(program, feed=feed, fetch=tuple(fetch), scope=scope, seed=seed, step=step)
        side.snapshots.append(held())
        numbers = [found for name in terms if (found := plain(out[name])) is not None]
        size = max((float(np.abs(found).max(initial=0.0)) for found in numbers), default=0.0)
        for name in watched:
            label = course.label(owner, name)
            side.fetched.setdefault(label, []).append([out[name]])
            side.sizes.setdefault(label, []).append(size)
    return side


def train_rounded_otherwise(
    module: Module, course: Course, feeds: Mapping[str, Any], init: Mapping[str, Any], seed: int, way: int
) -> Side:
    """The single machine, with what changes nothing but rounding: the rows of every batch backwards (way 0), Fluid's
    arithmetic in place of numpy's or the other way round (1), or the rows moved on by 1, 2, ... (2, 3, ...).
    """
    what = f"the single machine, rounded in another way ({way + 1}): step"
    if way == 1:
        with fluid_arithmetic(not rounds_as_fluid()):
            return train_alone(module, course, feeds, init, seed, what=what)
    return train_alone(module, course, feeds, init, seed, lambda size: _order(size, max(way - 1, 0)), what)


def start_cluster(
    result: Compiled,
    course: Course,
    feeds: Mapping[str, Any],
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
        result, fetch=fetch, init=init, seed=seed, schedule=schedule, programs=course.given_turns, faults=faults
    )
    cluster.feed(course.joined(course.by_program(feeds)))
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


def train_together(cluster: Cluster, course: Course, held: Held, replay: Replay) -> Side:
    """The cluster, stopped after every step to look at its variables, and to hold the step to the source."""
    cluster.start()
    replay.begin(held.start)
    counts: list[Mapping[str, list[Any]]] = []
    side = Side([], {}, {}, {}, counts)
    for step in course.each_step("the cluster: step"):
        cluster.run_to(step + 1)
        replay.hold(step)
        side.snapshots.append(held(cluster))
        counts.append(
            {name: [own_copy(trainer.scope.get(name)) for trainer in cluster.trainers] for name in course.metrics}
        )
        owner = course.turns.program(step)
        for name in course.watched[owner]:
            shares = [trainer.results[step][name] for trainer in cluster.trainers]
            side.fetched.setdefault(course.label(owner, name), []).append(shares)
    return side


def _order(size: int, way: int) -> Any:
    """An order of so many rows."""
    return np.arange(size)[::-1] if way == 0 else np.roll(np.arange(size), way)
