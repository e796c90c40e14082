"""`paddle.io`: data sets whose samples have numbers or come in a row, samplers, and their loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from pstranspile.fluid import dataloader as sampling
from pstranspile.fluid import reader
from pstranspile.fluid.paddle.io.samplers import BatchSampler as BatchSampler
from pstranspile.fluid.paddle.io.samplers import DistributedBatchSampler as DistributedBatchSampler
from pstranspile.fluid.paddle.io.samplers import RandomSampler as RandomSampler
from pstranspile.fluid.paddle.io.samplers import Sampler as Sampler
from pstranspile.fluid.paddle.io.samplers import SequenceSampler as SequenceSampler
from pstranspile.fluid.paddle.io.samplers import WeightedRandomSampler as WeightedRandomSampler
from pstranspile.fluid.paddle.io.samplers import in_batches
from pstranspile.fluid.paddle.later import not_there
from pstranspile.fluid.places import CPUPlace
from pstranspile.fluid.reader import Dataset as Dataset


def _listed(sample: Any) -> list[Any]:
    """The values of a sample, which may be one alone."""
    return [*sample] if isinstance(sample, list | tuple) else [sample]


class IterableDataset(Dataset):
    """The base of data sets that give their samples in a row."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not say what its samples are: write __iter__")


class TensorDataset(Dataset):
    """The rows of several tensors of as many rows."""

    def __init__(self, tensors: Sequence[Any]):
        if len({len(tensor) for tensor in tensors}) != 1:
            raise AssertionError("the tensors of a data set have as many rows as each other")
        self.tensors = tensors

    def __getitem__(self, idx: int) -> tuple[Any, ...]:
        return tuple(tensor[idx] for tensor in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class ComposeDataset(Dataset):
    """Samples whose values are those of several data sets."""

    def __init__(self, datasets: Sequence[Dataset]):
        self.datasets = list(datasets)

    def __getitem__(self, idx: int) -> tuple[Any, ...]:
        return tuple(chain.from_iterable(_listed(dataset[idx]) for dataset in self.datasets))

    def __len__(self) -> int:
        return len(self.datasets[0])


class ChainDataset(IterableDataset):
    """The samples of several data sets, one behind the other."""

    def __init__(self, datasets: Sequence[IterableDataset]):
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self.datasets)


class Subset(Dataset):
    """The samples of a data set with some numbers."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]):
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, idx: int) -> Any:
        return self.dataset[self.indices[idx]]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(dataset: Dataset, lengths: Sequence[int], generator: Any = None) -> list[Subset]:
    """A data set cut into parts of these sizes, at random. Raises ValueError if they are not all of its samples."""
    if sum(lengths) != len(dataset):
        raise ValueError(f"the parts have {sum(lengths)} samples, the data set {len(dataset)}")
    numbers: list[int] = np.random.permutation(len(dataset)).tolist()
    return [Subset(dataset, numbers[end - size : end]) for size, end in zip(lengths, accumulate(lengths), strict=True)]


def get_worker_info() -> None:
    """None: samples are read in the process of the script."""


def default_collate_fn(batch: Sequence[Any]) -> list[Any]:
    """Samples as arrays, one for each of their values; a sample may be an array alone."""
    alone = isinstance(batch[0], np.ndarray | int | float)
    return sampling.default_collate_fn([[item] for item in batch] if alone else batch)


class _InRow(sampling.BatchSampler):
    """The samples of each batch, where they have no numbers."""

    def __init__(self, dataset: IterableDataset, batch_size: int, drop_last: bool):
        super().__init__(indices=[], batch_size=batch_size, drop_last=drop_last)
        self._samples = dataset

    def __iter__(self) -> Iterator[list[Any]]:
        return in_batches(self._samples, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        raise TypeError("nobody knows how many batches an IterableDataset has")


class DataLoader(reader.DataLoader):
    """Fluid's loader with the defaults of 2.x: lists of arrays, for one place without a list around them."""

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
        self._in_row, self._whole = isinstance(dataset, IterableDataset), batch_size is None
        batch_size = batch_size or 1
        sizes: tuple[Any, ...] = (batch_sampler, batch_size, shuffle, drop_last)
        if isinstance(dataset, IterableDataset):
            if batch_sampler is not None or shuffle:
                raise ValueError("an IterableDataset gives its samples in a row: leave out batch_sampler and shuffle")
            sizes = (_InRow(dataset, batch_size, drop_last), 1, False, False)
        place = CPUPlace() if places is None else places
        super().__init__(dataset, feed_list, place, return_list, *sizes, *args, **kwargs)
        if self.collate_fn is sampling.default_collate_fn:
            self.collate_fn = default_collate_fn

    def _batch(self, numbers: Sequence[Any]) -> Any:
        if self._whole:  # each sample is a batch
            sample = numbers[0] if self._in_row else self.dataset[numbers[0]]
            return _listed(sample)
        return self.collate_fn([*numbers]) if self._in_row else super()._batch(numbers)

    def __iter__(self) -> Iterator[Any]:
        for feeds in super().__iter__():
            yield feeds[0] if self.return_list and len(self.places) == 1 else feeds


def __getattr__(name: str) -> Any:
    raise not_there(f"paddle.io.{name}", globals())
