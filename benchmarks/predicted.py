"""The processor time, the steps and the memory of jobs as predicted from a profile, beside what their processes took.

    python benchmarks/predicted.py [MODEL...] [--profile host.json] [--clusters 1x1,2x2] [--modes sync,async]
                                   [--links free,1Gb,100Mb] [--runs 2] [--memory]

Without a profile this host is calibrated first. Every model is trained by the trainers x servers of every cluster, as
processes of one thread each, in mode sync; the models of `OTHER` also in the other modes. Printed are, for each kind of
machine, the predicted and the measured milliseconds of its processor in a step, the predicted and the measured
milliseconds of a step, all machines on this host, and the median and the largest of the relative errors. What is
measured is the mean over the steady part of a run: from when all trainers have done some steps until the first of them
does its last. So servers that work in bursts count with all that they do, and a step is as long as trainers wait. Of
several runs (`--runs`, where other programs use the host) each number is the least. Beside the step as it is simulated
stands a plainer estimate of synchronous jobs (`sum`), which adds up the exchanges of a step, each as long as the
busiest machine or link.

`--links` are those of each machine: free (the sockets of the host), or a rate, to which every machine is held in both
directions, in a network of its own (`paced.py`; needs Linux, `ip`, `tc` and the rights of root). `--memory` compares
the predicted memory of each machine with the growth of its process: the most that the process had in memory in its
steps, less the most that one of a small model had. Its models are large ones, as megabytes of an interpreter
would hide the others.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from paced import paced
from recurrent_models import LONG, SHORT, of_sentences, tags
from steps import ctr, mlp

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, Adam, Momentum, minimize
from pstranspile.cluster.net.calibrate import processors
from pstranspile.cluster.net.metrics import Mark, Pace, steady_pace
from pstranspile.compiler.cost.profile import Profile, parse_link, read_profile
from pstranspile.compiler.cost.seconds import Exchange, sum_of_ops
from pstranspile.ir.types import DType
from pstranspile.proof.values import make_feeds
from pstranspile.runtime.run.step_feeds import Feeds
from pstranspile.runtime.values import LoDTensor

STEPS = 300
"""The most steps of a job."""

FEWEST = 60
"""The fewest steps of a job."""

SECONDS = 2.0
"""The predicted seconds for which a job runs, within these numbers of steps."""

EXAMPLES = Path(__file__).parents[1] / "examples"


def chain() -> tuple[ps.Module, dict[str, Any], int]:
    """A hundred ops on each element of 128 x 128 numbers, and one small parameter."""
    model = L.Draft(seed=1)
    x = L.data(model, "x", [-1, 128])
    out = L.fc(x, 128, bias_attr=False)
    for _ in range(20):
        out = L.relu(L.elementwise_sub(L.elementwise_add(L.elementwise_mul(out, x), x), out))
    minimize(L.mean(out), SGD(0.0))
    return model.module(), {"x": np.random.default_rng(0).normal(size=(128, 128)).astype("float32")}, 128


def conv() -> tuple[ps.Module, dict[str, Any], int]:
    """Two convolutions and a pool on pictures of 28 x 28."""
    model = L.Draft(seed=1)
    image, label = L.data(model, "image", [-1, 1, 28, 28]), L.data(model, "label", [-1, 1], dtype=DType.INT64)
    hidden = L.pool2d(L.conv2d(image, 8, 5, act="relu"), 2, pool_stride=2)
    hidden = L.pool2d(L.conv2d(hidden, 16, 5, act="relu"), 2, pool_stride=2)
    loss = L.mean(L.cross_entropy(L.fc(hidden, 10, act="softmax"), label))
    minimize(loss, SGD(0.01))
    rng = np.random.default_rng(0)
    feed = {"image": rng.normal(size=(32, 1, 28, 28)).astype("float32"), "label": rng.integers(0, 10, (32, 1))}
    return model.module(), feed, 32


def word2vec() -> tuple[ps.Module, dict[str, Any], int]:
    """Words and their neighbours in two sparse tables of 50,000 rows."""
    model = L.Draft(seed=1)
    word, near = (L.data(model, name, [-1, 1], dtype=DType.INT64) for name in ("word", "near"))
    label = L.data(model, "label", [-1, 1])
    one, other = (L.embedding(each, (50_000, 64), is_sparse=True) for each in (word, near))
    alike = L.reduce_sum(L.elementwise_mul(one, other), dim=1, keep_dim=True)
    minimize(L.mean(L.sigmoid_cross_entropy_with_logits(alike, label)), SGD(0.1))
    rng = np.random.default_rng(0)
    feed = {name: rng.integers(0, 50_000, (1024, 1)) for name in ("word", "near")}
    return model.module(), {**feed, "label": rng.integers(0, 2, (1024, 1)).astype("float32")}, 1024


def many() -> tuple[ps.Module, dict[str, Any], int]:
    """Twenty thin layers, so that messages have most of the time."""
    model = L.Draft(seed=1)
    hidden = L.data(model, "x", [-1, 16])
    for _ in range(20):
        hidden = L.fc(hidden, 16, act="tanh")
    minimize(L.mean(hidden), SGD(0.0))
    return model.module(), {"x": np.ones((16, 16), "float32")}, 16


def wide() -> tuple[ps.Module, dict[str, Any], int]:
    """Two layers of 1024 x 1024, so that bytes have most of the time."""
    model = L.Draft(seed=1)
    hidden = L.fc(L.fc(L.data(model, "x", [-1, 1024]), 1024, act="relu"), 1024)
    minimize(L.mean(hidden), SGD(0.0))
    return model.module(), {"x": np.ones((16, 1024), "float32")}, 16


def sentences(unit: str, lengths: Sequence[int]) -> tuple[ps.Module, dict[str, Any], int]:
    """A recurrent unit over four sentences, whose words are the rows of the batch."""
    model = tags(lengths) if unit == "tags" else of_sentences(unit, lengths)
    return model.module, model.feed, sum(lengths)


def of_steps(make: Callable[[], Any], rows: int) -> tuple[ps.Module, dict[str, Any], int]:
    """A model of `steps.py`."""
    model = make()
    return model.module, model.feed, rows


def example(name: str, rows: int) -> tuple[ps.Module, dict[str, Any], int]:
    """A program of `examples/`, and data as `check` makes them."""
    module = ps.load(EXAMPLES / f"{name}.ir")
    feed = Feeds(module.main, make_feeds(module.main, 1, rows)).step(0)
    return module, feed, max(len(value.data if isinstance(value, LoDTensor) else value) for value in feed.values())


Made = Callable[[], tuple[ps.Module, dict[str, Any], int]]
"""A function that makes a model: its module, a batch, and the rows of the batch."""

MODELS: Mapping[str, Made] = {
    "mlp": lambda: of_steps(mlp, 64),
    "chain": chain,
    "ctr": lambda: of_steps(ctr, 256),
    "conv": conv,
    "word2vec": word2vec,
    "lstm": lambda: sentences("lstm", LONG),
    "many": many,
    "wide": wide,
    "gru": lambda: sentences("gru", LONG),
    "lstm-short": lambda: sentences("lstm", SHORT),
    "gru-short": lambda: sentences("gru", SHORT),
    "tags": lambda: sentences("tags", LONG),
    **{
        f"{name}.ir": (lambda name=name, rows=rows: example(name, rows))
        for name, rows in {
            "linear_regression": 32,
            "mnist_mlp": 64,
            "mnist_conv": 32,
            "ctr_dnn": 128,
            "deepfm": 128,
            "simnet_bow": 64,
            "word2vec": 128,
            "transformer_encoder": 16,
        }.items()
    },
}

OTHER = ("mlp", "chain", "conv", "many", "wide", "mnist_mlp.ir")
"""The models that are also trained in modes other than sync."""


def large(rows: int, wide: int, deep: int, optimizer: Any) -> tuple[ps.Module, dict[str, Any], int]:
    """Layers of `wide` numbers, and a batch of `rows` small rows."""
    model = L.Draft(seed=1)
    hidden = L.data(model, "x", [-1, 8])
    for _ in range(deep + 1):
        hidden = L.fc(hidden, wide, act="relu")
    minimize(L.mean(hidden), optimizer)
    return model.module(), {"x": np.ones((rows, 8), "float32")}, rows


def tables(high: int, rows: int) -> tuple[ps.Module, dict[str, Any], int]:
    """Four sparse tables of `high` rows."""
    model = L.Draft(seed=1)
    ids = [L.data(model, f"x{number}", [-1, 1], dtype=DType.INT64) for number in range(4)]
    minimize(L.mean(L.sums([L.embedding(each, (high, 64), is_sparse=True) for each in ids])), SGD(0.0))
    rng = np.random.default_rng(0)
    return model.module(), {each.name: rng.integers(0, high, (rows, 1)) for each in ids}, rows


def pictures(rows: int) -> tuple[ps.Module, dict[str, Any], int]:
    """Convolutions of a batch of `rows` pictures of 64 x 64."""
    model = L.Draft(seed=1)
    hidden = L.data(model, "image", [-1, 1, 64, 64])
    for _ in range(3):
        hidden = L.conv2d(hidden, 16, 3, padding=1, act="relu")
    minimize(L.mean(hidden), SGD(0.0))
    return model.module(), {"image": np.ones((rows, 1, 64, 64), "float32")}, rows


HELD: Mapping[str, Made] = {
    "parameters": lambda: large(8, 1536, 4, SGD(0.0)),
    "momentum": lambda: large(8, 1024, 6, Momentum(0.0, 0.9)),
    "adam": lambda: large(8, 1024, 6, Adam(0.0)),
    "activations": lambda: large(4096, 512, 6, SGD(0.0)),
    "tables": lambda: tables(100_000, 2048),
    "pictures": lambda: pictures(64),
}
"""The models whose memory is measured."""


def added_up(compiled: ps.Compiled, profile: Profile, count: int, feed: Mapping[str, Any]) -> float:
    """The seconds of a step of a synchronous job as the sum of its exchanges and ops, on a host with so many
    processors.
    """
    work = ps.cost(compiled, example=feed).work
    assert work is not None
    wire, trainers = profile.wire, compiled.plan.trainers

    def busy(each: Exchange) -> float:
        messages = (each.messages_up + each.messages_down) * wire.message
        rows = (each.of_rows_up + each.of_rows_down) * wire.message_of_rows
        return messages + rows + (each.up + each.down) * wire.byte + 2 * each.frames * wire.frame

    trainer, *servers = (sum_of_ops(step, profile.families, profile.ops) for step in work.steps)
    step = profile.step + trainer + profile.ask * sum(flow.looked_up for flow in work.flows)
    update = profile.update + max(servers)
    total = step + update
    for place in range(3):
        exchanges = [flow.exchanges[place] for flow in work.flows]
        looked_up = [flow.looked_up * profile.lookup * (place == 0) for flow in work.flows]
        links = [trainers * max(each.up, each.down) / wire.bytes_per_second for each in exchanges]
        served = [trainers * (busy(each) + extra) for each, extra in zip(exchanges, looked_up, strict=True)]
        total += max(sum(map(busy, exchanges)), *served, *links)
        total += 2 * wire.latency * max(each.frames for each in exchanges)
    own = [step + sum(busy(each) for flow in work.flows for each in flow.exchanges)] * trainers
    own += [
        profile.update + ops + trainers * (flow.looked_up * profile.lookup + sum(map(busy, flow.exchanges)))
        for ops, flow in zip(servers, work.flows, strict=True)
    ]
    return max(total, sum(own) / count)


def joined(feed: Mapping[str, Any], count: int) -> dict[str, Any]:
    """A batch of `count` trainers, each of which has this one."""

    def repeated(value: Any) -> Any:
        if not isinstance(value, LoDTensor):
            return np.concatenate([value] * count)
        (offsets,) = value.lod
        rows = [0, *(place * offsets[-1] + end for place in range(count) for end in offsets[1:])]
        return LoDTensor(np.concatenate([value.data] * count), [rows])

    return {name: repeated(value) for name, value in feed.items()}


def measured(
    compiled: ps.Compiled, feed: Mapping[str, Any], steps: int, memory: dict[str, int] | None = None
) -> Pace | None:
    """The pace of a run; None if it is too short for one. `memory` gets the most bytes that each process has had in
    memory since its first step.
    """
    marks: dict[str, list[Mark]] = {}
    started: set[str] = set()

    def report(role: str, fields: Mapping[str, Any]) -> None:
        if "step" in fields and "cpu" in fields:
            step = int(fields["step"])
            marks.setdefault(role, []).append(Mark(step, float(fields["cpu"]), float(fields["clock"])))
            if memory is not None and step == 1 and role not in started:
                started.add(role)
                forget_most(role)
            elif memory is not None:
                memory.update(in_memory())  # of a process that has ended, what it had when it was last seen

    ps.launch(compiled, [feed] * steps, steps=steps, threads=1, on_report=report)
    return steady_pace(marks)


def processes() -> Iterator[tuple[str, Path]]:
    """Yields the machines of a job that runs with the folders of their processes in /proc."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            if b"--role" in words and f"PPid:\t{os.getpid()}\n" in (place / "status").read_text():
                yield words[words.index(b"--role") + 1].decode(), place


def in_memory() -> dict[str, int]:
    """The most bytes that each process of a job has had in memory, by the role of its machine."""
    found: dict[str, int] = {}
    for role, place in processes():
        with contextlib.suppress(OSError, IndexError):
            found[role] = int((place / "status").read_text().split("VmHWM:")[1].split()[0]) << 10
    return found


def forget_most(role: str) -> None:
    """Lets the most bytes of a machine's process be counted from here on: its start may need more than a step."""
    for name, place in processes():
        if name == role:
            with contextlib.suppress(OSError):
                (place / "clear_refs").write_text("5")


def busy_of_others() -> float:
    """The seconds for which processors have worked for other processes than this one and those that it has started."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, of_devices, soft, *_ = (int(word) / os.sysconf("SC_CLK_TCK") for word in words)
    return user + nice + system + of_devices + soft - sum(os.times()[:4])


UNKNOWN = 1e-6
"""The seconds of a machine that has not told them for each step."""

QUIET = 0.1
"""The share of the processors that others may use; a job is run again, if it may, where they use more."""


class Errors:
    """Relative errors by what was predicted."""

    def __init__(self) -> None:
        self._all: dict[str, list[float]] = {}

    def add(self, what: str, predicted: float, real: float) -> str:
        """Notes an error; returns it as text."""
        error = predicted / real - 1
        self._all.setdefault(what, []).append(abs(error))
        return f"{error:+.0%}"

    def tell(self) -> None:
        """Prints the median and the largest of each."""
        for what, errors in self._all.items():
            few = f"{sum(each <= 0.1 for each in errors)} of {len(errors)} within 10%"
            print(f"{what}: median error {statistics.median(errors):.0%}, largest {max(errors):.0%}, {few}")


def of_machine(of_roles: Mapping[str, Any], machine: str) -> float:
    """The mean of the processes that a machine of the cost stands for."""
    kind = "trainer" if machine.startswith("trainer") else machine
    return statistics.mean([value for role, value in of_roles.items() if role.startswith(kind)] or [0.0])


def time_of(
    name: str, made: tuple[ps.Module, dict[str, Any], int], job: ps.Job, link: str, profile: Profile, runs: int,
    errors: Errors,
) -> None:  # fmt: skip
    """Prints the predicted and the measured times of a job."""
    module, feed, _ = made
    compiled = ps.compile(module, job)
    given = None if link == "free" else link
    found = ps.cost(compiled, profile=profile, processors=processors(), link=given, example=feed).seconds
    assert found is not None
    steps = max(FEWEST, min(STEPS, round(SECONDS / max(found.step, 1e-6))))
    servers = [f"pserver_{number}" for number in range(len(job.pservers))]
    roles = [*(f"trainer_{number}" for number in range(job.trainers)), *servers]
    cpu: dict[str, float] = {}
    step = float("inf")
    others = 1.0
    for _ in range(runs):
        before, start = busy_of_others(), perf_counter()
        with paced(roles, parse_link(link).bytes_per_second) if given else contextlib.nullcontext():
            pace = measured(compiled, joined(feed, job.trainers), steps)
        others = min(others, (busy_of_others() - before) / (perf_counter() - start) / processors())
        assert pace is not None
        step = min(step, pace.step)
        cpu = {role: min(seconds, cpu.get(role, seconds)) for role, seconds in pace.processor.items()}
        if others <= QUIET:
            break
    told: list[str] = []
    for each in found.machines:
        real = of_machine(cpu, each.machine)
        if real <= UNKNOWN:
            continue
        error = errors.add("processor", each.processor, real)
        if each.machine in ("pserver_0", found.machines[0].machine):
            told.append(f"{each.machine} {each.processor * 1e3:.2f} : {real * 1e3:.2f} ({error})")
    busy = "" if others <= QUIET else ", beside other work"
    error = errors.add(f"step, link {link}{busy}", found.step, step)
    told.append(f"step {found.step * 1e3:.2f} : {step * 1e3:.2f} ({error})")
    if job.mode == "sync" and job.pservers and not given:
        plain = added_up(compiled, profile, processors(), feed)
        told.append(f"sum {plain * 1e3:.2f} ({errors.add('sum', plain, step)})")
    told += [f"[others used {others:.0%} of the processors]"] if others > QUIET else []
    print(f"{name:21} {job.trainers}x{len(job.pservers)} {job.mode:6} {link:5}  {'  '.join(told)}", flush=True)


SMALL = 8
"""The steps of a job whose memory is measured."""


def memory_of(
    name: str, made: tuple[ps.Module, dict[str, Any], int], trainers: int, servers: int, errors: Errors
) -> None:
    """Prints the predicted and the measured memory of each machine of a job."""
    megabyte, job = 1 << 20, ps.Job(pservers=servers, trainers=trainers)
    module, feed, rows = made
    compiled = ps.compile(module, replace(job, batch_rows=rows))
    found: dict[str, int] = {}
    measured(compiled, joined(feed, trainers), SMALL, found)
    smallest, few, of_few = large(64, 256, 1, SGD(0.0))
    before: dict[str, int] = {}
    measured(ps.compile(smallest, replace(job, batch_rows=of_few)), joined(few, trainers), SMALL, before)
    grown = {role: found[role] - before[role] for role in found}
    told: list[str] = []
    for each in ps.cost(compiled, example=feed).machines:
        predicted, real = each.held + each.peak, of_machine(grown, each.machine)
        if predicted < LEAST_MEMORY:
            continue
        error = errors.add("memory", predicted, real)
        told.append(f"{each.machine} {predicted / megabyte:.1f} : {real / megabyte:.1f} MB ({error})")
    print(f"{name:21} {trainers}x{servers}  {'  '.join(told)}", flush=True)


LEAST_MEMORY = 16 << 20
"""The least predicted bytes of a machine whose memory is compared."""


def cluster(text: str) -> tuple[int, int]:
    """The numbers of trainers and servers in `2x1`."""
    trainers, _, servers = text.partition("x")
    if not (trainers.isdigit() and servers.isdigit() and int(trainers) and int(servers)):
        raise argparse.ArgumentTypeError(f"{text!r} is no cluster, such as 2x1")
    return int(trainers), int(servers)


def link(text: str) -> str:
    """A rate as `--link` of `plan` takes it, or free."""
    try:
        if text != "free":
            parse_link(text)
        return text
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def mode(text: str) -> str:
    """A mode that is measured."""
    if text not in ("sync", "async", "geo", "ddp"):
        raise argparse.ArgumentTypeError(f"{text!r} is not sync, async, geo or ddp")
    return text


def several(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Values of this kind with commas between them."""
    return lambda text: [kind(part) for part in text.split(",")]


def main(words: Sequence[str] | None = None) -> None:
    """Prints the figures of the models that are named, of all if none is."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog=f"models: {', '.join(MODELS)}; of memory: {', '.join(HELD)}",
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="a model (default: all)")
    parser.add_argument("--profile", metavar="FILE", help="the profile of this host (default: it is calibrated)")
    parser.add_argument(
        "--clusters", type=several(cluster), default=[(1, 1), (2, 1), (2, 2), (4, 2)], metavar="NxN,..."
    )
    parser.add_argument("--modes", type=several(mode), default=["sync", "async", "geo", "ddp"], metavar="MODE,...")
    parser.add_argument("--links", type=several(link), default=["free"], metavar="free,RATE,...")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="how often a job runs at most on a busy host")
    parser.add_argument("--memory", action="store_true", help="compare memory in place of time")
    options = parser.parse_args(words)
    known = HELD if options.memory else MODELS
    for name in options.models:
        if name not in known:
            parser.error(f"{name!r} is no model; there are {', '.join(known)}")
    errors = Errors()
    if options.memory:
        for name in options.models or HELD:
            for trainers, servers in options.clusters:
                memory_of(name, HELD[name](), trainers, servers, errors)
        errors.tell()
        return
    profile = read_profile(options.profile) if options.profile else ps.calibrate()
    for name in options.models or MODELS:
        made = MODELS[name]()
        for each in options.links:
            for what in options.modes:
                if what != "sync" and name not in OTHER:
                    continue
                for trainers, servers in options.clusters:
                    if what == "ddp" and (trainers == 1 or (trainers, servers) == (2, 1)):
                        continue
                    numbers: dict[str, Any] = {"trainers": trainers, "pservers": () if what == "ddp" else servers}
                    job = ps.Job(mode=what, batch_rows=made[2], **numbers)
                    time_of(name, made, job, each, profile, options.runs, errors)
    errors.tell()


if __name__ == "__main__":
    main()
