"""What a process waits for: sockets, and what other threads hand over. Everything becomes an event in one queue.

The thread that takes events is also the one that reads and writes, so bytes are not passed between threads.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty
from time import monotonic
from typing import Any, NamedTuple, Protocol

from pstranspile.net.peer import Connection
from pstranspile.net.values import Bytes

FRAME, CLOSED, FOREIGN, WRITTEN, CALL = "frame", "closed", "foreign", "written", "call"
"""The kinds of events: a frame has come; a connection is over; the called process speaks another protocol; a state has
been written; a function is to be called.
"""

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
LOOK = 0.5
"""Seconds between looks at the clock."""


class Event(NamedTuple):
    """Something that happened outside of the machines. `data` is a frame, `reason` why a connection is over, `action`
    what is to be done.
    """

    what: str
    connection: Connection | None
    data: Bytes = b""
    reason: str = ""
    action: Callable[[], object] | None = None


class Handled(Protocol):
    """What reads from a socket and writes to it."""

    def handle(self) -> None:
        """The socket can be read from, or written to."""
        ...

    def look(self, now: float) -> None:
        """The clock is looked at, in seconds from some moment."""
        ...

    def close(self) -> None:
        """Ends it, once all bytes are sent."""
        ...

    def abandon(self) -> None:
        """Ends it at once."""
        ...


class Loop:
    """The events of a process. `put` may be called by any thread, the rest by the one that takes the events."""

    def __init__(self) -> None:
        self._ready: deque[Event] = deque()
        self._selector = selectors.DefaultSelector()
        self._handled: dict[int, Handled] = {}
        self._woken, self._waking = socket.socketpair()
        for end in (self._woken, self._waking):
            end.setblocking(False)
        self._selector.register(self._woken, READ)
        self._thread = threading.get_ident()
        self._looked = 0.0

    def put(self, event: Event) -> None:
        """Appends an event."""
        self._ready.append(event)
        if threading.get_ident() != self._thread:
            with contextlib.suppress(OSError):  # full: the other thread wakes up anyway
                self._waking.send(b"\0")

    def empty(self) -> bool:
        """Whether there is no event."""
        return not self._ready

    def get(self, timeout: float) -> Event:
        """The next event. Raises queue.Empty if none comes in so many seconds."""
        self._thread = threading.get_ident()
        end = monotonic() + timeout
        while not self._ready:
            now = monotonic()
            if now >= end:
                raise Empty
            self._poll(end - now)
        return self._ready.popleft()

    def _poll(self, timeout: float) -> None:
        for key, _ in self._selector.select(min(timeout, LOOK)):
            handled = self._handled.get(key.fd)
            if handled is not None:
                handled.handle()
            elif key.fd == self._woken.fileno():
                with contextlib.suppress(OSError):
                    self._woken.recv(4096)
        now = monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            for handled in list(self._handled.values()):
                handled.look(now)

    # sockets

    def watch(self, sock: Any, handled: Handled, what: int) -> None:
        """Registers `handled` to be called when the socket can be read from, or written to."""
        self._handled[sock.fileno()] = handled
        self._selector.register(sock, what)

    def change(self, sock: Any, what: int) -> None:
        """What is waited for is another."""
        self._selector.modify(sock, what)

    def forget(self, sock: Any) -> None:
        """The socket is closed next."""
        if self._handled.pop(sock.fileno(), None) is not None:
            self._selector.unregister(sock)

    def close(self, patience: float = 2.0) -> None:
        """Ends all connections, once their bytes are sent, or after so many seconds."""
        self._thread = threading.get_ident()
        for handled in list(self._handled.values()):
            handled.close()
        end = monotonic() + patience
        while self._handled and (left := end - monotonic()) > 0:
            self._poll(left)
        for handled in list(self._handled.values()):
            handled.abandon()
        self._selector.close()
        self._woken.close()
        self._waking.close()
