"""A model that torch can't export, as one op of torch, and what its trainers are fed."""

from collections.abc import Iterator
from typing import Any

import torch

from pstranspile.frontends.torch.training import Training, trace

base: type[Any] = torch.nn.Module


class Branching(base):
    """A sparse table, and a layer that only some batches pass through."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.table = torch.nn.EmbeddingBag(100, 8, sparse=True, mode="sum")
        self.deep = torch.nn.Linear(8, 8)
        self.drop = torch.nn.Dropout(dropout)
        self.out = torch.nn.Linear(8, 1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, ids: Any, clicked: Any) -> Any:
        self.seen += 1
        hidden = self.drop(self.table(ids))
        if hidden[0].sum() > 0:
            hidden = self.deep(hidden).tanh()
        return torch.nn.functional.mse_loss(self.out(hidden).flatten(), clicked)


class Rowwise(Branching):
    """The same without a branch: the loss of a batch is the mean of those of its rows."""

    def forward(self, ids: Any, clicked: Any) -> Any:
        self.seen += 1
        return torch.nn.functional.mse_loss(self.out(self.deep(self.table(ids)).tanh()).flatten(), clicked)


def batches(double: bool = False) -> Iterator[tuple[Any, Any]]:
    draw = torch.Generator().manual_seed(3)
    for _ in range(5):
        ids, clicked = torch.randint(0, 100, (8, 3), generator=draw), torch.rand(8, generator=draw)
        yield ids, clicked.double() if double else clicked


def loader(rank: int, trainers: int) -> Iterator[Any]:
    for batch in batches():
        yield tuple(part.chunk(trainers)[rank] for part in batch)


def optimizers(model: Any) -> list[Any]:
    dense = [parameter for name, parameter in model.named_parameters() if name != "table.weight"]
    return [torch.optim.SparseAdam([model.table.weight]), torch.optim.Adam(dense)]


def traced(kind: Any = Rowwise, *, double: bool = False, **options: Any) -> tuple[Any, Training]:
    """A model and its training from the same start each time."""
    torch.manual_seed(0)
    model = kind().double() if double else kind()
    return model, trace(model, next(batches(double)), optimizer=optimizers(model), step="torch", **options)


def training() -> Training:
    return traced()[1]


def branching() -> Training:
    return traced(Branching)[1]
