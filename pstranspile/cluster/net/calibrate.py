"""Measures what a machine needs for a step, in seconds: the `Profile` that `plan --cost` reckons with.

Programs of all families of ops, in several sizes, run in this process, each op timed in the step in which it stands;
then small jobs of trainers and servers run as processes, which exchange frames on sockets of this host. What is
measured are seconds of a processor; of several steps, or stretches of them, the median counts, as other programs may
share the host. Every measurement is a sum of known numbers (calls, operations, bytes, messages)
times unknown seconds. The seconds that fit all measurements best, in the least squares of relative errors and none
below 0, are the profile.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import selectors
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import pairwise, product
from operator import mul
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import median
from threading import Thread
from time import perf_counter, sleep, thread_time
from typing import Any, NamedTuple, NoReturn

import numpy as np

from pstranspile.cluster.data.serialized_feeds import read_value, serialize_value
from pstranspile.cluster.net.job import JobFolder, load_job_folder
from pstranspile.cluster.net.loop import tune
from pstranspile.cluster.net.metrics import Mark, Pace, quiet_pace
from pstranspile.cluster.net.process import ProcessPlace, play
from pstranspile.cluster.net.status import STATUS, StatusPipe
from pstranspile.cluster.net.supervisor import LOOK_EVERY, Ports
from pstranspile.cluster.net.terms import Terms
from pstranspile.cluster.net.tls import SEALED, Guard, contexts_without_certificates
from pstranspile.cluster.net.wire import check_sum
from pstranspile.compiler.compile import compile as compile_job
from pstranspile.compiler.cost.jobs import cost
from pstranspile.compiler.cost.profile import LONG_SLEEP, SHORT_SLEEP, TIMED, Link, Profile, Profiles, Rate, Wire
from pstranspile.compiler.cost.seconds import Work, job_seconds, sum_of_ops
from pstranspile.compiler.cost.steps import step_cost
from pstranspile.compiler.folders import files_of
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import Plan
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Adagrad, Adam, Momentum, minimize
from pstranspile.ir.argument_checks import check_arguments
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import FrozenMap, Module, Program
from pstranspile.ops.work import Family
from pstranspile.runtime.arithmetic import arithmetic_name
from pstranspile.runtime.files.outputs import work_folder, write_outputs
from pstranspile.runtime.run.frame import Execution
from pstranspile.runtime.run.prepared import Prepared, keep_freed_memory, run
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.run.source import Source
from pstranspile.runtime.values import LoDTensor


class Effort(NamedTuple):
    """How much is measured: the seconds of a program's runs, by what sizes are divided, a job's steps."""

    seconds: float
    divisor: int
    steps: int


FULL = Effort(0.1, 1, 320)
"""The effort of a profile."""
TINY = Effort(0.0, 16, 6)
"""The effort of a test, whose numbers mean nothing."""


class Trial(NamedTuple):
    """A program with a batch of `rows` rows, whose step is measured."""

    name: str
    module: Module
    feed: Mapping[str, Any]
    rows: int


@check_arguments
def calibrate(*, tell: Callable[[str], object] | None = None) -> Profile:
    """The profile of this host, measured in less than half a minute.

    Matrices are multiplied by as many threads as numpy's library uses in this process: one, if `OMP_NUM_THREADS=1` was
    set before numpy was imported. `tell` is called with a line about what is measured. Raises DiagnosticError if no
    processes can be started.
    """
    return measure(FULL, tell or (lambda line: None))


def measure(effort: Effort, tell: Callable[[str], object]) -> Profile:
    """The profile of this host, measured with some effort."""
    families, ops = _rates(effort, tell)
    tell("measuring how long a process takes to wake")
    wake, wake_long = _wakes(effort)
    jobs = [*_measured_jobs(effort, tell)]
    seconds, wire, factors = _machines(effort, families, ops, wake, jobs)
    with_what = {
        "arithmetic": arithmetic_name(""),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "pstranspile": _version(),
    }
    given = *seconds, wire, families, *factors, ops, wake
    found = Profile(processors(), FrozenMap(with_what), *given, wake_long=wake_long)
    found = found._replace(delay=delay_in(found, jobs))
    return found._replace(sharing=sharing_in(found, jobs))


def _version() -> str:
    import pstranspile

    return pstranspile.__version__


class OtherPrograms:
    """What other programs use of the processors of this host, from here on."""

    def __init__(self) -> None:
        self._used_seconds, self._begin = _used_by_others(), perf_counter()

    @property
    def share(self) -> float:
        """Their share of all processors until now; 0 where the system does not tell."""
        passed = (perf_counter() - self._begin) * (os.cpu_count() or 1)
        return min(max((_used_by_others() - self._used_seconds) / max(passed, 1e-9), 0.0), 1.0)


def _used_by_others() -> float:
    """The seconds for which processors have worked for other processes than this one and those that it has started and
    seen end; 0 where the system does not tell.
    """
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, of_devices, soft, *_ = (int(word) / tick for word in words)
    return user + nice + system + of_devices + soft - sum(os.times()[:4])


def processors() -> int:
    """The number of processors that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


# The rates of ops.


class TimedOps(NamedTuple):
    """Ops of a step that ran as one, which have a kind and a family: their calls, operations and bytes touched, whether
    they are the first ones of that kind, the far bytes (see `OpCost`), and the seconds.
    """

    kind: str
    family: Family
    calls: float
    operations: float
    touched: float
    first: float
    far: float
    seconds: float


def _rates(effort: Effort, tell: Callable[[str], object]) -> tuple[Mapping[Family, Rate], Mapping[str, Rate]]:
    """The rates of families, and of the kinds of ops that were measured in sizes that differ enough."""
    found: list[TimedOps] = []
    for trial in trials(effort.divisor):
        tell(f"measuring {trial.name}")
        found += _timed_ops(trial, effort)
    families: dict[Family, Rate] = {
        family: _rate([each for each in found if each.family == family]) for family in TIMED
    }
    of_kind: dict[str, list[TimedOps]] = {}
    for each in found:
        of_kind.setdefault(each.kind, []).append(each)
    own = {kind: _rate(ops) for kind, ops in of_kind.items() if _differ(ops)}
    return FrozenMap(families), FrozenMap(dict(sorted(own.items())))


def _rate(ops: Sequence[TimedOps]) -> Rate:
    """The rate that fits ops best."""
    return Rate(*nonnegative_least_squares([each[2:7] for each in ops], [each.seconds for each in ops]))


def _differ(ops: Sequence[TimedOps]) -> bool:
    """Whether the sizes of ops of a kind differ enough to tell a rate."""
    sizes = [each.operations + each.touched for each in ops]
    return len(ops) >= LEAST_OPS and max(sizes) >= SPAN * max(min(sizes), 1.0)


LEAST_OPS = 3
"""The fewest ops of a kind that tell its rate."""

SPAN = 16
"""The least ratio of the largest to the smallest of them."""


def _timed_ops(trial: Trial, effort: Effort) -> list[TimedOps]:
    """The ops of a trial's step with their seconds of a processor: the median of all measured steps.

    As in a job, each step has a batch of its own, and finds little of what it reads in the processor's cache: messages
    and other machines have used it since the step before.
    """
    costs = {op.number: op for op in step_cost(trial.module.main, trial.rows, example=trial.feed).ops}
    scope = Scope()
    run(trial.module["startup"], scope=scope)
    prepared = _PreparedTrial(Execution(trial.module.main, scope), tuple(trial.feed), ())
    end = perf_counter() + effort.seconds
    for _ in range(WARM_STEPS):
        prepared.step(trial.feed)
        if perf_counter() > end:
            break
    others = np.zeros(OTHERS // 8)
    found: list[list[float]] = []
    end = perf_counter() + effort.seconds
    while len(found) < LEAST_STEPS or (perf_counter() < end and len(found) < MOST_STEPS):
        batch = {name: _copy_value(value) for name, value in trial.feed.items()}
        others += 1.0
        found.append(prepared.seconds_of_ops(batch))
    seconds = [median(each) for each in zip(*found, strict=True)]
    result: list[TimedOps] = []
    for numbers, spent in zip(prepared.order, seconds, strict=True):
        ops = [costs[number] for number in numbers if number in costs]
        if ops:
            calls, operations = sum(op.runs * op.calls for op in ops), sum(op.operations for op in ops)
            touched, far = sum(op.touched for op in ops), sum(op.far for op in ops)
            numbers_of = calls, operations, touched, max(op.first for op in ops), far
            result.append(TimedOps(ops[0].kind, ops[0].family, *numbers_of, max(spent, 1e-7)))
    return result


class _TimedSource(Source):
    """A function of a program that tells the time after each of its ops, or of those that run as one."""

    def __init__(self, program: Program, feeds: Sequence[str], not_plain: frozenset[str], groups: Any):
        self.order: list[list[int]] = []
        """The numbers of the ops between two times."""
        self.times: list[float] = []
        super().__init__(program, feeds, (), not_plain, groups)

    def _load_from_scope(self) -> None:
        super()._load_from_scope()
        self.names["tell_time"] = lambda: self.times.append(thread_time())
        self._add("tell_time()")

    def _free(self, index: int, touched: Iterable[str]) -> None:
        super()._free(index, touched)
        self._add("tell_time()")
        self.order.append(self.groups[index][0] if index in self.groups else [index])


class _PreparedTrial(Prepared):
    """A prepared program whose ops are timed, each in the step in which it stands."""

    def _compile(self, not_plain: frozenset[str]) -> None:
        keep_freed_memory()
        self._timed = self.source = _TimedSource(self.program, self.feeds, not_plain, self.execution.groups)
        self._step = self._timed.compile_function("<trial>")

    @property
    def order(self) -> Sequence[Sequence[int]]:
        """The numbers of the ops that were timed together."""
        return self._timed.order

    def seconds_of_ops(self, batch: Mapping[str, Any]) -> list[float]:
        """The seconds of the ops of a step, without those that it takes to tell the time."""
        self._timed.times.clear()
        self.step(batch)
        start = thread_time()
        for _ in range(TOLD_TIMES):
            thread_time()
        own = (thread_time() - start) / TOLD_TIMES
        return [last - first - own for first, last in pairwise(self._timed.times)]


WARM_STEPS = 20
"""The steps before those that are measured: small parameters move together after some."""

TOLD_TIMES = 10
"""How often the time is told to find out how long that takes."""

OTHERS = 1 << 22
"""The bytes that are used between two steps of a trial."""

LEAST_STEPS = 5
"""The fewest steps of a trial."""

MOST_STEPS = 60
"""The most steps of a trial."""


def _copy_value(value: Any) -> Any:
    """A copy of a fed value, in other memory."""
    return value._replace(data=value.data.copy()) if isinstance(value, LoDTensor) else value.copy()


def nonnegative_least_squares(
    lines: Sequence[Sequence[float]], values: Sequence[float], scales: Sequence[float] | None = None
) -> list[float]:
    """The numbers x of at least 0 for which the sums `lines @ x` differ least from `values`, relative to `scales`
    (default: the values).

    The active-set method of Lawson and Hanson (1974): unknowns are let in one by one, the one along which the error
    falls most, and those that a solution would make negative are taken out again.
    """
    of: Any = np.asarray(values if scales is None else scales, "float64")
    matrix: Any = np.asarray(lines, "float64") / of[:, None]
    goal: Any = np.asarray(values, "float64") / of
    scale: Any = np.sqrt((matrix**2).sum(axis=0))
    used: Any = scale > 0
    matrix = matrix / np.where(used, scale, 1.0)
    result: Any = np.zeros(matrix.shape[1])
    free: Any = np.zeros(matrix.shape[1], bool)
    for _ in range(3 * matrix.shape[1]):
        gradient: Any = matrix.T @ (goal - matrix @ result)
        gradient[free | ~used] = -np.inf
        if gradient.max() < 1e-9:
            break
        free[int(gradient.argmax())] = True
        while True:
            solved: Any = np.zeros_like(result)
            solved[free] = np.linalg.lstsq(matrix[:, free], goal, rcond=None)[0]
            below: Any = free & (solved <= 0)
            if not below.any():
                break
            share: float = min(1.0, float((result[below] / (result[below] - solved[below] + 1e-300)).min()))
            result = result + share * (solved - result)
            free &= result > 1e-14
            result[~free] = 0.0
        result = solved
    return [float(each) for each in result / np.where(used, scale, 1.0)]


def trials(divisor: int) -> Iterator[Trial]:
    """Programs in which each family of ops has a large part of the time, in sizes that differ."""
    rng = np.random.default_rng(0)

    def of(size: int) -> int:
        return max(2, size // divisor)

    def trial(name: str, model: L.Draft, feed: Mapping[str, Any], rows: int) -> Trial:
        return Trial(name, model.module(), feed, rows)

    def floats(*dims: int) -> Any:
        return rng.normal(size=dims).astype("float32")

    for size in (4, 64, 256, 700):
        size = of(size)
        model = L.Draft(seed=1)
        x, y = L.data(model, "x", [size, 4]), L.data(model, "y", [size, size])
        out = first = L.fc(x, size, act="tanh")
        for _ in range(2):
            out = L.relu(L.elementwise_mul(L.relu(L.elementwise_add(out, y)), y))
            out = L.scale(L.elementwise_sub(L.square(out), first), 0.5)
        minimize(L.mean(L.sigmoid(out)), SGD(0.0))
        yield trial("ops on each element", model, {"x": floats(size, 4), "y": floats(size, size)}, size)
    for size in (4, 64, 256, 700):
        size = of(size)
        model = L.Draft(seed=1)
        out = L.fc(L.data(model, "x", [size, 4]), size)
        sums = [L.reduce_sum(out, dim=0), L.reduce_mean(out, dim=1), L.reduce_sum(out, dim=1, keep_dim=True)]
        largest = L.mean(L.reduce_max(out, dim=1))
        minimize(L.sums([largest, *(L.mean(each) for each in (*sums, out))]), SGD(0.0))
        yield trial("sums", model, {"x": floats(size, 4)}, size)
    for rows, wide in ((2, 4), (16, 16), (256, 32), (1024, 64)):
        rows, wide = of(rows), of(wide)
        model = L.Draft(seed=1)
        x = L.data(model, "x", [-1, 8, wide])
        out = L.fc(x, wide, num_flatten_dims=2)
        sums = [L.reduce_sum(out, dim=1), L.reduce_sum(out, dim=2), L.reduce_sum(L.elementwise_mul(out, x), dim=[1, 2])]
        minimize(L.mean(L.sums([L.mean(each) for each in (*sums, L.reduce_mean(out, dim=1))])), SGD(0.0))
        yield trial("sums within rows", model, {"x": floats(rows, 8, wide)}, rows)
    for rows, wide in ((2, 4), (32, 32), (256, 128)):
        rows, wide = of(rows), of(wide)
        model = L.Draft(seed=1)
        x = L.data(model, "x", [-1, wide])
        out = L.fc(x, wide)
        functions = (
            L.softsign,
            L.leaky_relu,
            L.exp,
            L.softplus,
            L.gelu,
            L.swish,
            L.relu6,
            L.logsigmoid,
            L.hard_sigmoid,
        )
        found = [function(out) for function in functions]
        found += [function(out, x) for function in (L.elementwise_max, L.elementwise_min, L.elementwise_div)]
        found += [L.clip(out, -1.0, 1.0), L.sqrt(L.square(x)), L.l2_normalize(out, 1), L.cumsum(out)]
        ones = L.fill_constant_batch_size_like(x, [-1, 1], "float32", 1.0)
        narrow = [L.cos_sim(out, x), L.huber_loss(L.reduce_sum(out, dim=1, keep_dim=True), ones, 1.0)]
        minimize(L.mean(L.sums([L.mean(each) for each in (*found, *narrow)])), SGD(0.0))
        yield trial("functions and pairs", model, {"x": floats(rows, wide)}, rows)
    for size in (4, 64, 256, 700):
        size = of(size)
        model = L.Draft(seed=1)
        out = L.fc(L.data(model, "x", [size, 4]), size)
        for _ in range(2):
            joined = L.concat([L.transpose(out, [1, 0]), out], axis=1)
            out = L.split(L.reshape(joined, [2 * size, size]), 2, dim=0)[0]
        minimize(L.mean(out), SGD(0.0))
        yield trial("moved numbers", model, {"x": floats(size, 4)}, size)
    for rows, wide in ((2, 4), (8, 32), (16, 128)):
        rows, wide = of(rows), of(wide)
        model = L.Draft(seed=1)
        out = L.data(model, "x", [-1, 8, wide])
        for _ in range(2):
            query, key, value = (L.fc(out, wide, num_flatten_dims=2) for _ in range(3))
            weights = L.dropout(L.softmax(L.matmul(query, key, transpose_y=True, alpha=0.5)), 0.1)
            heads = L.transpose(L.reshape(L.matmul(weights, value), [0, 8, 2, wide // 2]), [0, 2, 1, 3])
            out = L.layer_norm(L.elementwise_add(out, L.reshape(heads, [0, 8, wide])), begin_norm_axis=2)
        minimize(L.mean(out), SGD(0.0))
        yield trial("attention", model, {"x": floats(rows, 8, wide)}, rows)
    for size in (4, 24, 120, 400):
        size = of(size)
        model = L.Draft(seed=1)
        out = L.fc(L.data(model, "x", [size, 4]), size)
        for _ in range(2):
            out = L.dropout(out, 0.1)
        minimize(L.mean(out), SGD(0.0))
        yield trial("random numbers", model, {"x": floats(size, 4)}, size)
    for rows, wide in ((4, 4), (64, 16), (256, 64), (256, 512)):
        rows, wide = of(rows), of(wide)
        model = L.Draft(seed=1)
        x, label = L.data(model, "x", [-1, wide]), L.data(model, "label", [-1, 1], dtype="int64")
        hidden = L.fc(x, wide)
        losses = [L.cross_entropy(L.softmax(hidden), label), L.softmax_with_cross_entropy(hidden, label)]
        wholes = [L.sigmoid_cross_entropy_with_logits(hidden, x), L.layer_norm(hidden, scale=False, shift=False)]
        minimize(L.mean(L.sums([*map(L.mean, losses), *map(L.mean, wholes)])), SGD(0.0))
        L.accuracy(hidden, label)
        drawn = {"x": floats(rows, wide), "label": rng.integers(0, wide, (rows, 1))}
        yield trial("ops of several passes", model, drawn, rows)
    for rows, inner, wide in ((2, 4, 4), (64, 64, 64), (32, 784, 128), (256, 256, 256), (512, 512, 512)):
        rows, inner, wide = of(rows), of(inner), of(wide)
        model = L.Draft(seed=1)
        x, y = L.data(model, "x", [rows, inner]), L.data(model, "y", [inner, wide])
        for _ in range(4):
            L.matmul(x, y)
        yield trial("products", model, {"x": floats(rows, inner), "y": floats(inner, wide)}, rows)
    for rows, wide in ((8, 8), (32, 32), (64, 128), (256, 256), (12, 800), (24, 1200)):
        rows, wide = of(rows), of(wide)
        model = L.Draft(seed=1)
        hidden = L.data(model, "x", [-1, wide])
        for act in ("relu", "tanh", "sigmoid") * 2:
            hidden = L.fc(hidden, wide, act=act)
        minimize(L.mean(hidden), SGD(0.0))
        yield trial("layers", model, {"x": floats(rows, wide)}, rows)
    for rows, size, channels, filters, window in (
        (2, 8, 2, 2, 3),
        (8, 16, 8, 8, 3),
        (16, 24, 3, 12, 5),
        (24, 14, 12, 24, 3),
        (16, 28, 8, 8, 3),
        (8, 32, 16, 32, 5),
    ):
        rows, size = of(rows), max(8, size // divisor)
        model = L.Draft(seed=1)
        image = L.data(model, "x", [-1, channels, size, size])
        hidden = L.conv2d(L.conv2d(image, filters, window, act="relu"), filters, 3, padding=1)
        minimize(L.mean(hidden), SGD(0.0))
        yield trial("convolutions", model, {"x": floats(rows, channels, size, size)}, rows)
    for rows, size, channels, window in ((2, 8, 2, 2), (8, 16, 8, 2), (16, 24, 8, 3), (32, 32, 8, 2), (32, 16, 32, 3)):
        rows, size = of(rows), max(8, size // divisor)
        model = L.Draft(seed=1)
        image = L.conv2d(L.data(model, "x", [-1, 1, size, size]), channels, 1)
        pooled = [L.pool2d(image, window, pool_type=kind, pool_stride=2) for kind in ("max", "max", "avg")]
        minimize(L.mean(L.sums(pooled)), SGD(0.0))
        yield trial("pools", model, {"x": floats(rows, 1, size, size)}, rows)
    for tokens, width, unit in (
        (8, 8, "lstm"),
        (64, 16, "gru"),
        (200, 32, "lstm"),
        (240, 24, "gru"),
        (400, 64, "lstm"),
    ):
        tokens, width = of(tokens), of(width)
        model = L.Draft(seed=1)
        x = L.data(model, "x", [-1, (4 if unit == "lstm" else 3) * width], lod_level=1)
        hidden = L.dynamic_lstm(x, 4 * width)[0] if unit == "lstm" else L.dynamic_gru(x, width)
        pooled = [L.sequence_pool(hidden, kind) for kind in ("average", "sum", "max", "last")]
        minimize(L.mean(L.sums(pooled)), SGD(0.0))
        offsets = [tokens * at // 4 for at in range(5)] if tokens >= 4 else [0, tokens]
        yield trial("sequences", model, {"x": LoDTensor(floats(tokens, x.shape[1]), [offsets])}, tokens)
    for tokens, width in ((8, 4), (100, 12), (300, 24)):
        tokens, width = of(tokens), of(width)
        model = L.Draft(seed=1)
        x = L.data(model, "x", [-1, width], lod_level=1)
        label = L.data(model, "label", [-1, 1], dtype="int64", lod_level=1)
        scores = L.fc(x, width)
        minimize(L.mean(L.linear_chain_crf(scores, label, param_attr="weights")), SGD(0.0))
        L.crf_decoding(scores, "weights")
        offsets = [tokens * at // 4 for at in range(5)] if tokens >= 4 else [0, tokens]
        drawn = {"x": floats(tokens, width), "label": rng.integers(0, width, (tokens, 1))}
        yield trial("sequences of labels", model, {n: LoDTensor(v, [offsets]) for n, v in drawn.items()}, tokens)
    sizes = (16, 4), (256, 16), (2048, 64)
    optimizers = SGD(0.0), Momentum(0.0, 0.9), Adagrad(0.0), Adam(0.0), Adam(0.0, lazy_mode=True)
    for (rows, width), optimizer in product(sizes, optimizers):
        rows = of(rows)
        model = L.Draft(seed=1)
        ids = [L.data(model, f"x{number}", [-1, 1], dtype="int64") for number in range(4)]
        looked = [L.embedding(each, (20000 // divisor, width), is_sparse=True) for each in ids]
        minimize(L.mean(L.sums(looked)), optimizer)
        feed = {each.name: rng.integers(0, 20000 // divisor, (rows, 1)) for each in ids}
        yield trial("lookups and updates of rows", model, feed, rows)
    for rows, width in ((16, 4), (256, 16), (2048, 64)):
        rows = of(rows)
        model = L.Draft(seed=1)
        ids = L.data(model, "x", [-1, 1], dtype="int64")
        for _ in range(6):
            L.embedding(ids, (20000 // divisor, width))
        yield trial("lookups", model, {"x": rng.integers(0, 20000 // divisor, (rows, 1))}, rows)
    for (count, wide), optimizer in product(((8, 4), (4, 128), (4, 512)), optimizers[:-1]):
        wide = of(wide)
        model = L.Draft(seed=1)
        x = L.data(model, "x", [2, wide])
        minimize(L.mean(L.sums([L.fc(x, wide, bias_attr=False) for _ in range(count)])), optimizer)
        yield trial("updates", model, {"x": floats(2, wide)}, 2)


# Machines and messages.


def _wakes(effort: Effort) -> tuple[float, float]:
    """The seconds of a processor that a process needs besides for a step before which it has slept for a short time,
    as long as a server works for a trainer, or for a long one.
    """
    rows, wide = 32, 64
    model = L.Draft(seed=1)
    hidden = L.data(model, "x", [-1, wide])
    for _ in range(4):
        hidden = L.fc(hidden, wide, act="relu")
    minimize(L.mean(hidden), SGD(0.0))
    module, scope = model.module(), Scope()
    run(module["startup"], scope=scope)
    prepared = Prepared(Execution(module.main, scope), ("x",), ())
    feed = {"x": np.ones((rows, wide), "float32")}
    for _ in range(WARM_STEPS):
        prepared.step(feed)
    sleeps = 0.0, SHORT_SLEEP, LONG_SLEEP
    spent: list[list[float]] = [[] for _ in sleeps]
    end = perf_counter() + 8 * effort.seconds
    while len(spent[-1]) < LEAST_STEPS or perf_counter() < end:
        for seconds, held in zip(sleeps, spent, strict=True):
            start = thread_time()
            if seconds:
                sleep(seconds)
            prepared.step(feed)
            held.append(thread_time() - start)
    awake, short, long = map(median, spent)
    return max(short - awake, 0.0), max(long - awake, 0.0)


class MeasuredJob(NamedTuple):
    """A job that was measured: its machines of each kind, its plan, what they do and exchange in a step, and their
    pace.
    """

    trainers: int
    servers: int
    plan: Plan
    work: Work
    pace: Pace


def _machines(
    effort: Effort, families: Mapping[Family, Rate], ops: Mapping[str, Rate], wake: float, jobs: Iterable[MeasuredJob]
) -> tuple[tuple[float, float, float, float], Wire, tuple[float, float]]:
    """Fits what the steps of small jobs take beside their ops.

    Returns the seconds of a step, of an update, of a requested row and of a looked-up row; the wire; and the factors of
    ops, and of all else, where twice as many machines run as the host has processors.
    """
    lines: list[list[float]] = []
    times: list[float] = []
    of_ops: list[float] = []
    extra: list[float] = []
    waking: list[float] = []
    for job in jobs:
        trained, *served = (sum_of_ops(step, families, ops) for step in job.work.steps)
        told = [[flow.messages, flow.messages_of_rows, flow.frames, flow.bytes] for flow in job.work.flows]
        asked = sum(flow.looked_up for flow in job.work.flows)
        rows = [("trainer_0", [1.0, 0.0, asked, 0.0, *map(sum, zip(*told, strict=True))], trained)]
        for number, flow in enumerate(job.work.flows):
            numbers = [job.trainers * each for each in (flow.looked_up, *told[number])]
            rows.append((f"pserver_{number}", [0.0, 1.0, 0.0, *numbers], served[number]))
        for role, line, own in rows:
            lines.append(line)
            waking.append(wake * job.pace.sleeps[role])
            times.append(max(job.pace.processor[role], 1e-6))
            of_ops.append(own)
            extra.append(max(0.0, (job.trainers + job.servers) / processors() - 1.0))
    found, factors = fit_machines(lines, times, of_ops, waking, extra)
    step, update, ask, lookup, message, of_rows, frame, byte = found
    wire = Wire(message, of_rows, frame, byte, *_link(effort), *_tls(effort))
    return (step, update, ask, lookup), wire, factors


def _simulated_step(profile: Profile, job: MeasuredJob) -> float:
    """The seconds of a step of a job on this host, as they are predicted."""
    link = Link(profile.wire.bytes_per_second, profile.wire.latency)
    return job_seconds(job.plan, job.work, 1, Profiles(profile, profile), link, processors()).step


def delay_in(profile: Profile, jobs: Iterable[MeasuredJob]) -> float:
    """The seconds until a machine is scheduled for which a frame has come, for which steps are longer than they are
    predicted without; of jobs that have a processor for each machine, the median.
    """
    found: list[float] = []
    for job in jobs:
        if job.trainers + job.servers <= processors():
            waits = sum(max(flow.exchanges[place].frames for flow in job.work.flows) for place in range(3))
            found.append((job.pace.step - _simulated_step(profile, job)) / (2 * max(waits, 1.0)))
    return max(median(found), 0.0) if found else 0.0


def sharing_in(profile: Profile, jobs: Iterable[MeasuredJob]) -> float:
    """How many times longer turns take that share processors than they are predicted; of jobs with more machines than
    processors, the median of the numbers with which a step is predicted to be as long as it is. Jobs whose turns hardly
    share processors tell nothing.
    """
    found: list[float] = []
    for job in jobs:
        if job.trainers + job.servers > processors():
            low, high = 1.0, MOST_SHARING
            least, most = (_simulated_step(profile._replace(sharing=each), job) for each in (low, high))
            if most < TELLING * least:
                continue
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                longer = _simulated_step(profile._replace(sharing=middle), job) > job.pace.step
                low, high = (low, middle) if longer else (middle, high)
            found.append(low)
    return median(found) if found else 1.0


MOST_SHARING = 4.0
"""The most times that turns take longer."""

TELLING = 1.5
"""How many times longer a step is with so much longer turns, at least, in a job that tells how long they are."""

HALVINGS = 8
"""How often the numbers between 1 and this are halved."""


def fit_machines(
    lines: Sequence[Sequence[float]],
    times: Sequence[float],
    ops: Sequence[float],
    waking: Sequence[float],
    extra: Sequence[float],
) -> tuple[list[float], tuple[float, float]]:
    """The seconds that fit best what machines took beside their ops and beside waking, and how many times slower ops,
    and all else, are where there are twice as many machines as processors; `extra` says by how much there are more, 1
    for twice as many.

    The seconds are fitted with the factors as far as they are known, then these with the seconds, and so on. Errors
    count relative to all that a machine took.
    """
    factors = 1.0, 1.0
    found: list[float] = []
    together = [number for number, more in enumerate(extra) if more]
    for _ in range(ROUNDS):
        of_ops, other = ([1.0 + more * (factor - 1.0) for more in extra] for factor in factors)
        each_left = zip(times, ops, of_ops, waking, other, strict=True)
        left = [time - own * slower - slept * beside for time, own, slower, slept, beside in each_left]
        scaled = [[slower * each for each in line] for line, slower in zip(lines, other, strict=True)]
        found = nonnegative_least_squares(scaled, left, times)
        if not together:
            break
        sums = [sum(map(mul, line, found)) + slept for line, slept in zip(lines, waking, strict=True)]
        slower = [[extra[n] * ops[n], extra[n] * sums[n]] for n in together]
        beside = [times[n] - ops[n] - sums[n] for n in together]
        more = nonnegative_least_squares(slower, beside, [times[n] for n in together])
        factors = 1.0 + more[0], 1.0 + more[1]
    return found, factors


ROUNDS = 12
"""How often the seconds and the factors of crowded hosts are fitted in turn."""


# Each machine of these jobs is forked from a process of its own that has imported all it needs. So none waits for that,
# and none shares memory with another, which would leave more room in the caches than launched machines have.


def _measured_jobs(effort: Effort, tell: Callable[[str], object]) -> Iterator[MeasuredJob]:
    """Yields the jobs of calibration, measured. Raises DiagnosticError."""
    jobs = [*_jobs(effort.divisor)]
    with (
        work_folder(Path(tempfile.gettempdir()), "pstranspile-calibrate-", mode=0o700) as work,
        closing(_MachineHosts(max(trainers + servers for _, trainers, servers, *_ in jobs))) as hosts,
    ):
        for number, (name, trainers, servers, module, loss, feed, rows) in enumerate(jobs):
            job = Job(pservers=servers, trainers=trainers, batch_rows=rows // trainers, min_block_size=MIN_BLOCK_SIZE)
            compiled = compile_job(module, job)
            calculated = cost(compiled).work
            assert calculated is not None
            folder = work / "compiled" / str(number)
            write_outputs(folder, dict(files_of(compiled, "ir")))
            fed = work / f"{number}.fed"
            fed.write_bytes(serialize_value([feed] * effort.steps))
            tell(f"measuring {name}, as processes")
            marks = hosts.play(folder, {"fetch": [loss], "feed": str(fed), "steps": effort.steps})
            yield MeasuredJob(trainers, servers, compiled.plan, calculated, quiet_pace(marks))


class _MachineHosts:
    """Processes from which the machines of jobs are forked: the first machine of each job from the first of them."""

    def __init__(self, count: int):
        package = str(Path(__file__).parents[3])  # found last, so that nothing beside it has the name of a library
        begin = (
            f"import sys; sys.path.append({package!r}); from {__name__} import {fork_machines.__name__} as work; work()"
        )
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment = {**os.environ, **threads, "PYTHONSAFEPATH": "1"}
        environment.pop(STATUS, None)
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", begin],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,
                text=True,
            )
            for _ in range(count)
        ]

    def play(self, folder: Path, options: Mapping[str, Any]) -> dict[str, list[Mark]]:
        """The steps that the machines of a job report, by role. `options` say what they fetch, feed and how many steps
        they do. Raises DiagnosticError if a machine ends before.
        """
        roles = load_job_folder(str(folder)).roles
        names = sorted(roles, key=lambda name: (not name.startswith("pserver"), len(name), name))
        ports = Ports(len(names))
        addresses = dict(zip(names, ports.addresses, strict=True))
        marks: dict[str, list[Mark]] = {}
        try:
            with selectors.DefaultSelector() as selector:
                for role, process in zip(names, self._processes, strict=False):
                    assert process.stdin is not None
                    assert process.stdout is not None
                    asked = {"folder": str(folder), "role": role, "addresses": addresses, **options}
                    process.stdin.write(json.dumps(asked) + "\n")
                    process.stdin.flush()
                    selector.register(process.stdout, selectors.EVENT_READ, role)
                while len(marks) < len(names):
                    for key, _ in selector.select():
                        told = key.fileobj.readline()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
                        if not told:
                            raise BrokenPipeError
                        marks[key.data] = [Mark(*each) for each in json.loads(told)]  # pyright: ignore[reportUnknownArgumentType]
        except BrokenPipeError:
            raise DiagnosticError([error("launch-ended", "the machines of a job could not be measured")]) from None
        finally:
            ports.close()
        return {role: marks[role] for role in names}

    def close(self) -> None:
        """Ends the processes, and the machines that they have forked."""
        for process in self._processes:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _jobs(divisor: int) -> Iterator[tuple[str, int, int, Module, str, dict[str, Any], int]]:
    """Models whose jobs differ in messages, bytes, lookups and machines: name, number of trainers and of servers,
    module, its loss, a batch, its rows.
    """
    for name, trainers, servers, count, wide in (
        ("one parameter", 1, 1, 1, 8),
        ("many parameters", 1, 1, 24, 8),
        ("some parameters", 1, 1, 8, 120),
        ("a large parameter", 1, 1, 1, 700),
        ("one parameter of two trainers", 2, 1, 1, 8),
        ("some parameters of two trainers", 2, 1, 6, 60),
        ("few parameters on two servers", 1, 2, 2, 8),
        ("some parameters on two servers", 1, 2, 8, 120),
        ("few parameters of two trainers on two servers", 2, 2, 2, 8),
        ("many parameters of two trainers on two servers", 2, 2, 24, 8),
    ):
        wide = max(4, wide // divisor)
        model = L.Draft(seed=1)
        x = L.data(model, "x", [-1, wide])
        loss = L.mean(L.sums([L.fc(x, wide, bias_attr=False) for _ in range(count)]))
        minimize(loss, SGD(0.0))
        rows = 4 * trainers
        yield name, trainers, servers, model.module(), loss.name, {"x": np.ones((rows, wide), "float32")}, rows
    for name, machines, tables, rows in (
        ("lookups of rows", 1, 1, 2048),
        ("lookups in some tables", 1, 3, 700),
        ("lookups in many tables", 1, 8, 256),
        ("lookups in many tables on two servers", 2, 8, 512),
    ):
        rows, high = max(4, rows // divisor), 20000 // divisor
        model = L.Draft(seed=1)
        ids = [L.data(model, f"x{number}", [-1, 1], dtype="int64") for number in range(tables)]
        loss = L.mean(L.sums([L.embedding(each, (high, 16), is_sparse=True) for each in ids]))
        minimize(loss, SGD(0.0))
        drawn = np.random.default_rng(0).integers(0, high, (rows, 1))
        yield name, machines, machines, model.module(), loss.name, {each.name: drawn for each in ids}, rows
    model = L.Draft(seed=1)
    size = max(4, 160 // divisor)
    out = x = L.data(model, "x", [-1, size])
    for _ in range(12):
        out = L.elementwise_mul(L.relu(L.elementwise_add(out, x)), x)
    loss = L.mean(L.fc(L.softmax(out), size, bias_attr=False))
    minimize(loss, SGD(0.0))
    feed = {"x": np.ones((2 * size, size), "float32")}
    yield "ops on two trainers", 2, 2, model.module(), loss.name, feed, 2 * size


MIN_BLOCK_SIZE = 1 << 13
"""The least elements of a slice of these jobs' parameters."""


def fork_machines() -> None:
    """Plays the machines that are asked for on stdin, one after the other, each in a forked process, and writes on
    stdout what each has reported. The process that calibrates starts processes with this.
    """
    for line in sys.stdin:
        print(json.dumps(_fork_machine(**json.loads(line))), flush=True)


def _fork_machine(
    folder: str, role: str, addresses: Mapping[str, str], fetch: Sequence[str], feed: str, steps: int
) -> list[list[float]]:
    """The steps that a machine of a job reports, as the fields of `Mark`."""
    gc.collect()
    gc.freeze()
    reading, writing = os.pipe()
    if not os.fork():
        _play(load_job_folder(folder), role, addresses, fetch, feed, steps, writing)
    os.close(writing)
    told = b""
    with open(reading, "rb", buffering=0) as pipe:
        while data := pipe.read(1 << 16):
            told += data
            sleep(LOOK_EVERY)  # as the machines of a launched job are looked after
    _, status = os.wait()
    if status:
        raise SystemExit(1)
    entries = map(json.loads, told.splitlines())
    return [[e["step"], e["cpu"], e["clock"], e["sleeps"]] for e in entries if "step" in e]


def _play(
    folder: JobFolder,
    role: str,
    addresses: Mapping[str, str],
    fetch: Sequence[str],
    feed: str,
    steps: int,
    writing: int,
) -> NoReturn:
    """Plays a machine in a forked process, which then ends."""
    status = 1
    try:
        gc.unfreeze()
        os.environ[STATUS] = str(writing)
        cluster = folder.cluster(fetch=fetch)
        if role.startswith("trainer"):
            cluster.feed(read_value(feed))
        play(cluster, role, Terms(folder.hash), ProcessPlace(addresses), steps, _SleepReports())
        status = 0
    except BaseException:  # the process must not go on as the one from which it was forked
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class _SleepReports(StatusPipe):
    """Reports with the number of times that the process has slept."""

    def __call__(self, **fields: Any) -> None:
        """Sends a report."""
        super().__call__(**fields, sleeps=getrusage(RUSAGE_SELF).ru_nvcsw)


def _link(effort: Effort) -> tuple[float, float]:
    """The latency of a socket on this host, and the bytes per second that it carries."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    size = (1 << 26) // (effort.divisor * effort.divisor)
    rounds = 100 if effort.seconds else 2
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def answer() -> None:
        for _ in range(rounds):
            far.sendall(far.recv(1))
        room = bytearray(1 << 18)
        for _ in range(3):
            left = size
            while left:
                left -= far.recv_into(room, min(left, len(room)))
            far.sendall(b"x")

    other = Thread(target=answer, daemon=True)
    other.start()
    with closing(near), closing(far):
        trips: list[float] = []
        for _ in range(rounds):
            start = perf_counter()
            near.sendall(b"x")
            near.recv(1)
            trips.append(perf_counter() - start)
        data, rates = bytes(size), list[float]()
        for _ in range(3):
            start = perf_counter()
            near.sendall(data)
            near.recv(1)
            rates.append(size / (perf_counter() - start))
        other.join(10.0)
    return median(trips) / 2, max(rates)


def _tls(effort: Effort) -> tuple[float, float]:
    """The seconds of a processor that a frame and a byte take besides under TLS, at either end; zeros if OpenSSL has no
    ciphers that need no certificates, which are encrypted as with them.

    Frames of several sizes go from one end of a socket to the other, plainly with their check sums, and through TLS.
    """
    try:
        with work_folder(Path(tempfile.gettempdir()), "pstranspile-calibrate-", mode=0o700) as work:
            listening, calling = contexts_without_certificates(work)
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            near = socket.create_connection(server.getsockname())
            far, _ = server.accept()
        with closing(near), closing(far):
            for each in (near, far):
                tune(each)
            ends = Guard(near, calling, False, "localhost"), Guard(far, listening, True, "")
            shaking = [*ends]
            while shaking:
                with suppress(BlockingIOError):
                    shaking[0].shake_hands()
                    shaking.pop(0)
                    continue
                shaking.append(shaking.pop(0))
            return _seconds_under_tls(effort, near, far, *ends)
    except ssl.SSLError:
        return 0.0, 0.0


def _seconds_under_tls(effort: Effort, near: Any, far: Any, one: Guard, other: Guard) -> tuple[float, float]:
    """The seconds that a frame and a byte take besides on the guarded connection of two sockets."""

    def plain(out: deque[memoryview], most: int) -> None:
        if out:
            out[0] = out[0][near.send(out[0][:SEALED]) :]
            if not out[0]:
                out.popleft()

    lines: list[list[float]] = []
    more: list[float] = []
    for size in FRAME_SIZES:
        size //= effort.divisor
        data, room = bytes(size), memoryview(bytearray(size))
        spent: tuple[list[float], list[float]] = [], []
        for _ in range(9 if effort.seconds else 2):
            for seconds, write, read in zip(spent, (plain, one.write), (far.recv_into, other.read), strict=True):
                start, out, at = thread_time(), deque([memoryview(data)]), 0
                if seconds is spent[0]:
                    check_sum(data)
                while at < size:
                    with suppress(BlockingIOError):
                        write(out, SEALED)
                    with suppress(BlockingIOError, ssl.SSLWantReadError):
                        at += read(room[at:])
                if seconds is spent[0]:
                    check_sum(room)
                seconds.append(thread_time() - start)
        lines.append([2.0, 2.0 * size])
        more.append(max(median(spent[1]) - median(spent[0]), 1e-9))
    frame, byte = nonnegative_least_squares(lines, more)
    return frame, byte


FRAME_SIZES = (1 << 8, 1 << 12, 1 << 15, 1 << 18, 1 << 21)
"""The bytes of these frames."""
