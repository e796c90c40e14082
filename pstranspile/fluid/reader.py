"""Readers: Python functions that feed programs batch by batch, under the names of Fluid's `reader`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pstranspile.fluid.data_feeder import DataFeeder
from pstranspile.fluid.graph.plain import several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.lod_tensor import LoDTensor

Batches = Callable[[], Any]
"""Gives the batches of an epoch, each a value for every variable."""


class EOFException(Exception):
    """A reader has given all its batches."""


class ReaderBase:
    """A reader of some variables: what gives its batches is set by one of the methods that begin with `decorate`."""

    def __init__(self, feed_list: Sequence[Variable] | None, capacity: int = 1):
        self.feeds = list(feed_list or [])
        self.capacity = capacity
        self._batches: Batches | None = None

    @property
    def names(self) -> list[str]:
        """The variables that are filled."""
        return [var.name for var in self.feeds]

    def set_sample_generator(
        self, reader: Batches, batch_size: int, drop_last: bool = True, places: Any = None
    ) -> ReaderBase:
        """`reader` gives samples, a value for each variable; every `batch_size` of them are a batch."""
        from pstranspile.fluid.paddle.batching import batch

        return self.set_sample_list_generator(batch(reader, batch_size, drop_last), places)

    def set_sample_list_generator(self, reader: Batches, places: Any = None) -> ReaderBase:
        """`reader` gives lists of samples, each a value for each variable."""
        feeder = DataFeeder(self.feeds, None)

        def batches() -> Iterator[list[Any]]:
            for samples in reader():
                fed = feeder.feed(samples)
                yield [fed[name] for name in self.names]

        return self.set_batch_generator(batches, places)

    def set_batch_generator(self, reader: Batches, places: Any = None) -> ReaderBase:
        """`reader` gives batches: an array or LoDTensor for each variable, in order or by name."""
        self._batches = reader
        return self

    decorate_sample_generator = set_sample_generator
    decorate_sample_list_generator = decorate_paddle_reader = set_sample_list_generator
    decorate_batch_generator = decorate_tensor_provider = set_batch_generator

    def feed_dicts(self) -> Iterator[dict[str, Any]]:
        """The batches of an epoch as what runs are fed. Raises ValueError before one of the generators is set."""
        if self._batches is None:
            raise ValueError("a reader needs a generator: call set_batch_generator, or one of its like, first")
        for batch in self._batches():
            if isinstance(batch, dict):
                yield batch
                continue
            items = list(batch) if several(batch) else [batch]
            if len(items) != len(self.feeds):
                raise ValueError(f"a batch has {len(items)} values for {len(self.feeds)} variables")
            yield {name: _value(item) for name, item in zip(self.names, items, strict=True)}


def _value(item: Any) -> Any:
    return item if isinstance(item, LoDTensor) else np.asarray(item)


class ProgramReader(ReaderBase):
    """A reader that runs of a program draw from, after `start()`; when it has no more, they raise EOFException."""

    def __init__(self, feed_list: Sequence[Variable] | None, capacity: int = 1):
        super().__init__(feed_list, capacity)
        self._running: Iterator[dict[str, Any]] | None = None

    def start(self) -> None:
        """Begins an epoch."""
        self._running = self.feed_dicts()

    def reset(self) -> None:
        """Ends an epoch, whether or not all batches were drawn."""
        self._running = None

    @property
    def started(self) -> bool:
        """Whether an epoch has begun, and was not reset."""
        return self._running is not None

    def next(self) -> dict[str, Any]:
        """The next batch. Raises EOFException after the last one, RuntimeError before `start()`."""
        if self._running is None:
            raise RuntimeError("the reader of this program was not started: call its start() before an epoch")
        for batch in self._running:
            return batch
        raise EOFException("there is no next data.")


class DataLoader(ReaderBase):
    """Fluid's loader. Iterable ones give feeds; others belong to the program that they were made for."""

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> ReaderBase:
        """A loader of these variables; its generator is set afterwards."""
        return PyReader(feed_list, capacity or 1, use_double_buffer, iterable, return_list)

    @staticmethod
    def from_dataset(dataset: Any, places: Any, drop_last: bool = True) -> Any:
        """The batches of a dataset as feeds."""
        return dataset.feed_dicts(drop_last)


class PyReader(ProgramReader):
    """A reader of variables; iterating over it gives feeds, or lists of arrays with `return_list`."""

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int = 1,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ):
        super().__init__(feed_list, capacity)
        self.iterable, self.return_list = iterable, return_list
        if not iterable:
            from pstranspile.fluid.framework import default_main_program

            default_main_program().readers.append(self)

    def __iter__(self) -> Iterator[Any]:
        if not self.iterable:
            raise RuntimeError("this reader is not iterable: start() it, and run its program without a feed")
        return self()

    def __call__(self) -> Iterator[Any]:
        """The batches of an epoch."""
        for fed in self.feed_dicts():
            yield [fed[name] for name in self.names] if self.return_list else fed
