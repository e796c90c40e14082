"""A large table on two servers that are processes: their memory, and the steps of a trainer that uses all of it.

    python benchmarks/table_servers.py [rows] [--state] [--table-folder DIR]
    python benchmarks/table_servers.py --bytes

A table of 10,000,000 rows x 16 with Adagrad is filled by a trainer in this process, 200,000 ids a step, then 1,000
steps have 10,000 ids each. Goal: at most 1.3 times the memory of the numbers, of both servers together, at the end and
at any time, also with `--state`, where servers keep their state after every 500 updates. With `--table-folder` the rows
are in files there. Memory is that of the processes alone; pages of files, which the system takes back when it needs
them, are told beside it.

With `--bytes` two trainers and two servers train a click model with 26 tables of 100,000 rows x 16, whose gradients
have each row once (`merge_rows`), on batches of 128 and 512 rows a trainer, with ids of a Zipf distribution and even
ones. Told are the bytes that the connections between trainers and servers carry in a step, and their ratio to what must
be told at least: each different id of a trainer's step as it is asked for, its row, and its gradient with the id; the
other parameters and their gradients. Goal: at most 1.1 times that.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import secrets
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from time import perf_counter, sleep
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
TABLES, ROWS, NUMBERS, HIDDEN, FEW, MANY = 26, 100_000, 13, (400, 400, 400), 4, 14


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


def click_model() -> Any:
    """Rows of 26 tables and numbers side by side, through three hidden layers."""
    model = L.Draft(seed=1)
    numbers, click = L.data(model, "numbers", [-1, NUMBERS]), L.data(model, "click", [-1, 1])
    ids = [L.data(model, f"id_{number}", [-1, 1], "i64") for number in range(TABLES)]
    rows = [L.embedding(each, (ROWS, WIDTH), is_sparse=True, merge_rows=True) for each in ids]
    seen = L.concat([*rows, numbers], axis=1)
    for width in HIDDEN:
        seen = L.fc(seen, width, act="relu")
    minimize(L.mean(L.sigmoid_cross_entropy_with_logits(L.fc(seen, 1), click)), Adagrad(0.01))
    return model.module()


class Relay:
    """A port that passes bytes on to another one, and back, and counts them."""

    def __init__(self, target: str):
        self.count, self._target = 0, target.rpartition(":")
        self._port = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._port.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near = self._port.accept()[0]
            while True:
                try:
                    far = socket.create_connection((self._target[0], int(self._target[2])))
                    break
                except ConnectionRefusedError:
                    sleep(0.05)
            for ends in ((near, far), (far, near)):
                Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 20):
                target.sendall(part)
                self.count += len(part)
            target.shutdown(socket.SHUT_WR)


def bytes_of_run(folder: Path, feeds: Path, steps: int) -> int:
    """The bytes between trainers and servers in a run of so many steps."""
    roles = load_job_folder(folder).roles
    ports = Ports(len(roles))
    addresses = dict(zip(roles, ports.addresses, strict=True))
    relays = {role: Relay(address) for role, address in addresses.items() if role.startswith("pserver")}
    ports.close()
    processes: list[subprocess.Popen[bytes]] = []
    for role in roles:
        is_server = role in relays
        seen = addresses if is_server else addresses | {each: relay.address for each, relay in relays.items()}
        at = [part for name, address in seen.items() for part in ("--address", f"{name}={address}")]
        more = [] if is_server else ["--feed", str(feeds), "--steps", str(steps)]
        start = [sys.executable, "-m", "pstranspile", "start", str(folder), *at, *more, "--role", role]
        processes.append(subprocess.Popen(start, stdout=subprocess.DEVNULL))
    failures = [process.wait() for process in processes]
    if any(failures):
        raise SystemExit("a machine failed")
    return sum(relay.count for relay in relays.values())


def told_bytes(work: Path) -> None:
    """Trains the click model on batches of two sizes and three kinds of ids, and prints."""
    (work / "net.ir").write_text(print_module(click_model()))
    job = ["compile", str(work / "net.ir"), "--pservers", "2", "--trainers", "2", "-o", str(work / "out")]
    if command(job):
        raise SystemExit("the job does not compile")
    os.environ["PSTRANSPILE_TOKEN"] = secrets.token_hex(16)
    widths = [TABLES * WIDTH + NUMBERS, *HIDDEN, 1]
    dense = 2 * 2 * 4 * sum((before + 1) * after for before, after in pairwise(widths))
    for batch in (128, 512):
        for ids in ("1.2", "1.05", "even"):
            random = np.random.default_rng(0)
            size = TABLES, MANY, 2 * batch, 1
            drawn = random.integers(0, ROWS, size) if ids == "even" else random.zipf(float(ids), size) % ROWS
            fed: dict[str, Any] = {f"id_{number}": each for number, each in enumerate(drawn)}
            fed["numbers"] = random.random((MANY, 2 * batch, NUMBERS), "float32")
            fed["click"] = random.integers(0, 2, (MANY, 2 * batch, 1)).astype("float32")
            np.savez(work / "feed.npz", **fed)
            runs = [bytes_of_run(work / "out", work / "feed.npz", steps) for steps in (FEW, MANY)]
            found = (runs[1] - runs[0]) / (MANY - FEW)
            parts = drawn[:, FEW:].reshape(TABLES * (MANY - FEW) * 2, batch)
            different = sum(len(np.unique(part)) for part in parts) / (MANY - FEW)
            sparse = different * 2 * (8 + 4 * WIDTH)
            print(f"{batch} rows a trainer, ids {ids}: {found:,.0f} bytes a step, {found / (dense + sparse):.3f}x of "
                  f"what is needed; without other parameters {(found - dense) / sparse:.3f}x", flush=True)  # fmt: skip


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--state", action="store_true")
    parser.add_argument("--table-folder")
    parser.add_argument("--bytes", action="store_true", help="count the bytes of a click model between its machines")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        (told_bytes(Path(work)) if options.bytes else measure(options, Path(work)))


if __name__ == "__main__":
    main()
