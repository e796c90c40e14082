"""How frames travel: streams of gRPC, one for each pair of processes that talk.

Threads of the library only move bytes: whatever happens on a connection becomes an event in a queue, which one thread,
that of the process's machines, takes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, TypeAlias

import grpc  # pyright: ignore[reportMissingTypeStubs]

from pstranspile.net.peer import Connection

METHOD = "/pstranspile.Cluster/Stream"
"""The one method of the service: frames in both directions."""

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.initial_reconnect_backoff_ms", 100),
]

OPENED, FRAME, CLOSED, WRITTEN = "opened", "frame", "closed", "written"
"""What events are about: a connection is there, a frame has come, a connection is over; a state has been written."""


class Event(NamedTuple):
    """Something that happened outside of the machines. `data` is a frame, `reason` why a connection is over."""

    what: str
    connection: Connection | None
    data: bytes = b""
    reason: str = ""


Events: TypeAlias = "SimpleQueue[Event]"


class _Queued:
    """A connection whose frames are taken from a queue by a thread of the library."""

    def __init__(self, address: str):
        self.address = address
        self._frames: SimpleQueue[bytes | None] = SimpleQueue()
        self._closed = False

    def send(self, data: bytes) -> None:
        """Hands a frame over."""
        if not self._closed:
            self._frames.put(data)

    def close(self) -> None:
        """Ends the connection once everything is sent."""
        if not self._closed:
            self._closed = True
            self._frames.put(None)

    def frames(self) -> Iterator[bytes]:
        """The frames to send, until the connection is closed."""
        while (data := self._frames.get()) is not None:
            yield data


class Listener:
    """A port on which other processes come; `address` as host:port. Raises OSError if it can't be listened on."""

    def __init__(self, address: str, events: Events, connections: int, credentials: Any = None):
        self._events = events
        pool = ThreadPoolExecutor(max_workers=connections, thread_name_prefix="stream")
        library: Any = grpc
        self._server = library.server(pool, options=_OPTIONS)
        handler = library.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers(
            [library.method_handlers_generic_handler("pstranspile.Cluster", {"Stream": handler})]
        )
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as problem:
            raise OSError(str(problem)) from None
        if not port:
            raise OSError(f"{address} can't be listened on")
        self.port = port
        self._server.start()

    def _serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        connection = _Queued(str(context.peer()))

        def read() -> None:
            try:
                for data in requests:
                    self._events.put(Event(FRAME, connection, data))
                reason = "the other side has ended it"
            except Exception as problem:
                reason = type(problem).__name__
            self._events.put(Event(CLOSED, connection, reason=reason))
            connection.close()

        self._events.put(Event(OPENED, connection))
        Thread(target=read, daemon=True).start()
        yield from connection.frames()

    def close(self) -> None:
        """Stops listening, once what was handed over is sent."""
        self._server.stop(1.0).wait(2.0)


class Dialer:
    """Goes to another process, again and again; every connection begins with the event that it is opened."""

    def __init__(self, address: str, events: Events, credentials: Any = None):
        self.address = address
        self._events = events
        self._credentials = credentials
        self._channel: Any = None

    def dial(self) -> Connection:
        """Begins a connection; whether it comes about, events tell. An earlier one is over."""
        self.close()
        library: Any = grpc
        if self._credentials is None:
            self._channel = library.insecure_channel(self.address, options=_OPTIONS)
        else:
            self._channel = library.secure_channel(self.address, self._credentials, options=_OPTIONS)
        connection = _Queued(self.address)
        call = self._channel.stream_stream(METHOD)(connection.frames(), wait_for_ready=True)

        def read() -> None:
            try:
                for data in call:
                    self._events.put(Event(FRAME, connection, data))
                reason = "the other side has ended it"
            except grpc.RpcError as problem:
                reason = _reason(problem)
            except ValueError:  # the channel was closed
                reason = "this side has ended it"
            self._events.put(Event(CLOSED, connection, reason=reason))
            connection.close()

        Thread(target=read, daemon=True).start()
        return connection

    def close(self) -> None:
        """Ends the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _reason(problem: Any) -> str:
    code, details = problem.code(), problem.details()
    return f"{code.name.lower()}: {details}" if details else code.name.lower()
