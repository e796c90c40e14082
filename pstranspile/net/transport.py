"""How frames travel: a socket for each pair of processes that talk.

A port takes connections with frames and machines of Fluid, which use gRPC: the first bytes decide.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from errno import EINPROGRESS, EMFILE, ENFILE, ENOBUFS, ENOMEM
from os import strerror
from threading import Timer
from time import monotonic
from typing import Any

from pstranspile.net.calls import CallService
from pstranspile.net.channel import Channel, tune
from pstranspile.net.frames import HEADER_SIZE, MAGIC, MOST_GREETING, Header, frame, read_size
from pstranspile.net.http2 import PREFACE, Http2
from pstranspile.net.loop import CALL, CLOSED, FOREIGN, FRAME, READ, Event, Loop
from pstranspile.net.values import WireError

MOST_STRANGERS, PATIENCE = 16, 10.0
"""Connections on which nobody has been let in yet, and how many seconds each may last."""

BACKLOG = 128

REST = 0.5
"""Seconds in which nobody is accepted, after the system had no descriptor for a connection."""

_EXHAUSTED = (EMFILE, ENFILE, ENOBUFS, ENOMEM)


def place_of(address: str) -> tuple[str, int]:
    """The host and port of an address `host:port`. Raises OSError for another text."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise OSError(f"{address} is no host:port")
    return host.strip("[]"), int(port)


def is_taken(address: str) -> bool:
    """Whether somebody listens at an address. (A port that is kept for a process lets others listen on it as well.)"""
    host, port = place_of(address)
    try:
        with socket.create_connection((host or "localhost", port), 1.0) as connection:
            return connection.getpeername() != connection.getsockname()  # the system may give a socket its own end
    except OSError:
        return False


class Frames:
    """A connection on which frames come and go; `known` is set once the other side has been let in."""

    def __init__(self, events: Loop, address: str, known: bool):
        self.address = address
        self.known = known
        self.channel: Channel | None = None
        self._events = events
        self._head = bytearray(HEADER_SIZE)
        self._data = self._head
        self._view = memoryview(self._head)
        self._at = 0
        self._frames = 0
        self._broken = False
        """Whether what comes is no frame any more."""

    @property
    def guarded(self) -> bool:
        """Whether TLS authenticates what comes and goes."""
        return self.channel is not None and self.channel.guarded

    def send(self, header: Header, body: bytes) -> None:
        """Sends a frame; nothing happens if the connection is closed."""
        if self.channel is not None:
            self.channel.send(frame(header, body, self.channel.guarded))

    def close(self) -> None:
        """Ends the connection once all bytes are sent."""
        if self.channel is not None:
            self.channel.close()

    def room(self) -> memoryview:
        """Where the next bytes go."""
        return memoryview(bytearray(1 << 16)) if self._broken else self._view[self._at :]

    def came(self, size: int) -> bool:
        """So many bytes have been put there; gives whether a frame is complete."""
        if self._broken:
            return True
        self._at += size
        if self._at < len(self._data):
            return False
        if self._data is self._head:
            try:
                self._begin_body(read_size(self._head))
            except WireError:
                self._broken = True  # the receiver of the event refuses it
                self._events.put(Event(FRAME, self, self._head))
                return True
            if self._at < len(self._data) or self._broken:
                return self._broken
        data, self._data, self._at = self._data, self._head, 0
        self._view = memoryview(self._head)
        self._frames += 1
        self._events.put(Event(FRAME, self, data))
        return True

    def _begin_body(self, size: int) -> None:
        if not self.known and (self._frames or size > MOST_GREETING):
            self._broken = True
            self.close()
            self._events.put(Event(CLOSED, self, reason="a stranger says more than a greeting"))
            return
        self._data = bytearray(size)
        self._data[:HEADER_SIZE] = self._head
        self._view = memoryview(self._data)

    def ended(self, reason: str) -> None:
        """The connection is over."""
        self._events.put(Event(CLOSED, self, reason=reason))


class _Newcomer:
    """A new connection to a port, whose first bytes have not come yet."""

    def __init__(self, events: Loop, sock: Any, address: str, service: CallService, context: Any):
        self._events = events
        self._service = service
        self._first = bytearray(len(MAGIC))
        self._at = 0
        self.stranger: _Newcomer | Frames | Http2 = self
        self.known = False
        self.since = monotonic()
        self.channel = Channel(events, sock, address, self)
        if context is not None:
            self.channel.guard(context, server=True)

    def room(self) -> memoryview:
        """Where the first bytes go."""
        return memoryview(self._first)[self._at :]

    def came(self, size: int) -> bool:
        """So many of the first bytes are here. Raises WireError if they are nobody's."""
        self._at += size
        if self._at < len(self._first):
            return False
        reading: Frames | Http2
        first = bytes(self._first)
        if first == MAGIC:
            reading = Frames(self._events, self.channel.address, known=False)
            reading.channel = self.channel
        elif first == PREFACE[: len(MAGIC)]:
            reading = Http2(self.channel, self._service)
        else:
            raise WireError("the first bytes are of no protocol that is spoken here")
        self.channel.reading = self.stranger = reading
        reading.room()[: len(MAGIC)] = self._first
        reading.came(len(MAGIC))
        return False

    def ended(self, reason: str) -> None:
        """Nobody has come after all."""


class Listener:
    """A port on which others come; `address` as host:port. Raises OSError if it can't be listened on.

    `context` is for TLS, in which both sides show certificates; `service` answers gRPC calls.
    """

    def __init__(
        self,
        address: str,
        events: Loop,
        context: Any = None,
        service: CallService | None = None,
        told: Callable[[str], object] = lambda text: None,
    ):
        self._events = events
        self._told = told
        self._open = True
        self._context = context
        self._service = CallService("", {}, 0) if service is None else service
        self._newcomers: list[_Newcomer] = []
        host, port = place_of(address)
        family, kind, number, _, target = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._sock = socket.socket(family, kind, number)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError, AttributeError):  # a system without it
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._sock.bind(target)
            self._sock.listen(BACKLOG)
        except OSError:
            self._sock.close()
            raise
        self._sock.setblocking(False)
        events.watch(self._sock, self, READ)

    @property
    def port(self) -> int:
        """The port; where the address has 0, the one that the system has chosen."""
        return self._sock.getsockname()[1]

    def handle(self) -> None:
        """Somebody has come."""
        for _ in range(BACKLOG):
            try:
                sock, place = self._sock.accept()
            except OSError as problem:
                if problem.errno in _EXHAUSTED:
                    self._rest(problem)
                return
            tune(sock)
            self._keep_few()
            address = f"{place[0]}:{place[1]}"
            self._newcomers.append(_Newcomer(self._events, sock, address, self._service, self._context))

    def _rest(self, problem: OSError) -> None:
        """The system has no more connections for this process. Who has come waits in the queue of the port, and is not
        asked for again and again.
        """
        self._told(f"nobody can connect: {problem.strerror}; `ulimit -n` says how many files a process may have open")
        if self._newcomers:
            self._newcomers.pop(0).channel.abandon()
        self._events.forget(self._sock)
        timer = Timer(REST, lambda: self._events.put(Event(CALL, None, action=self._listen_again)))
        timer.daemon = True
        timer.start()

    def _listen_again(self) -> None:
        if self._open:
            self._events.watch(self._sock, self, READ)

    def _keep_few(self) -> None:
        """There are so many connections on which nobody has been let in; the oldest one has to go."""
        self._newcomers = [one for one in self._newcomers if not (one.stranger.known or one.channel.closed)]
        if len(self._newcomers) >= MOST_STRANGERS:
            self._newcomers.pop(0).channel.abandon()

    def look(self, now: float) -> None:
        """Nobody is a stranger for long."""
        for one in self._newcomers:
            if not one.stranger.known and now - one.since > PATIENCE:
                one.channel.close()

    def close(self) -> None:
        """Nobody is let in any more."""
        self.abandon()

    def abandon(self) -> None:
        """Nobody is let in any more."""
        self._open = False
        self._events.forget(self._sock)
        self._sock.close()


class _Called:
    """The first bytes from the called process, which decide the protocol."""

    def __init__(self, frames: Frames, events: Loop):
        self.frames = frames
        self._events = events
        self._first = bytearray(len(MAGIC))
        self._at = 0

    def room(self) -> memoryview:
        """Where the first bytes go."""
        return memoryview(self._first)[self._at :]

    def came(self, size: int) -> bool:
        """So many of the first bytes are here."""
        self._at += size
        if self._at < len(self._first):
            return False
        channel = self.frames.channel
        assert channel is not None
        if bytes(self._first) != MAGIC:
            channel.close()
            self._events.put(Event(FOREIGN, self.frames, reason="another protocol is spoken there"))
            return True
        channel.reading = self.frames
        self.frames.room()[: len(MAGIC)] = self._first
        return self.frames.came(len(MAGIC))

    def ended(self, reason: str) -> None:
        """The connection is over, or has not come about."""
        self.frames.ended(reason)


class Dialer:
    """Connects to another process, repeatedly; events report the outcome."""

    def __init__(self, address: str, events: Loop, context: Any = None):
        self.address = address
        self._events = events
        self._context = context
        self._frames: Frames | None = None
        self._tries = 0

    def dial(self) -> Frames:
        """Begins a connection; an earlier one is over."""
        self.close()
        frames = self._frames = Frames(self._events, self.address, known=True)
        host, port = place_of(self.address)
        try:
            places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, kind, number, _, target = places[self._tries % len(places)]
            self._tries += 1
            sock = socket.socket(family, kind, number)
        except OSError as problem:
            frames.ended(str(problem))
            return frames
        tune(sock)
        if (failed := sock.connect_ex(target)) not in (0, EINPROGRESS):
            sock.close()
            frames.ended(strerror(failed))
            return frames
        frames.channel = Channel(self._events, sock, self.address, _Called(frames, self._events), connecting=True)
        if self._context is not None:
            frames.channel.guard(self._context, server=False, name=host)
        return frames

    def close(self) -> None:
        """Ends the connection."""
        if self._frames is not None:
            self._frames.close()
            self._frames = None
