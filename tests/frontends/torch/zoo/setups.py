"""What a small training setup of the zoo is, and how the modules of the zoo list theirs."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

RANKS = 2
"""How many ranks of DDP train."""


class Setup(NamedTuple):
    """A model with its loss, its optimizer and whole batches, the first of which is the example."""

    model: Any
    loss: Any
    batches: list[Any]
    optimizer: Any = None
    options: dict[str, Any] = {}
    """What else `pt.trace` is told: clip, schedule, accumulate."""


class Case(NamedTuple):
    """A setup, and what a check must say of it."""

    name: str
    make: Callable[[], Setup]
    words: str
    """An expression that the words of a cause match; "" where DDP trains as one process does."""
    made: bool
    """Whether batches that are made show it too."""

    def setup(self) -> Setup:
        """The setup, which is the same each time."""
        torch.manual_seed(0)
        setup = self.make()
        optimizer = setup.optimizer or torch.optim.SGD(setup.model.parameters(), lr=0.1)
        return setup._replace(optimizer=optimizer)

    @property
    def lines(self) -> list[tuple[str, int]]:
        """The file and the number of each line that is marked as the one that differs."""
        file = inspect.getfile(self.make)
        marked = [
            (file, number)
            for number, line in enumerate(linecache.getlines(file), 1)
            if self.name in line.partition("# differs:")[2].split()
        ]
        return marked


CASES: dict[str, Case] = {}
"""The setups by name, in the order of the modules."""


def differs(words: str, *, made: bool = True) -> Callable[[Callable[[], Setup]], Callable[[], Setup]]:
    """Lists a setup that DDP trains otherwise. The line is marked with `# differs:` and the name of the function."""

    def listed(make: Callable[[], Setup]) -> Callable[[], Setup]:
        CASES[make.__name__] = Case(make.__name__, make, words, made)
        return make

    return listed


def same(make: Callable[[], Setup]) -> Callable[[], Setup]:
    """Lists a setup that DDP trains as one process does."""
    CASES[make.__name__] = Case(make.__name__, make, "", made=True)
    return make


def mlp(inputs: int, outputs: int) -> Any:
    """A small network."""
    return torch.nn.Sequential(torch.nn.Linear(inputs, 6), torch.nn.Tanh(), torch.nn.Linear(6, outputs))


def regression(rows: int = 8, inputs: int = 4, outputs: int = 1, steps: int = 2) -> list[Any]:
    """Batches of numbers and their targets."""
    return [(torch.randn(rows, inputs), torch.randn(rows, outputs)) for _ in range(steps)]


def classes(rows: int = 8, inputs: int = 4, labels: int = 3, steps: int = 2) -> list[Any]:
    """Batches of numbers and their classes."""
    return [(torch.randn(rows, inputs), torch.randint(0, labels, (rows,))) for _ in range(steps)]


def flags(rows: int = 8, inputs: int = 4, outputs: int = 1, steps: int = 2) -> list[Any]:
    """Batches of numbers and of 0 and 1."""
    return [(torch.randn(rows, inputs), (torch.rand(rows, outputs) < 0.4).float()) for _ in range(steps)]


def sentences(rows: int = 8, width: int = 5, words: int = 12, steps: int = 2) -> list[Any]:
    """Batches of words and their tags, padded with 0 to the longest."""
    made: list[Any] = []
    for _ in range(steps):
        lengths = torch.randint(1, width + 1, (rows,))
        mask = torch.arange(width)[None, :] < lengths[:, None]
        made.append((torch.randint(1, words, (rows, width)) * mask, torch.randint(1, 4, (rows, width)) * mask))
    return made
