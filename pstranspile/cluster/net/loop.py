"""The event loop of a process and the non-blocking sockets in it, with actions from other threads. Everything becomes
an event in one queue.

The thread that takes events is also the one that reads and writes, so bytes are not passed between threads. Incoming
bytes of a socket go to a protocol, and outgoing bytes are written when the socket takes them.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from queue import Empty
from threading import Lock
from time import monotonic, thread_time
from typing import Any, NamedTuple, Protocol

from pstranspile.cluster.net.peer import Connection
from pstranspile.cluster.net.tls import NEEDS_TLS, NO_TLS, Guard, reason_of
from pstranspile.cluster.net.wire import Bytes, WireError
from pstranspile.ir.diagnostics import lasting

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

    kind: str
    connection: Connection | None
    data: Bytes = b""
    reason: str = ""
    action: Callable[[], object] | None = None


class SocketHandler(Protocol):
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


class AdmittedParty(Protocol):
    """A party that may have been admitted."""

    @property
    def is_admitted(self) -> bool:
        """Whether the other side has been admitted."""
        ...


class Loop:
    """The events of a process. Any thread may call `put`; all other methods are for the thread that takes the
    events.
    """

    def __init__(self, clock: Callable[[], float] = monotonic, cpu: Callable[[], float] = thread_time) -> None:
        self._clock, self._cpu = clock, cpu
        self._ready_events: deque[Event] = deque()
        self._selector = selectors.DefaultSelector()
        self._handlers: dict[int, SocketHandler] = {}
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for end in (self._wake_receiver, self._wake_sender):
            end.setblocking(False)
        self._selector.register(self._wake_receiver, READ)
        self._thread = threading.get_ident()
        self._last_look = 0.0
        self._unfinished_handlers: dict[SocketHandler, None] = {}
        """Handlers that get another turn although the selector may report nothing new on their sockets."""
        self._stranger_seconds = STRANGERS_SAVED
        """Seconds of processor time that connections not yet admitted may still cost; below 0 they have to wait."""
        self._stranger_time = clock()
        self._waiting_sockets: dict[int, tuple[Any, int]] = {}
        """The sockets of such connections that have to wait, with the events they wait for."""
        self._resting_sockets: dict[int, tuple[Any, int]] = {}
        """The sockets that rest until handlers are next looked at, with the events they wait for."""

    def put(self, event: Event) -> None:
        """Appends an event."""
        self._ready_events.append(event)
        if threading.get_ident() != self._thread:
            with contextlib.suppress(OSError):  # the buffer is full, so the other thread wakes up anyway
                self._wake_sender.send(b"\0")

    def now(self) -> float:
        """The time, in seconds from an arbitrary moment."""
        return self._clock()

    def empty(self) -> bool:
        """Whether there is no event in the queue."""
        return not self._ready_events

    def get(self, timeout: float) -> Event:
        """The next event. Raises queue.Empty if none comes within `timeout` seconds."""
        self._thread = threading.get_ident()
        end = self._clock() + timeout
        while not self._ready_events:
            now = self._clock()
            if now >= end:
                raise Empty
            self._poll(end - now)
        return self._ready_events.popleft()

    def schedule_again(self, handled: SocketHandler) -> None:
        """Gives a handler another turn, after those of others, even if its socket has nothing new."""
        self._unfinished_handlers[handled] = None

    def _poll(self, timeout: float) -> None:
        timeout = min(timeout, LOOK, self._let_strangers_come())
        turns: dict[SocketHandler, None] = {}
        if self._unfinished_handlers:
            again, self._unfinished_handlers = self._unfinished_handlers, {}
            for handled in again:
                (self._unfinished_handlers if handled.unknown and self._stranger_seconds < 0 else turns)[handled] = None
        for key, _ in self._selector.select(0.0 if turns else timeout):
            handled = self._handlers.get(key.fd)
            if handled is not None:
                turns[handled] = None
            elif key.fd == self._wake_receiver.fileno():
                with contextlib.suppress(OSError):
                    self._wake_receiver.recv(4096)
        for handled in turns:
            self._give_turn(handled)
        now = self._clock()
        if now - self._last_look >= LOOK:
            self._last_look = now
            rested, self._resting_sockets = self._resting_sockets, {}
            for sock, what in rested.values():
                self._selector.register(sock, what)
            for handled in list(self._handlers.values()):
                handled.look(now)

    def _give_turn(self, handled: SocketHandler) -> None:
        if not handled.unknown:
            handled.handle()
            return
        begun = self._cpu()
        handled.handle()
        spent = self._cpu() - begun
        self._stranger_seconds -= spent
        handled.spend(spent)

    def charging(self, somebody: AdmittedParty) -> contextlib.AbstractContextManager[object]:
        """A context whose processor time counts as that of connections not yet admitted, if `somebody` was not admitted
        before.
        """
        return contextlib.nullcontext() if somebody.is_admitted else self._charging()

    @contextlib.contextmanager
    def _charging(self) -> Generator[None]:
        begun = self._cpu()
        try:
            yield
        finally:
            self._stranger_seconds -= self._cpu() - begun

    def _let_strangers_come(self) -> float:
        """Resumes or suspends the connections not yet admitted; returns the seconds until that may change."""
        now = self._clock()
        self._stranger_seconds = min(
            self._stranger_seconds + STRANGERS_SHARE * (now - self._stranger_time), STRANGERS_SAVED
        )
        self._stranger_time = now
        for number, (sock, what) in list(self._waiting_sockets.items()):
            if self._stranger_seconds >= 0 or not self._handlers[number].unknown:
                del self._waiting_sockets[number]
                self._selector.register(sock, what)
        if self._stranger_seconds >= 0:
            return LOOK
        for number, handled in self._handlers.items():
            if handled.unknown and number not in self._waiting_sockets and number not in self._resting_sockets:
                key = self._selector.get_key(number)
                self._waiting_sockets[number] = key.fileobj, key.events
                self._selector.unregister(number)
        return 0.001 - self._stranger_seconds / STRANGERS_SHARE

    # sockets

    def watch(self, sock: Any, handled: SocketHandler, what: int) -> None:
        """Registers a handler to be called when the socket can be read from or written to, as `what` says."""
        self._handlers[sock.fileno()] = handled
        self._selector.register(sock, what)

    def change(self, sock: Any, what: int) -> None:
        """Changes the events that a socket waits for."""
        if sock.fileno() in self._waiting_sockets:
            self._waiting_sockets[sock.fileno()] = sock, what
        else:
            self._selector.modify(sock, what)

    def forget(self, sock: Any) -> None:
        """Stops watching a socket, which is then closed."""
        handled = self._handlers.pop(sock.fileno(), None)
        if handled is not None:
            self._unfinished_handlers.pop(handled, None)
            held, rested = (waits.pop(sock.fileno(), None) for waits in (self._waiting_sockets, self._resting_sockets))
            if held is rested is None:
                self._selector.unregister(sock)

    def pause_watching(self, sock: Any) -> None:
        """Stops watching a socket until handlers are next looked at."""
        key = self._selector.unregister(sock)
        self._resting_sockets[key.fd] = sock, key.events

    def close(self, patience: float = 2.0) -> None:
        """Closes all connections once their bytes are sent, or after `patience` seconds."""
        self._thread = threading.get_ident()
        for handled in list(self._handlers.values()):
            handled.close()
        end = self._clock() + patience
        while self._handlers and (left := end - self._clock()) > 0:
            self._poll(left)
        for handled in list(self._handlers.values()):
            handled.abandon()
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()


# A non-blocking socket: incoming bytes go to a protocol, and outgoing bytes are written when the socket takes them.


MOST_AT_ONCE = 512
"""Pieces that one system call writes."""

TURN = 1 << 22
"""The most bytes read in a turn from an admitted process; then other connections have their turn."""

STRANGER_TURN = 1 << 16
"""The most bytes read in a turn from a connection that has not been admitted."""

MOST_WRITTEN = 1 << 24
"""The most bytes written in a turn."""

STRANGER_BYTES = 1 << 20
"""The most bytes that a connection may bring before it is admitted."""

STRANGER_SECONDS = 0.5
"""The most seconds of processor time that a connection may cost before it is admitted."""

ALIVE_AFTER = 60
"""Seconds of silence after which the system asks whether the other side is still there (TCP keep-alive)."""

ALIVE_EVERY = 20
"""Seconds between two such questions."""

ALIVE_TRIES = 3
"""The number of questions without an answer after which the connection is over."""

LINGER = 2.0
"""Seconds that the other side has to notice that the connection has ended."""

_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ByteReader(ABC):
    """Interprets the bytes that come on a channel."""

    is_admitted = False
    """Whether the other side has been admitted. Before that, its budget is small."""
    waiting = False
    """Whether received bytes still have to be processed, because the turn was over."""

    @abstractmethod
    def room(self) -> memoryview:
        """The buffer that the next received bytes are written to."""

    @abstractmethod
    def receive(self, size: int) -> bool:
        """Processes `size` bytes that were written to `room()`; returns whether a unit is complete, so that others may
        have their turn.

        Raises WireError.
        """

    def go_on(self) -> None:  # noqa: B027 - nothing waits where `waiting` is never set
        """Processes the bytes that are `waiting`, for one turn. Raises WireError."""

    @abstractmethod
    def connection_ended(self, reason: str) -> None:
        """Called when the connection has ended, but not by this side."""


class Channel:
    """A connected socket, or one that is to be; `address` is the other side's.

    `report` is called with the reason if this side ends the connection. `within`: the seconds in which the other side
    has to answer if this side connects; None: as long as the system waits.
    """

    def __init__(
        self,
        loop: Loop,
        sock: Any,
        address: str,
        reading: ByteReader,
        *,
        connecting: bool = False,
        within: float | None = None,
        report: Callable[[str], object] = lambda reason: None,
    ):
        self.address = address
        self.reading = reading
        self._loop = loop
        self._sock = sock
        self._lock = Lock()
        self._unsent_bytes: deque[memoryview] = deque()
        self._begins = connecting
        """Whether the connection, or its handshake, is not complete yet."""
        self._context: tuple[ssl.SSLContext, bool, str] | None = None
        self._guard: Guard | None = None
        self._deadline = None if within is None else loop.now() + within
        """The time at which this side stops to wait for the connection, or None."""
        self._writes = connecting
        """Whether the loop watches for the socket to become writable."""
        self._open = True
        self._close_time: float | None = None
        """The time at which this side closed the channel, or None. The rest is still sent, and incoming bytes are
        dropped.
        """
        self._is_over = False
        """Whether the other side's end of the stream has been shut down."""
        self.queued = 0
        """The number of pieces queued for sending since the beginning."""
        self._report = report
        self._dropped_bytes = 0
        """Bytes that came from a side not admitted since this side closed the channel."""
        self._spent = 0.0
        """Seconds of processor time that the other side has cost before it was admitted."""
        loop.watch(sock, self, READ | WRITE if connecting else READ)

    def hand_to(self, reading: ByteReader) -> None:
        """Hands all further bytes to another protocol, whose first bytes have come."""
        self.reading = reading

    def guard(self, context: ssl.SSLContext, server: bool, name: str = "") -> None:
        """Begins TLS, in which both sides present certificates; `name` is the host to which a client connects."""
        self._context = context, server, name
        self._begins = True

    @property
    def guarded(self) -> bool:
        """Whether TLS authenticates what comes and goes."""
        return self._context is not None

    @property
    def unknown(self) -> bool:
        """Whether the other side has not been admitted."""
        return not self.reading.is_admitted

    @property
    def began(self) -> bool:
        """Whether the connection and its handshake are complete."""
        return not self._begins

    @property
    def handshake_begun(self) -> bool:
        """Whether the other side has begun the TLS handshake."""
        return self._guard is not None and self._guard.handshake_begun

    @property
    def open(self) -> bool:
        """Whether the socket is open, if only to send the rest."""
        return self._open

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent."""
        return not self._open or self._close_time is not None

    @property
    def _unsent(self) -> bool:
        """Whether the channel must wait until the socket can be written to."""
        guard = self._guard
        if guard is not None and guard.unsent:
            return True
        return bool(self._unsent_bytes) and not self._begins

    @property
    def unsent(self) -> int:
        """How many pieces wait to be sent."""
        return len(self._unsent_bytes)

    def send(self, pieces: Sequence[Bytes]) -> None:
        """Sends bytes, or queues them until they can be sent. Any thread may call it. On a closed channel it does
        nothing.
        """
        with self._lock:
            if self.closed:
                return
            before = len(self._unsent_bytes)
            self._unsent_bytes.extend([memoryview(piece) for piece in pieces if len(piece)])
            self.queued += len(self._unsent_bytes) - before
            problem = None if self._begins else self._write()
        if problem:
            self._loop.put(Event(CALL, None, action=lambda: self._end(problem)))
        elif self._unsent and not self._writes:
            self._loop.put(Event(CALL, None, action=self._wait_rightly))

    def close(self) -> None:
        """Closes the channel once all bytes are sent."""
        if self._open and self._close_time is None:
            self._close_time = self._loop.now()
            if self._begins:
                self.abandon()
            else:
                self._go_on()

    def refuse(self, reason: str) -> None:
        """Closes the channel once all bytes are sent, and reports the reason."""
        if not self.closed:
            self.report_end(reason)
            self.close()

    def report_end(self, reason: str) -> None:
        """Reports the reason for which the connection is ended."""
        self._report(reason)

    def abandon(self) -> None:
        """Closes the channel at once."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            self._loop.forget(self._sock)
            self._sock.close()
            self._guard = None  # whose memory is free at once, though who reads and this channel hold each other
            self._unsent_bytes.clear()

    # the loop's side

    def look(self, now: float) -> None:
        """Closes the channel if the other side has not closed it within `LINGER` seconds, or has not answered in
        time.
        """
        if self._close_time is not None and now - self._close_time > LINGER:
            self.abandon()
        elif self._deadline is not None and self._begins and self._guard is None and now > self._deadline:
            self._end("nobody answers")

    def spend(self, seconds: float) -> None:
        """Counts the processor time of a turn, and refuses a side that has cost too much before being admitted."""
        self._spent += seconds
        if self._spent > STRANGER_SECONDS and self.unknown and not self.closed:
            self.refuse(f"a stranger costs more than {lasting(STRANGER_SECONDS)} of processor time")

    def handle(self) -> None:
        """Continues when the socket can be read from or written to."""
        if self._begins:
            self._begin()
        if self._open and not self._begins:
            self._go_on()

    def _go_on(self) -> None:
        problem = ""
        if self._unsent_bytes or self._guard is not None or self._close_time is not None:
            with self._lock:
                problem = self._write()
        if not problem:
            self._wait_rightly()
            problem = self._read()
        if problem:
            self._end(problem)

    def _end(self, reason: str) -> None:
        if not self._open:
            return
        self.abandon()
        if self._close_time is None:
            self.reading.connection_ended(reason)

    def _wait_rightly(self) -> None:
        """Watches the socket for writing if and only if something is to be sent."""
        writes = self._unsent
        if self._open and writes != self._writes:
            self._writes = writes
            self._loop.change(self._sock, READ | WRITE if writes else READ)

    def _begin(self) -> None:
        try:
            if (number := self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) != 0:
                raise OSError(number, "no connection")
            if self._context is not None:
                guard = self._guard = self._guard or Guard(self._sock, *self._context)
                guard.shake_hands()
        except _LATER:
            self._wait_rightly()
        except WireError as problem:
            self.report_end(str(problem))
            self._end(str(problem))
        except OSError as problem:
            reason = self._reason(problem)
            if self.handshake_begun:
                self.report_end(reason)
            if reason == NO_TLS:
                with contextlib.suppress(OSError):
                    self._sock.send(NEEDS_TLS)
            self._end(reason)
        else:
            self._begins = False

    def _reason(self, problem: OSError) -> str:
        """Why the connection is over."""
        return str(problem) if self._guard is None else reason_of(problem, self._begins)

    def _write(self) -> str:
        """Writes as much as the socket takes; returns the reason if the channel is over, else "". The caller holds the
        lock.
        """
        out, left = self._unsent_bytes, MOST_WRITTEN
        try:
            if self._guard is not None:
                self._guard.write(out, MOST_WRITTEN)
                if out:
                    return ""
            while out and self._open:
                if left <= 0:
                    return ""
                if len(out) <= MOST_AT_ONCE:
                    sent = self._sock.sendmsg(out)
                else:
                    sent = self._sock.sendmsg([out[place] for place in range(MOST_AT_ONCE)])
                left -= sent
                while sent:
                    size = len(out[0])
                    if sent < size:
                        out[0] = out[0][sent:]
                        break
                    sent -= size
                    out.popleft()
            if self._close_time is not None and self._open and not self._is_over:
                self._is_over = True
                self._sock.shutdown(socket.SHUT_WR)
        except _LATER:
            return ""
        except OSError as problem:
            return self._reason(problem)
        return ""

    def _read(self) -> str:
        """Reads for one turn, and hands the bytes to the protocol; returns the reason if the channel is over, else
        "".
        """
        left = STRANGER_TURN if self.unknown else TURN
        try:
            if self.reading.waiting and self._close_time is None:
                self.reading.go_on()
            while self._open and left > 0:
                drops = self._close_time is not None
                if self.reading.waiting and not drops:
                    break
                room = memoryview(bytearray(1 << 16)) if drops else self.reading.room()
                with self._lock:
                    room = room[:left] if len(room) > left else room
                    size = self._sock.recv_into(room) if self._guard is None else self._guard.read(room)
                if not size:
                    return "the other side has ended it"
                left -= size
                if drops and self.unknown:
                    self._dropped_bytes += size
                    if self._dropped_bytes > STRANGER_BYTES:
                        return "it says more than it was let"
                elif not drops and self.reading.receive(size):
                    break
        except _LATER:
            return ""
        except WireError as problem:
            self.report_end(str(problem))
            return str(problem)
        except OSError as problem:
            return self._reason(problem)
        if self._open and (self._pending() or (self.reading.waiting and self._close_time is None)):
            self._loop.schedule_again(self)
        return ""

    def _pending(self) -> bool:
        return self._guard is not None and self._guard.pending


def tune(sock: Any) -> None:
    """Makes a connected socket send small writes at once (TCP_NODELAY)."""
    sock.setblocking(False)
    with contextlib.suppress(OSError):  # not a TCP socket
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def keep_alive(sock: Any) -> None:
    """Makes a connected socket notice that the other side has vanished (TCP keep-alive)."""
    with contextlib.suppress(OSError, AttributeError):  # not a TCP socket, or a system without this option
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ALIVE_AFTER)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ALIVE_EVERY)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ALIVE_TRIES)
