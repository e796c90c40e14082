"""The transport of frames: a socket for each pair of processes that talk.

A port accepts connections with frames and those of Fluid's machines, which use gRPC: the first bytes decide.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import (
    EADDRINUSE,
    EADDRNOTAVAIL,
    EAFNOSUPPORT,
    EHOSTUNREACH,
    EINPROGRESS,
    EMFILE,
    ENETUNREACH,
    ENFILE,
    ENOBUFS,
    ENOMEM,
)
from ipaddress import IPv6Address, ip_address, ip_network
from os import strerror
from ssl import SSLContext
from types import MappingProxyType
from typing import Any
from weakref import ref

import numpy as np

from pstranspile.cluster.net.http2 import MOST_BODIES, PREFACE, CallService, Http2
from pstranspile.cluster.net.loop import (
    CALL,
    CLOSED,
    FOREIGN,
    FRAME,
    READ,
    STRANGER_BYTES,
    ByteReader,
    Channel,
    Event,
    Loop,
    keep_alive,
    tune,
)
from pstranspile.cluster.net.tls import ALERT, HANDSHAKE
from pstranspile.cluster.net.wire import (
    HEADER_SIZE,
    MAGIC,
    MESSAGES,
    MOST_BODY,
    MOST_GREETING,
    Bytes,
    Header,
    WireError,
    frame,
    kind_of,
    read_size,
)
from pstranspile.ir.diagnostics import lasting, visible

CONNECTING = 3.0
"""Seconds in which one of several addresses of a host has to answer, before the next one is tried."""

MOST_STRANGERS = 32
"""The most connections that have not been admitted yet."""

PATIENCE = 10.0
"""Seconds that a connection may last without being admitted."""

BACKLOG = 128
"""The most connections that wait to be accepted."""

MOST_ACCEPTED = 16
"""The most connections that are accepted in a turn."""

MOST_CALLERS = 16
"""The most connections of known gRPC clients for each trainer of the job."""

MOST_ANSWERS = 1 << 32
"""The most bytes of answers that the known gRPC clients may leave unread together, besides some for each trainer."""

_TOUCHED = 1 << 20
"""Bytes of a frame for which memory is allocated as soon as its header has come."""

MOST_UNREAD = 1 << 16
"""The most pieces of frames that a peer may leave unread; each frame has two."""


def place_of(address: str) -> tuple[str, int]:
    """The host and port of an address `host:port`. Raises OSError for another text."""
    host, _, port = address.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise OSError(f"{visible(address)} is no host:port")
    host = host.strip("[]")
    try:
        named = host.encode("idna")  # as the system's lookup of names does
    except UnicodeError:
        named = b"\0"
    if b"\0" in named:
        raise OSError(f"{visible(host)} can't be the name of a host")
    return host, int(port)


def _places_of(host: str, port: int, flags: int = 0) -> list[tuple[Any, Any, int, Any]]:
    """The addresses of a host, in the order in which they are to be tried: family, kind, protocol and target of each.
    Raises OSError.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, kind, number, target) for family, kind, number, _, target in found]


def _shown_place(place: Any) -> str:
    """The other end of a connection as `host:port`, an IPv6 address in brackets."""
    host, port = str(place[0]), place[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _one_host(place: Any) -> str:
    """The host at the other end of a connection. With IPv6, a host has all addresses of a network of 64 bits."""
    host = str(place[0])
    if ":" not in host:
        return host
    address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped) if mapped is not None else str(ip_network((int(address) >> 64 << 64, 64)))


ANSWER = 1.0
"""Seconds in which a process that listens on this host takes a connection, unless its queue is full."""


def _connects(address: str) -> bool:
    """Whether a process takes a connection at an address. Raises OSError."""
    host, port = place_of(address)
    with socket.create_connection((host or "localhost", port), ANSWER) as connection:
        return connection.getpeername() != connection.getsockname()  # the system may connect a socket to itself


def answers(address: str) -> bool:
    """Whether a process takes connections at an address."""
    try:
        return _connects(address)
    except OSError:
        return False


_OF_NO_HOST = (EADDRNOTAVAIL, ENETUNREACH, EHOSTUNREACH)
"""Errors for addresses that are not of this host, of which whoever listens there tells."""


def is_taken(address: str) -> bool:
    """Whether a process listens at an address of this host, though it may not answer: if it is stopped, or others fill
    its queue. (A port that is reserved for a process lets others listen on it as well.) Raises OSError if that can't be
    found out.
    """
    try:
        return _connects(address)
    except (TimeoutError, ConnectionResetError):
        return True
    except (ConnectionRefusedError, socket.gaierror):
        return False
    except OSError as problem:
        if problem.errno in _OF_NO_HOST:
            return False
        raise


_OF_NO_SYSTEM = (EADDRNOTAVAIL, EAFNOSUPPORT)
"""Errors for addresses of a host's name that the system does not have, such as those of IPv6 where it is turned off."""


def _listening(family: int, kind: int, number: int, target: Any, *, shared: bool) -> socket.socket:
    """A socket that listens. It is alone at its address, unless that is reserved. Raises OSError."""
    sock = socket.socket(family, kind, number)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            with suppress(OSError, AttributeError):  # a system without this option
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(target)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


class Frames(ByteReader):
    """A connection for frames; `is_admitted` is set once the other side has been admitted."""

    def __init__(self, events: Loop, address: str, is_admitted: bool, channel: Channel | None = None):
        self.address = address
        self.is_admitted = is_admitted
        self.channel = channel
        self._events = events
        self._head = bytearray(HEADER_SIZE)
        self._data: Bytes = self._head
        self._view = memoryview(self._head)
        self._position = 0
        self._frames = 0
        self.received_bytes = 0
        """The number of bytes that have come since the beginning."""
        self._broken = False
        """Whether the received bytes are no frame any more."""
        self.body_limit = MOST_BODY
        """The size of the largest body that the other side may send once it has been admitted."""
        self.on_long: Callable[[int], object] | None = None
        """Called with the size of a larger body; nothing more is read from its sender."""
        self._buffers = _Buffers()

    def use(self, channel: Channel) -> None:
        """Sets the channel on which the frames are sent and received."""
        self.channel = channel

    def let_in(self, most: int = MOST_BODY, on_long: Callable[[int], object] | None = None) -> None:
        """Admits the other side: see `Connection`."""
        self.is_admitted, self.body_limit, self.on_long = True, most, on_long

    @property
    def guarded(self) -> bool:
        """Whether TLS authenticates what comes and goes."""
        return self.channel is not None and self.channel.guarded

    def send(self, header: Header, body: bytes, body_sum: Callable[[], int] | None = None) -> None:
        """Sends a frame; does nothing if the connection is closed. Ends a connection whose other side leaves very many
        frames unread. `body_sum` returns the check sum of the body, if it is known.
        """
        channel = self.channel
        if channel is not None:
            channel.send(frame(header, body, channel.guarded, body_sum))
            if channel.unsent > MOST_UNREAD:
                self._events.put(Event(CALL, None, action=self._end_unread))

    def _end_unread(self) -> None:
        channel = self.channel
        if channel is not None and channel.open:
            reason = f"more than {MOST_UNREAD} pieces of frames were not read"
            channel.report_end(reason)
            channel.abandon()
            self._events.put(Event(CLOSED, self, reason=reason))

    def close(self) -> None:
        """Closes the connection once all bytes are sent."""
        if self.channel is not None:
            self.channel.close()

    def room(self) -> memoryview:
        """The buffer that the next received bytes are written to."""
        return memoryview(bytearray(1 << 16)) if self._broken else self._view[self._position :]

    def receive(self, size: int) -> bool:
        """Takes `size` bytes that were written to `room()`; returns whether a frame is complete."""
        if self._broken:
            return True
        self.received_bytes += size
        self._position += size
        if self._position < len(self._data):
            return False
        if self._data is self._head:
            try:
                self._begin_body(read_size(self._head))
            except WireError:
                self._broken = True  # the receiver of the event refuses the frame
                self._events.put(Event(FRAME, self, self._head))
                return True
            if self._position < len(self._data) or self._broken:
                return self._broken
        data, self._data, self._position = self._data, self._head, 0
        self._view = memoryview(self._head)
        self._frames += 1
        self._events.put(Event(FRAME, self, data))
        return True

    def _begin_body(self, size: int) -> None:
        if not self.is_admitted and (self._frames or size > STRANGER_BYTES):
            self._break("a stranger says more than a greeting")
            return
        if size > HEADER_SIZE + MOST_GREETING and kind_of(self._head) != MESSAGES:
            self._break(f"a frame of {size} bytes that brings no messages is too long")
            return
        if self.is_admitted and size > HEADER_SIZE + self.body_limit and self.on_long is not None:
            self._broken, told = True, self.on_long
            self._events.put(Event(CALL, None, action=lambda: told(size - HEADER_SIZE)))
            return
        try:
            self._data = self._buffers.buffer_of(size)
        except MemoryError:
            self._break(f"there is no memory for a frame of {size} bytes")
            return
        self._view = memoryview(self._data)
        self._view[:HEADER_SIZE] = self._head

    def _break(self, reason: str) -> None:
        self._broken = True
        if self.channel is not None:
            self.channel.refuse(reason)
        self._events.put(Event(CLOSED, self, reason=reason))

    def connection_ended(self, reason: str) -> None:
        """Called when the connection is over."""
        self._events.put(Event(CLOSED, self, reason=reason))


def _lazy_buffer(size: int) -> memoryview:
    """A buffer for a frame, which uses memory only as far as the frame has come. Raises MemoryError."""
    room: Any = np.empty(size, "uint8")
    return room.data


LEAST_REUSED = 1 << 18
"""The bytes of the smallest frames whose memory is used again: others find room between values."""

MOST_REUSED = 1 << 25
"""The bytes of frames whose memory goes back to the system when they are freed."""

MOST_LENT = 4
"""The most buffers that a connection keeps: values of one frame are in use while the next one comes, of each kind."""


class _Buffers:
    """The memory of the frames of a connection, which is used again once nothing refers to what came in it.

    If it were freed, the C library would keep it and put smaller values there, so that the next frame would take other
    memory; a process would grow by as much as values happen to lie in the way.
    """

    def __init__(self) -> None:
        self._lent: list[tuple[Any, Callable[[], Any]]] = []
        """The buffers, each with a function that gives the part that was lent, None if nothing refers to it."""

    def buffer_of(self, size: int) -> Bytes:
        """A buffer of `size` bytes. Raises MemoryError."""
        if not LEAST_REUSED <= size < MOST_REUSED:
            return bytearray(size) if size <= _TOUCHED else _lazy_buffer(size)
        free = [each for each in self._lent if each[1]() is None]
        room = next((room for room, _ in free if size <= len(room) <= size + size // 4), None)
        for each in free:
            if each[0] is room or (room is None and size // 2 <= len(each[0]) <= 2 * size):
                self._lent = [other for other in self._lent if other is not each]
        if room is None:
            room = np.empty(size, "uint8")
        part = room[:size]
        self._lent = [*self._lent[-MOST_LENT + 1 :], (room, ref(part))]
        return part.data


class _Newcomer(ByteReader):
    """A new connection to a port, whose first bytes have not come yet."""

    def __init__(self, listener: Listener, sock: Any, host: str, address: str):
        self._listener = listener
        self._first_bytes = bytearray(len(MAGIC))
        self._position = 0
        self.host = host
        self.stranger: ByteReader = self
        self.since = listener.events.now()
        told = "the connection with {} is closed: {}"
        self.channel = Channel(
            listener.events, sock, address, self, report=lambda reason: listener.tell(told.format(address, reason))
        )
        if listener.context is not None:
            self.channel.guard(listener.context(), server=True)

    @property
    def progress(self) -> int:
        """How far the connection has come: 0 if it is being closed, 1 if it has sent nothing; one more each for the
        start of a protocol or of TLS and for a large call, and two more for a certificate.
        """
        if self.channel.closed:
            return 0
        shown = 2 if self.channel.guarded and self.channel.began else 0
        lent = isinstance(self.stranger, Http2) and self.stranger.lent > 0
        return 1 + (self.stranger is not self or self.channel.handshake_begun) + shown + lent

    def room(self) -> memoryview:
        """The buffer that the rest of the connection's first bytes is written to."""
        return memoryview(self._first_bytes)[self._position :]

    def receive(self, size: int) -> bool:
        """Takes `size` of the first bytes, which decide the protocol. Raises WireError if no protocol begins with
        them.
        """
        self._position += size
        if self._position < len(self._first_bytes):
            return False
        reading: ByteReader
        first = bytes(self._first_bytes)
        listener = self._listener
        if first == MAGIC and not listener.other_protocols:
            reading = Frames(listener.events, self.channel.address, is_admitted=False, channel=self.channel)
        elif first == PREFACE[: len(MAGIC)] and not listener.other_protocols:
            reading = Http2(self.channel, listener.service, listener.lends)
        elif first in listener.other_protocols:
            reading = listener.other_protocols[first](self.channel)
        elif first.startswith(HANDSHAKE):
            raise WireError("it talks with TLS, and this side without TLS")
        else:
            raise WireError("the first bytes are of no protocol that is spoken here")
        self.stranger = reading
        self.channel.hand_to(reading)
        reading.room()[: len(MAGIC)] = self._first_bytes
        reading.receive(len(MAGIC))
        return False

    def connection_ended(self, reason: str) -> None:
        """Called when the connection is over before its first bytes have come."""


class Listener:
    """A port on which others come; `address` as host:port. Raises OSError if it can't be listened on.

    `context` returns the TLS context of a new connection, on which both sides show certificates; None: there is no TLS.
    `service` answers gRPC calls. `tell` is called with lines for the log about closed connections that were not
    admitted: any number, with texts from the other side. `other_protocols` are protocols in place of frames and gRPC:
    for the first bytes of each, the function that makes its reader.
    `shared`: the address may be one that is reserved for this process.
    """

    unknown = True

    def __init__(
        self,
        address: str,
        events: Loop,
        context: Callable[[], SSLContext] | None = None,
        service: CallService | None = None,
        tell: Callable[[str], object] = lambda line: None,
        other_protocols: Mapping[bytes, Callable[[Channel], ByteReader]] = MappingProxyType({}),
        shared: bool = True,
    ):
        self.other_protocols = other_protocols
        self.events = events
        self.context = context
        self.service = CallService("", {}, 0) if service is None else service
        self.tell = tell
        self._newcomers: list[_Newcomer] = []
        self._callers: list[Http2] = []
        """The connections of known gRPC clients."""
        self._sock = self._open_socket(address, shared)
        self._sock.setblocking(False)
        events.watch(self._sock, self, READ)

    @staticmethod
    def _open_socket(address: str, shared: bool) -> socket.socket:
        """A socket that listens at the first of the addresses of a host that this system has. Raises OSError."""
        places = _places_of(*place_of(address), socket.AI_PASSIVE)
        for place in places:
            try:
                return _listening(*place, shared=False)
            except OSError as problem:
                if problem.errno in _OF_NO_SYSTEM and place is not places[-1]:
                    continue
                if problem.errno != EADDRINUSE or not shared:
                    raise
                if is_taken(address):
                    raise OSError(EADDRINUSE, "somebody does already") from None
                return _listening(*place, shared=True)
        raise OSError(EADDRNOTAVAIL, strerror(EADDRNOTAVAIL))

    @property
    def port(self) -> int:
        """The port number; where the address has 0, the one that the system has chosen."""
        return self._sock.getsockname()[1]

    def spend(self, seconds: float) -> None:
        """Counts processor time for accepting; it is not limited here."""

    def handle(self) -> None:
        """Accepts connections. Bytes that have come already are read before later connections can displace one."""
        for _ in range(MOST_ACCEPTED):
            try:
                sock, place = self._sock.accept()
            except OSError as problem:
                if problem.errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                    self._handle_descriptor_shortage(problem)
                return
            tune(sock)
            keep_alive(sock)
            self._keep_few()
            one = _Newcomer(self, sock, _one_host(place), _shown_place(place))
            self._newcomers.append(one)
            self.events.schedule_again(one.channel)

    def _handle_descriptor_shortage(self, problem: OSError) -> None:
        """Handles a lack of descriptors: one connection that has not been admitted is closed, and others wait for the
        next look.
        """
        told = f"nobody can connect: {problem.strerror}; `ulimit -n` says how many files a process may have open"
        self.tell(told)
        self.events.pause_watching(self._sock)
        self._keep_few(0)

    def _keep_few(self, most: int = MOST_STRANGERS) -> None:
        """Closes one connection if `most` or more are open that have not been admitted.

        It is one from the host with the most of them, so that no host can keep others out; among these, the one with
        the least progress: progress costs a foreign connection part of the processor time that all of them share, but
        takes a machine of the job only a moment. Of equals, the oldest is closed.
        """
        self._know_callers()
        self._keep_few_callers()
        if not self._newcomers or len(self._newcomers) < most:
            return
        hosts = Counter(one.host for one in self._newcomers)
        gone = min(self._newcomers, key=lambda one: (-hosts[one.host], one.progress))
        self._newcomers.remove(gone)
        if not gone.channel.closed:
            gone.channel.report_end("it was not let in before many others came")
        gone.channel.abandon()

    def _know_callers(self) -> None:
        """Moves gRPC clients that are known now to the callers; only open, unknown connections stay newcomers."""
        came, self._newcomers = self._newcomers, []
        for one in came:
            if one.stranger.is_admitted and isinstance(one.stranger, Http2):
                self._callers.append(one.stranger)
            elif one.channel.open and not one.stranger.is_admitted:
                self._newcomers.append(one)

    def _keep_few_callers(self) -> None:
        """Closes connections of known gRPC clients if there are too many: first the oldest without an open call, whose
        clients come again when they have something to send, then those on which nothing moves, then the newest. (Any
        client that knows the job's variables can claim to be one of its trainers.) Connections that wait for the
        service stay; the service takes few calls.
        """
        self._callers = [one for one in self._callers if not one.closed]
        more = len(self._callers) - MOST_CALLERS * self.service.callers
        if more <= 0:
            return
        idle = [one for one in self._callers if one.idle]
        busy = [one for one in self._callers if not (one.idle or one.waits)]
        stalled = [one for one in busy if one.stalled]
        moving = [one for one in reversed(busy) if not one.stalled]
        for one in [*idle, *stalled, *moving][:more]:
            one.leave(f"more than {MOST_CALLERS} connections for each trainer are open")

    def lends(self) -> bool:
        """Whether one more connection may bring a large call without being admitted."""
        lent = sum(
            isinstance(one.stranger, Http2) and one.stranger.lent > 0
            for one in self._newcomers
            if one.channel.open and not one.stranger.is_admitted
        )
        return lent < self.service.callers

    def look(self, now: float) -> None:
        """Closes connections that have lasted too long without being admitted."""
        for one in self._newcomers:
            if not one.stranger.is_admitted and now - one.since > PATIENCE:
                one.channel.refuse(f"it was not let in for {lasting(PATIENCE)}")
        self._know_callers()
        callers = [one for one in self._callers if not one.closed]
        for one in callers:
            one.look()
        if sum(one.incomplete_bytes for one in callers) > MOST_BODIES:
            most = max(callers, key=lambda one: one.incomplete_bytes)
            most.leave(f"unfinished calls of all connections bring more than {MOST_BODIES} bytes, and its own the most")
        unread = sum(one.unread for one in callers)
        if unread > MOST_ANSWERS and unread > MOST_ANSWERS + self.service.callers * self.service.more_unread():
            most = max(callers, key=lambda one: one.unread)
            most.leave(f"{unread} bytes of answers on all connections are not read, and most of them are its own")

    def close(self) -> None:
        """Stops listening."""
        self.abandon()

    def abandon(self) -> None:
        """Stops listening."""
        self.events.forget(self._sock)
        self._sock.close()


class _CalledConnection(ByteReader):
    """The first bytes from a called process, which decide the protocol."""

    def __init__(self, frames: Frames, events: Loop):
        self.frames = frames
        self._events = events
        self._first_bytes = bytearray(len(MAGIC))
        self._position = 0

    def room(self) -> memoryview:
        """The buffer that the rest of the connection's first bytes is written to."""
        return memoryview(self._first_bytes)[self._position :]

    def receive(self, size: int) -> bool:
        """Takes `size` of the first bytes."""
        self._position += size
        if self._position < len(self._first_bytes):
            return False
        channel = self.frames.channel
        assert channel is not None
        if bytes(self._first_bytes) != MAGIC:
            channel.close()
            if self._first_bytes.startswith(ALERT):
                self.frames.connection_ended("it talks with TLS, and this side without TLS")
            else:
                self._events.put(Event(FOREIGN, self.frames, reason="another protocol is spoken there"))
            return True
        channel.hand_to(self.frames)
        self.frames.room()[: len(MAGIC)] = self._first_bytes
        return self.frames.receive(len(MAGIC))

    def connection_ended(self, reason: str) -> None:
        """Called when the connection is over, or could not be opened."""
        self.frames.connection_ended(reason)


class Dialer:
    """Connects to another process, repeatedly; the outcome is reported as an event. A name that stands for several
    addresses is tried at one after the other. `context` returns the TLS context of a new connection; None: there is no
    TLS.
    """

    def __init__(self, address: str, events: Loop, context: Callable[[], SSLContext] | None = None):
        self.address = address
        self._events = events
        self._context = context
        self._frames: Frames | None = None
        self._tries = 0

    def dial(self) -> Frames:
        """Begins a connection; an earlier one is closed."""
        self.close()
        frames = self._frames = Frames(self._events, self.address, is_admitted=False)
        try:
            host, port = place_of(self.address)
            places = _places_of(host, port)
            family, kind, number, target = places[self._tries % len(places)]
            self._tries += 1
            sock = socket.socket(family, kind, number)
        except OSError as problem:
            frames.connection_ended(str(problem))
            return frames
        tune(sock)
        if (failed := sock.connect_ex(target)) not in (0, EINPROGRESS):
            sock.close()
            frames.connection_ended(strerror(failed))
            return frames
        called = _CalledConnection(frames, self._events)
        within = CONNECTING if len(places) > 1 else None
        channel = Channel(self._events, sock, self.address, called, connecting=True, within=within)
        frames.use(channel)
        if self._context is not None:
            channel.guard(self._context(), server=False, name=host)
        return frames

    def close(self) -> None:
        """Closes the connection."""
        if self._frames is not None:
            self._frames.close()
            self._frames = None
