"""The two sides of a check: the single machine and the cluster, with the same initial values and data."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from pstranspile.cluster.checkpoint.api import scopes_of
from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.state import Scopes, values_held, whole_of
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.scenario import Scenario
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, subject_of
from pstranspile.ir.model import EMPTY, STARTUP, Module, Op, Program
from pstranspile.ir.types import VarKind
from pstranspile.proof.compare import Seen, Snapshot, combine_fetched, is_zero, plain
from pstranspile.proof.replay import Replay
from pstranspile.proof.values import feeds_like, inputs_of, make_feeds
from pstranspile.proof.workload import Given, Workload
from pstranspile.runtime.large.forms import whole_in
from pstranspile.runtime.run.batch import Batch
from pstranspile.runtime.run.frame import Execution
from pstranspile.runtime.run.prepared import Prepared, give_back_freed_memory, run
from pstranspile.runtime.run.scope import Scope, own_copy
from pstranspile.runtime.values import NUMPY_TYPES, SelectedRows

# Data for checks without given data: batches, and initial values of counters that the start-up program leaves out.


def rows_of_example(example: Mapping[str, Any]) -> int:
    """The number of rows of an example batch; 0 if it has none."""
    return max((len(value) for value in map(np.asarray, example.values()) if value.ndim), default=0)


def made_feeds(
    workload: Workload, batch: int, seed: int, shares: int, example: Mapping[str, Any] = EMPTY
) -> dict[str, Any]:
    """Makes data for as many runs of each program as the check has. Each program gets data of its own.

    For a program whose inputs all occur in `example`, the data are like the example's.
    """
    result: dict[str, dict[str, Any]] = {}
    for place, (name, program) in enumerate(workload.programs.items()):
        steps, inputs = len(workload.steps_of(name)), [var.name for var in inputs_of(program)]
        if example and example.keys() >= set(inputs):
            given = {one: example[one] for one in inputs}
            result[name] = feeds_like(given, program, steps, batch, seed + place, shares)
        else:
            result[name] = make_feeds(program, steps, batch, seed + place, shares)
    return workload.merge_feeds(result)


def zeros_for_metrics(module: Module, workload: Workload, init: Mapping[str, Any]) -> dict[str, Any]:
    """Zeros for the variables of metrics that have no initial value, by name. Scripts reset such variables
    themselves.
    """
    started = {name for op in module[STARTUP].main_block.ops for name in op.output_names}
    result: dict[str, Any] = {}
    for name in sorted(workload.metrics - started - init.keys()):
        var = workload.whole.main_block.vars.get(name)
        whole = var is not None and var.persistable and var.kind is VarKind.LOD_TENSOR and var.tensor is not None
        if var is not None and var.tensor is not None and whole and min(var.shape, default=0) > 0:
            result[name] = np.zeros(var.shape, NUMPY_TYPES[var.tensor.dtype])
    return result


@contextmanager
def naming_inputs(workload: Workload, *, made: bool) -> Generator[None, None, None]:
    """Adds a note to errors of ops that fail on made data: the inputs on which the op depends, to be given by
    the user.
    """
    try:
        yield
    except DiagnosticError as problem:
        if not made:
            raise
        raise DiagnosticError(_with_inputs(workload, item) for item in problem.diagnostics) from None


def _with_inputs(workload: Workload, problem: Diagnostic) -> Diagnostic:
    for program in workload.programs.values():
        for index, op in enumerate(program.main_block.ops):
            if problem.subject == subject_of(op):
                names = _needed_inputs(program, index, op)
                named = ", ".join(f"%{name}" for name in names[:8]) + (", ..." if len(names) > 8 else "")
                note = Note(f"the data were made and do not suit it; give those of its inputs with --feed: {named}")
                return problem._replace(notes=(*problem.notes, note)) if names else problem
    return problem


def _needed_inputs(program: Program, index: int, op: Op) -> list[str]:
    """The inputs of a program on which an op depends."""
    wanted = set(op.input_names)
    for before in reversed(program.main_block.ops[:index]):
        if not wanted.isdisjoint(before.output_names):
            wanted.update(before.input_names)
    return [var.name for var in inputs_of(program) if var.name in wanted]


class SingleMachine:
    """The single machine, trained step by step.

    `start` is a copy of its persistable variables before the first step. `began` has a copy for each other program,
    from before the first step that runs that program.
    """

    def __init__(self, given: Given):
        self.workload = given.workload
        self.seed = given.seed
        self.scope = Scope()
        run(given.module[STARTUP], scope=self.scope, seed=given.seed)
        for name, value in given.init.items():
            self.scope[name] = value
        self.feeds = given.workload.feeds(given.feeds)
        self.names = [name for name, var in given.workload.whole.main_block.vars.items() if var.persistable]
        self.start = self._copies()
        self.began: dict[str, Snapshot] = {}
        self.prepared: dict[tuple[str, tuple[str, ...]], Prepared] = {}
        """The prepared programs, by program name and names of the inputs."""

    def _copies(self) -> dict[str, Any]:
        return {name: np.zeros(v.shape, v.dtype) if is_zero(v) else own_copy(v) for name, v in self.values().items()}

    def values(self) -> dict[str, Any]:
        """The current arrays of persistable variables by name. They are not copied."""
        held = ((name, whole_in(self.scope.get(name), self.scope)) for name in self.names)
        return {name: value for name, value in held if isinstance(value, np.ndarray)}

    def train(self, step: int, feed: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Trains a step and returns the losses and results that the check compares.

        `step` counts from 0. `feed` replaces the feed of the step.
        """
        owner = self.workload.turns.program(step)
        if step and step == self.workload.first_step(owner):
            self.began[owner] = self._copies()
        feed = self.feeds.step(step) if feed is None else feed
        form = owner, tuple(feed)
        if form not in self.prepared:  # at once: until it is prepared, a program keeps all tensors to the end of a step
            execution = Execution(self.workload.programs[owner], self.scope, seed=self.seed)
            self.prepared[form] = Prepared(execution, tuple(feed), self.workload.fetched_names[owner])
        self.prepared[form].execution.count_from(step)
        return self.prepared[form].step(feed)


def start_cluster(
    given: Given, schedule: int | None = None, *, watch: bool = True, faults: Scenario | None = None
) -> Cluster:
    """Makes the cluster, before its first step. With `watch` it fetches losses and results. `faults` is the scenario of
    faults to run.
    """
    workload = given.workload
    watched = workload.fetched_names if watch else {}
    cluster = cluster_of(
        given.made,
        fetch=[workload.label(owner, name) for owner, names in watched.items() for name in names],
        init=given.init,
        seed=given.seed,
        schedule=schedule,
        programs=workload.given_turns,
        faults=faults,
        shares=workload.shares,
    )
    cluster.feed(given.feeds)
    workload.watch(cluster)
    return cluster


class ClusterValues:
    """The whole values of a cluster's variables, assembled from all machines. For a table by id, the rows that exist on
    servers replace those in `start`.
    """

    def __init__(self, result: Compiled, cluster: Cluster, start: Snapshot):
        self.start = start
        self.cluster = cluster
        layout = layout_of(result)
        known = {name: placed for name, placed in layout.variables.items() if name in start}
        self.layout = replace(layout, variables=known)

    @property
    def scopes(self) -> Scopes:
        """The scopes of all machines."""
        return scopes_of(self.cluster)

    def value(self, name: str) -> Any:
        """The current value of a variable; None if it has none, on the cluster or in `start`. Raises DiagnosticError.

        A value that one machine holds is not copied.
        """
        placed = self.layout.variables.get(name)
        if placed is None:
            return None
        held = values_held(placed, self.scopes)
        if not placed.table:
            return whole_of(placed, held)
        whole = own_copy(self.start[name])
        for part in held.values():
            whole[part.rows] = part.value[: len(part.rows)]
        return whole

    def values(self) -> dict[str, Any]:
        """Copies of the current values of all variables that have one."""
        result = {name: self.value(name) for name in self.layout.variables}
        return {name: own_copy(value) for name, value in result.items() if value is not None}

    def other_types(self) -> list[str]:
        """Describes the variables whose element type on a machine differs from that on the single machine."""
        names: list[str] = []
        for name, placed in self.layout.variables.items():
            wanted = plain(self.start[name])
            for part in placed.holders:
                scope = self.scopes[part.machine]
                held = whole_in(scope.get(part.name), scope)
                data = held.value if isinstance(held, SelectedRows) else plain(held)
                if data is not None and wanted is not None and data.dtype != wanted.dtype:
                    names.append(f"%{part.name} on {part.machine} is {data.dtype}, not {wanted.dtype}")
        return names


def train_both(
    single: SingleMachine, held: ClusterValues, look: Callable[[Seen], object] | None, replay: Replay | None = None
) -> None:
    """Trains the single machine and the cluster of `held` step by step.

    `look` is called with the values of both sides after every step, so that only one step's values exist at a time.
    Without `look` the single machine is not trained. With `replay` each step of the cluster is compared with the
    source.
    """
    cluster, workload = held.cluster, single.workload
    cluster.start()
    if replay is not None:
        replay.begin(single.start)
    for step in workload.steps_of_run("both sides: step" if replay is None else "held to the source: step"):
        fed = [trainer.feed(step) for trainer in cluster.trainers]
        wanted = single.train(step) if look is not None else {}
        give_back_freed_memory()
        cluster.run_to(step + 1)
        give_back_freed_memory()
        if replay is not None:
            replay.hold(step)
        if look is None:
            continue
        owner = workload.turns.program(step)
        fetched: dict[str, tuple[Any, Any]] = {}
        for name in workload.fetched_names[owner]:
            weights = [share.weight if isinstance(share, Batch) else 1.0 for share in fed]
            parts = [trainer.results[step].values[name] for trainer in cluster.trainers]
            fetched[workload.label(owner, name)] = combine_fetched(parts, weights, wanted[name])
        names = workload.metrics | workload.sums
        counts = {name: [trainer.scope.get(name) for trainer in cluster.trainers] for name in names}
        look(Seen(step + 1, fetched, held.value, single.values(), counts))
