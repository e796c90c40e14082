"""Fluid's `paddle.reader` and `paddle.batch`: functions that make new readers from existing ones.

A reader is a function that returns an iterable of samples.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import chain as chained
from itertools import islice, zip_longest
from typing import Any

from pstranspile.fluid.missing import hold_parts

Reader = Callable[[], Any]


def batch(reader: Callable[[], Any], batch_size: int, drop_last: bool = False) -> Callable[[], Iterator[list[Any]]]:
    """A reader of lists of `batch_size` samples; `drop_last` drops a last list that is shorter.

    Raises ValueError unless `batch_size` is positive.
    """
    if int(batch_size) <= 0:
        raise ValueError(f"a batch has at least one sample, not {batch_size}")

    def batches() -> Iterator[list[Any]]:
        held: list[Any] = []
        for sample in reader():
            held.append(sample)
            if len(held) == batch_size:
                yield held
                held = []
        if held and not drop_last:
            yield held

    return batches


class ComposeNotAligned(ValueError):
    """Raised when the readers of a `compose` have different numbers of samples."""


def cache(reader: Reader) -> Reader:
    """A reader that keeps all samples after it has been read once."""
    held: list[Any] = []
    full: list[bool] = []

    def samples() -> Iterator[Any]:
        if not full:
            held[:] = reader()
            full.append(True)
        yield from held

    return samples


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """A reader of the results of `func`, which gets one sample of each reader at a time."""
    return lambda: map(func, *[reader() for reader in readers])


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """A reader of the samples in an order that is random within every `buf_size` of them."""

    def samples() -> Iterator[Any]:
        source: Iterator[Any] = iter(reader())
        while held := list(islice(source, max(buf_size, 1))):
            random.shuffle(held)
            yield from held

    return samples


def chain(*readers: Reader) -> Reader:
    """A reader of the samples of all readers, one reader after the other."""
    return lambda: chained.from_iterable(reader() for reader in readers)


def _flat(sample: Any) -> tuple[Any, ...]:
    return (*sample,) if isinstance(sample, tuple) else (sample,)  # pyright: ignore[reportUnknownVariableType]


def compose(*readers: Reader, **options: Any) -> Reader:
    """A reader of samples that join the values of one sample of each reader; with `check_alignment` False it ends with
    the shortest reader.

    Raises ComposeNotAligned where the readers have different numbers of samples.
    """
    aligned = options.pop("check_alignment", True)
    missing = object()

    def samples() -> Iterator[Any]:
        running = [reader() for reader in readers]
        for parts in zip_longest(*running, fillvalue=missing) if aligned else zip(*running, strict=False):
            if any(part is missing for part in parts):
                raise ComposeNotAligned("the readers give different numbers of samples")
            yield tuple(value for part in parts for value in _flat(part))

    return samples


def buffered(reader: Reader, size: int) -> Reader:
    """A reader of the same samples, of which a thread reads up to `size` ahead."""
    from queue import Queue
    from threading import Thread

    def samples() -> Iterator[Any]:
        held: Queue[Any] = Queue(size)
        end = object()
        failed: list[BaseException] = []

        def fill() -> None:
            try:
                for sample in reader():
                    held.put(sample)
            except BaseException as problem:
                failed.append(problem)
            held.put(end)

        Thread(target=fill, daemon=True).start()
        while (sample := held.get()) is not end:
            yield sample
        if failed:
            raise failed[0]

    return samples


def firstn(reader: Reader, n: int) -> Reader:
    """A reader of the first `n` samples."""
    return lambda: islice(reader(), n)


def xmap_readers(
    mapper: Callable[[Any], Any], reader: Reader, process_num: int, buffer_size: int, order: bool = False
) -> Reader:
    """A reader of the results of `mapper` for every sample, computed by several threads, in the order
    of the samples.
    """
    from pstranspile.fluid.dataloader import Workers

    def samples() -> Iterator[Any]:
        with Workers[Any](process_num) as pool:
            source: Iterator[Any] = iter(reader())
            while held := list(islice(source, max(buffer_size, process_num))):
                yield from pool.map(mapper, held)

    return samples


def multiprocess_reader(readers: list[Reader], use_pipe: bool = True, queue_size: int = 1000) -> Reader:
    """A reader of the samples of several readers, one of each in turn."""

    def samples() -> Iterator[Any]:
        missing = object()
        for parts in zip_longest(*[reader() for reader in readers], fillvalue=missing):
            yield from (part for part in parts if part is not missing)

    return samples


hold_parts(__name__, globals())
