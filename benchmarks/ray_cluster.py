"""Jobs of 2 trainers and 2 servers on a Ray cluster of three nodes on this host, beside processes, and beside actors.

    python benchmarks/ray_cluster.py [mlp] [ctr]

`mlp` and `ctr` are the models of `benchmarks/steps.py`, with the same batch in every step. `launch --on ray` and
`launch` run the same job in turn. Steps per second are those between two lines of what they print, so without the
start, which is printed beside them. The actors are a parameter server as a tutorial of Ray's has it, written by hand
for `mlp` with SGD: every step two workers get the parameters of two server actors, and hand over gradients. Goals: the
start at most 20 seconds, at least 0.9 times the steps per second of processes, and 2 times those of the actors.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import socket
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.cluster_utils import Cluster

sys.path.insert(0, str(Path(__file__).parent))

from steps import Model, ctr, mlp

from pstranspile.ops.textual import print_module

STEPS, WARM, ROUNDS = 600, 100, 3
STORE = 256 << 20
SIZES = (784, 128, 64, 10)


_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")


def node(cpus: int) -> dict[str, Any]:
    """The options of a node. Its ports are given, as Ray gives up nodes that take 15 seconds to find some."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in _PORTS]
    ports = {name: made.getsockname()[1] for name, made in zip(_PORTS, sockets, strict=True)}
    for made in sockets:
        made.close()
    return {"num_cpus": cpus, "object_store_memory": STORE, "include_log_monitor": False, **ports}


def started() -> Any:
    """A cluster of three nodes with two CPUs each, and a head without, to which this process is connected."""
    cluster = Cluster(initialize_head=True, head_node_args={**node(0), "include_dashboard": False})
    for _ in range(3):
        cluster.add_node(**node(2))
    ray.init(address=cluster.address, logging_level="error", log_to_driver=False)
    return cluster


class Speed(NamedTuple):
    """Steps per second after the first `WARM`, and the seconds until the first step was done."""

    steps: float
    start: float


def launched(folder: Path, on: str, address: str) -> Speed:
    """The speed of a job in a folder."""
    command = [
        sys.executable,
        "-m",
        "pstranspile",
        "launch",
        str(folder / "net.ir"),
        "--pservers",
        "2",
        "--trainers",
        "2",
    ]
    command += ["--feed", str(folder / "feeds.npz"), "--on", on, *(["--restarts", "0"] if on == "ray" else [])]
    begun, times = perf_counter(), dict[int, float]()
    environment = {**os.environ, "RAY_ADDRESS": address}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("step "):
                times[int(line.split()[1].partition("/")[0])] = perf_counter()
    assert run.returncode == 0
    return Speed((STEPS - WARM) / (times[STEPS] - times[WARM]), times[1] - begun)


class Server:
    """Half of the parameters, updated by the mean of two gradients."""

    def __init__(self, values: list[Any]):
        self.values = values

    def get(self) -> list[Any]:
        return self.values

    def push(self, one: list[Any], other: list[Any]) -> None:
        self.values = [v - 0.01 * (a + b) / 2 for v, a, b in zip(self.values, one, other, strict=True)]


class Worker:
    """Makes gradients of an MLP from its half of the batch."""

    def __init__(self, x: Any, y: Any):
        self.x, self.y = x, y

    def gradients(self, first: list[Any], second: list[Any]) -> tuple[list[Any], list[Any]]:
        values = first + second
        layers, x = [self.x], self.x
        for at in range(3):
            x = x @ values[2 * at] + values[2 * at + 1]
            x = np.maximum(x, 0) if at < 2 else x
            layers.append(x)
        chances = np.exp(x - x.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(len(x)), self.y[:, 0]] -= 1
        gradient, result = chances / len(x), []
        for at in (2, 1, 0):
            result = [layers[at].T @ gradient, gradient.sum(axis=0), *result]
            gradient = (gradient @ values[2 * at].T) * (layers[at] > 0)
        return result[:2], result[2:]


def actors(model: Model) -> float:
    """Steps per second of the actors."""
    random = np.random.default_rng(0)
    shapes = [shape for a, b in pairwise(SIZES) for shape in ((a, b), (b,))]
    values = [random.normal(size=shape).astype("float32") * 0.05 for shape in shapes]
    x, y = model.feed.values()
    servers = [ray.remote(num_cpus=1)(Server).remote(half) for half in (values[:2], values[2:])]
    workers = [ray.remote(num_cpus=1)(Worker).remote(x[i::2], y[i::2]) for i in range(2)]

    def step() -> None:
        held = [server.get.remote() for server in servers]
        made = [worker.gradients.options(num_returns=2).remote(*held) for worker in workers]
        ray.get([server.push.remote(made[0][at], made[1][at]) for at, server in enumerate(servers)])

    for _ in range(WARM):
        step()
    begun = perf_counter()
    for _ in range(STEPS - WARM):
        step()
    result = (STEPS - WARM) / (perf_counter() - begun)
    for actor in (*servers, *workers):
        ray.kill(actor)
    return result


def main() -> None:
    """Measures, and prints."""
    models = {"mlp": mlp, "ctr": ctr}
    cluster = started()
    for name in sys.argv[1:] or models:
        model = models[name]()
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work)
            (folder / "net.ir").write_text(print_module(model.module))
            np.savez(folder / "feeds.npz", **{n: np.stack([value] * STEPS) for n, value in model.feed.items()})
            rounds = [[launched(folder, on, cluster.address) for on in ("local", "ray")] for _ in range(ROUNDS)]
        local, remote = (max(of, key=lambda speed: speed.steps) for of in zip(*rounds, strict=True))
        print(f"{name}: processes {local.steps:.0f} steps/s, first {local.start:.1f} s")
        print(f"{name}: Ray {remote.steps:.0f} steps/s ({remote.steps / local.steps:.2f}x), first {remote.start:.1f} s")
        if name == "mlp":
            rate = max(actors(model) for _ in range(ROUNDS))
            print(f"{name}: actors by hand {rate:.0f} steps/s, Ray with our wire {remote.steps / rate:.2f}x")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
