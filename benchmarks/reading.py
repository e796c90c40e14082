"""Rows of files as what a program is fed, beside what the formats' own readers take for the same rows.

    PSTRANSPILE_FLUID=/path/to/fluids/python python benchmarks/reading.py

A million rows of Parquet (13 floats, a list of ids, a label) in batches of 1,024, beside `pyarrow.dataset` into numpy;
goal: at least 0.8 times its speed. 200,000 rows of MultiSlot text, beside Fluid 1.8.5's own parser (`InMemoryDataset`,
C++, one thread) where PSTRANSPILE_FLUID names its Python; goal: at most 2 times its time. The fastest of several runs
counts.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow
from pyarrow import dataset, parquet

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize

FLUID = os.environ.get("PSTRANSPILE_FLUID", "")
ROWS, LINES, BATCH, DENSE, ROUNDS = 1_000_000, 200_000, 1024, 13, 3

PARSE = """
import sys, time
import paddle.fluid as fluid
ids = fluid.layers.data("ids", [1], dtype="int64", lod_level=1)
used = [ids, fluid.layers.data("dense", [13]), fluid.layers.data("click", [1])]
for _ in range(3):
    rows = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    rows.set_use_var(used), rows.set_pipe_command("cat"), rows.set_batch_size(1024), rows.set_thread(1)
    rows.set_filelist([sys.argv[1]])
    begun = time.time()
    rows.load_into_memory()
    print("seconds", time.time() - begun)
"""


def program() -> Any:
    """A program with the three inputs."""
    model = L.Draft(seed=1)
    ids = L.data(model, "ids", [-1, 1], "i64", lod_level=1)
    dense, click = L.data(model, "dense", [-1, DENSE]), L.data(model, "click", [-1, 1])
    pooled = L.sequence_pool(L.embedding(ids, (1000, 4), is_sparse=True), "sum")
    minimize(L.mean(L.square_error_cost(L.fc(L.concat([pooled, dense], axis=1), 1), click)), SGD(0.01))
    return model.module().main


def fastest(run: Callable[[], int]) -> float:
    """The seconds of the fastest of several runs."""
    times: list[float] = []
    for _ in range(ROUNDS):
        begun = perf_counter()
        run()
        times.append(perf_counter() - begun)
    return min(times)


def fed(paths: Path, **options: Any) -> int:
    """Has a program fed all rows; gives how many there are."""
    feeds, steps = ps.Data(paths, batch=BATCH, **options).feeds([program()])
    return sum(len((feeds[0](step) or {})["click"]) for step in range(steps))


def of_arrow(paths: Path) -> int:
    """Reads all rows into numpy; gives how many there are."""
    rows = 0
    for batch in dataset.dataset(paths, format="parquet").to_batches(batch_size=BATCH):
        np.stack([batch.column(f"f{at}").to_numpy(zero_copy_only=False) for at in range(DENSE)], axis=1)
        ids = batch.column("ids")
        assert len(ids.values.to_numpy()) >= len(ids.offsets.to_numpy()) - 1
        rows += len(batch.column("click").to_numpy())
    return rows


def main() -> None:
    """Measures, and prints."""
    random = np.random.default_rng(0)
    sizes = random.integers(1, 8, ROWS)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    ids, dense = random.integers(0, 1000, offsets[-1]), random.random((ROWS, DENSE)).astype("float32").round(6)
    click = random.integers(0, 2, ROWS)
    with tempfile.TemporaryDirectory() as work:
        columns = {f"f{at}": dense[:, at] for at in range(DENSE)}
        lists = pyarrow.ListArray.from_arrays(offsets.astype("int32"), ids)
        table = pyarrow.table({"ids": lists, "click": click.astype("float32"), **columns})
        rows, text = Path(work, "rows"), Path(work, "rows.multislot")
        rows.mkdir()
        for part in range(4):
            parquet.write_table(
                table.slice(part * ROWS // 4, ROWS // 4), rows / f"{part}.parquet", row_group_size=50_000
            )
        ours = fastest(lambda: fed(rows, columns={"dense": "f*"}))
        arrow = fastest(lambda: of_arrow(rows))
        print(f"parquet: {ROWS / ours:,.0f} rows/s, pyarrow.dataset {ROWS / arrow:,.0f}: {arrow / ours:.2f}x its speed")
        with text.open("w") as file:
            for row in range(LINES):
                numbers = ids[offsets[row] : offsets[row + 1]]
                line = [
                    len(numbers),
                    *numbers.tolist(),
                    DENSE,
                    *(f"{number:.6f}" for number in dense[row]),
                    1,
                    click[row],
                ]
                file.write(" ".join(map(str, line)) + "\n")
        ours = fastest(lambda: fed(text))
        print(f"multislot: {LINES / ours:,.0f} rows/s, {text.stat().st_size / ours / 1e6:.0f} MB/s")
        if FLUID:
            done = subprocess.run([FLUID, "-c", PARSE, str(text)], capture_output=True, text=True, check=True)
            fluid = min(float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("seconds"))
            print(f"multislot: Fluid's parser {LINES / fluid:,.0f} rows/s: we take {ours / fluid:.2f} times as long")


if __name__ == "__main__":
    main()
