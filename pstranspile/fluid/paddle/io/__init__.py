"""`paddle.io`: data sets with indexed samples or with a stream of samples, samplers, and the loader of both."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import accumulate, chain, islice
from typing import Any

import numpy as np

from pstranspile.fluid import dataloader as sampling
from pstranspile.fluid import reader
from pstranspile.fluid.framework import CPUPlace
from pstranspile.fluid.paddle.later import not_there
from pstranspile.fluid.reader import Dataset as Dataset


class Sampler:
    """The base class of samplers, which yield the indices of samples."""

    def __init__(self, data_source: Any = None):
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError(f"{type(self).__name__} does not say in which order samples come: write __iter__")


class SequenceSampler(Sampler):
    """Yields the indices of all samples, in order."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """Yields the indices of all samples in random order; with `replacement`, `num_samples` indices,
    which may repeat.
    """

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
    """Yields `num_samples` indices, drawn by weights; with two dims of weights, as many for each row."""

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
    """Yields for each batch the indices of its samples, in a data set or from a sampler."""

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
    """Yields the batches of this trainer: the trainers take turns to get the next batch.

    All trainers get the same number of samples, for which the first samples are repeated at the end. `shuffle` draws
    the same order on all trainers, another one in each epoch.
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
        """Sets the seed of the next order."""
        self.epoch = epoch


def in_batches(items: Iterable[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    """Items in lists of `size`; the last one may be shorter without `drop_last`."""
    left = iter(items)
    while batch := list(islice(left, size)):
        if len(batch) == size or not drop_last:
            yield batch


def _batches(samples: int, sampler: sampling.BatchSampler) -> int:
    return (samples + (0 if sampler.drop_last else sampler.batch_size - 1)) // sampler.batch_size


def _as_list(sample: Any) -> list[Any]:
    """The values of a sample as a list; a single value becomes a list of one."""
    return [*sample] if isinstance(sample, list | tuple) else [sample]


class IterableDataset(Dataset):
    """The base class of data sets that yield a stream of samples."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not say what its samples are: write __iter__")


class TensorDataset(Dataset):
    """The rows of several tensors, which have the same number of rows."""

    def __init__(self, tensors: Sequence[Any]):
        if len({len(tensor) for tensor in tensors}) != 1:
            raise AssertionError("the tensors of a data set have as many rows as each other")
        self.tensors = tensors

    def __getitem__(self, idx: int) -> tuple[Any, ...]:
        return tuple(tensor[idx] for tensor in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class ComposeDataset(Dataset):
    """Samples that consist of the values of the samples of several data sets."""

    def __init__(self, datasets: Sequence[Dataset]):
        self.datasets = list(datasets)

    def __getitem__(self, idx: int) -> tuple[Any, ...]:
        return tuple(chain.from_iterable(_as_list(dataset[idx]) for dataset in self.datasets))

    def __len__(self) -> int:
        return len(self.datasets[0])


class ChainDataset(IterableDataset):
    """The samples of several data sets, one data set after the other."""

    def __init__(self, datasets: Sequence[IterableDataset]):
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.datasets)


class Subset(Dataset):
    """The samples of a data set with the given indices."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]):
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, idx: int) -> Any:
        return self.dataset[self.indices[idx]]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset: Dataset, lengths: Sequence[int], generator: Any = None) -> list[Subset]:
    """A data set split into parts of these sizes, at random. Raises ValueError if the sizes do not add up to its
    length.
    """
    if sum(lengths) != len(dataset):
        raise ValueError(f"the parts have {sum(lengths)} samples, the data set {len(dataset)}")
    numbers: list[int] = np.random.permutation(len(dataset)).tolist()
    return [Subset(dataset, numbers[end - size : end]) for size, end in zip(lengths, accumulate(lengths), strict=True)]


def get_worker_info() -> None:
    """None, because samples are read in the process of the script."""


def default_collate_fn(batch: Sequence[Any]) -> list[Any]:
    """Samples as arrays, one for each of their values; a sample may also be a single array."""
    alone = isinstance(batch[0], np.ndarray | int | float)
    return sampling.default_collate_fn([[item] for item in batch] if alone else batch)


class _BatchesWithoutIndices(sampling.BatchSampler):
    """The samples of each batch of a data set without indices."""

    def __init__(self, dataset: IterableDataset, batch_size: int, drop_last: bool):
        super().__init__(indices=[], batch_size=batch_size, drop_last=drop_last)
        self._samples = dataset

    def __iter__(self) -> Iterator[list[Any]]:
        return in_batches(self._samples, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        raise TypeError("nobody knows how many batches an IterableDataset has")


class DataLoader(reader.DataLoader):
    """Fluid's loader with the defaults of 2.x: lists of arrays; for one place they are not in another list."""

    def __init__(
        self,
        dataset: Dataset,
        feed_list: Sequence[Any] | None = None,
        places: Any = None,
        return_list: bool = True,
        batch_sampler: sampling.BatchSampler | None = None,
        batch_size: int | None = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *args: Any,
        **kwargs: Any,
    ):
        self._in_row, self._samples_are_batches = isinstance(dataset, IterableDataset), batch_size is None
        batch_size = batch_size or 1
        sizes: tuple[Any, ...] = (batch_sampler, batch_size, shuffle, drop_last)
        if isinstance(dataset, IterableDataset):
            if batch_sampler is not None or shuffle:
                raise ValueError("an IterableDataset gives its samples in a row: leave out batch_sampler and shuffle")
            sizes = (_BatchesWithoutIndices(dataset, batch_size, drop_last), 1, False, False)
        place = CPUPlace() if places is None else places
        super().__init__(dataset, feed_list, place, return_list, *sizes, *args, **kwargs)
        if self.collate_fn is sampling.default_collate_fn:
            self.collate_fn = default_collate_fn

    def _batch(self, numbers: Sequence[Any]) -> Any:
        if self._samples_are_batches:  # each sample is a batch
            sample = numbers[0] if self._in_row else self.dataset[numbers[0]]
            return _as_list(sample)
        return self.collate_fn([*numbers]) if self._in_row else super()._batch(numbers)

    def __iter__(self) -> Iterator[Any]:
        for feeds in super().__iter__():
            yield feeds[0] if self.return_list and len(self.places) == 1 else feeds


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.io.{name}", globals())
