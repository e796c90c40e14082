"""`paddle.metric`: metrics of predictions, as ops of a program and over the batches of an epoch."""

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
    """The base class of metrics over batches: `compute` adds ops to a program, `update` takes their fetched values,
    `accumulate` returns the result.
    """

    @abstractmethod
    def reset(self) -> None:
        """Starts again, without any batch."""

    @abstractmethod
    def update(self, *args: Any) -> Any:
        """Adds a batch."""

    @abstractmethod
    def accumulate(self) -> Any:
        """The result over all batches since `reset`."""

    @abstractmethod
    def name(self) -> Any:
        """The name of the metric."""

    def compute(self, *args: Any) -> Any:
        """The arguments of `update`, computed in the program; by default the predictions and labels themselves."""
        return args


class Accuracy(Metric):
    """The share of samples whose label is among the k highest predictions, for each k in `topk`."""

    def __init__(self, topk: tuple[int, ...] = (1,), name: str | None = None, *args: Any, **kwargs: Any):
        self.topk, self.maxk = topk, max(topk)
        self._name = name or "acc"
        self.reset()

    def compute(self, *args: Any) -> Any:
        """1 or 0 for each of the highest predictions, by whether it is the label; a row for each sample."""
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
        """Adds a batch, from the fetched result of `compute`; returns the shares of the batch."""
        correct = np.asarray(args[0])
        samples = int(np.prod(correct.shape[:-1]))
        hits = [float(correct[..., :k].sum()) for k in self.topk]
        self.total = [total + hit for total, hit in zip(self.total, hits, strict=True)]
        self.count = [count + samples for count in self.count]
        shares = [hit / samples if samples else 0.0 for hit in hits]
        return shares[0] if len(shares) == 1 else shares

    def reset(self) -> None:
        """Starts again, without any batch."""
        self.total, self.count = [0.0] * len(self.topk), [0] * len(self.topk)

    def accumulate(self) -> Any:
        """The share over all batches since `reset`; a list for several k."""
        shares = [total / count if count else 0.0 for total, count in zip(self.total, self.count, strict=True)]
        return shares[0] if len(shares) == 1 else shares

    def name(self) -> list[str]:
        """The names of the metric, one for each k."""
        return [self._name] if len(self.topk) == 1 else [f"{self._name}_top{k}" for k in self.topk]


class _TwoClassMetric(Metric):
    """The base class of precision and recall: hits, divided by hits and misses, for two classes."""

    kind = ""

    def __init__(self, name: str | None = None, *args: Any, **kwargs: Any):
        self._name = name or self.kind
        self.reset()

    def reset(self) -> None:
        """Starts again, without any batch."""
        self.tp = self.fp = self.fn = 0

    def update(self, *args: Any) -> None:
        """Adds a batch of predictions in [0, 1] and labels, which are 0 or 1."""
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
        """The name of the metric."""
        return self._name


class Precision(_TwoClassMetric):
    """The precision: of the samples predicted as 1, the share that is 1."""

    kind = "precision"


class Recall(_TwoClassMetric):
    """The recall: of the samples that are 1, the share predicted as 1."""

    kind = "recall"


class Auc(Metric):
    """The area under the curve, from the counts of predictions in `num_thresholds` ranges."""

    def __init__(self, curve: str = "ROC", num_thresholds: int = 4095, name: str = "auc", *args: Any, **kwargs: Any):
        self._curve, self._ranges, self._name = curve, num_thresholds, name
        self.reset()

    def reset(self) -> None:
        """Starts again, without any batch."""
        self._right, self._wrong = (np.zeros(self._ranges + 1, "int64") for _ in range(2))

    def update(self, *args: Any) -> None:
        """Adds a batch of probabilities of two classes, [samples, 2], and labels, which are 0 or 1."""
        shares, labels = np.asarray(args[0]), np.asarray(args[1]).ravel().astype(bool)
        places = (shares.reshape(len(labels), -1)[:, -1] * self._ranges).astype("int64")
        np.add.at(self._right, places[labels], 1)
        np.add.at(self._wrong, places[~labels], 1)

    def accumulate(self) -> float:
        """The area over all batches since `reset`; 0.0 if one of the labels does not occur."""
        right, wrong = self._right[::-1].astype("float64"), self._wrong[::-1].astype("float64")
        pairs = right.sum() * wrong.sum()
        return float((wrong * (np.cumsum(right) - right / 2)).sum() / pairs) if pairs else 0.0

    def name(self) -> str:
        """The name of the metric."""
        return self._name


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.metric.{name}", globals())
