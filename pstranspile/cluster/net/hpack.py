"""How HTTP/2 writes headers (RFC 7541): a client's headers are read; a server's answers need no table.

A connection has one table of earlier headers, so every block must be read, in order.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import NamedTuple

from pstranspile.cluster.net.values import Bytes, WireError

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

MOST_TABLE, ENTRY = 4096, 32
"""The most bytes of the table of a connection, and the bytes of an entry without its name and value."""

MOST_HEADERS = 1 << 14
"""The most bytes of a block of headers, as it comes and as it is counted when it is read: `ENTRY` for each header and
the bytes of its name and value. A short block may name one long header of the table very often.
"""

MOST_RESIZED = 2
"""How often a block may change the size of the table (RFC 7541, 4.2)."""

Header = tuple[bytes, bytes]


class _Codes(NamedTuple):
    """The Huffman codes, as a machine that takes four bits at a time.

    Its places are those of the tree of codes. `steps` gives, at `place << 4 | bits`, the next place and the byte that
    is complete (-1: none, 256: the end of a text); every code has at least five bits, so four complete one at most.
    `ends` are the places at which a text may end: up to seven ones after a whole code.
    """

    steps: list[tuple[int, int]]
    ends: frozenset[int]


@cache
def _codes() -> _Codes:
    tree: list[list[int]] = [[0, 0]]
    """The two branches of each place: another place, or -1 - byte."""
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
    """The text that a Huffman code stands for. Raises WireError."""
    (steps, ends), text, place = _codes(), bytearray(), 0
    try:
        for byte in data:
            place, done = steps[place << 4 | byte >> 4]
            if done >= 0:
                text.append(done)
            place, done = steps[place << 4 | byte & 15]
            if done >= 0:
                text.append(done)
    except ValueError:  # 256
        raise WireError("a header holds the end of a text") from None
    if place not in ends:
        raise WireError("a header ends within a code")
    return bytes(text)


class HeaderReader:
    """Reads the blocks of headers of a connection."""

    def __init__(self) -> None:
        self._table: deque[Header] = deque()
        self._size = 0
        self._most = MOST_TABLE
        self._data: Bytes = b""
        self._at = 0

    def read(self, data: Bytes) -> list[Header]:
        """The headers of a block, in order. Raises WireError; the connection then has to end."""
        self._data, self._at = data, 0
        end = len(data)
        size = resized = 0
        headers: list[Header] = []
        while self._at < end:
            first = data[self._at]
            if first & 0xE0 == 0x20:
                resized += 1
                if headers or resized > MOST_RESIZED:
                    raise WireError("a block of headers changes the size of its table where it can't")
                self._resize(self._number(5))
                continue
            if 0x80 < first < 0xFF:  # a header by a number of one byte, as most are
                self._at += 1
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
        """A number whose first bits are the last ones of a byte."""
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
        if self._at >= len(self._data):
            raise WireError("a block of headers ends too early")
        self._at += 1
        return self._data[self._at - 1]

    def _text(self) -> bytes:
        if self._at >= len(self._data):
            raise WireError("a block of headers ends too early")
        coded = self._data[self._at] & 0x80
        size = self._number(7)
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise WireError("a text in a header is longer than its block")
        data = bytes(self._data[start : self._at])
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
        self._table.appendleft(header)
        self._size += len(header[0]) + len(header[1]) + ENTRY
        self._shrink()

    def _resize(self, size: int) -> None:
        if size > MOST_TABLE:
            raise WireError(f"a table of {size} bytes of headers is too large")
        self._most = size
        self._shrink()

    def _shrink(self) -> None:
        while self._size > self._most:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + ENTRY


def write_header(name: str, value: str) -> bytes:
    """A header that is kept in no table."""
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
