"""TLS in memory: what is said arrives, whatever the socket takes at once, and with few calls of the system."""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pstranspile.cluster.net.tls import Guard, read_credentials

FILES = str(Path(__file__).parents[2] / "data" / "tls")


class Counting:
    """A socket that counts the calls that get something through, and takes at most so many bytes at once."""

    def __init__(self, sock: socket.socket, most: int = 1 << 30):
        self.sock, self.most, self.calls = sock, most, 0

    def send(self, data: Any) -> int:
        size = self.sock.send(data[: self.most])
        self.calls += 1
        return size

    def recv_into(self, room: Any) -> int:
        size = self.sock.recv_into(room)
        self.calls += 1
        return size


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    for sock in pair:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    yield pair
    for sock in pair:
        sock.close()


def guards(one: Any, other: Any) -> tuple[Guard, Guard]:
    """Two sides that have shaken hands."""
    credentials = read_credentials(FILES)
    calling = Guard(one, credentials.calling, server=False, name="127.0.0.1")
    listening = Guard(other, credentials.listening, server=True, name="")
    done: set[Guard] = set()
    while len(done) < 2:
        for side in (calling, listening):
            try:
                side.shake_hands()
            except (BlockingIOError, ssl.SSLWantReadError):
                continue
            done.add(side)
    return calling, listening


def pumped(out: deque[memoryview], source: Guard, target: Guard) -> bytes:
    """What comes out on the other side until nothing is left to send."""
    room, came = memoryview(bytearray(1 << 20)), b""
    while out or source.unsent or target.pending:
        with suppress(BlockingIOError):
            source.write(out)
        with suppress(BlockingIOError):
            while size := target.read(room):
                came += bytes(room[:size])
    return came


@pytest.mark.parametrize("most", [1 << 30, 1000])
def test_what_is_said_arrives(most: int, sockets: tuple[socket.socket, socket.socket]) -> None:
    calling, listening = guards(Counting(sockets[0], most), Counting(sockets[1], most))
    pieces = [bytes([place % 251]) * size for place, size in enumerate((1, 44, 0, 16384, 100_000, 1_000_003))]
    out = deque(memoryview(piece) for piece in pieces if piece)
    assert pumped(out, calling, listening) == b"".join(pieces)
    assert pumped(deque([memoryview(b"back")]), listening, calling) == b"back"


def test_many_records_take_few_calls(sockets: tuple[socket.socket, socket.socket]) -> None:
    """A header and a megabyte are 65 records."""
    one, other = Counting(sockets[0]), Counting(sockets[1])
    calling, listening = guards(one, other)
    one.calls = other.calls = 0
    pumped(deque([memoryview(bytes(44)), memoryview(bytes(1 << 20))]), calling, listening)
    assert one.calls <= 20
    assert other.calls <= 20


def test_one_call_reads_many_records(sockets: tuple[socket.socket, socket.socket]) -> None:
    calling, listening = guards(*sockets)
    calling.write(deque([memoryview(bytes(60_000))]))
    assert listening.read(memoryview(bytearray(1 << 20))) > 1 << 14


def test_small_pieces_share_a_record(sockets: tuple[socket.socket, socket.socket]) -> None:
    calling, _ = guards(*sockets)
    sealing = 22  # what a record of TLS 1.3 adds
    calling.write(deque([memoryview(bytes(44)), memoryview(bytes(100)), memoryview(bytes(200))]))
    assert len(sockets[1].recv(1 << 16)) == 344 + sealing


def test_the_end_is_noticed(sockets: tuple[socket.socket, socket.socket]) -> None:
    calling, listening = guards(*sockets)
    pumped(deque([memoryview(b"x")]), calling, listening)
    sockets[0].shutdown(socket.SHUT_WR)
    assert listening.read(memoryview(bytearray(10))) == 0
