"""A large table on two servers that are processes: their memory, and the steps of a trainer that uses all of it.

    python benchmarks/table_servers.py [rows] [--state] [--table-folder DIR]

A table of 10,000,000 rows x 16 with Adagrad is filled by a trainer in this process, 200,000 ids a step, then 1,000
steps have 10,000 ids each. Goal: at most 1.3 times the memory of the numbers, of both servers together, at the end and
at any time, also with `--state`, where servers keep their state after every 500 updates. With `--table-folder` the rows
are in files there. Memory is that of the processes alone; pages of files, which the system takes back when it needs
them, are told beside it.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import numpy as np

from pstranspile.cluster.net.job import load_job_folder
from pstranspile.cluster.net.process import ProcessPlace, play
from pstranspile.cluster.net.status import StatusPipe
from pstranspile.cluster.net.supervisor import Ports
from pstranspile.cluster.net.terms import Terms
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adagrad, minimize
from pstranspile.ops.textual import print_module
from pstranspile.tools.cli import main as command

WIDTH, HEIGHT, AT_ONCE, IDS, STEPS = 16, 1 << 40, 200_000, 10_000, 1000


def program() -> Any:
    """A row is looked up for every id, and trained."""
    model = L.Draft(seed=1)
    word = L.data(model, "word", [-1, 1], "i64")
    row = L.embedding(word, (HEIGHT, WIDTH), is_sparse=True, param_attr="words")
    minimize(L.mean(row), Adagrad(0.1))
    return model.module()


def memory(process: subprocess.Popen[bytes], field: str) -> float:
    """MB of memory of a process: RssAnon, its own; RssFile, pages of files."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith(field)), 0.0)


class Watch:
    """The most memory that processes have had together, looked at 20 times a second."""

    def __init__(self, processes: list[subprocess.Popen[bytes]]):
        self.processes, self.most, self.over = processes, 0.0, Event()
        self._thread = Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self.over.wait(0.05):
            self.most = max(self.most, sum(memory(process, "RssAnon") for process in self.processes))


def measure(options: argparse.Namespace, work: Path) -> None:
    """Starts the servers, trains, and prints."""
    (work / "net.ir").write_text(print_module(program()))
    command(["compile", str(work / "net.ir"), "--pservers", "2", "--trainers", "1", "--set", "large_tables=words",
             "-o", str(work / "out")])  # fmt: skip
    folder = load_job_folder(work / "out")
    ports = Ports(len(folder.roles))
    addresses = dict(zip(folder.roles, ports.addresses, strict=True))
    os.environ["PSTRANSPILE_TOKEN"] = secrets.token_hex(16)
    more = ["--state", str(work / "kept"), "--state-every", "500"] if options.state else []
    more += ["--table-folder", options.table_folder] if options.table_folder else []
    at = [part for role, address in addresses.items() for part in ("--address", f"{role}={address}")]
    start = [sys.executable, "-m", "pstranspile", "start", str(work / "out"), *at, *more, "--role"]
    servers = [subprocess.Popen([*start, role]) for role in addresses if role.startswith("pserver")]
    random = np.random.default_rng(0)
    ids = np.unique(random.integers(0, HEIGHT, options.rows + options.rows // 1000))[: options.rows]
    random.shuffle(ids)
    filling = -(-len(ids) // AT_ONCE)
    times: list[float] = []

    def feed(_: int, step: int) -> dict[str, Any]:
        here = ids[step * AT_ONCE : (step + 1) * AT_ONCE] if step < filling else random.choice(ids, IDS)
        return {"word": here.reshape(-1, 1)}

    cluster = folder.cluster()
    cluster.feed(feed)
    terms = Terms(folder.hash, os.environ["PSTRANSPILE_TOKEN"])
    watch = Watch(servers)
    numbers = len(ids) * WIDTH * 2 * 4 / 1e6

    def stepped(_: Any) -> None:
        times.append(perf_counter())
        if len(times) == filling + STEPS:
            own, pages = (sum(memory(server, name) for server in servers) for name in ("RssAnon", "RssFile"))
            watch.over.set()
            print(f"{len(ids):,} rows: numbers {numbers:.0f} MB; servers {own:.0f} MB: {own / numbers:.2f}x, at most "
                  f"{watch.most:.0f} MB: {watch.most / numbers:.2f}x; pages of files {pages:.0f} MB")  # fmt: skip

    play(cluster, "trainer_0", terms, ProcessPlace(addresses), filling + STEPS, StatusPipe(), None, stepped)
    print(f"filled in {times[filling - 1] - times[0]:.0f} s; then {STEPS:,} steps of {IDS:,} ids: each "
          f"{1e3 * (times[-1] - times[filling - 1]) / STEPS:.1f} ms")  # fmt: skip
    for server in servers:
        server.wait()
    ports.close()


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--state", action="store_true")
    parser.add_argument("--table-folder")
    with tempfile.TemporaryDirectory() as work:
        measure(parser.parse_args(), Path(work))


if __name__ == "__main__":
    main()
