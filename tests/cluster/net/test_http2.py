"""Calls of gRPC as bytes: headers in every form, requests in pieces, and answers that wait for the client."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from pstranspile.cluster.net.http2 import PREFACE, Caller, CallRefused, CallService, HeaderReader, Http2, write_header
from pstranspile.cluster.net.wire import Bytes, WireError

DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
BLOCK = b"\x83\x86\x44\x06/s/say"


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [  # the examples of RFC 7541, C.3 and C.4
        (["828684410f7777772e6578616d706c652e636f6d", "828684be58086e6f2d6361636865"], "no-cache"),
        (["828684418cf1e3c2e5f23a6ba0ab90f4ff", "828684be5886a8eb10649cbf"], "no-cache"),
    ],
)
def test_headers_are_read_with_and_without_codes(blocks: list[str], expected: str) -> None:
    reader = HeaderReader()
    first, second = (reader.read(bytes.fromhex(block)) for block in blocks)
    assert dict(first)[b":authority"] == b"www.example.com"
    assert second[3:] == [(b":authority", b"www.example.com"), (b"cache-control", expected.encode())]


@pytest.mark.parametrize("block", ["ff", "c0", "80", "3fe11f02", "0a", "00850000000000", "4003ff"])
def test_what_is_no_block_of_headers(block: str) -> None:
    with pytest.raises(WireError):
        HeaderReader().read(bytes.fromhex(block))


def test_a_long_header_is_read_as_it_was_written() -> None:
    for size in (0, 126, 127, 128, 300, 16_000):
        assert HeaderReader().read(write_header("grpc-message", "x" * size)) == [(b"grpc-message", b"x" * size)]


class Line:
    """Stands for a channel: keeps what is sent."""

    def __init__(self) -> None:
        self.address, self.unsent, self.sent, self.closed = "client", 0, b"", False
        self.times = self.queued = 0
        self.reads = True
        self.reasons: list[str] = []

    def send(self, pieces: list[Bytes]) -> None:
        self.times += 1
        self.sent += b"".join(pieces)
        self.queued += len(pieces)
        self.unsent += 0 if self.reads else len(pieces)

    def refuse(self, reason: str) -> None:
        self.closed = True
        self.reasons.append(reason)


class End:
    """The server's end of a connection, with a method that answers later."""

    def __init__(self) -> None:
        self.line, self.calls, self.lost = Line(), list[tuple[Caller, int, bytes]](), list[int]()
        methods = {"say": lambda caller, call, data: self.calls.append((caller, call, bytes(data)))}
        service = CallService("s", methods, 4, lambda _caller, call: self.lost.append(call))
        channel: Any = self.line
        self.http = Http2(channel, service)
        self.take()
        self.say(PREFACE + frame(SETTINGS))
        assert self.take() == [(SETTINGS, 1, 0, b"")]

    def say(self, data: bytes) -> None:
        for byte in range(0, len(data), 7):
            piece = data[byte : byte + 7]
            self.http.room()[: len(piece)] = piece
            self.http.receive(len(piece))

    def take(self) -> list[tuple[int, int, int, bytes]]:
        """The frames that were sent: kind, flags, stream and bytes."""
        data, self.line.sent = self.line.sent, b""
        frames: list[tuple[int, int, int, bytes]] = []
        while data:
            size = int.from_bytes(data[:3], "big")
            kind, flags, stream = struct.unpack_from(">BBI", data, 3)
            frames.append((kind, flags, stream, data[9 : 9 + size]))
            data = data[9 + size :]
        return frames


def frame(kind: int, flags: int = 0, stream: int = 0, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + struct.pack(">BBI", kind, flags, stream) + data


def message(data: bytes) -> bytes:
    return struct.pack(">BI", 0, len(data)) + data


def test_a_call_in_pieces_is_one_call() -> None:
    end = End()
    padded = b"\x03" + message(b"hello")[:6] + bytes(3)
    end.say(frame(HEADERS, 0, 1, BLOCK[:4]) + frame(CONTINUATION, 0x4, 1, BLOCK[4:]) + frame(DATA, 0x8, 1, padded))
    assert not end.calls
    end.say(frame(DATA, 0x1, 1, message(b"hello")[6:]))
    ((caller, call, data),) = end.calls
    assert (call, data) == (1, b"hello")
    caller.answer(call, [b"good", b"bye"])
    caller.answer(call, [b"again"])  # it is over
    head, body, trailer = end.take()
    assert body == (DATA, 0, 1, message(b"goodbye"))
    assert dict(HeaderReader().read(head[3])) == {b":status": b"200", b"content-type": b"application/grpc"}
    assert (trailer[1], HeaderReader().read(trailer[3])) == (0x5, [(b"grpc-status", b"0")])


def test_an_answer_takes_one_call_of_the_system() -> None:
    end = End()
    end.say(frame(HEADERS, 0x4, 1, BLOCK) + frame(DATA, 0x1, 1, message(b"")))
    before, queued = end.line.times, end.line.queued
    end.calls[0][0].answer(1, [b"good", b"bye"])
    assert [kind for kind, *_ in end.take()] == [HEADERS, DATA, HEADERS]
    assert (end.line.times, end.line.queued) == (before + 1, queued + 1)


def test_an_answer_in_one_piece_uses_up_the_window() -> None:
    """After answers of 9000 bytes, the windows at the beginning (65,535 bytes) take 2,500 bytes of the eighth."""
    end = End()
    for call in range(1, 17, 2):
        end.say(frame(HEADERS, 0x4, call, BLOCK) + frame(DATA, 0x1, call, message(b"")))
        end.calls[-1][0].answer(call, [bytes(9000)])
    frames = end.take()
    assert [len(data) for kind, _, _, data in frames if kind == DATA] == [9005] * 7 + [2500]
    assert frames[-1][:3] == (DATA, 0, 15)  # which is not at its end
    end.say(frame(WINDOW, 0, 0, (1 << 20).to_bytes(4, "big")))
    assert next((kind, len(data)) for kind, _, _, data in end.take()) == (DATA, 9005 - 2500)


def test_an_answer_waits_for_the_client() -> None:
    end = End()
    end.say(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 10)))
    end.say(frame(HEADERS, 0x4, 1, BLOCK) + frame(DATA, 0x1, 1, message(b"")))
    end.take()
    end.calls[0][0].answer(1, [bytes(range(20)), b"end"])
    assert [(kind, len(data)) for kind, _, _, data in end.take()][1:] == [(DATA, 10)]
    end.say(frame(WINDOW, 0, 1, struct.pack(">I", 8)))
    assert end.take() == [(DATA, 0, 1, bytes(range(5, 13)))]
    end.say(frame(WINDOW, 0, 1, struct.pack(">I", 100)))
    assert next((kind, data[-3:]) for kind, _, _, data in end.take()) == (DATA, b"end")


def test_what_a_call_is_refused_for() -> None:
    end = End()
    end.say(frame(HEADERS, 0x4, 1, b"\x83\x86\x44\x08/s/other") + frame(DATA, 0x1, 1, message(b"")))
    end.say(frame(HEADERS, 0x4, 3, BLOCK) + frame(DATA, 0x1, 3, message(b"") + b"more"))
    end.say(frame(HEADERS, 0x5, 5, BLOCK))
    end.say(frame(HEADERS, 0x4, 7, BLOCK) + frame(DATA, 0x1, 7, message(b"")))
    end.calls[0][0].refuse(7, CallRefused("NOT_FOUND", "no\n such thing"))
    told = [dict(HeaderReader().read(data)) for _, _, _, data in end.take()]
    assert [fields[b"grpc-status"] for fields in told] == [b"12", b"13", b"13", b"5"]
    assert told[-1][b"grpc-message"] == b"no%0A such thing"


def test_a_caller_that_gives_up_is_lost() -> None:
    end = End()
    for stream in (1, 3):
        end.say(frame(HEADERS, 0x4, stream, BLOCK) + frame(DATA, 0x1, stream, message(b"")))
    end.say(frame(RESET, 0, 1, bytes(4)))
    assert end.lost == [1]
    end.http.connection_ended("the other side has ended it")
    assert end.lost == [1, 3]


@pytest.mark.parametrize(
    "data",
    [
        frame(HEADERS, 0x4, 2, BLOCK), frame(DATA, 0x1, 9, b""), frame(HEADERS, 0, 1, BLOCK) + frame(PING),
        frame(PING, 0, 0, b"123"), frame(SETTINGS, 0, 0, b"123"), frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 1)),
        frame(WINDOW, 0, 0, bytes(4)), frame(5, 0, 1, b""), frame(CONTINUATION, 0x4, 1, BLOCK),
        b"\xff\xff\xff" + bytes(6), frame(HEADERS, 0x4, 1, b"\xff"), frame(HEADERS, 0xC, 1, b"\x09"),
        frame(WINDOW, 0, 0, struct.pack(">I", 0x7FFFFFFF)),
    ],
)  # fmt: skip
def test_what_is_no_http2_ends_the_connection(data: bytes) -> None:
    end = End()
    end.say(data)
    assert end.line.closed
    assert end.take()[-1][0] == GO_AWAY


def test_more_calls_than_are_answered_at_once_are_put_off() -> None:
    end = End()
    end.say(b"".join(frame(HEADERS, 0x4, stream, BLOCK) for stream in range(1, 15, 2)))
    assert [(kind, stream) for kind, _, stream, _ in end.take()] == [(RESET, 11), (RESET, 13)]
    end.say(frame(PING, 0, 0, b"12345678"))
    assert end.take() == [(PING, 1, 0, b"12345678")]


def test_a_block_of_numbers_means_what_the_table_holds_when_it_comes():
    reader = HeaderReader()
    newest = b"\xbe"
    for value in (b"1", b"2", b"2", b"3"):
        reader.read(b"\x40\x01a\x01" + value)
        for _ in range(3):
            assert list(reader.read(newest)) == [(b"a", value)]
    reader.read(b"\x20")  # the table is emptied
    with pytest.raises(WireError, match="no header has the number 62"):
        reader.read(newest)
