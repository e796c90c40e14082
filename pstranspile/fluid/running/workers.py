"""Threads that work ahead for a reader. A reader that is ended early, for example by an interrupt, does not wait for
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from types import TracebackType
from typing import Any, Generic, TypeVar

_Made = TypeVar("_Made")


class Workers(Generic[_Made]):
    """A number of threads that carry out calls in the order in which they are submitted.

    As a context manager, it waits at the end for all calls. If an exception ends the block, calls that have not begun
    are dropped, and the others are not waited for. The threads are daemons: they do not keep the process from ending.
    """

    def __init__(self, count: int):
        self._given: SimpleQueue[tuple[Future[_Made], Callable[..., _Made], tuple[Any, ...]] | None] = SimpleQueue()
        self._dropped = Event()
        self._threads = [Thread(target=self._work, daemon=True) for _ in range(count)]

    def _work(self) -> None:
        while (given := self._given.get()) is not None and not self._dropped.is_set():
            future, function, arguments = given
            try:
                future.set_result(function(*arguments))
            except BaseException as problem:
                future.set_exception(problem)

    def submit(self, function: Callable[..., _Made], *arguments: Any) -> Future[_Made]:
        """Queues a call for the threads; returns the future of its result."""
        future: Future[_Made] = Future()
        self._given.put((future, function, arguments))
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
            self._dropped.set()
        for _ in self._threads:
            self._given.put(None)
        if kind is None:
            for thread in self._threads:
                thread.join()
