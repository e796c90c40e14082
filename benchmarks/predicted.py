"""The processor time and the steps of jobs as predicted from a profile, beside what their processes took.

    python benchmarks/predicted.py [--profile host.json] [mlp] [chain] [ctr] [conv] [word2vec] [lstm] [many]

Without a profile this host is calibrated first. Every model is trained by 1 trainer and 1 server, and by 2 and 2, as
processes of one thread each. Printed are, for each machine, the predicted and the measured milliseconds of its
processor in a step (of several stretches of steps the least, from what processes report of themselves), the predicted
and the measured milliseconds of a step, all machines on this host, and the median and the largest of the relative
errors. Processor time is what the model promises; steps per second of a busy host say little. Beside the step as it is
simulated stands a plainer estimate (`sum`), which adds up the exchanges of a step, each as long as the busiest machine
or link.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import statistics
import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from recurrent_models import LONG, of_sentences
from steps import ctr, mlp

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, minimize
from pstranspile.cluster.net.calibrate import processors, spent_each
from pstranspile.compiler.cost.profile import Profile, read_profile
from pstranspile.compiler.cost.seconds import Exchange, sum_of_ops
from pstranspile.ir.types import DType

STEPS = 300


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
    one, other = (L.embedding(each, [50_000, 64], is_sparse=True) for each in (word, near))
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


def lstm() -> tuple[ps.Module, dict[str, Any], int]:
    """A long short-term memory over four sentences, whose words are the rows of the batch."""
    model = of_sentences("lstm", LONG)
    return model.module, model.feed, sum(LONG)


def of_steps(make: Callable[[], Any], rows: int) -> tuple[ps.Module, dict[str, Any], int]:
    """A model of `steps.py`."""
    model = make()
    return model.module, model.feed, rows


MODELS: Mapping[str, Callable[[], tuple[ps.Module, dict[str, Any], int]]] = {
    "mlp": lambda: of_steps(mlp, 64),
    "chain": chain,
    "ctr": lambda: of_steps(ctr, 256),
    "conv": conv,
    "word2vec": word2vec,
    "lstm": lstm,
    "many": many,
    "wide": wide,
}


def added_up(compiled: ps.Compiled, profile: Profile, count: int) -> float:
    """The seconds of a step of a synchronous job as the sum of its exchanges and ops, on a host with so many
    processors.
    """
    work = ps.cost(compiled).work
    assert work is not None
    wire, trainers = profile.wire, compiled.plan.trainers

    def busy(each: Exchange) -> float:
        messages = (each.messages_up + each.messages_down) * wire.message
        rows = (each.of_rows_up + each.of_rows_down) * wire.message_of_rows
        return messages + rows + (each.up + each.down) * wire.byte + 2 * each.frames * wire.frame

    trainer, *servers = (sum_of_ops(step, profile.families) for step in work.steps)
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


def measured(compiled: ps.Compiled, feed: Mapping[str, Any], steps: int) -> tuple[dict[str, float], float]:
    """Seconds of a processor in a step by machine, and the seconds of a step."""
    cpu: dict[str, dict[int, float]] = {}
    clock: dict[int, float] = {}

    def report(role: str, fields: Mapping[str, Any]) -> None:
        if "step" in fields and "cpu" in fields:
            cpu.setdefault(role, {})[int(fields["step"])] = float(fields["cpu"])
            if role == "trainer_0":
                clock[int(fields["step"])] = perf_counter()

    ps.launch(compiled, [feed] * steps, steps=steps, threads=1, on_report=report)
    return {role: spent_each(marks, steps) for role, marks in cpu.items()}, spent_each(clock, steps)


def main(words: list[str]) -> None:
    """Prints the figures of the models that are named, of all if none is."""
    path = words.pop(words.index("--profile") + 1) if "--profile" in words else ""
    names = [word for word in words if word != "--profile"] or [*MODELS]
    profile = read_profile(path) if path else ps.calibrate()
    errors: dict[str, list[float]] = {"machine": [], "step": [], "sum": []}
    for name in names:
        module, feed, rows = MODELS[name]()
        for count in (1, 2):
            job = ps.Job(pservers=count, trainers=count, batch_rows=rows)
            compiled = ps.compile(module, job)
            # Every trainer has a batch of its own of this size, so the rows are fed as often as there are trainers.
            together = dict(feed)
            if count > 1:
                if any(not isinstance(each, np.ndarray) for each in feed.values()):
                    job = ps.Job(pservers=count, trainers=count, batch_rows=rows // count)
                    compiled = ps.compile(module, job)
                else:
                    together = {key: np.concatenate([each] * count) for key, each in feed.items()}
            found = ps.cost(compiled, profile=profile, processors=processors()).seconds
            assert found is not None
            cpu, step = measured(compiled, together, STEPS)
            told: list[str] = []
            for each in found.machines:
                roles = (
                    [role for role in cpu if role.startswith("trainer")] if each.machine[0] == "t" else [each.machine]
                )
                real = statistics.mean(cpu[role] for role in roles)
                error = each.processor / real - 1
                errors["machine"].append(abs(error))
                told.append(f"{each.machine} {each.processor * 1e3:.2f} : {real * 1e3:.2f} ({error:+.0%})")
            error = found.step / step - 1
            errors["step"].append(abs(error))
            told.append(f"step {found.step * 1e3:.2f} : {step * 1e3:.2f} ({error:+.0%})")
            plain = added_up(compiled, profile, processors())
            errors["sum"].append(abs(plain / step - 1))
            told.append(f"sum {plain * 1e3:.2f} ({plain / step - 1:+.0%})")
            print(f"{name:9} {count} x {count}  {'  '.join(told)}", flush=True)
    for what, all_of in errors.items():
        print(f"{what}: median error {statistics.median(all_of):.0%}, largest {max(all_of):.0%}")


if __name__ == "__main__":
    main(sys.argv[1:])
