"""The same job on 16 servers with more and more trainers, as processes on this host.

    python benchmarks/growth.py [4 16 64]

A multi-layer perceptron with Adam, sliced over all servers; every trainer takes batches of 4. Printed are, for each
number of trainers: CPU time of all processes together per step and trainer, and the memory of all of them (what they
share counts once). A trainer sends and receives the same messages however many there are, so the first figure
should stay what it is: the goal is at most 1.25 times that of the fewest. The memory's goal is 8 GB for 80 processes.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from steps import mlp

from pstranspile.cluster.net.supervisor import Member, Ports, Supervisor, command_of
from pstranspile.ops.textual import print_module
from pstranspile.tools.cli import main

SERVERS, BATCH = 16, 4
WARM, HALF, MEASURED, STEPS = 5, 12, 20, 40


class Growing:
    """A job of so many trainers, run once."""

    def __init__(self, trainers: int, folder: Path):
        model = mlp()
        (folder / "net.ir").write_text(print_module(model.module))
        job = [
            str(folder / "net.ir"),
            "--pservers",
            str(SERVERS),
            "--trainers",
            str(trainers),
            "-o",
            str(folder / "job"),
        ]
        assert main(["compile", *job]) == 0
        rows = BATCH * trainers
        feed = {name: np.resize(value, (STEPS, rows, *value.shape[1:])) for name, value in model.feed.items()}
        np.savez(folder / "feeds.npz", **feed)
        roles = [f"pserver_{i}" for i in range(SERVERS)] + [f"trainer_{i}" for i in range(trainers)]
        ports = Ports(len(roles))
        addresses = dict(zip(roles, ports.addresses, strict=True))
        options = ["--feed", str(folder / "feeds.npz"), "--patience", "600", "--lease", "600"]
        self.members = {
            role: Member(role, command_of(role, str(folder / "job"), addresses, options), folder / f"{role}.log")
            for role in roles
        }
        self.trainers = [role for role in roles if role.startswith("trainer")]
        self.marks = dict.fromkeys((WARM, MEASURED), 0.0)
        self.memory = 0.0
        supervisor = Supervisor(self.members, on_report=self.reported)
        if not supervisor.run():
            raise SystemExit("\n".join(f"{member.role}: {member.log_tail()}" for member, _ in supervisor.failed))
        ports.close()

    def reported(self, _member: Member, fields: dict[str, Any]) -> None:
        """A process has told something: after certain steps, or updates, how much CPU it has used."""
        step = fields.get("step")
        if step in (WARM, MEASURED):
            self.marks[step] += fields["cpu"]
        elif step == HALF and not self.memory:  # the first that says so: none can have ended
            running = [member.process for member in self.members.values() if member.process is not None]
            self.memory = sum(memory(process.pid) for process in running)

    @property
    def milliseconds(self) -> float:
        """Of CPU, per step and trainer."""
        return (self.marks[MEASURED] - self.marks[WARM]) * 1000 / (MEASURED - WARM) / len(self.trainers)


def memory(process: int) -> float:
    """The megabytes of a process; what others use too is shared out among them."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


if __name__ == "__main__":
    first = None
    for count in map(int, sys.argv[1:] or ["4", "16", "64"]):
        with tempfile.TemporaryDirectory() as work:
            run = Growing(count, Path(work))
        first = first or run.milliseconds
        shown = f"{run.milliseconds:7.2f} ms of CPU per step and trainer  {run.milliseconds / first:5.2f} x"
        print(f"{count:4} trainers  {shown}  {run.memory:8.0f} MB in {count + SERVERS} processes", flush=True)
