"""Measures what a machine needs for a step, in seconds: the `Profile` that `plan --cost` reckons with.

Programs of all families of ops, in several sizes, run in this process; then small jobs of trainers and servers run as
processes, which exchange frames on sockets of this host. What is measured are seconds of a processor, of several runs
the least, as other programs may share the host. Every measurement is a sum of known numbers (calls, operations, bytes,
messages) times unknown seconds. The seconds that fit all measurements best, in the least squares of relative errors and
none below 0, are the profile.
"""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from operator import mul
from statistics import median
from threading import Thread
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.net.launch import launch
from pstranspile.compiler.compile import compile as compile_job
from pstranspile.compiler.cost.jobs import cost
from pstranspile.compiler.cost.profile import TIMED, Profile, Rate, Wire
from pstranspile.compiler.cost.seconds import sum_of_ops, terms_of
from pstranspile.compiler.cost.steps import step_cost
from pstranspile.compiler.job import Job
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Adam, Momentum, minimize
from pstranspile.ir.argument_checks import check_arguments
from pstranspile.ir.model import FrozenMap, Module
from pstranspile.ops.work import Family
from pstranspile.runtime.arithmetic import arithmetic_name
from pstranspile.runtime.run.frame import Execution
from pstranspile.runtime.run.prepared import Prepared, run
from pstranspile.runtime.run.scope import Scope
from pstranspile.runtime.values import LoDTensor


class Effort(NamedTuple):
    """How much is measured: the seconds of a program's runs, by what sizes are divided, a job's steps."""

    seconds: float
    divisor: int
    steps: int


FULL = Effort(0.1, 1, 160)
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
    """The profile of this host, measured in about half a minute.

    Matrices are multiplied by as many threads as numpy's library uses in this process: one, if `OMP_NUM_THREADS=1` was
    set before numpy was imported. `tell` is called with a line about what is measured. Raises DiagnosticError if no
    processes can be started.
    """
    return measure(FULL, tell or (lambda line: None))


def measure(effort: Effort, tell: Callable[[str], object]) -> Profile:
    """The profile of this host, measured with some effort."""
    families = _families(effort, tell)
    seconds, wire, factors = _machines(effort, families, tell)
    with_what = {
        "arithmetic": arithmetic_name(""),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "pstranspile": _version(),
    }
    return Profile(processors(), FrozenMap(with_what), *seconds, wire, families, *factors)


def _version() -> str:
    import pstranspile

    return pstranspile.__version__


def processors() -> int:
    """The number of processors that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable is not None else os.cpu_count() or 1


# The families of ops.


def _families(effort: Effort, tell: Callable[[str], object]) -> Mapping[Family, Rate]:
    """The rates of all families, from the steps of the trials. The first unknown is a step beside its ops."""
    lines: list[list[float]] = []
    times: list[float] = []
    for trial in trials(effort.divisor):
        tell(f"measuring {trial.name}")
        terms = terms_of(step_cost(trial.module.main, trial.rows, example=trial.feed))
        lines.append([1.0, *(number for family in TIMED for number in terms[family])])
        times.append(_seconds(trial, effort))
    found = nonnegative_least_squares(lines, times)[1:]
    return FrozenMap({family: Rate(*found[3 * at : 3 * at + 3]) for at, family in enumerate(TIMED)})


def _seconds(trial: Trial, effort: Effort) -> float:
    """The seconds of a processor for a step: a quarter of all measured steps are faster.

    As in a job, each step has a batch of its own, and finds little of what it reads in the processor's cache: messages
    and other machines have used it since the step before.
    """
    scope = Scope()
    run(trial.module["startup"], scope=scope)
    prepared = Prepared(Execution(trial.module.main, scope), tuple(trial.feed), ())
    for _ in range(3):
        prepared.step(trial.feed)
    others = np.zeros(OTHERS // 8)
    found: list[float] = []
    end = perf_counter() + effort.seconds
    while len(found) < LEAST_STEPS or (perf_counter() < end and len(found) < MOST_STEPS):
        batch = {name: _copy_value(value) for name, value in trial.feed.items()}
        others += 1.0
        start = process_time()
        prepared.step(batch)
        found.append(process_time() - start)
    return max(sorted(found)[len(found) // 4], 1e-7)


OTHERS = 1 << 22
"""The bytes that are used between two steps of a trial."""

LEAST_STEPS = 5
"""The fewest steps of a trial."""

MOST_STEPS = 60
"""The most steps of a trial."""


def _copy_value(value: Any) -> Any:
    """A copy of a fed value, in other memory."""
    return value._replace(data=value.data.copy()) if isinstance(value, LoDTensor) else value.copy()


def nonnegative_least_squares(lines: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """The numbers x of at least 0 for which the sums `lines @ x` differ least from `times`, relative to these.

    The active-set method of Lawson and Hanson (1974): unknowns are let in one by one, the one along which the error
    falls most, and those that a solution would make negative are taken out again.
    """
    matrix: Any = np.asarray(lines, "float64") / np.asarray(times, "float64")[:, None]
    scale: Any = np.sqrt((matrix**2).sum(axis=0))
    used: Any = scale > 0
    matrix = matrix / np.where(used, scale, 1.0)
    ones: Any = np.ones(len(times))
    result: Any = np.zeros(matrix.shape[1])
    free: Any = np.zeros(matrix.shape[1], bool)
    for _ in range(3 * matrix.shape[1]):
        gradient: Any = matrix.T @ (ones - matrix @ result)
        gradient[free | ~used] = -np.inf
        if gradient.max() < 1e-9:
            break
        free[int(gradient.argmax())] = True
        while True:
            solved: Any = np.zeros_like(result)
            solved[free] = np.linalg.lstsq(matrix[:, free], ones, rcond=None)[0]
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
        x, y = L.data(model, "x", [size, size]), L.data(model, "y", [size, size])
        out = x
        for _ in range(6):
            out = L.relu(L.elementwise_mul(L.relu(L.elementwise_add(out, y)), y))
            out = L.scale(L.elementwise_sub(L.square(out), x), 0.5)
        for _ in range(2):
            out = L.sigmoid(L.tanh(out))
        yield trial("ops on each element", model, {"x": floats(size, size), "y": floats(size, size)}, size)
    for size in (4, 64, 256, 700):
        size = of(size)
        model = L.Draft(seed=1)
        x = L.data(model, "x", [size, size])
        for _ in range(6):
            L.reduce_sum(x, dim=0)
            L.reduce_max(x, dim=1)
            L.mean(x)
        yield trial("sums", model, {"x": floats(size, size)}, size)
    for size in (4, 64, 256, 700):
        size = of(size)
        model = L.Draft(seed=1)
        x = L.data(model, "x", [size, size])
        for _ in range(6):
            L.concat([L.transpose(x, [1, 0]), x], axis=1)
        yield trial("moved numbers", model, {"x": floats(size, size)}, size)
    for rows, wide in ((4, 4), (64, 16), (256, 64), (256, 512)):
        rows, wide = of(rows), of(wide)
        model = L.Draft(seed=1)
        x, label = L.data(model, "x", [-1, wide]), L.data(model, "label", [-1, 1], dtype="int64")
        hidden = L.fc(x, wide)
        losses = [L.cross_entropy(L.softmax(hidden), label), L.softmax_with_cross_entropy(hidden, label)]
        wholes = [L.sigmoid_cross_entropy_with_logits(hidden, x), L.layer_norm(hidden, scale=False, shift=False)]
        minimize(L.mean(L.sums([*map(L.mean, losses), *map(L.mean, wholes)])), SGD(0.0))
        drawn = {"x": floats(rows, wide), "label": rng.integers(0, wide, (rows, 1))}
        yield trial("ops of several passes", model, drawn, rows)
    for rows, inner, wide in ((2, 4, 4), (64, 64, 64), (32, 784, 128), (256, 256, 256), (512, 512, 512)):
        rows, inner, wide = of(rows), of(inner), of(wide)
        model = L.Draft(seed=1)
        x, y = L.data(model, "x", [rows, inner]), L.data(model, "y", [inner, wide])
        for _ in range(4):
            L.matmul(x, y)
        yield trial("products", model, {"x": floats(rows, inner), "y": floats(inner, wide)}, rows)
    for rows, wide in ((8, 8), (64, 128), (256, 256)):
        rows, wide = of(rows), of(wide)
        model = L.Draft(seed=1)
        hidden = L.data(model, "x", [-1, wide])
        for _ in range(4):
            hidden = L.fc(hidden, wide, act="relu")
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
        hidden = L.conv2d(L.conv2d(image, filters, window), filters, 3, padding=1)
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
        minimize(L.mean(hidden), SGD(0.0))
        offsets = [tokens * at // 4 for at in range(5)] if tokens >= 4 else [0, tokens]
        yield trial("sequences", model, {"x": LoDTensor(floats(tokens, x.shape[1]), [offsets])}, tokens)
    for rows, width, optimizer in (
        (16, 4, SGD(0.0)),
        (256, 16, SGD(0.0)),
        (256, 16, Adam(0.0)),
        (2048, 64, SGD(0.0)),
        (2048, 64, Adam(0.0)),
    ):
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
    for count, wide, optimizer in (
        (8, 4, SGD(0.0)),
        (8, 4, Adam(0.0)),
        (4, 128, Momentum(0.0, 0.9)),
        (4, 512, SGD(0.0)),
        (4, 512, Adam(0.0)),
    ):
        wide = of(wide)
        model = L.Draft(seed=1)
        x = L.data(model, "x", [2, wide])
        minimize(L.mean(L.sums([L.fc(x, wide, bias_attr=False) for _ in range(count)])), optimizer)
        yield trial("updates", model, {"x": floats(2, wide)}, 2)


# Machines and messages.


def _machines(
    effort: Effort, families: Mapping[Family, Rate], tell: Callable[[str], object]
) -> tuple[tuple[float, float, float, float], Wire, tuple[float, float]]:
    """The seconds of a step, of an update, of a row that is asked for and of one that is looked up; and of messages.
    The last are the factors of ops, and of all else, where more machines run than the host has processors.
    """
    lines: list[list[float]] = []
    times: list[float] = []
    ops: list[float] = []
    crowded: list[bool] = []
    for name, count, module, feed, rows in _jobs(effort.divisor):
        tell(f"measuring {name}, as processes")
        job = Job(pservers=count, trainers=count, batch_rows=rows // count, min_block_size=1 << 13)
        compiled = compile_job(module, job)
        work = cost(compiled).work
        assert work is not None
        spent = _spent(compiled, feed, effort.steps)
        trained, *served = (sum_of_ops(step, families) for step in work.steps)
        told = [[flow.messages, flow.messages_of_rows, flow.frames, flow.bytes] for flow in work.flows]
        asked = sum(flow.looked_up for flow in work.flows)
        lines.append([1.0, 0.0, asked, 0.0, *map(sum, zip(*told, strict=True))])
        times.append(median(spent[f"trainer_{number}"] for number in range(count)))
        for number, flow in enumerate(work.flows):
            lines.append([0.0, 1.0, 0.0, *(count * each for each in (flow.looked_up, *told[number]))])
            times.append(spent[f"pserver_{number}"])
        ops += [trained, *served]
        crowded += [2 * count > processors()] * (1 + count)
    alone = [at for at, each in enumerate(crowded) if not each] or [*range(len(lines))]
    left = [max(times[at] - ops[at], 0.1 * times[at]) for at in alone]
    found = nonnegative_least_squares([lines[at] for at in alone], left)
    step, update, ask, lookup, message, of_rows, frame, byte = found
    together = [at for at, each in enumerate(crowded) if each and len(alone) < len(lines)]
    sums = [[ops[at], sum(map(mul, lines[at], found))] for at in together]
    factors = (
        [max(1.0, each) for each in nonnegative_least_squares(sums, [times[at] for at in together])]
        if sums
        else [1.0, 1.0]
    )
    latency, rate = _link(effort)
    wire = Wire(message, of_rows, frame, byte, latency, rate)
    return (step, update, ask, lookup), wire, (factors[0], factors[1])


def _jobs(divisor: int) -> Iterator[tuple[str, int, Module, dict[str, Any], int]]:
    """Models whose jobs differ in messages, bytes and lookups: name, number of trainers and of servers, module, a
    batch, its rows.
    """
    kinds = (
        ("one parameter", 1, 1, 8),
        ("many parameters", 1, 24, 8),
        ("some parameters", 1, 8, 120),
        ("a large parameter", 1, 1, 700),
        ("few parameters on two servers", 2, 2, 8),
        ("many parameters on two servers", 2, 24, 8),
    )
    for name, machines, count, wide in kinds:
        wide = max(4, wide // divisor)
        model = L.Draft(seed=1)
        x = L.data(model, "x", [-1, wide])
        minimize(L.mean(L.sums([L.fc(x, wide, bias_attr=False) for _ in range(count)])), SGD(0.0))
        yield name, machines, model.module(), {"x": np.ones((4, wide), "float32")}, 4
    for name, machines, tables, rows in (
        ("lookups of rows", 1, 1, 2048),
        ("lookups in some tables", 1, 3, 700),
        ("lookups in many tables", 1, 8, 256),
        *_SLICED,
    ):
        rows, high = max(4, rows // divisor), 20000 // divisor
        model = L.Draft(seed=1)
        ids = [L.data(model, f"x{number}", [-1, 1], dtype="int64") for number in range(tables)]
        minimize(L.mean(L.sums([L.embedding(each, (high, 16), is_sparse=True) for each in ids])), SGD(0.0))
        drawn = np.random.default_rng(0).integers(0, high, (rows, 1))
        yield name, machines, model.module(), {each.name: drawn for each in ids}, rows
    model = L.Draft(seed=1)
    size = max(4, 160 // divisor)
    out = x = L.data(model, "x", [-1, size])
    for _ in range(12):
        out = L.elementwise_mul(L.relu(L.elementwise_add(out, x)), x)
    minimize(L.mean(L.fc(L.softmax(out), size, bias_attr=False)), SGD(0.0))
    yield "ops on two trainers", 2, model.module(), {"x": np.ones((2 * size, size), "float32")}, 2 * size


_SLICED = (("lookups on two servers", 2, 1, 512), ("lookups in many tables on two servers", 2, 8, 512))
"""Jobs whose tables have slices on both servers: name, machines of each kind, tables, rows of a batch."""


def _spent(compiled: Any, feed: Mapping[str, Any], steps: int) -> dict[str, float]:
    """Seconds of a processor in a step, by machine: the least mean of several stretches of steps."""
    marks: dict[str, dict[int, float]] = {}

    def report(role: str, fields: Mapping[str, Any]) -> None:
        if "step" in fields and "cpu" in fields:
            marks.setdefault(role, {})[int(fields["step"])] = float(fields["cpu"])

    repeated = {name: np.broadcast_to(value, (steps, *np.shape(value))) for name, value in feed.items()}
    launch(compiled, repeated, steps=steps, threads=1, on_report=report)
    return {role: spent_each(of_role, steps) for role, of_role in marks.items()}


STRETCHES = 6
"""The number of stretches in which a job's steps are cut, without the first of them."""


def spent_each(marks: Mapping[int, float], steps: int) -> float:
    """The seconds of a step, from those that a machine had used after steps: the least of several stretches' means."""
    length = max(1, (steps - 1) // (STRETCHES + 1))
    ends = [min(steps, 1 + length * at) for at in range(1, STRETCHES + 2)]
    known = [end for end in ends if end in marks]
    means = [(marks[last] - marks[first]) / (last - first) for first, last in pairwise(known) if last > first]
    return max(min(means, default=0.0), 1e-6)


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
