"""`paddle.metric`: figures of predictions, as ops of a program and over the batches of an epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from pstranspile.fluid import layers
from pstranspile.fluid.paddle.later import later, not_there

L: Any = layers
accuracy = later("accuracy", L.accuracy, "input, label, k=1, correct=None, total=None")
auc = L.auc


class Metric(ABC):
    """A figure over batches: `compute` in the program, `update` with what it gives, `accumulate` for the figure."""

    @abstractmethod
    def reset(self) -> None:
        """Begins again."""

    @abstractmethod
    def update(self, *args: Any) -> Any:
        """Takes a batch in."""

    @abstractmethod
    def accumulate(self) -> Any:
        """The figure over all batches since `reset`."""

    @abstractmethod
    def name(self) -> Any:
        """What the figure is called."""

    def compute(self, *args: Any) -> Any:
        """What `update` takes, from what the program has; by default that itself."""
        return args


class Accuracy(Metric):
    """The share of samples whose label is among the first k predictions, for each k of `topk`."""

    def __init__(self, topk: tuple[int, ...] = (1,), name: str | None = None, *args: Any, **kwargs: Any):
        self.topk, self.maxk = topk, max(topk)
        self._name = name or "acc"
        self.reset()

    def compute(self, *args: Any) -> Any:
        """Whether each of the first predictions is the label: 1 or 0, a row for each sample."""
        pred, label = args[:2]
        found = L.argsort(pred, -1, descending=True)[1]
        found = L.slice(found, [len(pred.shape) - 1], [0], [self.maxk])
        if len(label.shape) > 1 and label.shape[-1] not in (1, -1):
            label = L.unsqueeze(L.argmax(label, -1), [-1])
        elif len(label.shape) == 1:
            label = L.unsqueeze(label, [-1])
        columns = L.cast(label, "int64")
        alike = L.equal(found, L.expand(columns, [1] * (len(pred.shape) - 1) + [self.maxk]))
        return L.cast(alike, "float32")

    def update(self, *args: Any) -> Any:
        """Takes what `compute` gave for a batch in; gives the shares of the batch."""
        correct = np.asarray(args[0])
        samples = int(np.prod(correct.shape[:-1]))
        hits = [float(correct[..., :k].sum()) for k in self.topk]
        self.total = [total + hit for total, hit in zip(self.total, hits, strict=True)]
        self.count = [count + samples for count in self.count]
        shares = [hit / samples if samples else 0.0 for hit in hits]
        return shares[0] if len(shares) == 1 else shares

    def reset(self) -> None:
        """Begins again."""
        self.total, self.count = [0.0] * len(self.topk), [0] * len(self.topk)

    def accumulate(self) -> Any:
        """The share over all batches since `reset`, for several k a list."""
        shares = [total / count if count else 0.0 for total, count in zip(self.total, self.count, strict=True)]
        return shares[0] if len(shares) == 1 else shares

    def name(self) -> list[str]:
        """What the figures are called."""
        return [self._name] if len(self.topk) == 1 else [f"{self._name}_top{k}" for k in self.topk]


class _OfTwoClasses(Metric):
    """A share among the samples of two classes: hits among hits and misses."""

    kind = ""

    def __init__(self, name: str | None = None, *args: Any, **kwargs: Any):
        self._name = name or self.kind
        self.reset()

    def reset(self) -> None:
        """Begins again."""
        self.tp = self.fp = self.fn = 0

    def update(self, *args: Any) -> None:
        """Takes predictions in [0, 1] and labels of 0 and 1 in."""
        positive = np.floor(np.asarray(args[0]).ravel() + 0.5).astype("int32") == 1
        right = np.asarray(args[1]).ravel().astype("int32") == 1
        self.tp += int((positive & right).sum())
        self.fp += int((positive & ~right).sum())
        self.fn += int((~positive & right).sum())

    def accumulate(self) -> float:
        """The share over all batches since `reset`."""
        among = self.tp + (self.fp if self.kind == "precision" else self.fn)
        return self.tp / among if among else 0.0

    def name(self) -> str:
        """What the figure is called."""
        return self._name


class Precision(_OfTwoClasses):
    """The share of samples predicted as 1 that are 1."""

    kind = "precision"


class Recall(_OfTwoClasses):
    """The share of samples with label 1 that are predicted as 1."""

    kind = "recall"


class Auc(Metric):
    """The area under the curve, from the counts of predictions in `num_thresholds` ranges."""

    def __init__(self, curve: str = "ROC", num_thresholds: int = 4095, name: str = "auc", *args: Any, **kwargs: Any):
        self._curve, self._ranges, self._name = curve, num_thresholds, name
        self.reset()

    def reset(self) -> None:
        """Begins again."""
        self._right, self._wrong = (np.zeros(self._ranges + 1, "int64") for _ in range(2))

    def update(self, *args: Any) -> None:
        """Takes probabilities of two classes, [samples, 2], and labels of 0 and 1 in."""
        shares, labels = np.asarray(args[0]), np.asarray(args[1]).ravel().astype(bool)
        places = (shares.reshape(len(labels), -1)[:, -1] * self._ranges).astype("int64")
        np.add.at(self._right, places[labels], 1)
        np.add.at(self._wrong, places[~labels], 1)

    def accumulate(self) -> float:
        """The area over all batches since `reset`; 0.0 where one of the labels is missing."""
        right, wrong = self._right[::-1].astype("float64"), self._wrong[::-1].astype("float64")
        pairs = right.sum() * wrong.sum()
        return float((wrong * (np.cumsum(right) - right / 2)).sum() / pairs) if pairs else 0.0

    def name(self) -> str:
        """What the figure is called."""
        return self._name


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.metric.{name}", globals())
