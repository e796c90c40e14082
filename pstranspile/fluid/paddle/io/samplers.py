"""The samplers of `paddle.io`: in which order samples are taken, and which of them a batch has."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import numpy as np

from pstranspile.fluid import dataloader as sampling


class Sampler:
    """The base of samplers, which give the numbers of samples."""

    def __init__(self, data_source: Any = None):
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError(f"{type(self).__name__} does not say in which order samples come: write __iter__")


class SequenceSampler(Sampler):
    """All samples in order."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """All samples in any order; `num_samples` of them, each as often as it is drawn, with `replacement`."""

    def __init__(
        self, data_source: Any, replacement: bool = False, num_samples: int | None = None, generator: Any = None
    ):
        super().__init__(data_source)
        if not isinstance(replacement, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"replacement is True or False, not {replacement!r}")
        if num_samples is not None and not replacement:
            raise ValueError("num_samples goes together with replacement=True")
        self.replacement, self.generator = replacement, generator
        self.num_samples = len(data_source) if num_samples is None else num_samples
        if not isinstance(self.num_samples, int) or self.num_samples <= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"num_samples is a whole number above 0, not {num_samples!r}")

    def __iter__(self) -> Iterator[int]:
        if self.generator is not None:
            return islice(self.generator, self.num_samples)
        return iter(np.random.choice(len(self.data_source), self.num_samples, self.replacement).tolist())

    def __len__(self) -> int:
        return self.num_samples


class WeightedRandomSampler(Sampler):
    """`num_samples` numbers, drawn by weights; with two dims of weights, so many for each row."""

    def __init__(self, weights: Any, num_samples: int, replacement: bool = True):
        super().__init__()
        if not isinstance(num_samples, int) or num_samples <= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"num_samples is a whole number above 0, not {num_samples!r}")
        if not isinstance(replacement, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"replacement is True or False, not {replacement!r}")
        self.weights = np.atleast_2d(np.asarray(weights, "float64"))
        self.num_samples, self.replacement = num_samples, replacement

    def __iter__(self) -> Iterator[int]:
        fit = self.weights.ndim == 2 and np.isfinite(self.weights).all() and (self.weights >= 0).all()
        wanted = 1 if self.replacement else self.num_samples
        if not fit or ((self.weights > 0).sum(axis=1) < wanted).any():
            raise AssertionError("weights are numbers from 0 on, in one or two dims, enough of them above 0")
        for row in self.weights:
            yield from np.random.choice(len(row), self.num_samples, self.replacement, row / row.sum()).tolist()

    def __len__(self) -> int:
        return self.num_samples * len(self.weights)


class BatchSampler(sampling.BatchSampler):
    """The numbers of the samples of each batch, of a data set or as a sampler gives them."""

    def __init__(
        self,
        dataset: Any = None,
        sampler: Any = None,
        shuffle: bool = False,
        batch_size: int = 1,
        drop_last: bool = False,
    ):
        if dataset is None and sampler is not None:
            if not isinstance(sampler, Sampler):
                raise AssertionError(f"sampler is a paddle.io.Sampler, not a {type(sampler).__name__}")
            if shuffle:
                raise AssertionError("a sampler gives the order: leave out shuffle")
        elif sampler is not None:
            raise AssertionError("give either dataset or sampler")
        super().__init__(dataset, [] if sampler is not None else None, shuffle, batch_size, drop_last)
        self.sampler: Any = sampler or (RandomSampler if shuffle else SequenceSampler)(dataset)

    def __iter__(self) -> Iterator[list[int]]:
        return in_batches(self.sampler, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        return _batches(len(self.sampler), self)


class DistributedBatchSampler(sampling.BatchSampler):
    """The batches of this trainer: in turns, each trainer takes the next batch.

    All trainers have as many samples: those at the front come once more for the last ones. `shuffle` draws the same
    order on all trainers, another one in each epoch.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
    ):
        super().__init__(None, [], shuffle, batch_size, drop_last)
        told = os.environ.get
        self.dataset, self.epoch = dataset, 0
        self.nranks = int(told("PADDLE_TRAINERS_NUM", "1")) if num_replicas is None else num_replicas
        self.local_rank = int(told("PADDLE_TRAINER_ID", "0")) if rank is None else rank
        self.num_samples = -(-len(dataset) // self.nranks)
        self.total_size = self.num_samples * self.nranks

    def __iter__(self) -> Iterator[list[int]]:
        numbers = list(range(len(self.dataset)))
        numbers += numbers[: self.total_size - len(numbers)]
        if self.shuffle:
            np.random.RandomState(self.epoch).shuffle(numbers)
            self.epoch += 1
        turn = self.batch_size * self.nranks
        whole = self.total_size - self.total_size % turn
        starts = range(self.local_rank * self.batch_size, whole, turn)
        own = [number for start in starts for number in numbers[start : start + self.batch_size]]
        last = (self.total_size - whole) // self.nranks
        own += numbers[whole + self.local_rank * last : whole + (self.local_rank + 1) * last]
        return in_batches(own, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        return _batches(self.num_samples, self)

    def set_epoch(self, epoch: int) -> None:
        """Sets the number that the next order is drawn by."""
        self.epoch = epoch


def in_batches(items: Iterable[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    """Items in lists of `size`; the last one may be shorter without `drop_last`."""
    left = iter(items)
    while batch := list(islice(left, size)):
        if len(batch) == size or not drop_last:
            yield batch


def _batches(samples: int, sampler: sampling.BatchSampler) -> int:
    return (samples + (0 if sampler.drop_last else sampler.batch_size - 1)) // sampler.batch_size
