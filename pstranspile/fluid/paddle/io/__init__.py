"""`paddle.io`: data sets whose samples have numbers or come in a row, and their loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from pstranspile.fluid import reader
from pstranspile.fluid.places import CPUPlace
from pstranspile.fluid.reader import BatchSampler as BatchSampler
from pstranspile.fluid.reader import Dataset as Dataset

__all__ = ["BatchSampler", "DataLoader", "Dataset", "IterableDataset"]


class IterableDataset(Dataset):
    """The base of data sets that give their samples in a row."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} does not say what its samples are: write __iter__")


class _InRow(BatchSampler):
    """The samples of each batch, where they have no numbers."""

    def __init__(self, dataset: IterableDataset, batch_size: int, drop_last: bool):
        super().__init__(indices=[], batch_size=batch_size, drop_last=drop_last)
        self._samples = dataset

    def __iter__(self) -> Iterator[list[Any]]:
        samples = iter(self._samples)
        while batch := list(islice(samples, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

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
        batch_sampler: BatchSampler | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        *args: Any,
        **kwargs: Any,
    ):
        self._in_row = isinstance(dataset, IterableDataset)
        sizes: tuple[Any, ...] = (batch_sampler, batch_size, shuffle, drop_last)
        if isinstance(dataset, IterableDataset):
            if batch_sampler is not None or shuffle:
                raise ValueError("an IterableDataset gives its samples in a row: leave out batch_sampler and shuffle")
            sizes = (_InRow(dataset, batch_size, drop_last), 1, False, False)
        place = CPUPlace() if places is None else places
        super().__init__(dataset, feed_list, place, return_list, *sizes, *args, **kwargs)

    def _batch(self, numbers: Sequence[Any]) -> Any:
        return self.collate_fn([*numbers]) if self._in_row else super()._batch(numbers)

    def __iter__(self) -> Iterator[Any]:
        for feeds in super().__iter__():
            yield feeds[0] if self.return_list and len(self.places) == 1 else feeds
