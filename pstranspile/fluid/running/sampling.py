"""Data sets whose samples have numbers, and what makes batches of them: Fluid's `dataloader`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.lod_tensor import LoDTensor


class Dataset:
    """The base of data sets: they give the sample of a number, and say how many there are."""

    def __getitem__(self, idx: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say what its samples are: write __getitem__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not say how many samples it has: write __len__")


class BatchSampler:
    """The numbers of the samples of each batch, of a data set or of `indices`."""

    def __init__(
        self,
        dataset: Dataset | None = None,
        indices: Sequence[int] | None = None,
        shuffle: bool = False,
        batch_size: int = 1,
        drop_last: bool = False,
    ):
        _require((dataset is None) != (indices is None), "a sampler takes either a dataset or indices")
        _require(isinstance(dataset, Dataset | None), "the data set is a Dataset")  # pyright: ignore[reportUnnecessaryIsInstance]
        _require(indices is None or several(indices), "indices are a list")
        _require(isinstance(batch_size, int) and batch_size > 0, "batch_size is a whole number above 0")  # pyright: ignore[reportUnnecessaryIsInstance]
        _require(type(shuffle) is bool and type(drop_last) is bool, "shuffle and drop_last are True or False")
        self.indices = list(indices) if dataset is None else list(range(len(dataset)))  # pyright: ignore[reportArgumentType]
        self.batch_size, self.shuffle, self.drop_last = batch_size, shuffle, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        if self.shuffle:
            np.random.shuffle(self.indices)
        for start in range(0, len(self.indices), self.batch_size):
            batch = self.indices[start : start + self.batch_size]
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        return (len(self.indices) + (0 if self.drop_last else self.batch_size - 1)) // self.batch_size


def default_collate_fn(batch: Sequence[Any]) -> list[Any]:
    """Samples as arrays, one for each of their values.

    A sample with more values than there are arrays so far begins new ones with its first values, as in Fluid.
    """
    held: list[list[Any]] = []
    for sample in batch:
        for index, value in enumerate(sample):
            if len(held) < len(sample):
                held.append([value])
            else:
                held[index].append(value)
    return [np.stack([np.asarray(value) for value in values]) for values in held]


class MapLoader:
    """The batches of a data set. Gives, for each batch of the places, a feed for each of them."""

    def __init__(
        self,
        dataset: Dataset,
        feed_list: Sequence[Any] | None = None,
        places: Any = None,
        return_list: bool = False,
        batch_sampler: BatchSampler | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        use_buffer_reader: bool = True,
        use_shared_memory: bool = True,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
    ):
        _require(isinstance(dataset, Dataset), "a loader takes a Dataset")  # pyright: ignore[reportUnnecessaryIsInstance]
        _require(places is not None, "a loader needs the places that it gives feeds for")
        _require(return_list or feed_list is not None, "a loader of feeds needs a feed_list")
        _require(num_workers >= 0 and timeout >= 0, "num_workers and timeout are no numbers below 0")
        if batch_sampler is None:
            batch_sampler = BatchSampler(dataset, None, shuffle, batch_size, drop_last)
        else:
            _require(isinstance(batch_sampler, BatchSampler), "batch_sampler is a BatchSampler")  # pyright: ignore[reportUnnecessaryIsInstance]
            alone = batch_size == 1 and not shuffle and not drop_last
            _require(alone, "batch_size, shuffle and drop_last are those of the batch_sampler")
        self.dataset, self.batch_sampler, self.num_workers = dataset, batch_sampler, num_workers
        self.feed_list, self.return_list = list(feed_list or []), return_list
        self.collate_fn = collate_fn or default_collate_fn
        self.worker_init_fn = worker_init_fn
        self.places: list[Any] = [*places] if several(places) else [places]

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches()
        while len(held := list(islice(batches, len(self.places)))) == len(self.places):
            feeds = [self._tensors(batch, place) for batch, place in zip(held, self.places, strict=True)]
            if self.return_list:
                yield feeds
            else:
                yield [{var.name: item for var, item in zip(self.feed_list, items, strict=True)} for items in feeds]

    def __call__(self) -> Iterator[Any]:
        """The batches of an epoch."""
        return iter(self)

    def _batches(self) -> Iterator[Any]:
        """The batches in order; `num_workers` threads fetch their samples ahead."""
        if not self.num_workers:
            yield from map(self._batch, self.batch_sampler)
            return
        numbers = iter(self.batch_sampler)
        with ThreadPoolExecutor(self.num_workers) as pool:
            if self.worker_init_fn is not None:
                list(pool.map(self.worker_init_fn, range(self.num_workers)))
            waiting = [pool.submit(self._batch, batch) for batch in islice(numbers, 2 * self.num_workers)]
            while waiting:
                yield waiting.pop(0).result()
                waiting += [pool.submit(self._batch, batch) for batch in islice(numbers, 1)]

    def _batch(self, numbers: Sequence[int]) -> Any:
        return self.collate_fn([self.dataset[number] for number in numbers])

    def _tensors(self, batch: Sequence[Any], place: Any) -> list[LoDTensor]:
        result: list[LoDTensor] = []
        for item in batch:
            tensor = LoDTensor()
            tensor.set(item, place)
            result.append(tensor)
        return result


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
