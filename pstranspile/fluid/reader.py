"""Readers: Python functions that feed programs batch by batch, under the names of Fluid's `reader`."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from pstranspile.fluid.data_feeder import DataFeeder
from pstranspile.fluid.dataloader import BatchSampler as BatchSampler
from pstranspile.fluid.dataloader import Dataset as Dataset
from pstranspile.fluid.dataloader import MapLoader, loader_ops
from pstranspile.fluid.dataloader import data_loader_unique_name_generator as data_loader_unique_name_generator
from pstranspile.fluid.dataloader import default_collate_fn as default_collate_fn
from pstranspile.fluid.graph.values import several
from pstranspile.fluid.lod_tensor import LoDTensor
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.ir.diagnostics import DiagnosticError, error

Batches = Callable[[], Any]
"""A function that returns the batches of an epoch, each with a value for every variable."""


_ORDERED = [True]


def keep_data_loader_order(*args: bool) -> bool | None:
    """Without an argument, whether batches keep the order of their generators; with one, sets this. They always keep it
    here.
    """
    if not args:
        return _ORDERED[0]
    (_ORDERED[0],) = args
    return None


class EOFException(Exception):
    """Raised when a reader has no more batches."""


class DataLoaderBase:
    """The base class of loaders, which are iterated over."""

    def __iter__(self) -> Any:
        raise NotImplementedError("a loader gives its batches; DataLoaderBase has none")

    def __call__(self) -> Any:
        """The batches of an epoch."""
        return self.__iter__()

    def __next__(self) -> Any:
        raise NotImplementedError("a loader gives its batches; DataLoaderBase has none")

    @classmethod
    def _check_input_array(cls, item: Any) -> Any:
        """The values of a variable in a batch as an array. Raises TypeError where samples have different dims."""
        try:
            array = np.asarray(item)
        except ValueError:
            array = np.array(None)
        if array.dtype == object:
            raise TypeError("samples of a batch have different dims: pad them, or declare a LoD level")
        return array


class Queue:
    """A queue of batches that a script pushes itself, each an array of tensors; it has room for `capacity` batches."""

    def __init__(self, capacity: int):
        self._batches: queue.Queue[Any] = queue.Queue(capacity)
        self._is_closed = False

    def push(self, batch: Any) -> bool:
        """Adds a batch, as soon as there is room. Returns False after `close`."""
        if not self._is_closed:
            self._batches.put(list(batch))
        return not self._is_closed

    def pop(self) -> Any:
        """The next batch, as soon as there is one; None after `close`, once the queue is empty."""
        while not (self._is_closed and self._batches.empty()):
            try:
                return self._batches.get(timeout=0.05)
            except queue.Empty:
                continue
        return None

    def close(self) -> None:
        """Closes the queue for new batches."""
        self._is_closed = True

    def size(self) -> int:
        """The number of batches in the queue."""
        return self._batches.qsize()


class NoThread:
    """Takes the place of the thread that reads batches ahead in Fluid, because there is none."""

    def join(self, timeout: float | None = None) -> None:
        """Returns at once, because there is no thread."""

    def is_alive(self) -> bool:
        """False, because there is no thread."""
        return False


class GeneratorLoader(DataLoaderBase):
    """A loader for some variables. One of the methods that begin with `set` sets the generator of its batches.

    An iterable loader yields, for every step, one feed for each device. Others belong to a program, whose runs read
    from them after `start()`.
    """

    def __init__(
        self,
        feed_list: Sequence[Any] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        drop_last: bool = True,
    ):
        self.feeds = list(feed_list or [])
        self.names = [var.name for var in self.feeds]
        """The names of the variables that get the values."""
        self.iterable, self.return_list = iterable, return_list
        self._capacity, self._drop_last = capacity or 1, drop_last
        self._batches: Batches | None = None
        self._places: list[Any] = []
        self._running: Iterator[Any] | None = None
        self._queue: Queue | None = None
        self.keeps_order = _ORDERED[0]
        """Whether batches keep their order: if so, the main program creates the reader, otherwise the start-up program
        does.
        """
        if not iterable:
            loader_ops(self, use_double_buffer)

    # generators

    def set_sample_generator(
        self, reader: Batches, batch_size: int, drop_last: bool = True, places: Any = None
    ) -> GeneratorLoader:
        """Sets a generator of samples with a value for each variable; every `batch_size` of them become a batch."""
        from pstranspile.fluid.paddle.reader import batch

        if batch_size <= 0:
            raise AssertionError(f"a batch has at least one sample, not {batch_size}")
        return self.set_sample_list_generator(batch(reader, batch_size, drop_last), places)

    def set_sample_list_generator(self, reader: Batches, places: Any = None) -> GeneratorLoader:
        """Sets a generator of lists of samples, each with a value for every variable."""
        feeder = DataFeeder(self.feeds, None)

        def batches() -> Iterator[list[Any]]:
            for samples in reader():
                fed = feeder.feed(samples)
                yield [fed[var.name] for var in self.feeds]

        return self.set_batch_generator(batches, places)

    def set_batch_generator(self, reader: Batches, places: Any = None) -> GeneratorLoader:
        """Sets a generator of batches: an array or LoDTensor for each variable, in order or by name."""
        if self.iterable and places is None:
            raise AssertionError("an iterable loader needs the places that it gives feeds for")
        self._batches = reader
        self._places = [*places] if several(places) else [places]
        return self

    decorate_sample_generator = set_sample_generator
    decorate_sample_list_generator = decorate_paddle_reader = set_sample_list_generator
    decorate_batch_generator = decorate_tensor_provider = set_batch_generator

    def feed_dicts(self) -> Iterator[dict[str, Any]]:
        """The batches of an epoch, as feeds. Raises ValueError before a generator is set.

        Raises DiagnosticError where the generator fails.
        """
        if self._batches is None:
            raise ValueError("a reader needs a generator: call set_batch_generator, or one of its like, first")
        try:
            for batch in self._batches():
                yield self._batch_feed(batch)
        except Exception as problem:
            message = f"the reader of {', '.join(self.names)} has failed: {type(problem).__name__}: {problem}"
            raise DiagnosticError([error("data-source", message)]) from problem

    def _batch_feed(self, batch: Any) -> dict[str, Any]:
        if isinstance(batch, dict):
            return batch  # pyright: ignore[reportUnknownVariableType]
        items: list[Any] = [*batch] if several(batch) else [batch]
        if len(items) != len(self.names):
            raise ValueError(f"a batch has {len(items)} values for {len(self.names)} variables")
        return {name: self._value(item) for name, item in zip(self.names, items, strict=True)}

    def _value(self, item: Any) -> LoDTensor:
        if isinstance(item, LoDTensor):
            return item
        result = LoDTensor()
        result.set(self._check_input_array(item), self._places[0] if self._places else None)
        return result

    # iterable loaders

    def __iter__(self) -> GeneratorLoader:
        if not self.iterable:
            raise AssertionError("this loader is not iterable: start() it, and run its program without a feed")
        self._running = self.feed_dicts()
        return self

    def __next__(self) -> Any:
        if self._running is None:
            raise AssertionError("iterate over the loader: iter(loader) begins an epoch")
        held = list(islice(self._running, len(self._places)))
        if not held or (len(held) < len(self._places) and self._drop_last):
            self._running = None
            raise StopIteration
        at_places(held, self._places)
        return [[feed[name] for name in self.names] for feed in held] if self.return_list else held

    def _reset(self) -> None:
        """Ends an epoch, even if batches are left."""
        self._running = None

    # loaders of a program

    @property
    def queue(self) -> Queue:
        """The queue to which a script pushes batches instead of setting a generator."""
        if self._queue is None:
            self._queue = Queue(self._capacity)
        return self._queue

    def start(self) -> None:
        """Starts an epoch."""
        if self.iterable:
            raise AssertionError("an iterable loader is not started: iterate over it")
        self._running = self.feed_dicts()

    def reset(self) -> None:
        """Ends an epoch, even if batches are left."""
        if self.iterable:
            raise AssertionError("an iterable loader is not reset: iterate over it again")
        self._running = None

    @property
    def started(self) -> bool:
        """Whether an epoch was started and not reset, or the script pushes batches itself."""
        return self._running is not None or self._queue is not None

    def next(self, devices: int = 1) -> list[dict[str, Any]]:
        """The next batches, one for each device; without `drop_last` the last ones may be fewer.

        Raises EOFException when there are none, or too few.
        """
        held = list(islice(self._source(), devices))
        if not held or (len(held) < devices and self._drop_last):
            raise EOFException("There is no next data.")
        return held

    @property
    def thread(self) -> NoThread:
        """An object whose `join` returns at once: scripts join it to wait for the reading thread, and here batches are
        read when a run asks for them.
        """
        return NoThread()

    def _source(self) -> Iterator[dict[str, Any]]:
        if self._running is not None:
            return self._running
        return map(self._batch_feed, iter(self.queue.pop, None))


def at_places(feeds: list[dict[str, Any]], places: Sequence[Any]) -> list[dict[str, Any]]:
    """The feeds, with the tensors of each at its place."""
    for feed, place in zip(feeds, places, strict=False):
        for tensor in feed.values():
            if isinstance(tensor, LoDTensor):
                tensor.place = place
    return feeds


class PyReader(GeneratorLoader):
    """A loader under its older name and methods."""

    def __init__(
        self,
        feed_list: Sequence[Any] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ):
        super().__init__(feed_list, capacity, use_double_buffer, iterable, return_list)

    @property
    def _loader(self) -> GeneratorLoader:
        """The loader itself."""
        return self


class DatasetLoader(DataLoaderBase):
    """The batches of a dataset, as feeds, one for each device."""

    def __init__(self, dataset: Any, places: Any, drop_last: bool):
        self._dataset, self._drop_last = dataset, drop_last
        self._places: list[Any] = [*places] if several(places) else [places]
        self._running: list[Iterator[Any]] = []

    def __iter__(self) -> DatasetLoader:
        parts = self._dataset.dealt(len(self._places))
        self._running = [self._dataset.batches(part, self._drop_last) for part in parts]
        return self

    def __next__(self) -> Any:
        held = [feed for stream in self._running for feed in islice(stream, 1)]
        if not held or (len(held) < len(self._places) and self._drop_last):
            raise StopIteration
        return at_places(held, self._places)


class DataLoader(MapLoader, DataLoaderBase):
    """Fluid's loader of a `Dataset`, which joins samples to batches; its static methods make the other loaders."""

    @staticmethod
    def from_generator(
        feed_list: Sequence[Any] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> GeneratorLoader:
        """A loader for these variables, whose generator is set later."""
        return GeneratorLoader(feed_list, capacity, use_double_buffer, iterable, return_list, drop_last)

    @staticmethod
    def from_dataset(dataset: Any, places: Any, drop_last: bool = True) -> DatasetLoader:
        """A loader for the batches of a dataset."""
        return DatasetLoader(dataset, places, drop_last)


__getattr__ = names_of_fluid(__name__, globals())
