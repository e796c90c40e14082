"""Handlers that are told of variables, every so many seconds, while a program is trained on a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from queue import Queue
from threading import Event, Thread
from types import TracebackType
from typing import Any


class Monitor:
    """Tells a handler the variables that `look` gives, in a thread, in every period of whole seconds.

    The variables are those after a batch: `between` is called after each. As a context, it ends with its block, with
    what the handler has raised.
    """

    wait: Callable[[Event, float], bool] = staticmethod(Event.wait)
    """Waits for an event, but no longer than so many seconds; whether it has come."""

    def __init__(self, handler: Callable[[Mapping[Any, Any]], object], seconds: float, look: Callable[[], Any]):
        self._handler, self._seconds, self._look = handler, ceil(seconds), look
        self._stopped = Event()
        self.asked = Event()
        """Set while the handler's thread waits for variables."""
        self._given: Queue[Any] = Queue()
        self._problem: BaseException | None = None
        self._thread = Thread(target=self._tell, daemon=True)

    def _tell(self) -> None:
        try:
            while not self.wait(self._stopped, self._seconds):
                self.asked.set()
                held = self._given.get()
                if held is None:
                    return
                self._handler(held)
        except BaseException as problem:
            self._problem = problem

    def between(self) -> None:
        """Gives the handler's thread what there is now, if it has asked. Raises what the handler has raised."""
        if self._problem is not None:
            raise self._problem
        if self.asked.is_set():
            self.asked.clear()
            self._given.put(self._look())

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _problem: object, _trace: TracebackType | None) -> None:
        self._stopped.set()
        self._given.put(None)
        self._thread.join()
        if kind is None and self._problem is not None:
            raise self._problem
