"""A large table on two servers, beside the same lookups and updates written by hand in numpy.

    python benchmarks/large_tables.py [rows]

A table of 10,000,000 rows x 16 with Adagrad, half of it on each of two servers, is filled, then looked up and updated
1,000 times with 10,000 ids each. By hand the same ids are found by `searchsorted` in sorted ids, and rows of two arrays
are updated by index. Goals: at most 1.3 times the memory of the numbers, at least half the speed of that by hand, and
no more memory while rows leave and while all is saved (beyond the order of ids, 8 bytes each). Seconds are of the
processor; memory is looked at 200 times a second.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import resource
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import process_time
from typing import Any

import numpy as np

from pstranspile.job.table_rules import Rules
from pstranspile.large.streams import TablePart, streams_of, written
from pstranspile.large.table import LargeTable, TableState
from pstranspile.ops.build import make_op
from pstranspile.run.bound import bind
from pstranspile.values import SelectedRows

WIDTH, IDS, TIMES, HEIGHT = 16, 10_000, 1000, 1 << 40
RATE = np.array([0.1], "float32")
RULES = Rules(shrink_every=1 << 30, drop_unseen=1 << 30, drop_below=1e-9)


def memory() -> float:
    """MB of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


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


def main() -> None:
    """Measures, and prints."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
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
        adagrad.run(*(given[slot] for slot in slots))
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
