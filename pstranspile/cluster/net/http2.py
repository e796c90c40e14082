"""The server's end of a connection of HTTP/2 (RFC 9113) on which calls of gRPC come: one request, one answer each.

Whatever a client sends, a turn does a bounded amount of work and the connection holds a bounded number of bytes. A
client that has not been admitted yet has a budget for everything it sends; the connection of one that exceeds it is
closed with the reason.

The interface between the calls and the service that answers them knows nothing of connections.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol
from urllib.parse import quote

from pstranspile.cluster.net.loop import STRANGER_BYTES, ByteReader, Channel
from pstranspile.cluster.net.terms import MOST_HELD
from pstranspile.cluster.net.wire import Bytes, WireError

# The interface between gRPC calls and the service that answers them.


STATUSES = {
    "INVALID_ARGUMENT": 3, "NOT_FOUND": 5, "ALREADY_EXISTS": 6, "RESOURCE_EXHAUSTED": 8, "FAILED_PRECONDITION": 9,
    "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14,
}  # fmt: skip
"""The numbers of the statuses with which calls are refused."""


class CallRefused(Exception):
    """A call that is refused; `status` is the name of a gRPC status."""

    def __init__(self, status: str, reason: str):
        super().__init__(reason)
        self.status = status


class Caller(Protocol):
    """The client that has made a call and waits for its answer."""

    @property
    def is_admitted(self) -> bool:
        """Whether it is one of the job's machines."""
        ...

    def let_in(self) -> None:
        """Records that the client is one of the job's machines."""
        ...

    @property
    def address(self) -> str:
        """The other end of the connection."""
        ...

    @property
    def closed(self) -> bool:
        """Whether no more answers can be sent."""
        ...

    def answer(self, call: int, pieces: list[Bytes]) -> None:
        """Answers a call with a message, in pieces; does nothing if the call is over."""
        ...

    def refuse(self, call: int, problem: CallRefused) -> None:
        """Ends a call with a status; does nothing if the call is over."""
        ...


SMALL_CALL = 1 << 18
"""The most bytes that a message of any call may have before its method is known."""

LARGE_CALL = (1 << 31) - 1
"""The most bytes that a message of a call may have at all: gRPC's own limit."""


class CallService(NamedTuple):
    """A service: for each method a function of the caller, the call's number and the bytes of the request.

    The function answers the call, now or later; `on_lost_caller` is called when a caller gives up waiting. At most
    `open_call_limit` calls are open at once. For a call of more than `SMALL_CALL` bytes, `room` returns how many bytes
    it may have; its arguments are the method, the first bytes of the message and whether the caller is admitted.
    `callers` is how many callers that are not admitted may bring large calls at the same time. `more_unread` returns
    how many bytes of answers a caller may leave unread beyond those that any caller may.
    """

    name: str
    methods: Mapping[str, Callable[[Caller, int, Bytes], None]]
    open_call_limit: int
    on_lost_caller: Callable[[Caller, int], None] = lambda caller, call: None
    room: Callable[[str, Bytes, bool], int] = lambda method, begin, known: LARGE_CALL if known else 0
    callers: int = 1
    more_unread: Callable[[], int] = lambda: 0


# Frames and headers are read here, not by the library `h2`: trainers of Fluid make hundreds of calls in a step, and a
# server with `h2` spends several times the processor time on each call and each byte, so that they train more slowly.
# `benchmarks/http2.py` measures both. The bounds on frames and on the work of a turn would be this package's either
# way, for `h2` handles all bytes that it is given at once.

# HTTP/2 compresses headers (RFC 7541). A client's headers are decoded here; a server's answers need no table.
#
# A connection has one table of earlier headers, so every block must be read, in order.

_STATIC = (
    ":authority", ":method=GET", ":method=POST", ":path=/", ":path=/index.html", ":scheme=http", ":scheme=https",
    ":status=200", ":status=204", ":status=206", ":status=304", ":status=400", ":status=404", ":status=500",
    "accept-charset", "accept-encoding=gzip, deflate", "accept-language", "accept-ranges", "accept",
    "access-control-allow-origin", "age", "allow", "authorization", "cache-control", "content-disposition",
    "content-encoding", "content-language", "content-length", "content-location", "content-range", "content-type",
    "cookie", "date", "etag", "expect", "expires", "from", "host", "if-match", "if-modified-since", "if-none-match",
    "if-range", "if-unmodified-since", "last-modified", "link", "location", "max-forwards", "proxy-authenticate",
    "proxy-authorization", "range", "referer", "refresh", "retry-after", "server", "set-cookie",
    "strict-transport-security", "transfer-encoding", "user-agent", "vary", "via", "www-authenticate",
)  # fmt: skip
"""The table that all connections begin with: names, with values."""

_TABLE = tuple((name.encode(), value.encode()) for name, _, value in (entry.partition("=") for entry in _STATIC))
_NUMBERED = len(_TABLE)

_LENGTHS = (
    "ISXXXXXXXTZXXZXXXXXXXXZXXXXXXXXXBFFHIBDGFFDGDBBBAAABBBBBBBCDKBHFIBCCCCCCCCCCCCCCCCCCCCCCDCDIOIJBKABA"
    "BABBBACCBBBABCBAABCCCCCKGJIXPRPPRRRSRSSSSSTSTTRSTSSSSQRSRSSTRQPRRSSQSRRTQRSSQQRQSRSSPRRRSRRSVVPORSRU"
    "VVVWWVTUOQVWWVWTQQVVXWWWPTPQRQQSRRUUTTVSVWVVWWWWWXWWWWWVZ"
)
"""The bits of the Huffman code of each byte and of the end of a text: A is 5. Codes are given in order of length."""

MOST_TABLE = 4096
"""The most bytes that the table of a connection may have (RFC 7541, 4.2)."""

MOST_SAME = 16
"""The most blocks of a connection whose headers are kept for calls with the same block."""

MOST_SAME_BYTES = 64
"""The most bytes of such a block. A block of headers that all stand in the table has a byte for each."""

ENTRY = 32
"""The bytes that an entry of the table counts besides its name and value (RFC 7541, 4.1)."""

MOST_HEADERS = 1 << 14
"""The most bytes of a block of headers, both received and as counted when it is read: `ENTRY` for each header and the
bytes of its name and value. A short block may refer to one long header of the table very often.
"""

MOST_RESIZED = 2
"""How often a block may change the size of the table (RFC 7541, 4.2)."""

Header = tuple[bytes, bytes]


class _Codes(NamedTuple):
    """The Huffman codes, as a state machine that reads four bits at a time.

    Its states are the nodes of the tree of codes. `steps` gives, at `node << 4 | bits`, the next node and the byte that
    is complete (-1: none, 256: the end of a text); every code has at least five bits, so four bits complete one byte at
    most. `ends` are the nodes at which a text may end: up to seven ones after a whole code.
    """

    steps: list[tuple[int, int]]
    ends: frozenset[int]


@cache
def _codes() -> _Codes:
    tree: list[list[int]] = [[0, 0]]
    """The two branches of each node: another node, or -1 - byte."""
    lengths = [ord(letter) - ord("A") + 5 for letter in _LENGTHS]
    code = before = 0
    for byte in sorted(range(len(lengths)), key=lambda byte: (lengths[byte], byte)):
        code <<= lengths[byte] - before
        before = lengths[byte]
        place = 0
        for shift in range(before - 1, 0, -1):
            branch = code >> shift & 1
            if not tree[place][branch]:
                tree.append([0, 0])
                tree[place][branch] = len(tree) - 1
            place = tree[place][branch]
        tree[place][code & 1] = -1 - byte
        code += 1
    steps: list[tuple[int, int]] = []
    for start in range(len(tree)):
        for bits in range(16):
            place, done = start, -1
            for shift in range(3, -1, -1):
                place = tree[place][bits >> shift & 1]
                if place < 0:
                    place, done = 0, -1 - place
            steps.append((place, done))
    ends = [0]
    for _ in range(7):
        ends.append(tree[ends[-1]][1])
    return _Codes(steps, frozenset(ends))


def _expand(data: Bytes) -> bytes:
    """Decodes a Huffman-coded text. Raises WireError."""
    (steps, ends), text, place = _codes(), bytearray(), 0
    try:
        for byte in data:
            place, done = steps[place << 4 | byte >> 4]
            if done >= 0:
                text.append(done)
            place, done = steps[place << 4 | byte & 15]
            if done >= 0:
                text.append(done)
    except ValueError:  # 256 is no byte
        raise WireError("a header holds the end of a text") from None
    if place not in ends:
        raise WireError("a header ends within a code")
    return bytes(text)


class HeaderReader:
    """Reads the blocks of headers of a connection."""

    def __init__(self) -> None:
        self._table: deque[Header] = deque()
        self._size = 0
        self._table_limit = MOST_TABLE
        self._data: Bytes = b""
        self._position = 0
        self._changed = False
        """Whether the block that is read changes the table."""
        self._headers_by_block: dict[bytes, list[Header]] = {}
        """The headers of blocks that leave the table as it is, by their bytes, while the table does not change."""

    def read(self, data: Bytes) -> Sequence[Header]:
        """Decodes the headers of a block, in order. Raises WireError; the connection then has to end.

        A client's calls differ in few headers, so that most blocks are those of a call before, byte for byte.
        """
        if len(data) > MOST_SAME_BYTES:
            return self._decode(data)
        block = bytes(data)
        headers = self._headers_by_block.get(block)
        if headers is None:
            headers = self._decode(block)
            if not self._changed and len(self._headers_by_block) < MOST_SAME:
                self._headers_by_block[block] = headers
        return headers

    def _decode(self, data: Bytes) -> list[Header]:
        self._data, self._position, self._changed = data, 0, False
        end = len(data)
        size = resized = 0
        headers: list[Header] = []
        while self._position < end:
            first = data[self._position]
            if first & 0xE0 == 0x20:
                resized += 1
                if headers or resized > MOST_RESIZED:
                    raise WireError("a block of headers changes the size of its table where it can't")
                self._resize(self._number(5))
                continue
            if 0x80 < first < 0xFF:  # an indexed header with a number of one byte, the most frequent kind
                self._position += 1
                headers.append(self._entry(first & 0x7F))
            elif first & 0x80:
                headers.append(self._entry(self._number(7)))
            elif first & 0x40:
                headers.append(self._literal(6))
                self._keep(headers[-1])
            else:
                headers.append(self._literal(4))
            name, value = headers[-1]
            size += len(name) + len(value) + ENTRY
            if size > MOST_HEADERS:
                raise WireError(f"more than {MOST_HEADERS} bytes of headers are too many")
        return headers

    def _number(self, bits: int) -> int:
        """Decodes a number whose first bits are the last ones of a byte."""
        most = (1 << bits) - 1
        value = self._byte() & most
        if value < most:
            return value
        for shift in (0, 7, 14, 21):
            byte = self._byte()
            value += (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise WireError("a number in a header is too large")

    def _byte(self) -> int:
        if self._position >= len(self._data):
            raise WireError("a block of headers ends too early")
        self._position += 1
        return self._data[self._position - 1]

    def _text(self) -> bytes:
        if self._position >= len(self._data):
            raise WireError("a block of headers ends too early")
        coded = self._data[self._position] & 0x80
        size = self._number(7)
        start, self._position = self._position, self._position + size
        if self._position > len(self._data):
            raise WireError("a text in a header is longer than its block")
        data = bytes(self._data[start : self._position])
        return _expand(data) if coded else data

    def _literal(self, bits: int) -> Header:
        index = self._number(bits)
        name = self._entry(index)[0] if index else self._text()
        return name, self._text()

    def _entry(self, index: int) -> Header:
        if 1 <= index <= _NUMBERED:
            return _TABLE[index - 1]
        if not index or index - _NUMBERED > len(self._table):
            raise WireError(f"no header has the number {index}")
        return self._table[index - _NUMBERED - 1]

    def _keep(self, header: Header) -> None:
        self._note_change()
        self._table.appendleft(header)
        self._size += len(header[0]) + len(header[1]) + ENTRY
        self._shrink()

    def _resize(self, size: int) -> None:
        if size > MOST_TABLE:
            raise WireError(f"a table of {size} bytes of headers is too large")
        self._table_limit = size
        self._note_change()
        self._shrink()

    def _note_change(self) -> None:
        self._changed = True
        self._headers_by_block.clear()

    def _shrink(self) -> None:
        while self._size > self._table_limit:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + ENTRY


def write_header(name: str, value: str) -> bytes:
    """Encodes a header that is put into no table."""
    return b"\0" + _text(name.encode()) + _text(value.encode())


def _text(data: bytes) -> bytes:
    size = len(data)
    if size < 0x7F:
        return bytes([size]) + data
    head = bytearray([0x7F])
    size -= 0x7F
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(head) + bytes([size]) + data


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The bytes every HTTP/2 client sends first (RFC 9113, 3.4)."""

_DATA = 0
"""The frame type DATA (RFC 9113, 6.1)."""

_HEADERS = 1
"""The frame type HEADERS (RFC 9113, 6.2)."""

_PRIORITY = 2
"""The frame type PRIORITY (RFC 9113, 6.3)."""

_RESET = 3
"""The frame type RST_STREAM (RFC 9113, 6.4)."""

_SETTINGS = 4
"""The frame type SETTINGS (RFC 9113, 6.5)."""

_PUSH = 5
"""The frame type PUSH_PROMISE (RFC 9113, 6.6)."""

_PING = 6
"""The frame type PING (RFC 9113, 6.7)."""

_GO_AWAY = 7
"""The frame type GOAWAY (RFC 9113, 6.8)."""

_WINDOW = 8
"""The frame type WINDOW_UPDATE (RFC 9113, 6.9)."""

_CONTINUATION = 9
"""The frame type CONTINUATION (RFC 9113, 6.10)."""
_END_STREAM = 0x1
"""The flag END_STREAM of DATA and HEADERS: the client's last frame on the stream."""

_ACKNOWLEDGED = 0x1
"""The flag ACK of SETTINGS and PING."""

_END_HEADERS = 0x4
"""The flag END_HEADERS: no CONTINUATION follows."""

_PADDED = 0x8
"""The flag PADDED of DATA and HEADERS."""

_WITH_PRIORITY = 0x20
"""The flag PRIORITY of HEADERS."""
_STREAMS = 3
"""The setting SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113, 6.5.2)."""

_INITIAL_WINDOW = 4
"""The setting SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113, 6.5.2)."""

_MOST_FRAME = 5
"""The setting SETTINGS_MAX_FRAME_SIZE (RFC 9113, 6.5.2)."""

_MOST_LIST = 6
"""The setting SETTINGS_MAX_HEADER_LIST_SIZE (RFC 9113, 6.5.2)."""
_NO_ERROR = 0
"""The error code NO_ERROR (RFC 9113, 7)."""

_REFUSED_STREAM = 7
"""The error code REFUSED_STREAM (RFC 9113, 7)."""

_PROTOCOL_ERROR = 1
"""The error code PROTOCOL_ERROR (RFC 9113, 7)."""

_WIDEST, _FIRST_WINDOW, _FIRST_FRAME = (1 << 31) - 1, 65_535, 16_384

_FRAME = 1 << 18
"""The largest frame of data that is accepted, in bytes; other frames may have no more than a block of headers."""
_CREDIT = 1 << 20
"""The bytes after whose receipt the client's window is renewed."""
_CHUNK = 1 << 17
"""The bytes that one call reads."""
_PREFIX = 5
"""The bytes before a message of gRPC: a flag for compression, and the size."""

MOST_UNREAD = 100
"""The most acknowledgements and refusals that a client may leave unread."""
_CRUMB = 1 << 10
"""The bytes below which a piece of an answer, as the client's windows cut it, is small."""

_SHORT = 1 << 14
"""The most bytes of an answer that is copied into one piece with its frames."""

MOST_CRUMBS = 1_000
"""The most small pieces that a client may leave unread: each costs some hundred bytes besides its own."""
MOST_BODIES = 1 << 32
"""The most bytes of unfinished calls on a connection."""
MOST_CONTINUED = 64
"""The most frames in which a block of headers may be continued."""
MOST_SETTINGS = 64
"""The most settings in one frame."""
MOST_SHOWN = 100
"""The most characters of a path that a refusal repeats, and a quarter of those of its reason."""

STRANGER_FRAMES = 1_000
"""The most frames of a client that has not been admitted. A large call may have one more for every `_DENSE` bytes."""

STRANGER_CALLS = 16
"""The most calls of a client that has not been admitted."""
_DENSE = 1 << 12

MOST_LENT = 1 << 26
"""The most bytes of large calls that a client may bring before it is known, unless a single call has more."""
_BEGIN = 1 << 12
"""The first bytes of a large call, from which the service decides how large it may be."""

TURN_WORK = 1 << 16
"""The work that an admitted client may cause in a turn; then others have theirs.

A byte of headers counts 1, a stream whose window changes 1, a frame and a call as follows; data is counted by the
channel.
"""

STRANGER_TURN_WORK = 1 << 13
"""The work that a client may cause in a turn before it is admitted."""
FRAME_WORK, CALL_WORK = 16, 256

_RESPONSE = b"\x88" + write_header("content-type", "application/grpc")
_DONE = write_header("grpc-status", "0")
_HEAD = struct.Struct(">BHBBI")
"""The head of a frame: its size in two parts, its type, its flags and its stream."""
_GRPC = struct.Struct(">BI")
"""What begins a message of gRPC: whether it is compressed, and its size."""


def _frame(kind: int, flags: int, stream: int, data: bytes = b"", size: int | None = None) -> bytes:
    size = len(data) if size is None else size
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream) + data


def _short_answer(stream: int, pieces: Sequence[Bytes], size: int) -> bytes:
    """The frames of an answer that has `size` bytes and that the client takes at once."""
    return b"".join((
        _HEAD.pack(0, len(_RESPONSE), _HEADERS, _END_HEADERS, stream), _RESPONSE,
        _HEAD.pack(0, size + _PREFIX, _DATA, 0, stream), _GRPC.pack(0, size), *pieces,
        _HEAD.pack(0, len(_DONE), _HEADERS, _END_HEADERS | _END_STREAM, stream), _DONE,
    ))  # fmt: skip


def length_prefixed(pieces: Sequence[Bytes]) -> deque[memoryview]:
    """A message of gRPC, not compressed: a flag and its length in bytes, then its pieces; empty ones are left out."""
    prefix = _GRPC.pack(0, sum(map(len, pieces)))
    return deque(memoryview(piece) for piece in (prefix, *pieces) if len(piece))


class _Stream:
    """A call from its headers to the end of its answer."""

    def __init__(self, window: int):
        self.path = b""
        self.body = bytearray()
        self.body_limit = SMALL_CALL + _PREFIX
        """The most bytes that the body may have, as far as the service has decided."""
        self.window = window
        """How many bytes of the answer the client will take."""
        self.is_taken = False
        """Whether the service has taken the call."""
        self.head = b""
        """The frame with which the answer begins, until it is sent."""
        self.answer: deque[memoryview] | None = None
        """The rest of the answer, which is still to be sent."""
        self.size = 0
        """The bytes of the answer."""


class Http2(ByteReader):
    """Reads calls from a channel, and sends their answers; `is_admitted` is set once the caller is one of the job's.

    `lends` returns whether one more unknown client may bring a large call.
    """

    def __init__(self, channel: Channel, service: CallService, lends: Callable[[], bool] = lambda: True):
        self.is_admitted = False
        self.waiting = False
        self.lent = 0
        """Bytes that the client may bring beyond its budget before it is known."""
        self.stalled = False
        """Whether no byte was received or sent between the last two looks."""
        self._last_progress = (0, 0)
        self._channel = channel
        self._service = service
        self._methods = {f"/{service.name}/{name}".encode(): take for name, take in service.methods.items()}
        self._lends = lends
        self._headers = HeaderReader()
        self._chunk = memoryview(bytearray(_CHUNK))
        self._buffer = bytearray()
        self._preface_is_read = False
        self._is_over = False
        """Whether this side has ended the connection."""
        self._streams: dict[int, _Stream] = {}
        self._answering: dict[int, _Stream] = {}
        """The calls whose answers are being sent, by stream number."""
        self._last_stream = 0
        """The highest number of a stream that the client has begun."""
        self._block: tuple[int, int, bytearray] | None = None
        """An unfinished block of headers: its stream, flags and bytes; None if there is none."""
        self._continued = 0
        """The number of continuation frames of the unfinished block."""
        self._window = _FIRST_WINDOW
        """How many bytes the client will take on all streams together."""

        self._initial = _FIRST_WINDOW
        """How many bytes the client will take on a new stream."""

        self._frame_limit = _FIRST_FRAME
        """How many bytes the client will take in a frame."""
        self._unacknowledged_bytes = 0
        """Bytes received since the last update of the client's window."""
        self._work = 0
        """The work that this turn may still do."""
        self._received_bytes = self._frames = self._calls = 0
        """The bytes that have come and, until the client is known, the frames and calls."""
        self._pending_bytes = 0
        """The bytes of calls that are not complete."""
        self._gathered_replies: list[bytes] = []
        """Replies of this turn, to be sent at its end."""
        self._gathers = False
        """Whether a turn is in progress, so that replies are collected."""
        self._replies: deque[int] = deque()
        self._crumbs: deque[int] = deque()
        """For each small piece of an answer that may be unread, the number of pieces that the channel has sent once it
        is sent; `_replies` likewise for replies.
        """
        self._answers: deque[tuple[int, int]] = deque()
        """The same for answers, also those to calls that the client has reset, each with its size in bytes."""
        self._unsent_bytes = 0
        """The bytes of answers that are not sent to their ends. The smallest unsent piece keeps a whole answer in
        memory.
        """
        settings = (
            (_STREAMS, max(service.open_call_limit, 1)), (_INITIAL_WINDOW, _WIDEST), (_MOST_FRAME, _FRAME),
            (_MOST_LIST, MOST_HEADERS),
        )  # fmt: skip
        first = _frame(_SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in settings))
        channel.send([first, _frame(_WINDOW, 0, 0, struct.pack(">I", _WIDEST - _FIRST_WINDOW))])
        self._take: dict[int, Callable[[int, int, memoryview], None]] = {
            _DATA: self._data, _HEADERS: self._begin, _RESET: self._reset, _SETTINGS: self._set, _PING: self._ping,
            _WINDOW: self._widen_window, _CONTINUATION: self._continue, _PUSH: self._push,
        }  # fmt: skip

    @property
    def address(self) -> str:
        """The client's end of the connection."""
        return self._channel.address

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent."""
        return self._channel.closed

    @property
    def idle(self) -> bool:
        """Whether no call is open."""
        return not self._streams

    @property
    def waits(self) -> bool:
        """Whether the client waits for the service."""
        return any(stream.is_taken and stream.answer is None for stream in self._streams.values())

    @property
    def incomplete_bytes(self) -> int:
        """The bytes of calls that are not complete."""
        return self._pending_bytes

    @property
    def unread(self) -> int:
        """The bytes of answers that the client has not read to their ends."""
        self._unread_answers()
        return self._unsent_bytes

    def look(self) -> None:
        """Determines whether any byte was received or sent since the last look."""
        moved = self._received_bytes, self._channel.queued - self._channel.unsent
        self.stalled, self._last_progress = moved == self._last_progress, moved

    def leave(self, reason: str) -> None:
        """Ends the connection without an error: the client may come again."""
        self._is_over = True
        self._channel.send([_frame(_GO_AWAY, 0, 0, struct.pack(">II", self._last_stream, _NO_ERROR) + reason.encode())])
        self._channel.refuse(reason)

    # receiving

    def room(self) -> memoryview:
        """The buffer that the next received bytes are written to."""
        return self._chunk

    def receive(self, size: int) -> bool:
        """Processes `size` received bytes; ends the connection if they are not HTTP/2."""
        self._buffer += self._chunk[:size]
        self._received_bytes += size
        self.go_on()
        return size < _CHUNK

    def go_on(self) -> None:
        """Processes received frames, as many as one turn may; `waiting` says whether more are left."""
        self._work = TURN_WORK if self.is_admitted else STRANGER_TURN_WORK
        self._gathers = True
        try:
            if not (self.is_admitted or self._is_over):
                self._require_few()
            self._take_all()
        except WireError as problem:
            self._fail(str(problem))
        self._gathers = False
        self._send_replies()

    def _fail(self, reason: str) -> None:
        """Ends the connection, and sends the reason."""
        self._send_replies()
        if self._is_over:
            return
        self._is_over, self.waiting = True, False
        self._buffer = bytearray()  # views of the old buffer may still exist
        code = struct.pack(">II", self._last_stream, _PROTOCOL_ERROR)
        self._channel.send([_frame(_GO_AWAY, 0, 0, code + reason.encode())])
        self._channel.refuse(reason)
        self.connection_ended(reason)

    def connection_ended(self, reason: str) -> None:
        """Called when the connection is over, which ends all calls."""
        streams, self._streams = self._streams, {}
        self._answering.clear()
        self._pending_bytes = 0
        for number, stream in streams.items():
            if stream.is_taken:
                self._service.on_lost_caller(self, number)

    def _require_few(self) -> None:
        """Raises WireError if a client that is not known has sent more than it may."""
        if self._received_bytes > STRANGER_BYTES + self.lent:
            raise WireError(f"a stranger sends more than {STRANGER_BYTES} bytes")
        if self._frames > STRANGER_FRAMES + self.lent // _DENSE:
            raise WireError(f"a stranger sends more than {STRANGER_FRAMES} frames")
        if self._calls > STRANGER_CALLS:
            raise WireError(f"a stranger makes more than {STRANGER_CALLS} calls")

    def _take_all(self) -> None:
        buffer, at = self._buffer, 0
        self.waiting = False
        if self._is_over:
            self._buffer = bytearray()
            return
        if not self._preface_is_read:
            start = buffer[: len(PREFACE)]
            if not PREFACE.startswith(start):
                raise WireError("the connection does not begin as HTTP/2 does")
            if len(start) < len(PREFACE):
                return
            self._preface_is_read, at = True, len(PREFACE)
        while len(buffer) - at >= 9:
            high, low, kind, flags, stream = _HEAD.unpack_from(buffer, at)
            size = high << 16 | low
            if size > (_FRAME if kind == _DATA else MOST_HEADERS):
                raise WireError(f"a frame of {size} bytes is too long")
            end = at + 9 + size
            if len(buffer) < end:
                break
            if self._work <= 0:
                self.waiting = True
                break
            self._work -= FRAME_WORK
            if not self.is_admitted:
                self._frames += 1
                self._require_few()
            if self._block is not None and kind != _CONTINUATION:
                raise WireError("headers are not continued")
            take = self._take.get(kind)
            if take is not None:
                with memoryview(buffer) as view, view[at + 9 : end] as data:
                    take(flags, stream & _WIDEST, data)
                if self._is_over:
                    return
            at = end
        del buffer[:at]

    def _begin(self, flags: int, number: int, data: memoryview) -> None:
        """Handles the headers of a call, or the trailers of its message."""
        first = _without_padding(flags, data)[5 if flags & _WITH_PRIORITY else 0 :]
        if not number & 1:
            raise WireError(f"a client can't begin stream {number}")
        block = bytearray(first)
        if flags & _END_HEADERS:
            self._handle_headers(number, flags, block)
        else:
            self._block, self._continued = (number, flags, block), 0

    def _continue(self, flags: int, number: int, data: memoryview) -> None:
        if self._block is None or self._block[0] != number:
            raise WireError("no headers are to be continued")
        _, first, block = self._block
        block += data
        self._continued += 1
        if len(block) > MOST_HEADERS:
            raise WireError(f"more than {MOST_HEADERS} bytes of headers are too many")
        if self._continued > MOST_CONTINUED:
            raise WireError(f"headers are continued in more than {MOST_CONTINUED} frames")
        if flags & _END_HEADERS:
            self._block = None
            self._handle_headers(number, first, block)

    def _handle_headers(self, number: int, flags: int, block: bytearray) -> None:
        self._work -= len(block)
        headers = self._headers.read(block)
        self._work -= len(headers)
        if number > self._last_stream:
            self._last_stream = number
            self._calls += 1
            if len(self._streams) + self._unread_answers() > self._service.open_call_limit:
                self._reply(_frame(_RESET, 0, number, struct.pack(">I", _REFUSED_STREAM)))
                return
            stream = self._streams[number] = _Stream(self._initial)
            for name, value in headers:
                if name == b":path":
                    stream.path = value
                    break
        if flags & _END_STREAM:
            self._complete(number)

    def _data(self, flags: int, number: int, data: memoryview) -> None:
        self._unacknowledged_bytes += len(data)
        if self._unacknowledged_bytes > _CREDIT:
            self._channel.send([_frame(_WINDOW, 0, 0, struct.pack(">I", self._unacknowledged_bytes))])
            self._unacknowledged_bytes = 0
        stream = self._streams.get(number)
        if stream is None:
            if number > self._last_stream or not number:
                raise WireError(f"there is no stream {number}")
            return  # the call was answered or refused
        if stream.is_taken:
            raise WireError(f"more comes on stream {number} than a message")
        data = _without_padding(flags, data)
        if len(stream.body) + len(data) > stream.body_limit and not self._has_room(number, stream, data):
            return
        self._pending_bytes += len(data)
        if self._pending_bytes > MOST_BODIES:
            raise WireError(f"unfinished calls bring more than {MOST_BODIES} bytes")
        stream.body += data
        if flags & _END_STREAM:
            self._complete(number)

    def _has_room(self, number: int, stream: _Stream, data: memoryview) -> bool:
        """Asks the service how large a large call may be, and refuses one that is larger; returns whether the call may
        go on.
        """
        room = stream.body_limit - _PREFIX
        if room == SMALL_CALL and stream.path.startswith(f"/{self._service.name}/".encode()):
            begin = bytes(stream.body[:_BEGIN])
            begin += bytes(data[: _BEGIN - len(begin)])
            method = stream.path.decode(errors="replace").rpartition("/")[2]
            room = max(min(self._service.room(method, begin[_PREFIX:], self.is_admitted), LARGE_CALL), SMALL_CALL)
            if room > SMALL_CALL and not self.is_admitted:
                if self.lent + room > max(MOST_LENT, room) or not (self.lent or self._lends()):
                    self._drop(number, stream)
                    self._reply(_frame(_RESET, 0, number, struct.pack(">I", _REFUSED_STREAM)))  # it may come again
                    return False
                self.lent += room
            stream.body_limit = room + _PREFIX
        if len(stream.body) + len(data) <= stream.body_limit:
            return True
        self.refuse(number, CallRefused("RESOURCE_EXHAUSTED", f"the call brings more than {room} bytes"))
        self._reply(_frame(_RESET, 0, number, struct.pack(">I", _NO_ERROR)))  # the client need not send the rest
        return False

    def _complete(self, number: int) -> None:
        """Hands a complete request to the service."""
        stream = self._streams.get(number)
        if stream is None or stream.is_taken:
            return
        self._work -= (
            CALL_WORK if self.is_admitted else STRANGER_TURN_WORK
        )  # before admission, one call is handled in a turn
        take = self._methods.get(stream.path)
        body = stream.body
        self._pending_bytes -= len(body)
        try:
            if take is None:
                raise CallRefused("UNIMPLEMENTED", f"nobody answers {_truncate(stream.path.decode(errors='replace'))}")
            if len(body) < _PREFIX or int.from_bytes(body[1:_PREFIX], "big") != len(body) - _PREFIX:
                raise CallRefused("INTERNAL", "a call brings one message")
            if body[0]:
                raise CallRefused("UNIMPLEMENTED", "messages can't be compressed")
            stream.is_taken, stream.body = True, bytearray()
            take(self, number, memoryview(body)[_PREFIX:])
        except CallRefused as problem:
            stream.body = bytearray()
            self.refuse(number, problem)

    def _reset(self, _flags: int, number: int, _data: memoryview) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        self._drop(number, stream)
        if stream.is_taken and stream.answer is None:
            self._work -= CALL_WORK
            self._service.on_lost_caller(self, number)

    def _drop(self, number: int, stream: _Stream) -> None:
        """Forgets a call that is over."""
        del self._streams[number]
        self._answering.pop(number, None)
        if not stream.is_taken:
            self._pending_bytes -= len(stream.body)
        if stream.answer is not None:
            self._answers.append((self._channel.queued, stream.size))

    def _set(self, flags: int, number: int, data: memoryview) -> None:
        if number or len(data) % 6:
            raise WireError("settings are not well-formed")
        if flags & _ACKNOWLEDGED:
            return
        if len(data) > 6 * MOST_SETTINGS:
            raise WireError(f"more than {MOST_SETTINGS} settings in a frame are too many")
        before = self._initial
        for key, value in struct.iter_unpack(">HI", data):
            if key == _INITIAL_WINDOW:
                if value > _WIDEST:
                    raise WireError(f"a window of {value} bytes is too wide")
                self._initial = value
            elif key == _MOST_FRAME:
                if not _FIRST_FRAME <= value < 1 << 24:
                    raise WireError(f"frames of {value} bytes can't be asked for")
                self._frame_limit = value
        if self._initial != before:
            self._work -= len(self._streams)
            for stream in self._streams.values():
                stream.window += self._initial - before
        self._reply(_frame(_SETTINGS, _ACKNOWLEDGED, 0))
        self._pump()

    def _ping(self, flags: int, number: int, data: memoryview) -> None:
        if number or len(data) != 8:
            raise WireError("a ping is not well-formed")
        if not flags & _ACKNOWLEDGED:
            self._reply(_frame(_PING, _ACKNOWLEDGED, 0, bytes(data)))

    def _reply(self, data: bytes) -> None:
        """Sends a reply that the client must read; its connection ends if it leaves too many unread."""
        self._gathered_replies.append(data)
        if not self._gathers:
            self._send_replies()

    def _send_replies(self) -> None:
        if self._is_over or not self._gathered_replies:
            return
        gathered, self._gathered_replies = self._gathered_replies, []
        self._channel.send([b"".join(gathered)])
        self._replies.extend([self._channel.queued] * len(gathered))
        if self._unread(self._replies) > MOST_UNREAD:
            self._fail("the client does not read what it is answered")

    def _unread(self, ends: deque[int]) -> int:
        """How many replies, or small pieces of answers, have not been sent yet."""
        sent = self._channel.queued - self._channel.unsent
        while ends and ends[0] <= sent:
            ends.popleft()
        return len(ends)

    def _unread_answers(self) -> int:
        """How many answers to calls that are over have not been sent yet."""
        sent = self._channel.queued - self._channel.unsent
        while self._answers and self._answers[0][0] <= sent:
            self._unsent_bytes -= self._answers.popleft()[1]
        return len(self._answers)

    def _widen_window(self, _flags: int, number: int, data: memoryview) -> None:
        """Widens the window of the client."""
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
        if not number:
            self._pump()
        elif number in self._answering:
            self._pump((number,))

    def _push(self, _flags: int, _number: int, _data: memoryview) -> None:
        raise WireError("a client can't push")

    def let_in(self) -> None:
        """Marks the client as one of the job's machines."""
        self.is_admitted = True

    # sending

    def answer(self, call: int, pieces: Sequence[Bytes]) -> None:
        """Answers a call with a message, in pieces; does nothing if the call is over. Ends the connection of a client
        that has not read too many bytes of its answers.
        """
        stream = self._streams.get(call)
        if stream is None or stream.answer is not None:
            return
        size = stream.size = sum(map(len, pieces))
        self._unsent_bytes += size
        if self._unsent_bytes > MOST_HELD and self.unread > MOST_HELD + self._service.more_unread():
            self._fail(f"the client leaves {self._unsent_bytes} bytes of answers unread")
            return
        if size + _PREFIX <= min(_SHORT, self._window, stream.window, self._frame_limit):
            self._window -= size + _PREFIX
            self._work -= 1
            del self._streams[call]
            self._channel.send([_short_answer(call, pieces, size)])
            self._answers.append((self._channel.queued, size))
            return
        stream.answer = length_prefixed(pieces)
        stream.head = _frame(_HEADERS, _END_HEADERS, call, _RESPONSE)
        self._answering[call] = stream
        self._pump((call,))

    def refuse(self, call: int, problem: CallRefused) -> None:
        """Ends a call with a status; does nothing if the call is over."""
        stream = self._streams.get(call)
        if stream is not None and stream.answer is None:
            self._drop(call, stream)
            reason = quote(_truncate(str(problem), 4 * MOST_SHOWN), safe=" ,:;()'@")
            status = str(STATUSES[problem.status]), reason
            headers = b"".join(map(write_header, ("grpc-status", "grpc-message"), status))
            self._reply(_frame(_HEADERS, _END_HEADERS | _END_STREAM, call, _RESPONSE + headers))

    def _pump(self, numbers: Sequence[int] | None = None) -> None:
        """Sends as much of all answers, or of those of some streams, as the client takes."""
        pieces: list[Bytes] = []
        ended: list[int] = []
        crumbs = 0
        for number in list(self._answering) if numbers is None else numbers:
            stream = self._answering[number]
            assert stream.answer is not None
            self._work -= 1
            if stream.head:
                pieces.append(stream.head)
                stream.head = b""
            while stream.answer and (room := min(self._window, stream.window, self._frame_limit)) > 0:
                size, taken = _take(stream.answer, room)
                pieces += [_frame(_DATA, 0, number, size=size), *taken]
                self._window -= size
                stream.window -= size
                if size < _CRUMB and stream.answer:
                    crumbs += 1
            if not stream.answer:
                pieces.append(_frame(_HEADERS, _END_HEADERS | _END_STREAM, number, _DONE))
                del self._streams[number], self._answering[number]
                ended.append(stream.size)
        if pieces:
            self._channel.send(pieces)
            self._answers.extend((self._channel.queued, size) for size in ended)
            if crumbs:
                self._crumbs.extend([self._channel.queued] * crumbs)
                if self._unread(self._crumbs) > MOST_CRUMBS:
                    self._fail("the client asks for its answers in small pieces, and does not read them")


def _take(queue: deque[memoryview], room: int) -> tuple[int, list[memoryview]]:
    """Takes up to `room` bytes out of a queue; returns their number and the pieces."""
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


def _truncate(text: str, most: int = MOST_SHOWN) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
