"""Recommender models in PyTorch, which `pytorch.py` measures: 26 tables of ids, 13 numbers, and a click to predict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, softmax

SLOTS, NUMBERS, WIDTH = 26, 13, 16
HIDDEN = (400, 400, 400)


def dense(*widths: int) -> Any:
    """Linear layers of these widths, with a ReLU after each but the last."""
    layers: list[Any] = []
    for before, after in pairwise(widths):
        layers += (nn.Linear(before, after), nn.ReLU())
    return nn.Sequential(*layers[:-1])


class Recommender(nn.Module):
    """The tables of a model: a row of `width` numbers for each id of each slot."""

    def __init__(self, rows: int, width: int = WIDTH, *, weights: bool = False):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width, sparse=True) for _ in range(SLOTS)])
        self.weights = nn.ModuleList([nn.Embedding(rows, 1, sparse=True) for _ in range(SLOTS if weights else 0)])
        if weights:
            self.wide = nn.Linear(NUMBERS, 1)

    def rows(self, ids: Sequence[Any]) -> list[Any]:
        """The rows of a batch, [batch, width] each."""
        return [table(each) for table, each in zip(self.tables, ids, strict=True)]

    def linear(self, ids: Sequence[Any], numbers: Any) -> Any:
        """The sum of the weights of a row's ids and of its numbers, [batch, 1]."""
        return sum((table(each) for table, each in zip(self.weights, ids, strict=True)), self.wide(numbers))


class CtrDnn(Recommender):
    """Rows and numbers side by side, through three hidden layers."""

    def __init__(self, rows: int):
        super().__init__(rows)
        self.deep = dense(SLOTS * WIDTH + NUMBERS, *HIDDEN, 1)

    def forward(self, ids: Sequence[Any], numbers: Any) -> Any:
        return self.deep(torch.cat([*self.rows(ids), numbers], 1))


class WideDeep(Recommender):
    """A linear model beside a deep one (Cheng et al., 2016)."""

    def __init__(self, rows: int):
        super().__init__(rows, weights=True)
        self.deep = dense(SLOTS * WIDTH + NUMBERS, 256, 128, 1)

    def forward(self, ids: Sequence[Any], numbers: Any) -> Any:
        return self.linear(ids, numbers) + self.deep(torch.cat([*self.rows(ids), numbers], 1))


class DeepFM(Recommender):
    """A factorization machine beside a deep model (Guo et al., 2017)."""

    def __init__(self, rows: int):
        super().__init__(rows, weights=True)
        self.deep = dense(SLOTS * WIDTH + NUMBERS, 256, 128, 1)

    def forward(self, ids: Sequence[Any], numbers: Any) -> Any:
        rows = self.rows(ids)
        stacked = torch.stack(rows, 1)
        pairs = 0.5 * (stacked.sum(1).square() - stacked.square().sum(1)).sum(1, keepdim=True)
        return self.linear(ids, numbers) + pairs + self.deep(torch.cat([*rows, numbers], 1))


class DeepCross(Recommender):
    """Layers that multiply their input with the first one (Wang et al., 2017)."""

    def __init__(self, rows: int):
        super().__init__(rows)
        width = SLOTS * WIDTH + NUMBERS
        self.cross = nn.ModuleList([nn.Linear(width, 1) for _ in range(3)])
        self.deep = dense(width, 256, 128)
        self.out = nn.Linear(width + 128, 1)

    def forward(self, ids: Sequence[Any], numbers: Any) -> Any:
        first = torch.cat([*self.rows(ids), numbers], 1)
        crossed = first
        for layer in self.cross:
            crossed = first * layer(crossed) + crossed
        return self.out(torch.cat([crossed, self.deep(first).relu()], 1))


class InnerProducts(Recommender):
    """A deep model that sees the inner product of each pair of rows (Qu et al., 2016), as DLRM does."""

    def __init__(self, rows: int):
        super().__init__(rows)
        pairs = SLOTS * (SLOTS + 1) // 2
        self.bottom = dense(NUMBERS, 64, WIDTH)
        self.top = dense(pairs + WIDTH, 256, 128, 1)
        self.register_buffer("picked", torch.tril_indices(SLOTS + 1, SLOTS + 1, -1), persistent=False)

    def forward(self, ids: Sequence[Any], numbers: Any) -> Any:
        low = self.bottom(numbers)
        stacked = torch.stack([*self.rows(ids), low], 1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        return self.top(torch.cat([products[:, self.picked[0], self.picked[1]], low], 1))


class Attention(Recommender):
    """Two layers of self-attention over a row's slots (Song et al., 2019)."""

    def __init__(self, rows: int):
        super().__init__(rows)
        self.query, self.key, self.value, self.rest = (
            nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)]) for _ in range(4)
        )
        self.out = nn.Linear(SLOTS * WIDTH + NUMBERS, 1)

    def forward(self, ids: Sequence[Any], numbers: Any) -> Any:
        seen = torch.stack(self.rows(ids), 1)
        for query, key, value, rest in zip(self.query, self.key, self.value, self.rest, strict=True):
            weights = softmax(query(seen) @ key(seen).transpose(1, 2), -1)
            seen = (weights @ value(seen) + rest(seen)).relu()
        return self.out(torch.cat([seen.flatten(1), numbers], 1))


class TwoTasks(Recommender):
    """Two predictions from four experts that two gates mix (Ma et al., 2018)."""

    def __init__(self, rows: int):
        super().__init__(rows)
        width = SLOTS * WIDTH + NUMBERS
        self.experts = nn.ModuleList([dense(width, 128, 64) for _ in range(4)])
        self.gates = nn.ModuleList([nn.Linear(width, 4) for _ in range(2)])
        self.towers = nn.ModuleList([dense(64, 32, 1) for _ in range(2)])

    def forward(self, ids: Sequence[Any], numbers: Any) -> Any:
        seen = torch.cat([*self.rows(ids), numbers], 1)
        made = torch.stack([expert(seen).relu() for expert in self.experts], 1)
        mixed = [(softmax(gate(seen), 1).unsqueeze(2) * made).sum(1) for gate in self.gates]
        return sum(tower(each) for tower, each in zip(self.towers, mixed, strict=True))


MODELS: dict[str, Callable[[int], Recommender]] = {
    "ctr-dnn": CtrDnn,
    "wide-deep": WideDeep,
    "deepfm": DeepFM,
    "dcn": DeepCross,
    "dlrm": InnerProducts,
    "autoint": Attention,
    "mmoe": TwoTasks,
}
"""Name -> the model with tables of so many rows."""


def batch(rows: int, size: int, seed: int) -> tuple[Any, ...]:
    """Ids of each slot, the numbers, and whether there was a click; uniform and normal."""
    draw = torch.Generator().manual_seed(seed)
    ids = [torch.randint(0, rows, (size,), generator=draw) for _ in range(SLOTS)]
    clicked = (torch.rand(size, 1, generator=draw) > 0.7).float()
    return (*ids, torch.randn(size, NUMBERS, generator=draw), clicked)


def loss(model: Any, *values: Any) -> Any:
    """The mean loss of a batch."""
    return binary_cross_entropy_with_logits(model(values[:SLOTS], values[SLOTS]), values[SLOTS + 1])
