"""Jobs of 2 trainers and 2 servers as processes on this host, beside the same jobs on Fluid 1.8.5.

    PSTRANSPILE_FLUID=/path/to/fluids/python python benchmarks/machines.py [mlp] [ctr]

`mlp` and `ctr` are the models of `benchmarks/steps.py`; all machines run the same programs, one thread each, on the
same batch in every step, Fluid's trainers with their program cache. Four clusters in turn: all Fluid; all of this
package; the same with certificates; trainers of Fluid on servers of this package. Each is run several times, and the
fastest run counts. Printed are steps per second, their ratio to all Fluid, and the CPU time of all four processes
together per step. Goals: 2 times Fluid (mlp), 3 times (ctr), 0.8 of that with certificates, and 0.6 times Fluid for
servers under trainers of Fluid. Without PSTRANSPILE_FLUID only this package is measured.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "CPU_NUM"):
    os.environ[_variable] = "1"  # before numpy is imported

import json
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))

from steps import Model, ctr, mlp

from pstranspile.cluster.net.supervisor import Ports
from pstranspile.ops.textual import print_module
from pstranspile.tools.cli import main

FLUID = os.environ.get("PSTRANSPILE_FLUID", "")
MACHINE, CERTIFICATES = ROOT / "tests" / "cluster" / "net" / "fluid_machine.py", ROOT / "tests" / "data" / "tls"
SERVERS, TRAINERS = ("pserver_0", "pserver_1"), ("trainer_0", "trainer_1")
STEPS, WARM, ROUNDS = 400, 100, 3
TICKS = os.sysconf("SC_CLK_TCK")


class Cluster(NamedTuple):
    """Which machines this package plays, and with which options; the others are Fluid's."""

    name: str
    ours: Collection[str]
    options: tuple[str, ...] = ()


CLUSTERS = (
    Cluster("Fluid", ()),
    Cluster("pstranspile", (*SERVERS, *TRAINERS)),
    Cluster("pstranspile, TLS", (*SERVERS, *TRAINERS), ("--tls", str(CERTIFICATES))),
    Cluster("Fluid's trainers on our servers", SERVERS, ("--fluid",)),
)


class Run(NamedTuple):
    """Steps per second, and for each machine the seconds of CPU per step."""

    speed: float
    cpu: dict[str, float]


class Job:
    """A compiled model with its data, in a folder; of all steps the first `warm` are not measured."""

    def __init__(self, model: Model, folder: Path, steps: int = STEPS, warm: int = WARM):
        self.folder, self.loss, self.steps, self.warm = folder, model.loss, steps, warm
        self.ports = Ports(2)
        (folder / "net.ir").write_text(print_module(model.module))
        job = [str(folder / "net.ir"), "--pservers", ",".join(self.ports.addresses), "--trainers", "2"]
        assert main(["compile", *job, "--emit", "pb", "-o", str(folder / "job")]) == 0
        np.savez(folder / "feeds.npz", **{n: np.stack([value] * steps) for n, value in model.feed.items()})
        for index, role in enumerate(TRAINERS):
            half = {n: value[index::2] for n, value in model.feed.items()}
            fed = {f"{step}/{n}": value for step in range(steps) for n, value in half.items()}
            np.savez(folder / f"{role}.npz", **fed)
        np.savez(folder / "nothing.npz")

    def command(self, role: str, cluster: Cluster) -> list[str]:
        """The command line of a machine."""
        job = str(self.folder / "job")
        if role in cluster.ours:
            command = [sys.executable, "-m", "pstranspile", "start", job, "--role", role, *cluster.options]
            feeds = ["--feed", str(self.folder / "feeds.npz"), "--fetch", self.loss]
            return [*command, *(feeds if role in TRAINERS else ())]
        command = [FLUID, str(MACHINE), "trainer" if role in TRAINERS else "server", job, role]
        command.append(str(self.folder / "nothing.npz"))
        own = [str(self.folder / f"{role}.npz"), self.loss, str(self.folder / f"{role}.out.npz")]
        return [*command, *(own if role in TRAINERS else ())]

    def run(self, cluster: Cluster) -> Run:
        """Runs a cluster once."""
        reading, writing = os.pipe()
        processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for role in (*SERVERS, *TRAINERS):
                told = {"PSTRANSPILE_STATUS": str(writing)} if role == TRAINERS[0] else {}
                passed = [writing] if told else []
                log = (self.folder / f"{role}.log").open("wb")
                processes[role] = subprocess.Popen(
                    self.command(role, cluster), env={**os.environ, **told, "GLOG_minloglevel": "2"}, stdout=log,
                    stderr=log, pass_fds=passed,
                )  # fmt: skip
            os.close(writing)
            marks: dict[int, tuple[float, dict[str, float]]] = {}
            with os.fdopen(reading) as lines:
                for line in lines:
                    step = json.loads(line).get("step")
                    if step in (self.warm, self.steps):
                        marks[step] = perf_counter(), {role: cpu(process.pid) for role, process in processes.items()}
            if set(marks) != {self.warm, self.steps}:
                logs = "\n".join((self.folder / f"{role}.log").read_text()[-1500:] for role in processes)
                raise SystemExit(f"{cluster.name} did not train:\n{logs}")
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        (began, spent), (ended, spent_then) = marks[self.warm], marks[self.steps]
        measured = self.steps - self.warm
        return Run(measured / (ended - began), {role: (spent_then[role] - spent[role]) / measured for role in spent})


def cpu(process: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure(name: str, model: Model) -> None:
    """Prints the figures of a model."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(model, Path(folder))
        clusters = [cluster for cluster in CLUSTERS if FLUID or len(cluster.ours) == 4]
        found: dict[str, list[Any]] = {cluster.name: [] for cluster in clusters}
        for _ in range(ROUNDS):
            for cluster in clusters:
                found[cluster.name].append(job.run(cluster))
        job.ports.close()
    best = {cluster: max((run.speed, sum(run.cpu.values())) for run in runs) for cluster, runs in found.items()}
    peer = best.get("Fluid", (float("nan"), 0.0))[0]
    for cluster, (speed, spent) in best.items():
        told = f"{speed:8.1f} steps/s  {speed / peer:5.2f} x Fluid  {spent * 1000:7.2f} ms of CPU per step"
        print(f"{name:4} {cluster:32} {told}")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or ["mlp", "ctr"]:
        measure(chosen, {"mlp": mlp, "ctr": ctr}[chosen]())
