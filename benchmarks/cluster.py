"""A synchronous job of 2 trainers and 2 servers against a parameter server written by hand, in one process and thread.

    python benchmarks/cluster.py [mlp] [ctr] [large]

`mlp` and `ctr` are the models of `benchmarks/steps.py`. The peer does with numpy what the cluster does: each trainer
takes half of the batch, keeps copies of the dense parameters, looks rows of tables up on the servers, and cuts its
gradients into the servers' parts; the servers average them and update. Both start from the same parameters and their
losses are compared. Goal: at least 0.75 times the steps per second of the peer.

`large` runs 10 steps of a small model with 1,000 trainers and 100 servers. Goal: 60 seconds, 4 GB.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import gc
import resource
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from steps import SLOTS, WIDTH, Model, ctr, mlp

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize

TRAINERS = SERVERS = 2
GOAL = 0.75
Arrays = dict[str, Any]


class Part(NamedTuple):
    """Rows of a parameter on a server."""

    name: str
    start: int
    stop: int


class HandServer:
    """A server by hand: its parts, their optimizer, and the gradients of this step."""

    def __init__(self, parts: Sequence[Part], start: Arrays, update: Callable[[Arrays, Any], None]):
        self.parts = {part: start[part.name][part.start : part.stop].copy() for part in parts}
        self.state: dict[Part, Arrays] = {part: {"param": value} for part, value in self.parts.items()}
        self.update = update
        self.received: dict[Part, list[Any]] = {part: [] for part in parts}

    def send(self, part: Part, gradient: Any) -> None:
        self.received[part].append(gradient)

    def step(self) -> None:
        for part, gradients in self.received.items():
            if isinstance(gradients[0], tuple):
                ids = np.concatenate([ids for ids, _ in gradients])
                rows = np.concatenate([rows for _, rows in gradients])
                rows *= np.float32(1 / TRAINERS)
                self.update(self.state[part], (ids, rows))
            else:
                total = gradients[0] + gradients[1]
                total *= np.float32(1 / TRAINERS)
                self.update(self.state[part], total)
            gradients.clear()

    def get(self, part: Part) -> Any:
        return self.parts[part].copy()

    def look_up(self, part: Part, ids: Any) -> Any:
        return self.parts[part][ids]


def adam(state: Arrays, gradient: Any) -> None:
    param = state["param"]
    if "m" not in state:
        state.update(m=np.zeros_like(param), v=np.zeros_like(param), t=np.empty_like(param), b1=0.9, b2=0.999)
    m, v, t = state["m"], state["v"], state["t"]
    rate = 0.001 * (1 - state["b2"]) ** 0.5 / (1 - state["b1"])
    np.multiply(gradient, 0.1, out=t)
    m *= 0.9
    m += t
    np.multiply(gradient, gradient, out=t)
    t *= 0.001
    v *= 0.999
    v += t
    np.sqrt(v, out=t)
    t += 1e-8
    np.divide(m, t, out=t)
    t *= rate
    param -= t
    state["b1"] *= 0.9
    state["b2"] *= 0.999


def sgd(state: Arrays, gradient: Any) -> None:
    if isinstance(gradient, tuple):
        ids, rows = gradient
        np.subtract.at(state["param"], ids, 0.01 * rows)
    else:
        state["param"] -= 0.01 * gradient


class Peer:
    """Two trainers and two servers by hand. `placed` says which parts lie on which server."""

    def __init__(self, start: Arrays, placed: list[list[Part]], feed: Arrays, update: Any, tables: frozenset[str]):
        self.servers = [HandServer(parts, start, update) for parts in placed]
        self.where: dict[str, list[tuple[Part, HandServer]]] = {}
        for server in self.servers:
            for part in server.parts:
                self.where.setdefault(part.name, []).append((part, server))
        for found in self.where.values():
            found.sort(key=lambda pair: pair[0].start)
        self.dense = [name for name in self.where if name not in tables]
        size = len(next(iter(feed.values()))) // TRAINERS
        self.feeds = [{k: v[i * size : (i + 1) * size] for k, v in feed.items()} for i in range(TRAINERS)]
        self.copies: list[Arrays] = [{} for _ in range(TRAINERS)]
        for copies in self.copies:
            self.fetch(copies)

    def fetch(self, copies: Arrays) -> None:
        for name in self.dense:
            parts = [server.get(part) for part, server in self.where[name]]
            copies[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)

    def send(self, name: str, gradient: Any) -> None:
        for part, server in self.where[name]:
            server.send(part, gradient[part.start : part.stop])

    def look_up(self, name: str, ids: Any) -> Any:
        rows = np.empty((len(ids), WIDTH), "float32")
        for part, server in self.where[name]:
            here = np.flatnonzero((ids >= part.start) & (ids < part.stop))
            rows[here] = server.look_up(part, ids[here] - part.start)
        return rows

    def send_rows(self, name: str, ids: Any, rows: Any) -> None:
        for part, server in self.where[name]:
            here = np.flatnonzero((ids >= part.start) & (ids < part.stop))
            server.send(part, (ids[here] - part.start, rows[here]))

    def step(self, train: Callable[[Peer, Arrays, Arrays], float]) -> float:
        losses = [train(self, copies, feed) for copies, feed in zip(self.copies, self.feeds, strict=True)]
        for server in self.servers:
            server.step()
        for copies in self.copies:
            self.fetch(copies)
        return losses[0]


def classify(logits: Any, labels: Any) -> tuple[float, Any]:
    """The mean cross entropy, and its gradient."""
    rows = np.arange(len(labels))
    logits -= logits.max(axis=1, keepdims=True)
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    loss = -np.log(p[rows, labels]).mean()
    p[rows, labels] -= 1
    p /= len(labels)
    return float(loss), p


def train_mlp(peer: Peer, at: Arrays, feed: Arrays) -> float:
    x = feed["image"]
    w, b = ([at[f"fc_{i}.{kind}_0"] for i in range(3)] for kind in "wb")
    h1 = np.maximum(x @ w[0] + b[0], 0)
    h2 = np.maximum(h1 @ w[1] + b[1], 0)
    loss, g3 = classify(h2 @ w[2] + b[2], feed["label"].ravel())
    peer.send("fc_2.b_0", g3.sum(axis=0))
    peer.send("fc_2.w_0", h2.T @ g3)
    g2 = (g3 @ w[2].T) * (h2 > 0)
    peer.send("fc_1.b_0", g2.sum(axis=0))
    peer.send("fc_1.w_0", h1.T @ g2)
    g1 = (g2 @ w[1].T) * (h1 > 0)
    peer.send("fc_0.b_0", g1.sum(axis=0))
    peer.send("fc_0.w_0", x.T @ g1)
    return loss


def train_ctr(peer: Peer, at: Arrays, feed: Arrays) -> float:
    ids = [feed[f"slot_{i}"].ravel() for i in range(SLOTS)]
    x = np.concatenate([peer.look_up(f"embedding_{i}.w_0", ids[i]) for i in range(SLOTS)], axis=1)
    h = np.maximum(x @ at["fc_0.w_0"] + at["fc_0.b_0"], 0)
    loss, g2 = classify(h @ at["fc_1.w_0"] + at["fc_1.b_0"], feed["label"].ravel())
    g1 = (g2 @ at["fc_1.w_0"].T) * (h > 0)
    gx = g1 @ at["fc_0.w_0"].T
    for name, gradient in (
        ("fc_0.w_0", x.T @ g1),
        ("fc_0.b_0", g1.sum(axis=0)),
        ("fc_1.w_0", h.T @ g2),
        ("fc_1.b_0", g2.sum(axis=0)),
    ):
        peer.send(name, gradient)
    for i in range(SLOTS):
        peer.send_rows(f"embedding_{i}.w_0", ids[i], gx[:, i * WIDTH : (i + 1) * WIDTH])
    return loss


def placed_as(cluster: Cluster) -> list[list[Part]]:
    """The parts of parameters on every server of a cluster."""
    found: list[list[Part]] = []
    for server in cluster.servers:
        rows = [r for r in cluster.placement.by_endpoint[server.endpoint] if r.vtype != "Optimizer"]
        width = {r.slice: max(1, int(np.prod(r.slice_shape[1:]))) for r in rows}
        found.append(
            [Part(r.origin, r.offset // width[r.slice], r.offset // width[r.slice] + r.slice_shape[0]) for r in rows]
        )
    return found


def in_turn(steps: dict[str, Callable[[], float]], rounds: int = 150, each: int = 5) -> dict[str, float]:
    """Seconds of CPU time per step of each: the lower quartile over short rounds in turn, so that both meet the same
    machine, and other work on it counts little.
    """
    found: dict[str, list[float]] = {name: [] for name in steps}
    gc.disable()
    for _ in range(rounds):
        for name, step in steps.items():
            start = thread_time()
            for _ in range(each):
                step()
            found[name].append((thread_time() - start) / each)
    gc.enable()
    return {name: statistics.quantiles(times, n=4)[0] for name, times in found.items()}


def measure(name: str, model: Model) -> bool:
    """Prints the microseconds per step of both, and their ratio; whether the goal is met."""
    result = compile(model.module, Job(pservers=SERVERS, trainers=TRAINERS))
    cluster = cluster_of(result, fetch=[model.loss], seed=1)
    size = len(next(iter(model.feed.values()))) // TRAINERS
    halves = [{k: v[i * size : (i + 1) * size] for k, v in model.feed.items()} for i in range(TRAINERS)]
    cluster.feed(lambda trainer, _step: halves[trainer])
    cluster.start()
    start = cluster.parameters()
    train, update = (train_mlp, adam) if name == "mlp" else (train_ctr, sgd)
    tables = frozenset(key for key in start if key.startswith("embedding"))
    peer = Peer(start, placed_as(cluster), model.feed, update, tables)
    done = 0

    def step() -> float:
        nonlocal done
        done += 1
        cluster.run_to(done)
        return float(cluster.trainers[0].results.pop().values[model.loss].item())

    steps = {"by hand": lambda: peer.step(train), "cluster": step}
    losses = {key: [run() for _ in range(3)] for key, run in steps.items()}
    if not np.allclose(losses["by hand"], losses["cluster"], rtol=1e-4):
        raise SystemExit(f"{name}: the losses differ: {losses}")
    times = in_turn(steps)
    ratio = times["by hand"] / times["cluster"]
    for key, time in times.items():
        print(f"{name:<6} {key:<9} {1e6 * time:>10.1f} us/step {1 / time:>8.0f} steps/s")
    print(f"{name:<6} {ratio:.2f} times the steps per second of the peer")
    return ratio >= GOAL


def large() -> bool:
    """1,000 trainers and 100 servers; whether the goal is met."""
    model = L.Draft(seed=1)
    x, y = L.data(model, "x", [-1, 32]), L.data(model, "y", [-1, 1])
    hidden = x
    for _ in range(4):
        hidden = L.fc(hidden, 32, act="relu")
    loss = L.mean(L.square_error_cost(L.fc(hidden, 1), y))
    minimize(loss, SGD(0.01))
    start = perf_counter()
    result = compile(model.module(), Job(pservers=100, trainers=1000))
    print(f"large  compiled in {perf_counter() - start:.1f} s")
    random = np.random.default_rng(0)
    batch = {
        "x": random.normal(size=(4000, 32)).astype("float32"),
        "y": random.normal(size=(4000, 1)).astype("float32"),
    }
    start = perf_counter()
    cluster = cluster_of(result, fetch=[loss.name], seed=1)
    cluster.feed([batch] * 10)
    cluster.run_to(10)
    cluster.finish()
    took = perf_counter() - start
    messages = sum(link.sequence for machine in cluster.machines.values() for link in machine.links.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 / 1024
    print(f"large  10 steps in {took:.1f} s, {messages} messages, {1e6 * took / messages:.1f} us each, {peak:.2f} GB")
    return took <= 60 and peak <= 4


MODELS: dict[str, Callable[[], Model]] = {"mlp": mlp, "ctr": ctr}


def main(names: list[str]) -> int:
    met = [large() if name == "large" else measure(name, MODELS[name]()) for name in names or [*MODELS, "large"]]
    print("all goals met" if all(met) else "goals missed")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
