"""The event loop of a process: sockets, and actions from other threads. Everything becomes an event in one queue.

The thread that takes events is also the one that reads and writes, so bytes are not passed between threads.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator
from queue import Empty
from time import monotonic, thread_time
from typing import Any, NamedTuple, Protocol

from pstranspile.cluster.net.peer import Connection
from pstranspile.cluster.net.wire import Bytes

FRAME = "frame"
"""The event of a frame that has come."""

CLOSED = "closed"
"""The event of a connection that is over."""

FOREIGN = "foreign"
"""The event of a process that this one has called and that speaks another protocol."""

CALL = "call"
"""The event of a function to call."""

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
LOOK = 0.5
"""Seconds between two calls of the handlers' `look`."""

STRANGERS_SHARE = 0.25
"""The share of the time that connections not yet admitted may cost together; beyond it they have to wait."""

STRANGERS_SAVED = 0.5
"""The most seconds of that share that accumulate while these connections cost nothing."""


class Event(NamedTuple):
    """An event from outside the machines. `data` is a frame, `reason` why a connection is over, `action` the function
    to call.
    """

    what: str
    connection: Connection | None
    data: Bytes = b""
    reason: str = ""
    action: Callable[[], object] | None = None


class Handled(Protocol):
    """The handler of a socket."""

    @property
    def unknown(self) -> bool:
        """Whether the socket is of a connection that has not been admitted."""
        ...

    def spend(self, seconds: float) -> None:
        """Counts the processor time of a turn of a connection that has not been admitted."""
        ...

    def handle(self) -> None:
        """Called when the socket can be read from or written to."""
        ...

    def look(self, now: float) -> None:
        """Called every `LOOK` seconds with the time, in seconds from an arbitrary moment."""
        ...

    def close(self) -> None:
        """Closes the socket once all bytes are sent."""
        ...

    def abandon(self) -> None:
        """Closes the socket at once."""
        ...


class Known(Protocol):
    """A party that may have been admitted."""

    @property
    def known(self) -> bool:
        """Whether the other side has been admitted."""
        ...


class Loop:
    """The events of a process. Any thread may call `put`; all other methods are for the thread that takes the
    events.
    """

    def __init__(self, clock: Callable[[], float] = monotonic, cpu: Callable[[], float] = thread_time) -> None:
        self._clock, self._cpu = clock, cpu
        self._ready: deque[Event] = deque()
        self._selector = selectors.DefaultSelector()
        self._handled: dict[int, Handled] = {}
        self._woken, self._waking = socket.socketpair()
        for end in (self._woken, self._waking):
            end.setblocking(False)
        self._selector.register(self._woken, READ)
        self._thread = threading.get_ident()
        self._looked = 0.0
        self._again: dict[Handled, None] = {}
        """Handlers that get another turn although the selector may report nothing new on their sockets."""
        self._saved = STRANGERS_SAVED
        """Seconds of processor time that connections not yet admitted may still cost; below 0 they have to wait."""
        self._saved_at = clock()
        self._held: dict[int, tuple[Any, int]] = {}
        """The sockets of such connections that have to wait, with the events they wait for."""
        self._rested: dict[int, tuple[Any, int]] = {}
        """The sockets that rest until handlers are next looked at, with the events they wait for."""

    def put(self, event: Event) -> None:
        """Appends an event."""
        self._ready.append(event)
        if threading.get_ident() != self._thread:
            with contextlib.suppress(OSError):  # the buffer is full, so the other thread wakes up anyway
                self._waking.send(b"\0")

    def now(self) -> float:
        """The time, in seconds from an arbitrary moment."""
        return self._clock()

    def empty(self) -> bool:
        """Whether there is no event in the queue."""
        return not self._ready

    def get(self, timeout: float) -> Event:
        """The next event. Raises queue.Empty if none comes within `timeout` seconds."""
        self._thread = threading.get_ident()
        end = self._clock() + timeout
        while not self._ready:
            now = self._clock()
            if now >= end:
                raise Empty
            self._poll(end - now)
        return self._ready.popleft()

    def again(self, handled: Handled) -> None:
        """Gives a handler another turn, after those of others, even if its socket has nothing new."""
        self._again[handled] = None

    def _poll(self, timeout: float) -> None:
        timeout = min(timeout, LOOK, self._let_strangers_come())
        turns: dict[Handled, None] = {}
        if self._again:
            again, self._again = self._again, {}
            for handled in again:
                (self._again if handled.unknown and self._saved < 0 else turns)[handled] = None
        for key, _ in self._selector.select(0.0 if turns else timeout):
            handled = self._handled.get(key.fd)
            if handled is not None:
                turns[handled] = None
            elif key.fd == self._woken.fileno():
                with contextlib.suppress(OSError):
                    self._woken.recv(4096)
        for handled in turns:
            self._give_turn(handled)
        now = self._clock()
        if now - self._looked >= LOOK:
            self._looked = now
            rested, self._rested = self._rested, {}
            for sock, what in rested.values():
                self._selector.register(sock, what)
            for handled in list(self._handled.values()):
                handled.look(now)

    def _give_turn(self, handled: Handled) -> None:
        if not handled.unknown:
            handled.handle()
            return
        begun = self._cpu()
        handled.handle()
        spent = self._cpu() - begun
        self._saved -= spent
        handled.spend(spent)

    def charging(self, somebody: Known) -> contextlib.AbstractContextManager[object]:
        """A context whose processor time counts as that of connections not yet admitted, if `somebody` was not admitted
        before.
        """
        return contextlib.nullcontext() if somebody.known else self._charging()

    @contextlib.contextmanager
    def _charging(self) -> Generator[None]:
        begun = self._cpu()
        try:
            yield
        finally:
            self._saved -= self._cpu() - begun

    def _let_strangers_come(self) -> float:
        """Resumes or suspends the connections not yet admitted; returns the seconds until that may change."""
        now = self._clock()
        self._saved = min(self._saved + STRANGERS_SHARE * (now - self._saved_at), STRANGERS_SAVED)
        self._saved_at = now
        for number, (sock, what) in list(self._held.items()):
            if self._saved >= 0 or not self._handled[number].unknown:
                del self._held[number]
                self._selector.register(sock, what)
        if self._saved >= 0:
            return LOOK
        for number, handled in self._handled.items():
            if handled.unknown and number not in self._held and number not in self._rested:
                key = self._selector.get_key(number)
                self._held[number] = key.fileobj, key.events
                self._selector.unregister(number)
        return 0.001 - self._saved / STRANGERS_SHARE

    # sockets

    def watch(self, sock: Any, handled: Handled, what: int) -> None:
        """Registers a handler to be called when the socket can be read from or written to, as `what` says."""
        self._handled[sock.fileno()] = handled
        self._selector.register(sock, what)

    def change(self, sock: Any, what: int) -> None:
        """Changes the events that a socket waits for."""
        if sock.fileno() in self._held:
            self._held[sock.fileno()] = sock, what
        else:
            self._selector.modify(sock, what)

    def forget(self, sock: Any) -> None:
        """Stops watching a socket, which is then closed."""
        handled = self._handled.pop(sock.fileno(), None)
        if handled is not None:
            self._again.pop(handled, None)
            held, rested = (waits.pop(sock.fileno(), None) for waits in (self._held, self._rested))
            if held is rested is None:
                self._selector.unregister(sock)

    def rest(self, sock: Any) -> None:
        """Stops watching a socket until handlers are next looked at."""
        key = self._selector.unregister(sock)
        self._rested[key.fd] = sock, key.events

    def close(self, patience: float = 2.0) -> None:
        """Closes all connections once their bytes are sent, or after `patience` seconds."""
        self._thread = threading.get_ident()
        for handled in list(self._handled.values()):
            handled.close()
        end = self._clock() + patience
        while self._handled and (left := end - self._clock()) > 0:
            self._poll(left)
        for handled in list(self._handled.values()):
            handled.abandon()
        self._selector.close()
        self._woken.close()
        self._waking.close()
