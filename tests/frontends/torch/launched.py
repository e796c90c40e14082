"""A model with a sparse table, and what its trainers are fed, for jobs that are launched from Python."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pstranspile.frontends.torch.training import Training, trace  # noqa: E402

base: type[Any] = torch.nn.Module


class Clicks(base):
    """The log loss of clicks, by the sum of sparse rows."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.EmbeddingBag(100, 8, sparse=True, mode="sum")
        self.out = torch.nn.Linear(8, 1)

    def scores(self, ids: Any) -> Any:
        return self.out(self.table(ids)).flatten()

    def forward(self, ids: Any, clicked: Any) -> Any:
        return torch.nn.functional.binary_cross_entropy_with_logits(self.scores(ids), clicked)


def batches(count: int = 5, rows: int = 8) -> Iterator[tuple[Any, Any]]:
    draw = torch.Generator().manual_seed(3)
    for _ in range(count):
        yield torch.randint(0, 100, (rows, 3), generator=draw), torch.rand(rows, generator=draw).round()


def loader(rank: int, trainers: int) -> Iterator[Any]:
    for batch in batches():
        yield tuple(part.chunk(trainers)[rank] for part in batch)


def killing(rank: int, trainers: int) -> Iterator[Any]:
    """The same batches; the first process of trainer 1 is killed as it asks for the fourth."""
    mark = Path(os.environ["KILLED"])
    for step, batch in enumerate(loader(rank, trainers)):
        if rank == 1 and step == 3 and "PSTRANSPILE_STATUS" in os.environ and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


class Rows:
    """The rows of the same batches, as a map-style dataset."""

    def __init__(self) -> None:
        self.batches = list(batches())

    def __len__(self) -> int:
        return 8 * len(self.batches)

    def __getitem__(self, at: int) -> Any:
        return tuple(part[at % 8] for part in self.batches[at // 8])


def clicks() -> tuple[Any, Training]:
    """The model, and its training from the same start each time."""
    torch.manual_seed(0)
    model = Clicks()
    optimizers = [torch.optim.SparseAdam([model.table.weight]), torch.optim.Adam(model.out.parameters())]
    return model, trace(model, next(batches()), optimizer=optimizers)


def metric(model: Any) -> float:
    """What an evaluation in torch gives."""
    with torch.no_grad():
        return sum(float(model(*batch)) for batch in batches(3))
