"""The two sides of a check: the single machine and the cluster, with the same initial values and data."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.checkpoint.api import scopes_of
from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.state import Scopes, values_held, whole_of
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.scenario import Scenario
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.compiler.compile import Compiled
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, subject_of
from pstranspile.ir.model import STARTUP, Module, Op, Program
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ops import facts_of
from pstranspile.proof.compare import Snapshot, StepValues, combine_fetched, is_zero, plain
from pstranspile.proof.halves import Evaluation
from pstranspile.proof.replay import Replay
from pstranspile.proof.values import feeds_like, inputs_of, make_feeds
from pstranspile.proof.workload import CheckInput, Workload, micro_batches
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


class MadeFeeds(NamedTuple):
    """Data for all programs of a check."""

    feeds: dict[str, Any]
    """In the form of a feed file."""
    one_sided: tuple[str, ...] = ()
    """Sentences about branches on one side of which all shares of these batches lie, each with its line."""


def made_feeds(workload: Workload, batch: int, seed: int, shares: int, module: Module | None = None) -> MadeFeeds:
    """Makes data for as many runs of each program as the check has. Each program gets data of its own.

    For a program whose inputs all occur in the example of `module`, the data are like the example's (`batches_like`).
    """
    result: dict[str, dict[str, Any]] = {}
    one_sided: list[str] = []
    for place, (name, program) in enumerate(workload.programs.items()):
        steps, inputs = len(workload.steps_of(name)), [var.name for var in inputs_of(program)]
        if module is not None and module.example and module.example.keys() >= set(inputs):
            made = batches_like(module, program, steps, batch, seed + place, shares)
            result[name] = {one: made.feeds[one] for one in inputs}
            one_sided += made.one_sided
        else:
            result[name] = make_feeds(program, steps, batch, seed + place, shares)
    return MadeFeeds(workload.merge_feeds(result), tuple(one_sided))


def zeros_for_metrics(module: Module, workload: Workload, init: Mapping[str, Any]) -> dict[str, Any]:
    """Zeros for the variables of metrics that have no initial value, by name. Scripts reset such variables
    themselves.
    """
    started = {name for op in module[STARTUP].main_block.ops for name in op.output_names}
    result: dict[str, Any] = {}
    for name in sorted(workload.metrics - started - init.keys()):
        var = workload.whole_program.main_block.vars.get(name)
        whole = var is not None and var.persistable and var.kind is VarKind.LOD_TENSOR and var.tensor is not None
        if var is not None and var.tensor is not None and whole and min(var.shape, default=0) > 0:
            result[name] = np.zeros(var.shape, NUMPY_TYPES[var.tensor.dtype])
    return result


# Branches: ops that do one thing with a number on one side of another number, and something else on the other side.
# Where the number is computed over the rows of a batch, such as a loss that is kept above a threshold, shares on which
# it lies on the same side train as one machine does, and others don't.

_SCALES = ((1.0, 1.0), (4.0, 4.0), (0.25, 0.25), (10.0, 1.0))
"""By what the numbers of the first row of a share are multiplied in the search for batches on both sides, and by what
those of the other rows.
"""

_DRAWS = 4
"""The shares that are drawn of each number of different rows."""


class _Branches:
    """The branches of a program by numbers that it computes over the rows of a batch, and the ops that these take."""

    def __init__(self, module: Module, program: Program, seed: int):
        self.module, self.program, self.seed = module, program, seed
        block = program.main_block
        fed = {name for name in module.example if name in block.vars}
        of_feed, mixed = set(fed), set[str]()
        self.branching_ops: list[int] = []
        """The numbers of the ops."""
        for index, op in enumerate(block.ops):
            if op.role not in (None, OpRole.FORWARD, OpRole.FORWARD | OpRole.LOSS) or op.type == "shape":
                continue
            read, names = set(op.input_names), [name for name in op.output_names if name]
            if read.isdisjoint(of_feed):
                continue
            of_feed.update(names)
            if not mixed.isdisjoint(read) and facts_of(op.type).branches:
                self.branching_ops.append(index)
            if not mixed.isdisjoint(read) or self._has_rows(read & of_feed):
                mixed.update(name for name in names if not self._has_rows([name]))
        self.deciding_ops = self._branch_ops()
        self.values: dict[str, Any] = {}

    def _has_rows(self, names: Iterable[str]) -> bool:
        held = (self.program.main_block.vars.get(name) for name in names)
        return any(var is not None and var.tensor is not None and -1 in var.tensor.shape for var in held)

    def _branch_ops(self) -> list[int]:
        """The numbers of the ops that compute the branches."""
        ops = self.program.main_block.ops
        wanted, result = set[str](), list[int]()
        for index in reversed(range(max(self.branching_ops, default=-1) + 1)):
            if index in self.branching_ops or not wanted.isdisjoint(ops[index].output_names):
                wanted.update(ops[index].input_names)
                result.append(index)
        return result[::-1]

    def sides(self, feed: Mapping[str, Any]) -> list[Any] | None:
        """The side of each branch on which a batch lies, as an array; None if a number is not finite.

        Raises DiagnosticError.
        """
        if not self.values:
            scope = Scope()
            run(self.module[STARTUP], scope=scope, seed=self.seed)
            kept = [name for name, var in self.program.main_block.vars.items() if var.persistable]
            held = {name: value for name in kept if (value := scope.get(name)) is not None}
            self.values = {**held, **self.module.start}
        ops = self.program.main_block.ops
        names = {name for index in self.branching_ops for name in ops[index].names if name}
        made = Evaluation(self.program, self.values, feed, seed=self.seed).go(self.deciding_ops, keep=names)
        values = {name: array for name in names if (array := plain(made[name])) is not None}
        if not all(np.isfinite(array).all() for array in values.values()):
            return None
        return [_side(ops[index], values) for index in self.branching_ops]

    def crossed(self, batch: Mapping[str, Any], shares: int) -> set[int]:
        """The branches on whose two sides the shares of a batch lie. Raises DiagnosticError."""
        sides = [self.sides(feed) for feed in (batch, *_shares_of(batch, shares))]
        known = [side for side in sides if side is not None]
        if len(known) < len(sides):
            return set()
        return {
            index for at, index in enumerate(self.branching_ops) if not _on_same_sides(*(side[at] for side in known))
        }


def _side(op: Op, values: Mapping[str, Any]) -> Any:
    """The side on which the inputs of a branch lie, as an array."""
    made = [values[name] for name in op.output_names if name in values]
    chosen = [array for array in made if array.dtype.kind in "iub"]
    return chosen[0] if chosen else np.equal(values[op.input("X") or ""], made[0])


def _on_same_sides(whole: Any, *parts: Any) -> bool:
    """Whether the shares of a batch lie on the sides on which their rows lie in the whole batch."""
    if all(part.shape == whole.shape for part in parts):
        return all(np.array_equal(part, whole) for part in parts)
    axis = next((at for at, dim in enumerate(whole.shape) if dim != parts[0].shape[at]), 0)
    rest = {part.shape[:axis] + part.shape[axis + 1 :] for part in (whole, *parts)}
    return len(rest) == 1 and np.array_equal(np.concatenate(parts, axis), whole)


def _shares_of(batch: Mapping[str, Any], shares: int) -> list[dict[str, Any]]:
    """The rows of each share of a batch, in order; what has no rows is that of all."""
    parts = {name: np.array_split(array, shares) if array.ndim else [array] * shares for name, array in batch.items()}
    return [{name: part[share] for name, part in parts.items()} for share in range(shares)]


def batches_like(module: Module, program: Program, steps: int, batch: int, seed: int, shares: int) -> MadeFeeds:
    """Batches like the example of a module (`feeds_like`), with shares on both sides of the branches of its `program`.

    The first batches are made of the rows of all of them, so that shares lie on both sides of a branch that no batch
    shows otherwise. Where no rows are found for it, it is told.
    """
    generated_feeds = feeds_like(module.example, program, steps, batch, seed, shares, micro_batches(program))
    branches = _Branches(module, program, seed)
    if not branches.branching_ops or shares < 2:
        return MadeFeeds(generated_feeds)
    try:
        batches = [{name: arrays[step] for name, arrays in generated_feeds.items()} for step in range(steps)]
        left = set(branches.branching_ops).difference(*(branches.crossed(one, shares) for one in batches))
        for step in range(steps - 1):
            found = _on_both_sides(branches, batches, left, shares, seed + step) if left else None
            if found is None:
                break
            batches[step] = found
            left -= branches.crossed(found, shares)
    except DiagnosticError:  # which the check itself meets, and tells
        return MadeFeeds(generated_feeds)
    feeds: dict[str, Any] = {name: np.stack([one[name] for one in batches]) for name in generated_feeds}
    ops = program.main_block.ops
    told = dict.fromkeys(str(ops[index].location) for index in sorted(left) if ops[index].location is not None)
    return MadeFeeds(feeds, tuple(map(_one_sided, told)))


def _one_sided(place: str) -> str:
    return (
        f"{place}: a number that is computed over the rows lies on the same side of what it is compared with on the "
        "whole batch and on all shares of these batches; on the other side the cluster may train otherwise"
    )


def _on_both_sides(
    branches: _Branches, batches: Sequence[Mapping[str, Any]], left: set[int], shares: int, seed: int
) -> dict[str, Any] | None:
    """A batch of the rows of `batches` with shares on both sides of one of the branches `left`; None if none is found.

    Shares of many different rows are tried first, then of few, and rows of larger and of smaller numbers.
    """
    rows = max(len(array) for array in batches[0].values() if array.ndim)
    lengths = [len(part) for part in np.array_split(np.arange(rows), shares)]
    fixed = {name: array for name, array in batches[0].items() if not array.ndim}
    drawn: list[tuple[dict[str, Any], list[Any]]] = []
    for share in _drawn_shares(batches, lengths[0], seed):
        sides = branches.sides({**share, **fixed})
        if sides is None:
            continue
        for at, (other, others) in enumerate(drawn):
            pairs = [pair for pair in zip(branches.branching_ops, sides, others, strict=True) if pair[0] in left]
            if any(not _on_same_sides(one, two) or (not at and one.size > 1) for _, one, two in pairs):
                parts = [((other, share)[number % 2], length) for number, length in enumerate(lengths)]
                made = {name: np.concatenate([part[name][:length] for part, length in parts]) for name in share}
                if left & branches.crossed({**made, **fixed}, shares):
                    return {**made, **fixed}
        drawn.append((share, sides))
    return None


def _drawn_shares(batches: Sequence[Mapping[str, Any]], size: int, seed: int) -> Iterator[dict[str, Any]]:
    """Iterates over shares of `size` rows of `batches`: of many different rows, then of few, then of larger and of
    smaller numbers.
    """
    random = np.random.Generator(np.random.Philox(key=seed % (1 << 128)))
    pool = {name: np.concatenate([one[name] for one in batches]) for name, array in batches[0].items() if array.ndim}
    whole = {name: array.dtype.kind != "f" or (array == np.floor(array)).all() for name, array in pool.items()}
    rows = max(map(len, pool.values()))
    for scale in _SCALES:
        for number in dict.fromkeys((size, max(size // 3, 1), 1)):
            for _ in range(_DRAWS):
                chosen = np.resize(random.choice(rows, number, replace=False), size)
                factors = np.where(np.arange(size), scale[1], scale[0])
                yield {
                    name: array[chosen] if whole[name] else _scaled_rows(array[chosen], factors)
                    for name, array in pool.items()
                }


def _scaled_rows(array: Any, factors: Any) -> Any:
    """The numbers of rows, each multiplied by its factor; those from 0 to 1, which may be probabilities, stay there."""
    made = (array * factors.reshape(-1, *[1] * (array.ndim - 1))).astype(array.dtype)
    return np.minimum(made, array.max()) if array.size and array.min() >= 0 and array.max() <= 1 else made


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

    def __init__(self, check_input: CheckInput):
        self.workload = check_input.workload
        self.seed = check_input.seed
        self.scope = Scope()
        run(check_input.module[STARTUP], scope=self.scope, seed=check_input.seed)
        for name, value in check_input.init.items():
            self.scope[name] = value
        self.feeds = check_input.workload.feeds(check_input.feeds)
        self.names = [
            name for name, var in check_input.workload.whole_program.main_block.vars.items() if var.persistable
        ]
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
    check_input: CheckInput, schedule: int | None = None, *, watch: bool = True, faults: Scenario | None = None
) -> Cluster:
    """Makes the cluster, before its first step. With `watch` it fetches losses and results. `faults` is the scenario of
    faults to run.
    """
    workload = check_input.workload
    watched = workload.fetched_names if watch else {}
    cluster = cluster_of(
        check_input.compiled,
        fetch=[workload.label(owner, name) for owner, names in watched.items() for name in names],
        init=check_input.init,
        seed=check_input.seed,
        schedule=schedule,
        programs=workload.given_turns,
        faults=faults,
        shares=workload.shares,
    )
    cluster.feed(check_input.feeds)
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
    single: SingleMachine,
    held: ClusterValues,
    look: Callable[[StepValues], object] | None,
    replay: Replay | None = None,
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
        look(StepValues(step + 1, fetched, held.value, single.values(), counts))
