"""How frames travel: streams of gRPC, one for each pair of processes that talk.

Threads of the library only move bytes: whatever happens on a connection becomes an event in a queue, which one thread,
that of the process's machines, takes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeAlias

import grpc  # pyright: ignore[reportMissingTypeStubs]

from pstranspile.net.frames import MOST_GREETING
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

OPENED, FRAME, CLOSED, FOREIGN, WRITTEN, CALL = "opened", "frame", "closed", "foreign", "written", "call"
"""What events are about: a connection is there, a frame has come, a connection is over; who was called speaks another
protocol; a state has been written; a call of another protocol has come, or is over.
"""


MOST_STRANGERS, PATIENCE = 16, 10.0
"""Connections on which nobody has been let in yet, and how many seconds each may last."""


class Event(NamedTuple):
    """Something that happened outside of the machines. `data` is a frame, `reason` why a connection is over, `action`
    what is to be done about a call.
    """

    what: str
    connection: Connection | None
    data: bytes = b""
    reason: str = ""
    action: Callable[[], object] | None = None


Events: TypeAlias = "SimpleQueue[Event]"


class CallRefused(Exception):
    """A call that is not answered; `status` is a name of a status of gRPC."""

    def __init__(self, status: str, reason: str):
        super().__init__(reason)
        self.status = status


class Caller(NamedTuple):
    """Who makes a call: the address of its end of the connection; `at_end` has something done when the call is over."""

    address: str
    at_end: Callable[[Callable[[], None]], object]


class CallService(NamedTuple):
    """A service beside the streams: what answers each method's calls, from the bytes of the request and the caller.

    `threads`: how many calls may wait for their answers at once. What answers may raise CallRefused.
    """

    name: str
    methods: Mapping[str, Callable[[bytes, Caller], bytes]]
    threads: int


class _Queued:
    """A connection whose frames are taken from a queue by a thread of the library.

    `known` is set once the other side has been let in.
    """

    def __init__(self, address: str, known: bool = True):
        self.address = address
        self.known = known
        self._frames: SimpleQueue[bytes | None] = SimpleQueue()
        self.closed = False

    def send(self, data: bytes) -> None:
        """Hands a frame over."""
        if not self.closed:
            self._frames.put(data)

    def close(self) -> None:
        """Ends the connection once everything is sent."""
        if not self.closed:
            self.closed = True
            self._frames.put(None)

    def frames(self, patience: float | None = None) -> Iterator[bytes]:
        """The frames to send, until the connection is closed, or has been for `patience` seconds with a stranger."""
        while True:
            try:
                data = self._frames.get(timeout=None if self.known else patience)
            except Empty:
                if self.known:
                    continue
                return
            if data is None:
                return
            yield data


class Listener:
    """A port on which other processes come; `address` as host:port. Raises OSError if it can't be listened on."""

    def __init__(
        self,
        address: str,
        events: Events,
        connections: int,
        credentials: Any = None,
        service: CallService | None = None,
    ):
        self._events = events
        self._strangers: list[_Queued] = []
        self._lock = Lock()
        threads = connections + MOST_STRANGERS + 2 + (0 if service is None else service.threads)
        pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="stream")
        library: Any = grpc
        self._server = library.server(pool, options=_OPTIONS)
        handler = library.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers(
            [library.method_handlers_generic_handler("pstranspile.Cluster", {"Stream": handler})]
        )
        if service is not None:
            methods = {
                name: library.unary_unary_rpc_method_handler(_answering(answer))
                for name, answer in service.methods.items()
            }
            self._server.add_generic_rpc_handlers([library.method_handlers_generic_handler(service.name, methods)])
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

    def _stranger(self, address: str) -> _Queued:
        """A connection of which nothing is known yet. There are so many of them; the oldest one has to go."""
        connection = _Queued(address, known=False)
        with self._lock:
            self._strangers = [one for one in self._strangers if not (one.known or one.closed)]
            self._strangers.append(connection)
            oldest = self._strangers[0] if len(self._strangers) > MOST_STRANGERS else None
        if oldest is not None:
            oldest.close()
        return connection

    def _serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        connection = self._stranger(str(context.peer()))

        def read() -> None:
            reason = "the other side has ended it"
            greeted = False
            try:
                for data in requests:
                    if not connection.known and (greeted or len(data) > MOST_GREETING):
                        reason = "a stranger says more than a greeting"
                        break
                    greeted = True
                    self._events.put(Event(FRAME, connection, data))
            except Exception as problem:
                reason = type(problem).__name__
            self._events.put(Event(CLOSED, connection, reason=reason))
            connection.close()

        self._events.put(Event(OPENED, connection))
        Thread(target=read, daemon=True).start()
        yield from connection.frames(PATIENCE)
        connection.close()

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
        self._channel = open_channel(self.address, self._credentials)
        connection = _Queued(self.address)
        call = self._channel.stream_stream(METHOD)(connection.frames(), wait_for_ready=True)

        def read() -> None:
            what = CLOSED
            try:
                for data in call:
                    self._events.put(Event(FRAME, connection, data))
                reason = "the other side has ended it"
            except (grpc.RpcError, ValueError) as problem:  # ValueError: the channel was closed
                reason = reason_of(problem)
                if _status(problem) == "UNIMPLEMENTED":
                    what = FOREIGN
            self._events.put(Event(what, connection, reason=reason))
            connection.close()

        Thread(target=read, daemon=True).start()
        return connection

    def close(self) -> None:
        """Ends the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _answering(answer: Callable[[bytes, Caller], bytes]) -> Callable[[bytes, Any], bytes]:
    library: Any = grpc

    def handle(request: bytes, context: Any) -> bytes:
        try:
            return answer(request, Caller(str(context.peer()), context.add_callback))
        except CallRefused as problem:
            context.abort(getattr(library.StatusCode, problem.status), str(problem))
            raise

    return handle


def open_channel(address: str, credentials: Any = None) -> Any:
    """A channel of gRPC to an address (host:port)."""
    library: Any = grpc
    if credentials is None:
        return library.insecure_channel(address, options=_OPTIONS)
    return library.secure_channel(address, credentials, options=_OPTIONS)


def _status(problem: Any) -> str:
    return problem.code().name if hasattr(problem, "code") else "CANCELLED"


def reason_of(problem: Any) -> str:
    """Why a call was over, to tell a person."""
    details = problem.details() if hasattr(problem, "details") else "this side has ended it"
    status = _status(problem).lower()
    return f"{status}: {details}" if details else status
