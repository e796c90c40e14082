"""A large table on two servers, beside the same lookups and updates written by hand in numpy.

    python benchmarks/large_tables.py [rows]
    python benchmarks/large_tables.py --folder DIR [rows]
    python benchmarks/large_tables.py --torch [rows]
    python benchmarks/large_tables.py --threads N [rows]

A table of 10,000,000 rows x 16 with Adagrad, half of it on each of two servers, is filled, then looked up and updated
1,000 times with 10,000 ids each. By hand the same ids are found by `searchsorted` in sorted ids, and rows of two arrays
are updated by index. Goals: at most 1.3 times the memory of the numbers, at least half the speed of that by hand, and
no more memory while rows leave and while all is saved (beyond the order of ids, 8 bytes each). Seconds are of the
processor; memory is looked at 200 times a second.

With `--folder` such a table is in memory in one process, and in a file in DIR in another. Of the ids of a step 95 in
100 are of a fiftieth of the rows, spread evenly over all. Told are milliseconds of a step, and memory:
that of the process, and pages of the file, which the system takes back when it needs them. Where memory is limited from
outside to less than the table takes, the first process is killed. A third process has a tenth of the numbers in memory
at most. Goals of it: 0.5 times the speed in memory, and at most 5 % over the limit at any time.

With `--torch` the ids per second of a lookup and an update with Adagrad are told of PyTorch's EmbeddingBag (sparse),
and of a cluster of one server and one trainer in one process, with a plain table and with a large one: ids of a Zipf
distribution with exponent 1.2 and 1.05, and even ones; a table that is asked for 4,096 ids a step, and 26 tables that
are asked for 512 each. Each figure is the best of turns that sides take. Goals: plain 2.3 times PyTorch's, large 1.8
times. Then a large table takes 10,000 ids an update until it has so many rows: the longest update in ms of the
processor, and the most bytes beyond the numbers that a row takes. Goals: 50 ms; 12 bytes and 15 % of the numbers.

With `--threads` 26 tables, which have so many rows together, are looked up and updated by 512, 4,096 and 10,000 ids
each, on one thread and on N: milliseconds of a step by the clock, the best of turns that both take. Goal: 1.7 times the
speed with two threads.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np

from pstranspile.ir.table_rules import Rules
from pstranspile.ops.build import make_op
from pstranspile.runtime.large.forms import TablePart, streams_of, written
from pstranspile.runtime.large.table import (
    LargeTable,
    TableState,
    look_up_side_by_side,
    rows_on_disk,
    tables_on_threads,
    updates_side_by_side,
)
from pstranspile.runtime.run.bound_ops import bind
from pstranspile.runtime.values import SelectedRows

WIDTH, IDS, TIMES, HEIGHT = 16, 10_000, 1000, 1 << 40
RATE = np.array([0.1], "float32")
RULES = Rules(shrink_every=1 << 30, drop_unseen=1 << 30, drop_below=1e-9)


def memory() -> float:
    """MB of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def file_pages(process: int, folder: str) -> float:
    """MB of files in a folder that a process has in memory."""
    size, inside = 0, False
    try:
        lines = Path(f"/proc/{process}/smaps").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    for line in lines:
        name, *rest = line.split(maxsplit=5)
        if not name.endswith(":"):
            inside = len(rest) == 5 and rest[4].startswith(folder)
        elif inside and name == "Rss:":
            size += int(rest[0])
    return size * 1024 / 1e6


@contextmanager
def peak() -> Generator[list[float]]:
    """A list whose item is by how many MB the process has more memory within the context than before, at most."""
    begun, most, over = memory(), [0.0], Event()

    def look() -> None:
        while not over.wait(0.005):
            most[0] = max(most[0], memory() - begun)

    thread = Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def filled(ids: Any) -> LargeTable:
    """A table that has these rows."""

    def initial(wanted: Any) -> Any:
        return np.full((len(wanted), WIDTH), 0.01, "float32")

    table = LargeTable(HEIGHT, WIDTH, initial, rules=RULES)
    table.add_state(0.0)
    for at in range(0, len(ids), 100_000):
        places, _ = table.enter(np.sort(ids[at : at + 100_000]))
        table.put(places, table.take(places))
        table.end_update()
    return table


class ByHand:
    """The same rows in arrays, found in sorted ids."""

    def __init__(self, ids: Any):
        self.ids = np.sort(ids)
        self.values = np.full((len(ids), WIDTH), 0.01, "float32")
        self.moments = np.zeros((len(ids), WIDTH), "float32")

    def step(self, ids: Any, gradient: Any) -> Any:
        """Looks rows up, and updates them; gives what was looked up."""
        found = self.values[self.ids.searchsorted(ids)]
        rows, back = np.unique(ids, return_inverse=True)
        total = np.zeros((len(rows), WIDTH), "float32")
        np.add.at(total, back, gradient)
        places = self.ids.searchsorted(rows)
        moments = self.moments[places] + total * total
        self.moments[places] = moments
        self.values[places] -= RATE * total / (np.sqrt(moments) + 1e-6)
        return found


def used(count: int, folder: str | None, limit: int) -> None:
    """Prints milliseconds of a step with a table in memory, or in a file, by the clock and of the processor, and MB of
    the process and of files. `limit` is that of rows on disk in bytes, 0 for none.
    """
    random = np.random.default_rng(0)
    ids = np.unique(random.integers(0, HEIGHT, count + count // 1000))[:count]
    random.shuffle(ids)
    with rows_on_disk(folder, limit or None):
        table = filled(ids)
    hot = ids[::50].copy()
    for turn in range(TIMES):
        if turn == TIMES // 5:
            begun, used_before = perf_counter(), process_time()
        often, seldom = random.integers(0, len(hot), IDS * 95 // 100), random.integers(0, count, IDS * 5 // 100)
        asked = np.unique(np.concatenate([hot[often], ids[seldom]]))
        table.look_up(asked)
        places, _ = table.enter(asked)
        table.put(places, table.take(places) + RATE)
        table.end_update()
    steps = TIMES - TIMES // 5
    by_clock, of_processor = 1e3 * (perf_counter() - begun) / steps, 1e3 * (process_time() - used_before) / steps
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) / 1e3 for line in lines if line.startswith("Rss")}
    print(by_clock, of_processor, sizes["RssAnon:"], sizes["RssFile:"])


def beside(count: int, folder: str) -> None:
    """Measures a table in memory and one in a file, each in a process of its own, and prints."""
    found: list[tuple[float, ...]] = []
    limit = count * WIDTH * 2 * 4 // 10
    for where, most in (("", 0), (folder, 0), (folder, limit)):
        given = [sys.executable, __file__, str(count), "--used", where, "--limit", str(most)]
        process, highest = subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), 0.0
        while process.poll() is None:
            highest = max(highest, file_pages(process.pid, os.path.realpath(folder)) if most else 0.0)
            sleep(0.02)
        told, wrong = process.communicate()
        name = "in a file" if where else "in memory"
        if process.returncode:
            print(f"{name}: ended with status {process.returncode} {wrong[-300:]}")
            continue
        step, processor, own, pages = (float(number) for number in told.split())
        found.append((step, own, processor))
        times = f"{step:.1f} ms a step, {processor:.1f} ms of the processor"
        print(f"{count:,} rows {name}: {times}, {own:.0f} MB, {pages:.0f} MB of files")
        if most:
            by_clock, of_processor, part = found[0][0] / step, found[0][2] / processor, 1e6 * highest / limit
            speeds = f"{by_clock:.2f}x the speed in memory ({of_processor:.2f}x by the processor)"
            print(f"a tenth in memory: {speeds}, at most {part:.3f}x the limit")
    if len(found) == 3:
        print(f"in a file: {found[1][1] / found[0][1]:.2f}x the memory, {found[0][0] / found[1][0]:.2f}x the speed")


def torch_step(rows: int, tables: int, ids: Any) -> Any:
    """A function that looks rows of tables up and updates them in PyTorch, by the number of the step."""
    import torch

    torch.set_num_threads(1)
    bags = [torch.nn.EmbeddingBag(rows, WIDTH, sparse=True, mode="sum") for _ in range(tables)]
    optimizer = torch.optim.Adagrad([bag.weight for bag in bags], lr=0.1)
    batches, offsets = torch.from_numpy(ids), torch.arange(ids.shape[2])

    def step(number: int) -> None:
        optimizer.zero_grad()
        found = [bag(batch, offsets) for bag, batch in zip(bags, batches[number], strict=True)]
        torch.cat(found).pow(2).mean().backward()
        optimizer.step()

    return step


def cluster_of(rows: int, tables: int, large: bool) -> Any:
    """The programs of one server and one trainer that look rows of tables up and update them."""
    import pstranspile as ps
    from pstranspile import layers as L
    from pstranspile.autodiff import Adagrad, minimize

    model = L.Draft(seed=1)
    words = [L.data(model, f"word_{number}", [-1, 1], "i64") for number in range(tables)]
    dims, names = (1 << 50 if large else rows, WIDTH), [f"table_{number}" for number in range(tables)]
    found = [L.embedding(word, dims, is_sparse=True, param_attr=name) for word, name in zip(words, names, strict=True)]
    minimize(L.mean(L.square(L.concat(found, axis=0) if tables > 1 else found[0])), Adagrad(0.1))
    job = ps.Job(pservers=1, trainers=1)
    if large:
        job = ps.Job(pservers=1, trainers=1, large_tables=", ".join(names))
    return ps.compile(model.module(), job)


def beside_torch(rows: int) -> None:
    """Measures tables beside those of PyTorch, and prints."""
    import pstranspile as ps

    steps, few, turns = 320, 20, 5
    for tables, each in ((1, 4096), (26, 512)):
        height = rows if tables == 1 else max(rows // 26, 1)
        programs = {name: cluster_of(height, tables, name == "large") for name in ("plain", "large")}
        for ids in ("1.2", "1.05", "even"):
            random = np.random.default_rng(0)
            size = steps, tables, each
            drawn = random.integers(0, height, size) if ids == "even" else random.zipf(float(ids), size) % height
            fed = {f"word_{number}": drawn[:, number, :, None] for number in range(tables)}
            step = torch_step(height, tables, drawn)
            of_torch = 1e9
            least = {(name, count): 1e9 for name in programs for count in (few, steps)}
            for _ in range(turns):
                begun = process_time()
                for number in range(few, steps):
                    step(number)
                of_torch = min(of_torch, process_time() - begun)
                for name, count in least:
                    begun = process_time()
                    ps.simulate(programs[name], {key: value[:count] for key, value in fed.items()})
                    least[name, count] = min(least[name, count], process_time() - begun)
            taken = {name: least[name, steps] - least[name, few] for name in programs} | {"torch": of_torch}
            speed = {name: (steps - few) * tables * each / time for name, time in taken.items()}
            told = ", ".join(f"{name} {speed[name] / speed['torch']:.2f}x" for name in programs)
            print(f"{tables} x {height:,} rows, ids {ids}: torch {speed['torch']:,.0f} ids/s, {told}", flush=True)
    table = LargeTable(HEIGHT, WIDTH, lambda wanted: np.full((len(wanted), WIDTH), 0.01, "float32"))
    table.add_state(0.0)
    random, longest, most = np.random.default_rng(0), 0.0, 0.0
    while len(table) < rows:
        ids = np.unique(random.integers(0, HEIGHT, IDS))
        begun = process_time()
        table.enter(ids)
        table.end_update()
        longest = max(longest, process_time() - begun)
        if len(table) > rows // 10:
            most = max(most, table.nbytes / len(table) - WIDTH * 2 * 4)
    print(f"{rows:,} rows: longest update {1e3 * longest:.1f} ms, {most:.1f} bytes a row beyond the numbers at most")


def on_threads(rows: int, threads: int) -> None:
    """Measures lookups and updates of 26 tables on one thread and on several, and prints."""
    names = {"Param": ["w"], "Grad": ["g"], "LearningRate": ["r"], "Moment": ["m"]}
    adagrad = bind(make_op("adagrad", names, {"ParamOut": ["w"], "MomentOut": ["m"]}, {"epsilon": 1e-6}))
    slots = [argument.slot for argument in adagrad.arguments]
    random, steps, turns = np.random.default_rng(0), 20, 5
    held = [np.unique(random.integers(0, HEIGHT, rows // 26)) for _ in range(26)]
    tables = [filled(ids) for ids in held]
    for table in tables:
        table.rules = Rules()
    for count in (512, 4096, 10_000):
        batches = [[random.choice(ids, count) for ids in held] for _ in range(steps)]
        gradient = random.random((count, WIDTH), "float32")

        def step(asked: list[Any], gradient: Any = gradient) -> None:
            look_up_side_by_side([*zip(tables, asked, strict=True)])
            with updates_side_by_side():
                for table, ids in zip(tables, asked, strict=True):
                    given = {"Param": table, "Grad": SelectedRows(ids, gradient, HEIGHT), "LearningRate": RATE}
                    given["Moment"] = TableState("w", 1, 0.0)
                    adagrad.run(*(given.get(slot) for slot in slots))

        least = {1: 1e9, threads: 1e9}
        for _ in range(turns):
            for number in least:
                with tables_on_threads(number):
                    begun = perf_counter()
                    for asked in batches:
                        step(asked)
                    least[number] = min(least[number], perf_counter() - begun)
        told = ", ".join(f"{number} threads {1e3 * least[number] / steps:.1f} ms" for number in least)
        print(f"26 x {count:,} ids: {told}: {least[1] / least[threads]:.2f}x", flush=True)


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=int, nargs="?", default=10_000_000)
    parser.add_argument("--folder", help="measure a table in memory and one in a file here")
    parser.add_argument("--torch", action="store_true", help="measure tables beside those of PyTorch")
    parser.add_argument("--threads", type=int, help="measure 26 tables on one thread and on so many")
    parser.add_argument("--used", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.used is not None:
        used(options.rows, options.used or None, options.limit)
    elif options.threads:
        on_threads(options.rows, options.threads)
    elif options.torch:
        beside_torch(options.rows)
    elif options.folder:
        beside(options.rows, options.folder)
    else:
        by_hand(options.rows)


def by_hand(count: int) -> None:
    """Measures a table beside arrays that are used by hand, and prints."""
    random = np.random.default_rng(0)
    ids = np.unique(random.integers(0, HEIGHT, count + count // 1000))[:count]
    random.shuffle(ids)
    halves = ids[: count // 2].copy(), ids[count // 2 :].copy()
    before = memory()
    tables = [filled(half) for half in halves]
    now = memory()
    numbers = count * WIDTH * 2 * 4 / 1e6
    print(f"{count:,} rows: numbers {numbers:.0f} MB, tables {now - before:.0f} MB: {(now - before) / numbers:.2f}x")

    names = {"Param": ["w"], "Grad": ["g"], "LearningRate": ["r"], "Moment": ["m"]}
    adagrad = bind(make_op("adagrad", names, {"ParamOut": ["w"], "MomentOut": ["m"]}, {"epsilon": 1e-6}))
    slots = [argument.slot for argument in adagrad.arguments]
    hand = [ByHand(half) for half in halves]
    ours = theirs = 0.0
    for turn in range(TIMES):
        asked = halves[turn % 2][random.integers(0, len(halves[0]), IDS)]
        gradient = random.random((IDS, WIDTH), "float32")
        table, other = tables[turn % 2], hand[turn % 2]
        given = {"Param": table, "Grad": SelectedRows(asked, gradient, HEIGHT), "LearningRate": RATE}
        given["Moment"] = TableState("w", 1, 0.0)
        begun = process_time()
        one = table.look_up(asked)
        adagrad.run(*(given.get(slot) for slot in slots))
        middle = process_time()
        two = other.step(asked, gradient)
        theirs += process_time() - middle
        ours += middle - begun
        if turn < 100:
            np.testing.assert_allclose(one, two, rtol=1e-4)
    told = f"{1e3 * ours / TIMES:.1f} ms, by hand {1e3 * theirs / TIMES:.1f} ms: {theirs / ours:.2f}x its speed"
    print(f"{TIMES:,} lookups and updates of {IDS:,} ids: each {told}")
    del hand, other, two

    with peak() as most, tempfile.TemporaryDirectory() as work:
        begun = process_time()
        parts = [TablePart(0, tables[0]), TablePart(HEIGHT, tables[1])]
        size = 0
        for name, stream in streams_of(parts).items():
            with open(Path(work, name), "wb") as file:
                for piece in written(stream):
                    size += file.write(piece)
        seconds = process_time() - begun
    print(f"saved: {size / 1e6:.0f} MB in {seconds:.1f} s, with {most[0]:.0f} MB of memory more at most")
    with peak() as most:
        begun = process_time()
        left = sum(table.shrink(unseen=table.updates - TIMES // 10) for table in tables)
        seconds = process_time() - begun
    print(f"shrunk: {left:,} rows left in {seconds:.1f} s, with {most[0]:.0f} MB of memory more at most")
    print(f"{len(tables[0]) + len(tables[1]):,} rows stay in {sum(table.nbytes for table in tables) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
