"""Fluid's `dataloader`: data sets whose samples have indices, and loaders that make batches of them.

Threads may work ahead for a reader. A reader that is ended early, for example by an interrupt, does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from queue import SimpleQueue
from threading import Event, Thread
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np

from pstranspile.fluid import unique_name
from pstranspile.fluid.graph.program import DEFAULTS
from pstranspile.fluid.graph.values import dtype_of, several
from pstranspile.fluid.graph.variable import Variable
from pstranspile.fluid.lod_tensor import LoDTensor
from pstranspile.fluid.missing import names_of_fluid
from pstranspile.ir.model import TensorType, Var
from pstranspile.ir.types import VarKind

# Threads that work ahead for a reader.


_Made = TypeVar("_Made")


class Workers(Generic[_Made]):
    """A number of threads that carry out calls in the order in which they are submitted.

    As a context manager, it waits at the end for all calls. If an exception ends the block, calls that have not begun
    are dropped, and the others are not waited for. The threads are daemons: they do not keep the process from ending.
    """

    def __init__(self, count: int):
        self._calls: SimpleQueue[tuple[Future[_Made], Callable[..., _Made], tuple[Any, ...]] | None] = SimpleQueue()
        self._drop_event = Event()
        self._threads = [Thread(target=self._work, daemon=True) for _ in range(count)]

    def _work(self) -> None:
        while (given := self._calls.get()) is not None and not self._drop_event.is_set():
            future, function, arguments = given
            try:
                future.set_result(function(*arguments))
            except BaseException as problem:
                future.set_exception(problem)

    def submit(self, function: Callable[..., _Made], *arguments: Any) -> Future[_Made]:
        """Queues a call for the threads; returns the future of its result."""
        future: Future[_Made] = Future()
        self._calls.put((future, function, arguments))
        return future

    def map(self, function: Callable[..., _Made], *arguments: Iterable[Any]) -> Iterator[_Made]:
        """The results of calls with these arguments, in order; all calls are queued at once."""
        waiting = [self.submit(function, *each) for each in zip(*arguments, strict=False)]
        return (future.result() for future in waiting)

    def __enter__(self) -> Workers[_Made]:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _problem: object, _trace: TracebackType | None) -> None:
        if kind is not None:
            self._drop_event.set()
        for _ in self._threads:
            self._calls.put(None)
        if kind is None:
            for thread in self._threads:
                thread.join()


# Readers in programs: their variables, and the ops that create and read them.

data_loader_unique_name_generator = unique_name.UniqueNameGenerator()
"""The counters for the names of loaders in programs."""


class PyReaderVariable(Variable):
    """The variable of a reader in a program, with the methods to start and fill its loader."""

    loader: Any
    """The loader that supplies the values of the variables which `read_file` returns."""

    def __getattr__(self, name: str) -> Any:
        if name in _OF_LOADERS:
            return getattr(self.loader, name)
        raise AttributeError(f"a reader has no {name!r}")


_OF_LOADERS = (
    *("start", "reset", "queue", "thread", "decorate_paddle_reader", "decorate_sample_list_generator"),
    *("decorate_tensor_provider", "decorate_batch_generator", "decorate_sample_generator"),
)


def _reader_variable(loader: Any, program: Any, name: str) -> PyReaderVariable:
    """Declares the reader of a loader in block 0 of a program."""
    tensors = tuple(TensorType(dtype_of(var.dtype), tuple(var.shape), var.lod_level) for var in loader.feeds)
    program.drafts[0].vars[name] = Var(name, VarKind.READER, persistable=True, readers=tensors)
    made = PyReaderVariable(program.global_block(), name)
    made.loader = loader
    program.global_block().adopt(made)
    return made


def create_reader_variable(loader: Any, queue: str, name: str, at_start: bool = True) -> PyReaderVariable:
    """The reader of a loader as a variable of the main program.

    The start-up program creates the reader, or with `at_start` False the main program does so in every run.
    """
    draft = DEFAULTS[0].live()
    creating = draft.startup_program if at_start else draft.program
    reader_var = _reader_variable(loader, creating, name)
    attrs = {
        "shape_concat": [dim for var in loader.feeds for dim in var.shape],
        "ranks": [len(var.shape) for var in loader.feeds],
        "lod_levels": [var.lod_level for var in loader.feeds],
        "dtypes": [int(var.dtype) for var in loader.feeds],
        "need_check_feed": [int(var.need_check_feed) for var in loader.feeds],
    }
    block = creating.global_block() if at_start else creating.current_block()
    block.append_op("create_py_reader", {"blocking_queue": [queue]}, {"Out": [name]}, attrs)
    draft.program.readers.append(loader)
    return _reader_variable(loader, draft.program, name) if at_start else reader_var


def double_buffer(reader: PyReaderVariable, place: Any = None, name: str | None = None) -> PyReaderVariable:
    """A reader that reads ahead of another one. Here this is only declared, because loaders themselves read ahead."""
    draft = DEFAULTS[0].live()
    reader_var = _reader_variable(reader.loader, draft.program, name or unique_name.generate("double_buffer"))
    block = draft.program.current_block()
    block.append_op(
        "create_double_buffer_reader",
        {"UnderlyingReader": [reader]},
        {"Out": [reader_var]},
        {"place": str(place or "auto").upper()},
    )
    return reader_var


def loader_ops(loader: Any, use_double_buffer: bool) -> None:
    """Adds the ops to the program in use that read a loader's variables."""
    names = data_loader_unique_name_generator
    if not loader.feeds:
        raise AssertionError("a loader of a program needs a feed_list")
    queue, key, ahead = names("lod_tensor_blocking_queue"), names("create_py_reader"), names("double_buffer")
    reader = create_reader_variable(loader, queue, key, at_start=not loader.keeps_order)
    if use_double_buffer:
        reader = double_buffer(reader, name=ahead)
    DEFAULTS[0].live().program.current_block().append_op(
        "read",
        {"Reader": [reader]},
        {"Out": loader.feeds},
        {"drop_last": loader._drop_last},
    )


def read_file(reader: PyReaderVariable) -> Any:
    """The variables that get values from a reader in every run."""
    block, key = DEFAULTS[0].live().program.current_block(), unique_name.generate("read_file")
    variables = [
        block.create_var(name=f"{key}.tmp_{index}", shape=var.shape, dtype=var.dtype, lod_level=var.lod_level)
        for index, var in enumerate(reader.loader.feeds)
    ]
    for var in variables:
        var.stop_gradient, var.is_data = True, True
    block.append_op("read", {"Reader": [reader]}, {"Out": variables})
    reader.loader.names = [var.name for var in variables]
    return variables[0] if len(variables) == 1 else variables


class Dataset:
    """The base class of data sets, which return the sample with an index, and their number of samples."""

    def __getitem__(self, idx: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not say what its samples are: write __getitem__")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not say how many samples it has: write __len__")


class BatchSampler:
    """For each batch, the indices of its samples in a data set, or the items of `indices`."""

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

    As in Fluid, if a sample has more values than there are arrays, its first values start new arrays.
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
    """The batches of a data set. With several places, each item has one feed for every place."""

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
        with Workers[Any](self.num_workers) as pool:
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


__getattr__ = names_of_fluid(__name__, globals())
