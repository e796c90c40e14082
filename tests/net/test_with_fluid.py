"""Machines of the real Fluid 1.8.5 and of this package in one cluster: the losses are those of Fluid alone.

Needs Fluid: PSTRANSPILE_FLUID is its Python (3.7, with paddlepaddle 1.8.5). The programs and the expected losses are
recorded; PSTRANSPILE_RECORDINGS may name a folder with more of them, laid out alike.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FLUID = os.environ.get("PSTRANSPILE_FLUID", "")
RECORDINGS = os.environ.get("PSTRANSPILE_RECORDINGS", "")
ARCHIVE = Path(__file__).parents[1] / "data" / "fluid" / "cluster.tar.xz"
CONFIG, ROLES = "sync_2x2", ("pserver_0", "pserver_1", "trainer_0", "trainer_1")
SECONDS = 120

pytestmark = pytest.mark.skipif(not FLUID, reason="PSTRANSPILE_FLUID does not name the Python of a Fluid 1.8.5")


@cache
def recorded() -> dict[str, bytes]:
    with tarfile.open(ARCHIVE) as archive:
        found = {m.name: f.read() for m in archive.getmembers() if (f := archive.extractfile(m)) is not None}
    for path in sorted(Path(RECORDINGS).rglob("*")) if RECORDINGS else ():
        name = str(path.relative_to(RECORDINGS)).replace("/numerics/", "/")
        if path.is_file() and (f"/{CONFIG}/" in name or name.count("/") == 1):
            data = path.read_bytes()
            found[name.removesuffix(".gz")] = gzip.decompress(data) if path.suffix == ".gz" else data
    return found


def cases() -> list[str]:
    names = sorted(name.removesuffix("/sync.npz") for name in recorded() if name.endswith("/sync.npz"))
    return [name for name in names if f"{name}/{CONFIG}/trainer_0.main.pb" in recorded()]


def arrays(name: str) -> dict[str, Any]:
    with np.load(io.BytesIO(recorded()[name])) as archive:
        return dict(archive)


def free_ports(count: int) -> list[int]:
    """Of four digits, as those in the programs."""
    found: list[int] = []
    candidate = 4000 + os.getpid() % 4000
    while len(found) < count:
        candidate += 1
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", candidate)):
                found.append(candidate)
    return found


class Job:
    """A recorded job in a folder, on ports of its own."""

    def __init__(self, case: str, work: Path):
        self.case, self.work = case, work
        self.folder = work / "job"
        self.folder.mkdir()
        ports = free_ports(2)
        for role in ROLES:
            for part in ("main", "startup"):
                data = recorded()[f"{case}/{CONFIG}/{role}.{part}.pb"]
                for recorded_port, port in zip((6174, 6175), ports, strict=True):
                    data = data.replace(b"127.0.0.1:%d" % recorded_port, b"127.0.0.1:%04d" % port)
                (self.folder / f"{role}.{part}.pb").write_bytes(data)
        self.loss = json.loads(recorded()[f"{case}/case.json"])["loss"]
        (work / "init.npz").write_bytes(recorded()[f"{case}/init.npz"])
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, role: str, command: list[str]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CPU_NUM": "1", "GLOG_minloglevel": "1"}
        environment.pop("http_proxy", None)
        with (self.work / f"{role}.log").open("wb") as log:
            self.processes[role] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def ours(self, role: str, *options: str) -> None:
        command = [sys.executable, "-m", "pstranspile", "start", str(self.folder), "--role", role, "--fluid", *options]
        self.start(role, [*command, "--init", str(self.work / "init.npz")])

    def fluid(self, kind: str, role: str, *arguments: str) -> None:
        script = str(Path(__file__).parent / "fluid_machine.py")
        self.start(role, [FLUID, script, kind, str(self.folder), role, *arguments])

    def fluid_trainer(self, index: int) -> None:
        feeds = self.work / f"feeds_{index}.npz"
        np.savez(feeds, **share_of(arrays(f"{self.case}/feeds.npz"), index, 2))
        self.fluid(
            "trainer",
            f"trainer_{index}",
            str(self.work / "init.npz"),
            str(feeds),
            self.loss,
            str(self.work / f"loss_{index}.npz"),
        )

    def end(self) -> dict[str, int]:
        """The exit status of every process, once the trainers have ended."""
        try:
            return {role: process.wait(SECONDS) for role, process in self.processes.items()}
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()

    def logs(self) -> str:
        return "\n".join(f"{role}: {(self.work / f'{role}.log').read_text()[-2000:]}" for role in self.processes)


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


@pytest.mark.parametrize("case", cases() if FLUID else [])
def test_trainers_of_fluid_on_our_servers(case: str, tmp_path: Path) -> None:
    job = Job(case, tmp_path)
    for role in ROLES[:2]:
        job.ours(role)
    for index in range(2):
        job.fluid_trainer(index)
    assert set(job.end().values()) == {0}, job.logs()
    losses = [np.load(tmp_path / f"loss_{index}.npz")["loss"] for index in range(2)]
    np.testing.assert_allclose(losses, arrays(f"{case}/sync.npz")["loss"], rtol=1e-5, atol=1e-6)
