"""The server's end of a connection of HTTP/2 (RFC 9113) on which calls of gRPC come: one request, one answer each."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from urllib.parse import quote

from pstranspile.net.calls import STATUSES, CallRefused, CallService
from pstranspile.net.channel import Channel
from pstranspile.net.hpack import HeaderReader, write_header
from pstranspile.net.values import Bytes, WireError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""With which a client begins."""

_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PUSH, _PING, _GO_AWAY, _WINDOW, _CONTINUATION = range(10)
"""Kinds of frames."""
_END_STREAM, _ACKNOWLEDGED, _END_HEADERS, _PADDED, _WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
"""Flags."""
_STREAMS, _INITIAL_WINDOW, _MOST_FRAME = 3, 4, 5
"""Settings."""
_REFUSED_STREAM, _PROTOCOL_ERROR = 7, 1
"""Codes of errors."""

_WIDEST, _FIRST_WINDOW, _FIRST_FRAME = (1 << 31) - 1, 65_535, 16_384
_FRAME, _CREDIT, _CHUNK, _MOST_HEADERS, _UNREAD = 1 << 20, 1 << 20, 1 << 17, 1 << 16, 1_000
"""Bytes of a frame that may come, after which a client may send more, that are read at once, and of headers; pieces of
answers that a client may leave unread.
"""
_PREFIX = 5
"""Bytes before a message of gRPC: whether it is compressed, and its size."""

_RESPONSE = b"\x88" + write_header("content-type", "application/grpc")
_DONE = write_header("grpc-status", "0")


def _frame(kind: int, flags: int, stream: int, data: bytes = b"", size: int | None = None) -> bytes:
    size = len(data) if size is None else size
    return struct.pack(">BHBBI", size >> 16, size & 0xFFFF, kind, flags, stream) + data


class _Stream:
    """A call from its headers to the end of its answer."""

    def __init__(self, window: int):
        self.path = b""
        self.body = bytearray()
        self.window = window
        """How many bytes the client will take of the answer."""
        self.taken = False
        """Whether the service has the call."""
        self.head = b""
        """The frame with which the answer begins, until it is sent."""
        self.answer: deque[memoryview] | None = None
        """What is left to send."""


class Http2:
    """Reads calls from a channel, and sends their answers; `known` is set once the caller is one of the job's."""

    def __init__(self, channel: Channel, service: CallService):
        self.known = False
        self._channel = channel
        self._service = service
        self._headers = HeaderReader()
        self._chunk = memoryview(bytearray(_CHUNK))
        self._buffer = bytearray()
        self._begun = False
        self._streams: dict[int, _Stream] = {}
        self._last = 0
        """The highest stream that was begun."""
        self._block: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of headers that are to be continued."""
        self._window, self._initial, self._most = _FIRST_WINDOW, _FIRST_WINDOW, _FIRST_FRAME
        """How many bytes the client will take: in all, of a new stream, in a frame."""
        self._owed = 0
        """Bytes that have come since the last update of the client's window."""
        settings = ((_STREAMS, max(service.most, 1)), (_INITIAL_WINDOW, _WIDEST), (_MOST_FRAME, _FRAME))
        first = _frame(_SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in settings))
        channel.send([first, _frame(_WINDOW, 0, 0, struct.pack(">I", _WIDEST - _FIRST_WINDOW))])
        self._take: dict[int, Callable[[int, int, memoryview], None]] = {
            _DATA: self._data, _HEADERS: self._begin, _RESET: self._reset, _SETTINGS: self._set, _PING: self._ping,
            _WINDOW: self._more, _CONTINUATION: self._continue, _PUSH: self._push,
        }  # fmt: skip

    @property
    def address(self) -> str:
        """The client's end of the connection."""
        return self._channel.address

    # what comes

    def room(self) -> memoryview:
        """Where the next bytes go."""
        return self._chunk

    def came(self, size: int) -> bool:
        """So many bytes have come; they end the connection if they are no HTTP/2."""
        self._buffer += self._chunk[:size]
        try:
            self._take_all()
        except WireError as problem:
            code = struct.pack(">II", self._last, _PROTOCOL_ERROR)
            self._channel.send([_frame(_GO_AWAY, 0, 0, code + str(problem).encode())])
            self._channel.close()
            self.ended(str(problem))
        return size < _CHUNK

    def ended(self, reason: str) -> None:
        """The connection is over, and with it all calls."""
        streams, self._streams = self._streams, {}
        for number, stream in streams.items():
            if stream.taken:
                self._service.lost(self, number)

    def _take_all(self) -> None:
        buffer, at = self._buffer, 0
        if not self._begun:
            start = buffer[: len(PREFACE)]
            if not PREFACE.startswith(start):
                raise WireError("the connection does not begin as HTTP/2 does")
            if len(start) < len(PREFACE):
                return
            self._begun, at = True, len(PREFACE)
        while len(buffer) - at >= 9:
            size = int.from_bytes(buffer[at : at + 3], "big")
            if size > _FRAME:
                raise WireError(f"a frame of {size} bytes is too long")
            end = at + 9 + size
            if len(buffer) < end:
                break
            kind, flags, stream = buffer[at + 3], buffer[at + 4], int.from_bytes(buffer[at + 5 : at + 9], "big")
            if self._block is not None and kind != _CONTINUATION:
                raise WireError("headers are not continued")
            take = self._take.get(kind)
            if take is not None:
                with memoryview(buffer) as view, view[at + 9 : end] as data:
                    take(flags, stream & _WIDEST, data)
            at = end
        del buffer[:at]

    def _begin(self, flags: int, number: int, data: memoryview) -> None:
        """A call has come, or the trailers of its message."""
        first = _without_padding(flags, data)[5 if flags & _WITH_PRIORITY else 0 :]
        if not number & 1:
            raise WireError(f"a client can't begin stream {number}")
        block = bytearray(first)
        if flags & _END_HEADERS:
            self._headed(number, flags, block)
        else:
            self._block = number, flags, block

    def _continue(self, flags: int, number: int, data: memoryview) -> None:
        if self._block is None or self._block[0] != number:
            raise WireError("no headers are to be continued")
        _, first, block = self._block
        block += data
        if len(block) > _MOST_HEADERS:
            raise WireError(f"{len(block)} bytes of headers are too many")
        if flags & _END_HEADERS:
            self._block = None
            self._headed(number, first, block)

    def _headed(self, number: int, flags: int, block: bytearray) -> None:
        headers = self._headers.read(block)
        if number > self._last:
            self._last = number
            if len(self._streams) > self._service.most:
                self._channel.send([_frame(_RESET, 0, number, struct.pack(">I", _REFUSED_STREAM))])
                return
            stream = self._streams[number] = _Stream(self._initial)
            stream.path = next((value for name, value in headers if name == b":path"), b"")
        if flags & _END_STREAM:
            self._complete(number)

    def _data(self, flags: int, number: int, data: memoryview) -> None:
        self._owed += len(data)
        if self._owed > _CREDIT:
            self._channel.send([_frame(_WINDOW, 0, 0, struct.pack(">I", self._owed))])
            self._owed = 0
        stream = self._streams.get(number)
        if stream is None:
            if number > self._last or not number:
                raise WireError(f"there is no stream {number}")
            return  # which was answered, or refused
        if stream.taken or len(stream.body) + len(data) > _WIDEST + _PREFIX:
            raise WireError(f"too much comes on stream {number}")
        stream.body += _without_padding(flags, data)
        if flags & _END_STREAM:
            self._complete(number)

    def _complete(self, number: int) -> None:
        """A request has come in whole."""
        stream = self._streams.get(number)
        if stream is None or stream.taken:
            return
        service, _, method = stream.path.decode(errors="replace")[1:].partition("/")
        take = self._service.methods.get(method) if service == self._service.name else None
        body = stream.body
        try:
            if take is None:
                raise CallRefused("UNIMPLEMENTED", f"nobody answers {stream.path.decode(errors='replace')}")
            if len(body) < _PREFIX or int.from_bytes(body[1:_PREFIX], "big") != len(body) - _PREFIX:
                raise CallRefused("INTERNAL", "a call brings one message")
            if body[0]:
                raise CallRefused("UNIMPLEMENTED", "messages can't be compressed")
            stream.taken, stream.body = True, bytearray()
            take(self, number, memoryview(body)[_PREFIX:])
        except CallRefused as problem:
            self.refuse(number, problem)

    def _reset(self, _flags: int, number: int, _data: memoryview) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None and stream.taken and stream.answer is None:
            self._service.lost(self, number)

    def _set(self, flags: int, number: int, data: memoryview) -> None:
        if number or len(data) % 6:
            raise WireError("settings are not well-formed")
        if flags & _ACKNOWLEDGED:
            return
        for key, value in struct.iter_unpack(">HI", data):
            if key == _INITIAL_WINDOW:
                if value > _WIDEST:
                    raise WireError(f"a window of {value} bytes is too wide")
                for stream in self._streams.values():
                    stream.window += value - self._initial
                self._initial = value
            elif key == _MOST_FRAME:
                if not _FIRST_FRAME <= value < 1 << 24:
                    raise WireError(f"frames of {value} bytes can't be asked for")
                self._most = value
        self._reply(_frame(_SETTINGS, _ACKNOWLEDGED, 0))
        self._pump()

    def _ping(self, flags: int, number: int, data: memoryview) -> None:
        if number or len(data) != 8:
            raise WireError("a ping is not well-formed")
        if not flags & _ACKNOWLEDGED:
            self._reply(_frame(_PING, _ACKNOWLEDGED, 0, bytes(data)))

    def _reply(self, data: bytes) -> None:
        if self._channel.unsent > _UNREAD:
            raise WireError("the client does not read what it is answered")
        self._channel.send([data])

    def _more(self, _flags: int, number: int, data: memoryview) -> None:
        """The client takes more."""
        size = int.from_bytes(data, "big") & _WIDEST
        if len(data) != 4 or not size:
            raise WireError("a window is not well-formed")
        if not number:
            self._window += size
        stream = self._streams.get(number)
        if stream is not None:
            stream.window += size
        if max(self._window, 0 if stream is None else stream.window) > _WIDEST:
            raise WireError("a window is too wide")
        self._pump()

    def _push(self, _flags: int, _number: int, _data: memoryview) -> None:
        raise WireError("a client can't push")

    # what goes

    def answer(self, call: int, pieces: Sequence[Bytes]) -> None:
        """Answers a call with a message, in pieces; nothing happens if the call is over."""
        stream = self._streams.get(call)
        if stream is None or stream.answer is not None:
            return
        size = sum(map(len, pieces))
        stream.answer = deque(memoryview(piece) for piece in (struct.pack(">BI", 0, size), *pieces) if len(piece))
        stream.head = _frame(_HEADERS, _END_HEADERS, call, _RESPONSE)
        self._pump()

    def refuse(self, call: int, problem: CallRefused) -> None:
        """Ends a call with a status; nothing happens if it is over."""
        stream = self._streams.get(call)
        if stream is not None and stream.answer is None:
            del self._streams[call]
            status = str(STATUSES[problem.status]), quote(str(problem), safe=" ,:;()'@")
            headers = b"".join(map(write_header, ("grpc-status", "grpc-message"), status))
            self._channel.send([_frame(_HEADERS, _END_HEADERS | _END_STREAM, call, _RESPONSE + headers)])

    def _pump(self) -> None:
        """Sends of the answers what the client takes."""
        pieces: list[Bytes] = []
        for number, stream in list(self._streams.items()):
            if stream.answer is None:
                continue
            if stream.head:
                pieces.append(stream.head)
                stream.head = b""
            while stream.answer and (room := min(self._window, stream.window, self._most)) > 0:
                size, taken = _take(stream.answer, room)
                pieces += [_frame(_DATA, 0, number, size=size), *taken]
                self._window -= size
                stream.window -= size
            if not stream.answer:
                pieces.append(_frame(_HEADERS, _END_HEADERS | _END_STREAM, number, _DONE))
                del self._streams[number]
        if pieces:
            self._channel.send(pieces)


def _take(queue: deque[memoryview], room: int) -> tuple[int, list[memoryview]]:
    """Takes up to so many bytes out of a queue."""
    size, taken = 0, list[memoryview]()
    while queue and size < room:
        piece = queue.popleft()
        if len(piece) > room - size:
            queue.appendleft(piece[room - size :])
            piece = piece[: room - size]
        taken.append(piece)
        size += len(piece)
    return size, taken


def _without_padding(flags: int, data: memoryview) -> memoryview:
    if not flags & _PADDED:
        return data
    if not len(data) or data[0] >= len(data):
        raise WireError("a frame is nothing but padding")
    return data[1 : len(data) - data[0]]
