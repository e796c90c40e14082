"""Threads that work ahead for a reader: whoever ends it early, as an interrupt does, waits for none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from types import TracebackType
from typing import Any, Generic, TypeVar

_Made = TypeVar("_Made")


class Workers(Generic[_Made]):
    """So many threads, which do what they are given in order.

    As a context, it waits at the end for what was given, unless an exception ends the block: what has not begun is
    dropped then, and what has begun is left alone. The threads keep no process from ending.
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
        """Gives the threads a call; its result comes in the future."""
        future: Future[_Made] = Future()
        self._given.put((future, function, arguments))
        return future

    def map(self, function: Callable[..., _Made], *arguments: Iterable[Any]) -> Iterator[_Made]:
        """The results of calls with these arguments, all of which are given at once, in order."""
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
