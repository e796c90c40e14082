"""A small job as processes to which something happens, and the books of what they sent and applied."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.machines.simulate import Simulated, simulate
from pstranspile.cluster.net.job import JobFolder
from pstranspile.cluster.net.parts import gather
from pstranspile.cluster.net.supervisor import Member, Ports, Supervisor, command_of
from pstranspile.proof.faults import Entry, UpdateLedger

STEPS, LOSS, SECONDS = 40, "loss", 90
SCRIPT = str(Path(__file__).parent / "logged.py")

Look = Callable[["Campaign"], object]


def runs(name: str, usual: int) -> int:
    """How many runs of a campaign are made: as many as an environment variable says."""
    return int(os.environ.get(name, usual))


class Job(NamedTuple):
    """A compiled job with what it is fed, and its outcome if nothing happens."""

    folder: Path
    job: JobFolder
    feeds: Path
    expected: Simulated

    @classmethod
    def of(cls, folder: Path, job: JobFolder) -> Job:
        random = np.random.RandomState(3)
        x, y = random.rand(STEPS, 8, 1000).astype("float32"), random.rand(STEPS, 8, 20).astype("float32")
        np.savez(folder / "feeds.npz", x=x, y=y)
        return cls(folder, job, folder / "feeds.npz", simulate(job.roles, {"x": x, "y": y}, STEPS, [LOSS]))


class Hung(Exception):
    """The run has not come to its end in time."""


class Campaign:
    """One run. `look` is called again and again while it goes on; `pace` is how many seconds pass between steps."""

    def __init__(self, job: Job, work: Path, look: Look, *, lease: float = 4.0, pace: float = 0.03):
        self.job, self.work = job, work
        ports = Ports(len(job.job.roles))
        addresses = dict(zip(job.job.roles, ports.addresses, strict=True))
        self.results = {name: str(work / f"{name}.result") for name in job.job.roles}
        self.logs = {name: work / f"{name}.books" for name in job.job.roles}
        shared = ["--feed", str(job.feeds), "--fetch", LOSS, "--state", str(work), "--state-every", "5"]
        shared += ["--lease", str(lease)]
        self.members: dict[str, Member] = {}
        for name, result in self.results.items():
            command = command_of(name, str(job.folder), addresses, [*shared, "--result", result])
            command = ["env", f"PSTRANSPILE_PACE={pace}", sys.executable, SCRIPT, str(self.logs[name]), *command[3:]]
            self.members[name] = Member(name, command, work / f"{name}.log")
        self.began = time.monotonic()

        def on_look() -> None:
            if time.monotonic() - self.began > SECONDS:
                raise Hung(self.told())
            look(self)

        self.step = -1
        """How many steps trainer_0 has done; below 0 before the first."""
        supervisor = Supervisor(self.members, restarts=1, on_report=self._reported, on_look=on_look)
        self.done = supervisor.run()
        self.left_out = [member.role for member in supervisor.left_out]
        ports.close()

    def _reported(self, member: Member, fields: dict[str, Any]) -> None:
        if member.role == "trainer_0":
            self.step = fields.get("step", self.step)

    @property
    def seconds(self) -> float:
        """How long the run goes on."""
        return time.monotonic() - self.began

    def signal(self, role: str, number: int) -> bool:
        """Sends a signal to a machine's process; whether it was there."""
        process = self.members[role].process
        if process is None or process.poll() is not None:
            return False
        process.send_signal(number)
        return True

    def told(self) -> str:
        """What the processes have told, for a person."""
        return "\n".join(f"{m.role} {m.exit_status} {m.last_reports}: {m.log_tail(20)}" for m in self.members.values())

    def outcome(self) -> Simulated:
        """What the processes have left."""
        return gather(self.job.job.cluster(fetch=[LOSS]), self.results)

    def _lines(self, role: str) -> Iterable[tuple[int, str, list[Any]]]:
        if not self.logs[role].exists():
            return
        for line in self.logs[role].read_text().splitlines():
            process, what, *fields = json.loads(line)
            yield process, what, fields

    def problems(self) -> list[str]:
        """What is wrong with the books. What the first process in a role sent last may have died with it."""
        books = UpdateLedger()
        last: dict[tuple[str, int, int], int] = {}
        lives: dict[str, list[int]] = {}
        for role in self.members:
            for process, what, fields in self._lines(role):
                own = lives.setdefault(role, [])
                if process not in own:
                    own.append(process)
                if what == "applied":
                    server, update, values = fields
                    books.applied[server, update] = [(name, who, value) for name, who, value in values]
                elif what == "reported":
                    server, step, trainer = fields
                    books.send_barriers.add((server, step, trainer))
                    last[server, trainer, process] = step
                else:
                    server, step, trainer, variable, value = fields
                    books.sent[Entry(server, step, trainer, variable)] = value
        lost: set[tuple[str, int, int]] = set()
        for (server, trainer, process), step in last.items():
            if process != lives[f"trainer_{trainer}"][-1]:
                lost.add((server, step, trainer))
        known = {(e.server, e.step, e.trainer) for e in _applied(books)}
        for entry in [e for e in books.sent if (e.server, e.step, e.trainer) in lost - known]:
            del books.sent[entry]
        return books.problems()


def _applied(books: UpdateLedger) -> Iterable[Entry]:
    for (server, step), values in books.applied.items():
        for variable, trainer, _ in values:
            yield Entry(server, step, trainer, variable)
