"""Recorded jobs with machines of the real Fluid 1.8.5 and of this package.

PSTRANSPILE_FLUID is Fluid's Python (3.7, with paddlepaddle 1.8.5). PSTRANSPILE_RECORDINGS may name a folder with more
recorded jobs, laid out alike.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pstranspile.cluster.machines.snapshots import read_snapshot
from pstranspile.cluster.net.job import load_job_folder
from pstranspile.runtime.values import SelectedRows
from tests.ports import free_ports

FLUID = os.environ.get("PSTRANSPILE_FLUID", "")
RECORDINGS = os.environ.get("PSTRANSPILE_RECORDINGS", "")
ARCHIVE = Path(__file__).parents[2] / "data" / "fluid" / "cluster.tar.xz"
SERVERS, TRAINERS = ("pserver_0", "pserver_1"), ("trainer_0", "trainer_1")
ROLES = (*SERVERS, *TRAINERS)
SYNC, TABLE, ASYNC = "sync_2x2", "repaired_table_sync_2x2", "async_2x2"
SECONDS, STEPS = 120, 8


@cache
def recorded() -> dict[str, bytes]:
    with tarfile.open(ARCHIVE) as archive:
        found = {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}
    for path in sorted(Path(RECORDINGS).rglob("*")) if RECORDINGS else ():
        name = str(path.relative_to(RECORDINGS)).replace("/numerics/", "/")
        if path.is_file() and (name.count("/") == 1 or any(f"/{config}/" in name for config in (SYNC, TABLE, ASYNC))):
            data = path.read_bytes()
            found[name.removesuffix(".gz")] = gzip.decompress(data) if path.suffix == ".gz" else data
    return found


def cases(config: str) -> list[str]:
    """The models whose programs of a configuration are recorded."""
    return sorted({name.partition("/")[0] for name in recorded() if name.endswith(f"/{config}/trainer_0.main.pb")})


def has_losses(case: str) -> bool:
    """Whether the losses of a synchronous run are recorded."""
    return f"{case}/sync.npz" in recorded()


def arrays(name: str) -> dict[str, Any]:
    with np.load(io.BytesIO(recorded()[name])) as archive:
        return dict(archive)


class Job:
    """A recorded job in a folder, on ports of its own; `ours` are the machines that this package plays."""

    def __init__(self, case: str, config: str, work: Path, ours: Collection[str]):
        self.case, self.config, self.work, self.ours = case, config, work, ours
        self.folder = work / "job"
        self.folder.mkdir()
        ports = free_ports(2, short=True)
        for role in ROLES:
            for part in ("main", "startup"):
                data = recorded()[f"{case}/{config}/{role}.{part}.pb"]
                for recorded_port, port in zip((6174, 6175), ports, strict=True):
                    data = data.replace(b"127.0.0.1:%d" % recorded_port, b"127.0.0.1:%04d" % port)
                (self.folder / f"{role}.{part}.pb").write_bytes(data)
        self.about = json.loads(recorded()[f"{case}/case.json"])
        known = f"{case}/init.npz" in recorded()
        self.init = arrays(f"{case}/init.npz") if known else {}
        self.feeds = arrays(f"{case}/feeds.npz") if known else made_feeds(self.about)
        np.savez(work / "init.npz", **self.init)
        np.savez(work / "feeds.npz", **self.feeds)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self) -> dict[str, list[float]]:
        """The losses of the trainers. Every process must end with 0.

        Servers of Fluid do that when they are told to; asynchronous ones don't, whoever their trainers are.
        """
        self._server_values()
        for role in ROLES:
            (self._ours if role in self.ours else self._fluid)(role)
        try:
            found = {role: self.processes[role].wait(SECONDS) for role in TRAINERS}
            for role in SERVERS:
                if role not in self.ours:
                    self.processes[role].send_signal(signal.SIGTERM)
                if role in self.ours or self.config != ASYNC:
                    found[role] = self.processes[role].wait(20)
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()
        assert set(found.values()) == {0}, (found, self.logs())
        return {role: self._losses(role) for role in TRAINERS}

    def _server_values(self) -> None:
        """What the servers begin with, for those of Fluid: their start-up programs draw other random numbers."""
        cluster = load_job_folder(self.folder).cluster(init=self.init, seed=5)
        cluster.begin(cluster.servers, [])
        for server in cluster.servers:
            values: dict[str, Any] = {}
            for name, value in server.scope.values_here.items():
                if isinstance(value, SelectedRows):
                    values.update({name: value.value, f"{name}@ROWS": value.rows})
                elif isinstance(value, np.ndarray):
                    values[name] = value
            np.savez(self.work / f"{server.name}.npz", **values)

    def _start(self, role: str, command: list[str]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CPU_NUM": "1", "GLOG_minloglevel": "1"}
        environment.pop("http_proxy", None)
        with (self.work / f"{role}.log").open("wb") as log:
            self.processes[role] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _ours(self, role: str) -> None:
        command = [sys.executable, "-m", "pstranspile", "start", str(self.folder), "--role", role, "--fluid"]
        command += ["--init", str(self.work / "init.npz"), "--seed", "5", "--patience", str(SECONDS)]
        if role in TRAINERS:
            command += ["--feed", str(self.work / "feeds.npz"), "--fetch", self.about["loss"]]
            command += ["--result", str(self.work / f"{role}.result")]
        self._start(role, command)

    def _fluid(self, role: str) -> None:
        script = str(Path(__file__).parent / "fluid_machine.py")
        if role in SERVERS:
            self._start(role, [FLUID, script, "server", str(self.folder), role, str(self.work / f"{role}.npz")])
            return
        feeds = self.work / f"{role}.feeds.npz"
        np.savez(feeds, **share_of(self.feeds, TRAINERS.index(role), len(TRAINERS)))
        files = [str(self.work / "init.npz"), str(feeds), self.about["loss"], str(self.work / f"{role}.loss.npz")]
        self._start(role, [FLUID, script, "trainer", str(self.folder), role, *files])

    def _losses(self, role: str) -> list[float]:
        if role not in self.ours:
            with np.load(self.work / f"{role}.loss.npz") as found:
                return found["loss"].tolist()
        kept: Any = read_snapshot(self.work / f"{role}.result", role).state
        return [float(result.values[self.about["loss"]].reshape(-1)[0]) for result in kept["results"]]

    def logs(self) -> str:
        """The ends of what the processes have told."""
        return "\n".join(f"{role}: {(self.work / f'{role}.log').read_text()[-2000:]}" for role in self.processes)


def made_feeds(about: dict[str, Any]) -> dict[str, Any]:
    """Inputs for a model without recorded ones: ids and labels, in sequences where the model wants them."""
    random, batch = np.random.RandomState(4), 8
    found: dict[str, Any] = {}
    for feed in about["feeds"]:
        most = 2 if feed["name"] == "label" else 1000
        if feed["lod_level"]:
            lens = random.randint(1, 5, (STEPS, batch))
            found[feed["name"]] = random.randint(0, most, (int(lens.sum()), 1))
            found[f"{feed['name']}@LENS"] = lens
        else:
            found[feed["name"]] = random.randint(0, most, (STEPS, batch, 1))
    return found


def share_of(feeds: dict[str, Any], index: int, count: int) -> dict[str, Any]:
    """What a trainer is fed in each step, `<step>/<name>`: its rows of the batch, or its sequences."""
    found: dict[str, Any] = {}
    for name, array in feeds.items():
        lens = feeds.get(f"{name}@LENS")
        if name.endswith("@LENS"):
            continue
        if lens is None:
            size = array.shape[1] // count
            found.update(
                {f"{step}/{name}": batch[index * size : (index + 1) * size] for step, batch in enumerate(array)}
            )
            continue
        size, at = lens.shape[1] // count, 0
        for step, lengths in enumerate(lens):
            mine = slice(index * size, (index + 1) * size)
            begin = at + int(lengths[: mine.start].sum())
            found[f"{step}/{name}"] = array[begin : begin + int(lengths[mine].sum())]
            found[f"{step}/{name}@LENS"] = lengths[mine]
            at += int(lengths.sum())
    return found
