"""2, then 4, then 3 trainers on Ray during one epoch over a million rows of Parquet, beside 3 trainers all the time.

    python benchmarks/elastic.py [ROWS]

Clicks follow from ids and two numbers. The job is given other trainers after a fifth and after three fifths of the
epoch, while it runs. Printed are how often rows were fed (goal: each once), and the loss of both jobs in tenths of
the epoch. The steps of both take other rows of the same epoch, so the curves are near each other, not equal.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow
import ray
from pyarrow import parquet

sys.path.insert(0, str(Path(__file__).parent))

from ray_cluster import started

import pstranspile as ps
from pstranspile.cluster.ray import launch
from pstranspile.cluster.ray.session import SessionListener
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adagrad, minimize

ROWS, BATCH, IDS, UNIT = 1_000_000, 1000, 10_000, 20_000
CHANGES = ((0.2, 4), (0.6, 3))
"""After which part of the epoch how many trainers take part."""


def program() -> tuple[ps.Module, str]:
    """Clicks from an id and two numbers, and the name of the loss; `number` is that of the row."""
    model = L.Draft(seed=1)
    number, word = L.data(model, "number", [-1, 1], "i64"), L.data(model, "word", [-1, 1], "i64")
    dense, click = L.data(model, "dense", [-1, 2]), L.data(model, "click", [-1, 1])
    row = L.embedding(word, (IDS, 8), is_sparse=True)
    hidden = L.fc(L.concat([row, dense], axis=1), 16, act="relu")
    loss = L.mean(L.sigmoid_cross_entropy_with_logits(L.fc(hidden, 1), click))
    L.cast(number, "f32")
    minimize(loss, Adagrad(0.05))
    return model.module(), loss.name


def write(path: Path, rows: int) -> None:
    """Writes the rows."""
    random = np.random.default_rng(0)
    words, dense = random.zipf(1.2, rows) % IDS, random.normal(size=(rows, 2)).astype("float32")
    taste = random.normal(size=IDS)
    chance = 1 / (1 + np.exp(-taste[words] - dense @ [1.0, -0.5]))
    columns = {
        "number": np.arange(rows),
        "word": words,
        "a": dense[:, 0],
        "b": dense[:, 1],
        "click": (random.random(rows) < chance).astype("float32"),
    }
    parquet.write_table(pyarrow.table(columns), path, row_group_size=UNIT)


class Watched(SessionListener):
    """A job that is run; `changes` says after which step how many trainers take part."""

    def __init__(self, data: ps.Data, trainers: int, changes: Mapping[int, int]):
        self.begun: list[tuple[int, int]] = []
        self._changes = list(changes.items())
        module, self.loss = program()
        compiled = ps.compile(module, ps.Job(pservers=["a:1", "b:2"], trainers=trainers))
        begun = perf_counter()
        launch(compiled, data, fetch=[self.loss, "number"], cpus=0.5, prepare=self._prepare)
        self.seconds = perf_counter() - begun

    def _prepare(self, session: Any) -> None:
        self.session = session
        self.at = 0
        session.listen(self)

    def machine_reported(self, role: str, fields: Mapping[str, Any]) -> None:
        """A machine reports something."""
        self.at = max(self.at, fields.get("step", 0))
        if self._changes and self.at >= self._changes[0][0]:
            self.session.resize(self._changes.pop(0)[1])

    def machines_started(self, roles: Any) -> None:
        """The machines start, perhaps not for the first time."""
        self.begun.append((self.at, sum(role.startswith("trainer") for role in roles)))

    def numbers(self) -> Any:
        """The numbers of all rows that were fed."""
        history = self.session.cuts.history.values()
        return np.concatenate([np.ravel(result.values["number"]) for of in history for result in of.values()])

    def losses(self) -> list[float]:
        """The mean loss of each tenth of the steps, of the rows that all trainers were fed."""
        sums: dict[int, float] = {}
        for of in self.session.cuts.history.values():
            for step, result in of.items():
                mean = float(np.ravel(result.values[self.loss])[0]) * len(np.ravel(result.values["number"]))
                sums[step] = sums.get(step, 0.0) + mean / BATCH
        steps = [sums[step] for step in sorted(sums)]
        return [float(np.mean(part)) for part in np.array_split(steps, 10)]


def main() -> None:
    """Runs both, and prints."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    cluster = started()
    with tempfile.TemporaryDirectory() as work:
        write(Path(work, "clicks.parquet"), rows)
        data = ps.Data(Path(work, "clicks.parquet"), batch=BATCH, shuffle=7, columns={"dense": ["a", "b"]})
        changing = Watched(data, 2, {int(part * rows / BATCH): trainers for part, trainers in CHANGES})
        fixed = Watched(data, 3, {})
    for name, job in (("2, 4, 3 trainers", changing), ("3 trainers", fixed)):
        numbers, times = np.unique(job.numbers(), return_counts=True)
        once = len(numbers) == rows and bool((times == 1).all())
        told = "each once" if once else f"{len(numbers)} of them, at most {times.max()} times"
        print(f"{name}: {rows} rows, {told}; begun at {job.begun}; {job.seconds:.1f} s")
        print("  loss in tenths of the epoch:", *(f"{loss:.4f}" for loss in job.losses()))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
