"""A non-blocking socket: incoming bytes go to a protocol, and outgoing bytes are written when the socket takes them."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from threading import Lock
from time import monotonic
from typing import Any, Protocol

from pstranspile.net.guard import Guard
from pstranspile.net.loop import CALL, READ, WRITE, Event, Loop
from pstranspile.net.values import Bytes, WireError

MOST_AT_ONCE = 512
"""Pieces that are written by one call of the system."""

LINGER = 2.0
"""Seconds in which the other side has to notice that the connection has ended."""

_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Reading(Protocol):
    """What makes sense of the bytes that come on a channel."""

    def room(self) -> memoryview:
        """Where the next bytes go."""
        ...

    def came(self, size: int) -> bool:
        """So many bytes have been put there; whether something is complete, so that others may have their turn. Raises
        WireError.
        """
        ...

    def ended(self, reason: str) -> None:
        """The connection is over, not by this side."""
        ...


class Channel:
    """A connected socket, or one that is to be; `address` is the other side's."""

    def __init__(self, loop: Loop, sock: Any, address: str, reading: Reading, *, connecting: bool = False):
        self.address = address
        self.reading = reading
        self._loop = loop
        self._sock = sock
        self._lock = Lock()
        self._out: deque[memoryview] = deque()
        self._begins = connecting
        """Whether the connection, or its handshake, is not there yet."""
        self._context: tuple[ssl.SSLContext, bool, str] | None = None
        self._guard: Guard | None = None
        self._writes = connecting
        """Whether it is waited for that the socket can be written to."""
        self._open = True
        self._closes: float | None = None
        """When this side closed the channel; the rest is still sent, and incoming bytes are dropped."""
        self._over = False
        """Whether the other side's end of the stream has been shut down."""
        loop.watch(sock, self, READ | WRITE if connecting else READ)

    def guard(self, context: ssl.SSLContext, server: bool, name: str = "") -> None:
        """Begins TLS, in which both sides show certificates; `name` is the host that a client connects to."""
        self._context = context, server, name
        self._begins = True

    @property
    def guarded(self) -> bool:
        """Whether TLS authenticates what comes and goes."""
        return self._context is not None

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent."""
        return not self._open or self._closes is not None

    @property
    def _unsent(self) -> bool:
        """Whether the channel must wait until the socket can be written to."""
        if self._guard is not None and self._guard.unsent:
            return True
        return bool(self._out) and not self._begins

    @property
    def unsent(self) -> int:
        """How many pieces wait to be sent."""
        return len(self._out)

    def send(self, pieces: Sequence[Bytes]) -> None:
        """Sends bytes, or keeps them until they can be sent; any thread may. On a closed channel nothing happens."""
        with self._lock:
            if self.closed:
                return
            self._out.extend(memoryview(piece) for piece in pieces if len(piece))
            problem = None if self._begins else self._write()
        if problem:
            self._loop.put(Event(CALL, None, action=lambda: self._end(problem)))
        elif self._unsent and not self._writes:
            self._loop.put(Event(CALL, None, action=self._wait_rightly))

    def close(self) -> None:
        """Ends the channel once all bytes are sent."""
        if self._open and self._closes is None:
            self._closes = monotonic()
            if self._begins:
                self.abandon()
            else:
                self._go_on()

    def abandon(self) -> None:
        """Ends the channel at once."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            self._loop.forget(self._sock)
            self._sock.close()

    # the loop's side

    def look(self, now: float) -> None:
        """Nobody is waited for too long."""
        if self._closes is not None and now - self._closes > LINGER:
            self.abandon()

    def handle(self) -> None:
        """The socket can be read from, or written to."""
        if self._begins:
            self._begin()
        if self._open and not self._begins:
            self._go_on()

    def _go_on(self) -> None:
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
        if self._closes is None:
            self.reading.ended(reason)

    def _wait_rightly(self) -> None:
        """Waits for what the channel needs."""
        writes = self._unsent
        if self._open and writes != self._writes:
            self._writes = writes
            self._loop.change(self._sock, READ | WRITE if writes else READ)

    def _begin(self) -> None:
        try:
            if (number := self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) != 0:
                raise OSError(number, "no connection")
            if self._context is not None:
                self._guard = self._guard or Guard(self._sock, *self._context)
                self._guard.shake_hands()
        except _LATER:
            self._wait_rightly()
        except OSError as problem:
            self._end(str(problem))
        else:
            self._begins = False

    def _write(self) -> str:
        """Writes what can be written; gives why the channel is over, "" if it is not. The lock is held."""
        out = self._out
        try:
            if self._guard is not None:
                self._guard.write(out)
            while out and self._open:
                if len(out) <= MOST_AT_ONCE:
                    sent = self._sock.sendmsg(out)
                else:
                    sent = self._sock.sendmsg([out[place] for place in range(MOST_AT_ONCE)])
                while sent:
                    size = len(out[0])
                    if sent < size:
                        out[0] = out[0][sent:]
                        break
                    sent -= size
                    out.popleft()
            if self._closes is not None and self._open and not self._over:
                self._over = True
                self._sock.shutdown(socket.SHUT_WR)
        except _LATER:
            return ""
        except OSError as problem:
            return str(problem)
        return ""

    def _read(self) -> str:
        """Hands what has come to the protocol; gives why the channel is over, "" if it is not."""
        try:
            while self._open:
                room = self.reading.room() if self._closes is None else memoryview(bytearray(1 << 16))
                with self._lock:
                    size = self._sock.recv_into(room) if self._guard is None else self._guard.read(room)
                if not size:
                    return "the other side has ended it"
                if self._closes is None and self.reading.came(size) and not self._pending():
                    return ""
        except _LATER:
            return ""
        except (OSError, WireError) as problem:
            return str(problem)
        return ""

    def _pending(self) -> bool:
        return self._guard is not None and self._guard.pending


def tune(sock: Any) -> None:
    """Makes a connected socket send at once what it is given."""
    sock.setblocking(False)
    with contextlib.suppress(OSError):  # no socket of TCP
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
