"""What strangers, and peers that mean harm, can cost a process: turns, bytes, frames and time are bounded."""

from __future__ import annotations

import errno
import gc
import socket
import ssl
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstranspile.cluster.machines.cluster import names_sent_to
from pstranspile.cluster.net import http2, transport
from pstranspile.cluster.net import loop as sockets
from pstranspile.cluster.net.http2 import (
    FRAME_WORK,
    LARGE_CALL,
    MOST_CRUMBS,
    PREFACE,
    STRANGER_CALLS,
    STRANGER_FRAMES,
    STRANGER_TURN_WORK,
    TURN_WORK,
    CallService,
    Http2,
)
from pstranspile.cluster.net.loop import (
    FRAME,
    MOST_WRITTEN,
    STRANGER_BYTES,
    STRANGER_SECONDS,
    STRANGER_TURN,
    STRANGERS_SAVED,
    STRANGERS_SHARE,
    TURN,
    Event,
    Loop,
)
from pstranspile.cluster.net.status import AT_ONCE, RateLimitedPrinter
from pstranspile.cluster.net.tls import CHUNK, MOST_FRUITLESS, MOST_HANDSHAKE, Guard, read_credentials
from pstranspile.cluster.net.transport import (
    MOST_ACCEPTED,
    MOST_CALLERS,
    MOST_STRANGERS,
    PATIENCE,
    Dialer,
    Frames,
    Listener,
)
from pstranspile.cluster.net.wire import (
    HEADER_SIZE,
    HELLO,
    MESSAGES,
    MOST_GREETING,
    PROTOCOL,
    WELCOME,
    Header,
    WireError,
    frame,
    json_body,
)
from pstranspile.fluid.net.message import MOST_FIELDS, VariableMessage, most_brought, most_held, read_name, write_value
from tests.cluster.net.played import compiled
from tests.cluster.net.test_http2 import BLOCK, CONTINUATION, DATA, HEADERS, PING, RESET, SETTINGS, WINDOW, message
from tests.cluster.net.test_http2 import frame as http2_frame

FILES = str(Path(__file__).parents[2] / "data" / "tls")
SERVICE = CallService("s", {"say": lambda caller, call, data: caller.answer(call, [bytes(data)])}, 4)


class Clock:
    """A clock that goes on by itself a little, and otherwise when it is told to."""

    def __init__(self, step: float = 0.0):
        self.time, self.step = 100.0, step

    def __call__(self) -> float:
        self.time += self.step
        return self.time


class Port:
    """A port on which strangers come, whose loop has its turns when a test says so."""

    def __init__(self, context: Any = None, service: CallService = SERVICE, cpu: Any = lambda: 0.0):
        self.clock = Clock()
        self.loop = Loop(self.clock, cpu)
        self.lines: list[str] = []
        shown = None if context is None else lambda: context
        self.listener = Listener("127.0.0.1:0", self.loop, shown, service, self.lines.append)
        self.socks: list[socket.socket] = []
        self.events: list[Event] = []

    def connect(self, host: str = "127.0.0.1", *, let_in: bool = False) -> socket.socket:
        """A connection that does not block; `let_in`: of a known client of gRPC."""
        sock = socket.create_connection(("127.0.0.1", self.listener.port), source_address=(host, 0))
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socks.append(sock)
        if let_in:
            sock.sendall(PREFACE)
            self.turns(3)
            newest: Any = self.newcomers[-1].stranger
            newest.is_admitted = True
        return sock

    @property
    def newcomers(self) -> list[Any]:
        return self.listener._newcomers

    def turns(self, count: int = 1) -> None:
        for _ in range(count):
            self.loop._poll(0.05)
            while not self.loop.empty():
                event = self.loop.get(0.0)
                self.events.append(event)
                if event.action is not None:
                    event.action()

    def end(self) -> None:
        for sock in self.socks:
            sock.close()
        self.loop.close(0.0)


@pytest.fixture
def port() -> Iterator[Port]:
    found = Port()
    yield found
    found.end()


def pour(sock: socket.socket, data: bytes) -> bool:
    """Sends what the system takes; whether the other side is still there."""
    try:
        for _ in range(8):
            sock.send(data)
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True


def took(sock: socket.socket) -> bytes:
    """What has been answered so far."""
    found = b""
    with suppress(OSError):
        while part := sock.recv(1 << 16):
            found += part
    return found


def is_over(sock: socket.socket) -> bool:
    """Whether the other side has ended the connection."""
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def calls(path: bytes, first: int, count: int, then: int = 0) -> bytes:
    """Calls that bring nothing; `then` is a frame that follows each."""
    length = (
        bytes([len(path)]) if len(path) < 127 else bytes([127, (len(path) - 127) & 127 | 128, len(path) - 127 >> 7])
    )
    said = b""
    for stream in range(first, first + 2 * count, 2):
        block = b"\x83\x86\x04" + length + path
        said += http2_frame(HEADERS, 0x4 if then else 0x5, stream, block)
        said += http2_frame(then, 0, stream, bytes(4)) if then else b""
    return said


BEGUN = http2_frame(HEADERS, 0x4, 1, BLOCK)
LONG = b"\x00\x01x" + b"\xff\xe1\xff\x03" + b"\x18" * 65600  # coded text, in a block of 64 KiB
KEPT = b"\x40\x01x" + b"\x7f\xa1\x1e" + b"a" * 4000  # a header that stays in the table
FLOODS = {
    "settings": (b"", http2_frame(SETTINGS) * 500, f"more than {STRANGER_FRAMES} frames"),
    "pings": (b"", http2_frame(PING, 0, 0, bytes(8)) * 500, f"more than {STRANGER_FRAMES} frames"),
    "acknowledged pings": (b"", http2_frame(PING, 1, 0, bytes(8)) * 500, f"more than {STRANGER_FRAMES} frames"),
    "windows": (b"", http2_frame(WINDOW, 0, 0, b"\0\0\0\1") * 500, f"more than {STRANGER_FRAMES} frames"),
    "priorities": (b"", http2_frame(2, 0, 1, bytes(5)) * 500, f"more than {STRANGER_FRAMES} frames"),
    "unknown frames": (b"", http2_frame(99, 0, 1, bytes(5)) * 500, f"more than {STRANGER_FRAMES} frames"),
    "resets": (b"", http2_frame(RESET, 0, 1, bytes(4)) * 500, f"more than {STRANGER_FRAMES} frames"),
    "frames that go away": (b"", http2_frame(7, 0, 0, bytes(8)) * 500, f"more than {STRANGER_FRAMES} frames"),
    "empty data": (BEGUN, http2_frame(DATA, 0, 1) * 500, f"more than {STRANGER_FRAMES} frames"),
    "padding": (BEGUN, http2_frame(DATA, 8, 1, b"\xff" + bytes(255)) * 500, f"more than {STRANGER_FRAMES} frames"),
    "an endless body": (BEGUN, http2_frame(DATA, 0, 1, bytes(16384)), f"more than {STRANGER_BYTES} bytes"),
    "bodies": (calls(b"/s/say", 1, 8), http2_frame(DATA, 0, 1, bytes(16384)), f"more than {STRANGER_BYTES} bytes"),
    "refusals": (b"", calls(b"/" + b"x" * 4000, 1, 40), f"more than {STRANGER_CALLS} calls"),
    "calls given up": (b"", calls(b"/s/say", 1, 40, RESET), f"more than {STRANGER_CALLS} calls"),
    "a long block": (b"", http2_frame(HEADERS, 0x4, 1, LONG), "is too long"),
    "a long block begun": (b"", struct.pack(">I", 1 << 16)[1:] + b"\1\4\0\0\0\1", "is too long"),
    "continuations": (http2_frame(HEADERS, 0, 1, b"\x83"), http2_frame(CONTINUATION, 0, 1) * 90, "64 frames"),
    "long continuations": (
        http2_frame(HEADERS, 0, 1, b"\x83"), http2_frame(CONTINUATION, 0, 1, bytes(9000)), "16384 bytes of headers",
    ),
    "a header named often": (
        http2_frame(HEADERS, 0x4, 1, BLOCK + KEPT), http2_frame(HEADERS, 0x4, 3, b"\xbe" * 16000),
        "16384 bytes of headers",
    ),
    "tables": (b"", http2_frame(HEADERS, 0x4, 1, b"\x3f\xe1\x1f\x20" * 4000), "changes the size of its table"),
    "many settings": (b"", http2_frame(SETTINGS, 0, 0, b"\0\4\0\0\0\1" * 2700), "settings in a frame"),
    "no frames": (b"", b"\xff" * 5000, "is too long"),
}  # fmt: skip
"""What a stranger says first, what it says over and over, and the reason why it is closed."""


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_ends_the_connection_and_costs_little(flood: str, port: Port) -> None:
    first, again, reason = FLOODS[flood]
    sock, other = port.connect(), port.connect(let_in=True)
    address = "{}:{}".format(*sock.getsockname())
    took(other)
    tracemalloc.start()
    sock.sendall(PREFACE + first)
    turns = 0
    while not port.lines and turns < 2000:
        pour(sock, again)
        other.sendall(http2_frame(PING, 0, 0, b"12345678"))
        port.turns()
        turns += 1
        assert http2_frame(PING, 1, 0, b"12345678") in took(other)  # whoever is known has its turn in each
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    (line,) = port.lines
    assert line.startswith(f"the connection with {address} is closed: ")
    assert reason in line
    assert peak < 6 << 20
    for _ in range(200):  # what comes then is dropped, up to a point
        if not pour(sock, again):
            break
        port.turns()
    assert is_over(sock)


def test_a_turn_of_a_stranger_takes_few_frames_and_bytes(port: Port) -> None:
    sock = port.connect()
    sock.sendall(PREFACE + http2_frame(99) * 900)
    port.turns(2)
    http: Any = port.newcomers[0].stranger
    counts = [http._frames]
    while http._frames < 900:
        port.turns()
        counts.append(http._frames)
    assert max(b - a for a, b in pairwise(counts)) <= STRANGER_TURN_WORK // FRAME_WORK
    sock.sendall(BEGUN + http2_frame(DATA, 0, 1, bytes(1 << 18)))
    before = http._received_bytes
    port.turns()
    assert 0 < http._received_bytes - before <= STRANGER_TURN


@pytest.mark.parametrize(
    "flood", ["settings", "pings", "windows", "priorities", "unknown frames", "empty data", "resets", "calls given up"]
)
def test_a_known_client_has_turns_of_bounded_work(flood: str, port: Port) -> None:
    """Also if it never stops, and reads all answers: others have theirs, and so has the clock."""
    first, again, _ = FLOODS[flood]
    sock, other = port.connect(let_in=True), port.connect(let_in=True)
    http: Any = port.newcomers[0].stranger
    took(other)
    sock.sendall(first)
    looked: list[float] = []
    port.listener.look = looked.append
    for _ in range(20):
        pour(sock, again)
        took(sock)
        other.sendall(http2_frame(PING, 0, 0, b"12345678"))
        port.clock.time += 0.6
        port.turns()
        assert http._work >= -2 * STRANGER_TURN_WORK  # what one frame may cost beyond
        assert http2_frame(PING, 1, 0, b"12345678") in took(other)
    assert len(looked) == 20


def test_bytes_of_a_known_peer_leave_others_their_turns(port: Port) -> None:
    sock = port.connect(let_in=True)
    http: Any = port.newcomers[0].stranger
    taken = 0

    def came(size: int) -> bool:
        nonlocal taken
        taken += size
        return False

    class Endless:
        """A socket that always has more."""

        def recv_into(self, room: memoryview) -> int:
            return len(room)

    real, port.newcomers[0].channel._sock = port.newcomers[0].channel._sock, Endless()
    http.receive = came
    assert port.newcomers[0].channel._read() == ""
    assert taken <= TURN
    http.is_admitted, taken = False, 0
    assert port.newcomers[0].channel._read() == ""
    assert taken <= STRANGER_TURN
    port.newcomers[0].channel._sock = real
    sock.close()


@pytest.mark.parametrize("said", [b"", PREFACE, PREFACE + BEGUN, b"PST", b"PSTW" + bytes(9)])
def test_patience_ends(said: bytes, port: Port) -> None:
    """Also for one that says a little all the time."""
    sock = port.connect()
    sock.sendall(said)
    port.turns(3)
    for _ in range(int(2 * PATIENCE) + 2):
        if said.startswith(PREFACE):
            with suppress(OSError):
                sock.send(http2_frame(PING, 0, 0, bytes(8)))
        port.clock.time += 0.6
        port.turns()
    (line,) = port.lines
    assert line.endswith("it was not let in for 10 seconds")
    for _ in range(6):
        port.clock.time += 0.6
        port.turns()
    assert is_over(sock)


def test_strangers_share_a_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is used up they wait; who is known does not."""
    monkeypatch.setattr(sockets, "STRANGER_SECONDS", 60.0)
    clock = Clock(step=0.1)  # of the processor: each turn costs a tenth of a second
    port = Port(cpu=clock)
    sock, other = port.connect(), port.connect(let_in=True)
    took(other)
    sock.sendall(PREFACE)
    port.turns(3)
    http: Any = port.newcomers[0].stranger
    waited = 0
    for _ in range(12):
        frames = http._frames
        pour(sock, http2_frame(99))
        other.sendall(http2_frame(PING, 0, 0, b"12345678"))
        port.turns()
        assert http2_frame(PING, 1, 0, b"12345678") in took(other)
        waited += http._frames == frames
    assert waited > 5
    assert port.loop._stranger_seconds < 0
    port.clock.time += (STRANGERS_SAVED - port.loop._stranger_seconds) / STRANGERS_SHARE
    frames = http._frames
    port.turns(2)
    assert http._frames > frames
    port.end()


def test_a_stranger_may_cost_half_a_second() -> None:
    clock = Clock(step=0.1)
    port = Port(cpu=clock)
    sock = port.connect()
    sock.sendall(PREFACE)
    for _ in range(30):
        pour(sock, http2_frame(99))
        port.clock.time += 1.0
        port.listener.look = lambda now: None
        port.turns()
    assert port.lines
    assert port.lines[0].endswith(f"a stranger costs more than {STRANGER_SECONDS:g} seconds of processor time")
    port.end()


def test_a_waiting_socket_can_be_closed_or_be_let_in() -> None:
    port = Port()
    first, second = port.connect(), port.connect()
    first.sendall(PREFACE)
    second.sendall(PREFACE)
    port.turns(3)
    took(second)
    port.loop._stranger_seconds = -1.0
    port.turns()
    assert len(port.loop._waiting_sockets) == 3  # the port, too
    port.newcomers[1].stranger.is_admitted = True
    second.sendall(http2_frame(PING, 0, 0, b"12345678"))
    port.newcomers[0].channel.abandon()
    port.turns(2)
    assert http2_frame(PING, 1, 0, b"12345678") in took(second)
    assert len(port.loop._waiting_sockets) == 1
    port.end()


def test_silent_strangers_push_out_nobody_who_speaks(port: Port) -> None:
    speaks = port.connect()
    speaks.sendall(PREFACE)
    port.turns(2)
    for _ in range(4 * MOST_STRANGERS):
        port.connect()
        port.turns()
    assert not is_over(speaks)
    assert sum(one.channel.open for one in port.newcomers) <= MOST_STRANGERS


def test_one_host_pushes_out_its_own_strangers(port: Port) -> None:
    silent = port.connect("127.0.0.2")
    for _ in range(2 * MOST_STRANGERS):
        port.connect("127.0.0.3").sendall(PREFACE)
        port.turns(2)
    assert not is_over(silent)


def test_what_a_newcomer_has_said_is_looked_at_before_others_come(port: Port) -> None:
    """A greeting that comes with its connection is never pushed out, however many others wait."""
    greeting = b"".join(frame(Header(HELLO, 0, 0, 0), json_body({"token": "token"})))
    for _ in range(3 * MOST_ACCEPTED):
        port.connect()
    port.connect().sendall(greeting)
    for _ in range(3 * MOST_ACCEPTED):
        port.connect()
    port.turns(12)
    assert [event.kind for event in port.events if event.kind == FRAME] == [FRAME]


def test_known_clients_of_grpc_are_few_for_each_trainer(port: Port) -> None:
    """Nothing tells a trainer of Fluid from a stranger who knows the job; one that waits for an answer stays."""
    service = SERVICE._replace(methods={"say": lambda caller, call, data: None})
    port.listener.service = service
    waits = port.connect(let_in=True)
    waits.sendall(BEGUN + http2_frame(DATA, 0x1, 1, message(b"")))
    port.turns(2)
    idle = [port.connect(let_in=True) for _ in range(MOST_CALLERS + 4)]
    port.connect()
    port.turns(3)
    assert not is_over(waits)
    assert [is_over(sock) for sock in idle[:6]] == [True] * 5 + [False]


def test_known_clients_with_calls_that_never_end_are_few_as_well(port: Port) -> None:
    """First go those on which nothing moves, then the newest; who has come early and still brings something stays."""
    early = port.connect(let_in=True)
    early.sendall(BEGUN)
    port.turns(2)
    stalled = [port.connect(let_in=True) for _ in range(MOST_CALLERS)]
    for sock in stalled:
        sock.sendall(BEGUN)
    for _ in range(3):
        port.clock.time += 0.6
        early.sendall(http2_frame(DATA, 0, 1, b"more"))
        port.turns(2)
    for _ in range(2 * MOST_CALLERS):
        port.connect(let_in=True).sendall(BEGUN)
        port.turns(2)
    port.connect()
    port.turns(3)
    assert len(port.listener._callers) - sum(one.closed for one in port.listener._callers) == MOST_CALLERS
    assert not is_over(early)
    assert all(map(is_over, stalled))


def test_unfinished_calls_of_all_connections_are_counted(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MOST_BODIES", 50_000)
    large, small = port.connect(let_in=True), port.connect(let_in=True)
    large.sendall(BEGUN + http2_frame(DATA, 0, 1, bytes(40_000)))
    small.sendall(BEGUN + http2_frame(DATA, 0, 1, bytes(20_000)))
    port.turns(8)
    port.clock.time += 0.6
    port.turns(2)
    port.clock.time += 0.6
    port.turns(2)  # what is being closed does not count any more
    assert is_over(large)
    assert not is_over(small)
    assert "its own the most" in port.lines[0]


def test_an_announced_frame_takes_memory_when_it_comes() -> None:
    """A header of 48 bytes announces much."""
    this, other = socket.socketpair()
    loop = Loop()
    sockets.tune(this)
    frames = Frames(loop, "peer", is_admitted=True)
    frames.channel = sockets.Channel(loop, this, "peer", frames)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    fields = struct.pack("<4sBBHQQQQI", b"PSTW", PROTOCOL, MESSAGES, 0, 1, 0, 0, 1 << 30, 0)
    other.sendall(fields + struct.pack("<I", zlib.crc32(fields)) + bytes(1 << 14))
    loop._poll(0.1)
    loop._poll(0.1)
    assert resident() - before < 1 << 28
    assert frames._position == HEADER_SIZE + (1 << 14)
    other.close()
    loop.close(0.0)


@pytest.mark.parametrize("kind", [HELLO, WELCOME, 3, 5, 6, 7, 8])
def test_only_messages_are_large(kind: int) -> None:
    loop: Any = SimpleNamespace(put=lambda event: events.append(event))
    events: list[Event] = []
    frames = Frames(loop, "peer", is_admitted=True)
    fields = struct.pack("<4sBBHQQQQI", b"PSTW", PROTOCOL, kind, 0, 0, 0, 0, MOST_GREETING + 1, 0)
    frames.room()[:] = fields + struct.pack("<I", zlib.crc32(fields))
    frames.receive(HEADER_SIZE)
    assert [event.reason for event in events] == ["a frame of 1048625 bytes that brings no messages is too long"]


def test_tls_that_brings_nothing_ends_the_connection() -> None:
    """Such as changes of keys without end, while others wait for their turns."""
    context = read_credentials(FILES).listening
    received = 0

    class Endless:
        """A socket from which something always comes."""

        def recv_into(self, room: memoryview) -> int:
            nonlocal received
            received += 1000
            return 1000

    found: Any = Guard(Endless(), context, True, "")
    found._incoming = SimpleNamespace(write=lambda data: None, pending=0)

    def read(*_: Any) -> int:
        raise ssl.SSLWantReadError

    found._side = SimpleNamespace(read=read, pending=lambda: 0)
    with pytest.raises(WireError, match="bytes of TLS bring nothing"):
        found.read(memoryview(bytearray(100)))
    assert received < 2 * MOST_FRUITLESS


def test_whoever_is_called_says_no_more_than_a_greeting_at_first(port: Port) -> None:
    """Somebody else may listen where a server should."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        dialer = Dialer(f"127.0.0.1:{impostor.getsockname()[1]}", port.loop)
        frames = dialer.dial()
        sock, _ = impostor.accept()
        sock.sendall(frame(Header(WELCOME, 0, 0, 0), bytes(STRANGER_BYTES + 1))[0] + bytes(100))
        port.turns(4)
        assert port.events[-1].reason == "a stranger says more than a greeting"
        assert frames.channel is not None
        assert frames.channel.closed
        sock.close()
        dialer.close()


def test_connections_that_are_being_closed_count_as_well(port: Port) -> None:
    """They linger, so that the other side reads why; the first to go are these."""
    for _ in range(3 * MOST_STRANGERS):
        port.connect().sendall(PREFACE + b"\xff" * 9)
        port.turns(2)
    assert sum(one.channel.open for one in port.newcomers) <= MOST_STRANGERS


def test_without_descriptors_a_port_rests(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = port.connect()
    port.turns(2)
    tries = 0

    class Full:
        """A listening socket of a process that can open no more files."""

        def accept(self) -> Any:
            nonlocal tries
            tries += 1
            raise OSError(errno.EMFILE, "Too many open files")

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    real = port.listener._sock
    monkeypatch.setattr(port.listener, "_sock", Full())
    port.connect()
    port.turns(5)
    assert tries == 1
    assert is_over(stranger)
    assert port.lines[0].startswith("nobody can connect: Too many open files; `ulimit -n`")
    monkeypatch.undo()
    port.clock.time += 0.6
    port.turns(3)
    assert len(port.newcomers) == 1


def test_lines_about_strangers_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    port = Port()
    port.listener.tell = RateLimitedPrinter("pserver_0", port.clock)
    for _ in range(AT_ONCE + 5):
        port.connect().sendall(b"\x1b[2J")
        port.turns(3)
    port.end()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == AT_ONCE
    assert all(": the first bytes are of no protocol that is spoken here" in line for line in lines)


# frames of the project's own


@pytest.mark.parametrize("size", [STRANGER_BYTES, 1 << 35])
def test_a_greeting_is_small(size: int, port: Port) -> None:
    sock = port.connect()
    tracemalloc.start()
    sock.sendall(frame(Header(HELLO, 0, 0, 0), b"")[0][:32] + struct.pack("<QI", size, 0) + bytes(4))
    port.turns(3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert is_over(sock) or port.events[-1].kind == FRAME


def test_zero_length_frames_of_a_stranger_end_the_connection(port: Port) -> None:
    sock = port.connect()
    sock.sendall(b"".join(frame(Header(HELLO, 0, 0, 0), b"")) * 100)
    port.turns(5)
    assert [event.kind for event in port.events] == [FRAME, "closed"]
    assert port.lines[0].endswith("a stranger says more than a greeting")
    assert is_over(sock)


def test_no_memory_for_a_frame_ends_its_connection(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Frames(port.loop, "there", is_admitted=True)
    head = b"".join(frame(Header(HELLO, 0, 0, 0), bytes(9)))[:HEADER_SIZE]

    def none(_size: int) -> bytearray:
        raise MemoryError

    reading.room()[:] = head
    monkeypatch.setattr(transport, "bytearray", none, raising=False)
    assert reading.receive(HEADER_SIZE)
    assert port.loop.get(0.0).reason == f"there is no memory for a frame of {HEADER_SIZE + 9} bytes"


def test_frames_that_a_peer_does_not_read_are_not_kept_for_ever(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MOST_UNREAD", 100)
    sock = port.connect()
    sock.sendall(b"".join(frame(Header(HELLO, 0, 0, 0), b"{}")))
    port.turns(3)
    peer: Any = port.newcomers[0].stranger
    peer.is_admitted = True
    for _ in range(1000):
        peer.send(Header(HELLO, 0, 0, 0), bytes(1 << 16))
        if peer.channel.unsent > 102:
            break
    assert peer.channel.unsent <= 103
    port.turns()
    assert not peer.channel.open
    assert port.lines == [f"the connection with {peer.address} is closed: more than 100 pieces of frames were not read"]


# TLS


@pytest.fixture
def guarded() -> Iterator[Port]:
    found = Port(read_credentials(FILES).listening)
    yield found
    found.end()


HELLO_BEGUN = b"\x16\x03\x01\x40\x00\x01\x00\xff\xff"  # a ClientHello of 64 KiB, the first record of 16


@pytest.mark.parametrize(
    "said", [b"\xff" * 4096, PREFACE, HELLO_BEGUN + b"\x03\x03" + bytes(1 << 17), b"\x17\x03\x03\0\0"]
)
def test_what_is_no_handshake_ends_the_connection(said: bytes, guarded: Port) -> None:
    sock = guarded.connect()
    for _ in range(40):
        if not pour(sock, said):
            break
        guarded.turns()
    assert is_over(sock)


@pytest.mark.parametrize("said", [b"", b"\x16", HELLO_BEGUN])
def test_a_slow_handshake_ends(said: bytes, guarded: Port) -> None:
    sock = guarded.connect()
    sock.sendall(said)
    for _ in range(20):
        guarded.clock.time += 0.6
        guarded.turns()
    assert is_over(sock)
    assert guarded.lines[0].endswith("it was not let in for 10 seconds")


def test_a_handshake_has_few_bytes() -> None:
    """Whatever OpenSSL would take."""
    one, other = socket.socketpair()
    one.setblocking(False)
    guard = Guard(other, read_credentials(FILES).listening, server=True, name="")

    class Patient:
        def do_handshake(self) -> None:
            raise ssl.SSLWantReadError

    side: Any = guard
    side._side = Patient()
    other.setblocking(False)
    for _ in range(MOST_HANDSHAKE >> 14):
        one.sendall(bytes(1 << 14))
        with pytest.raises(BlockingIOError):
            guard.shake_hands()
    one.sendall(b"\0")
    with pytest.raises(WireError, match="a handshake has more than"):
        guard.shake_hands()
    one.close()
    other.close()


def test_nobody_negotiates_again() -> None:
    credentials = read_credentials(FILES)
    assert credentials.listening.options & ssl.OP_NO_RENEGOTIATION
    assert credentials.calling.options & ssl.OP_NO_RENEGOTIATION


# calls that bring much, and answers that are not read


class Line:
    """Stands for a channel whose other side reads nothing."""

    def __init__(self) -> None:
        self.address, self.sent, self.queued, self.unsent = "client", b"", 0, 0
        self.reasons: list[str] = []

    def send(self, pieces: list[Any]) -> None:
        self.sent += b"".join(pieces)
        self.queued += len(pieces)
        self.unsent += len(pieces)

    def refuse(self, reason: str) -> None:
        self.reasons.append(reason)


def end(service: CallService, *, known: bool, lends: bool = True) -> tuple[Http2, Line]:
    line: Any = Line()
    http = Http2(line, service, lambda: lends)
    http.is_admitted = known
    say(http, PREFACE)
    line.sent = b""
    return http, line


def say(http: Http2, data: bytes) -> None:
    for at in range(0, len(data), 1 << 16):
        piece = data[at : at + (1 << 16)]
        http.room()[: len(piece)] = piece
        http.receive(len(piece))
        while http.waiting:
            http.go_on()


def test_refusals_and_pings_that_are_not_read_are_few() -> None:
    for flood in (
        calls(b"/" + b"x" * 4000, 1, 500),
        http2_frame(PING, 0, 0, bytes(8)) * 500,
        http2_frame(SETTINGS) * 500,
    ):
        http, line = end(SERVICE, known=True)
        say(http, flood)
        assert line.reasons == ["the client does not read what it is answered"]
        assert len(line.sent) < 110 * 400  # the path is not repeated as a whole


def test_answers_that_are_not_read_count_as_open_calls() -> None:
    taken: list[int] = []
    service = CallService("s", {"say": lambda caller, call, data: (taken.append(call), caller.answer(call, [b"x"]))}, 4)
    http, line = end(service, known=True)
    for stream in range(1, 41, 2):
        say(http, http2_frame(HEADERS, 0x4, stream, BLOCK) + http2_frame(DATA, 0x1, stream, message(b"")))
    assert len(taken) == service.open_call_limit + 1
    line.unsent = 0  # all was read
    say(http, http2_frame(HEADERS, 0x4, 101, BLOCK) + http2_frame(DATA, 0x1, 101, message(b"")))
    assert taken[-1] == 101


def test_small_pieces_of_answers_that_are_not_read_are_few() -> None:
    """Each costs some hundred bytes; a client has as many as it likes, by windows of one byte."""
    service = CallService("s", {"say": lambda caller, call, data: caller.answer(call, [bytes(1 << 20)])}, 4)
    http, line = end(service, known=True)
    say(http, http2_frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0") + http2_frame(HEADERS, 0x4, 1, BLOCK))
    say(http, http2_frame(DATA, 0x1, 1, message(b"")))
    for _ in range(3):  # who reads may have as many
        say(http, http2_frame(WINDOW, 0, 1, b"\0\0\0\1") * 900)
        line.unsent = 0
    assert not line.reasons
    say(http, http2_frame(WINDOW, 0, 1, b"\0\0\0\1") * 5000)
    assert line.reasons == ["the client asks for its answers in small pieces, and does not read them"]
    assert line.unsent < 3 * MOST_CRUMBS


@pytest.mark.parametrize("reset", [False, True])
def test_answers_that_are_not_read_have_few_bytes(reset: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first byte of an answer, while it is not sent, keeps the whole answer, also of a call that is reset."""
    monkeypatch.setattr(http2, "MOST_HELD", 3 << 20)
    answer = {"say": lambda caller, call, data: caller.answer(call, [bytes(1 << 20)])}
    http, line = end(CallService("s", answer, 20, more_unread=lambda: 1 << 20), known=True)

    def call(number: int) -> None:
        say(http, http2_frame(HEADERS, 0x4, number, BLOCK) + http2_frame(DATA, 0x1, number, message(b"")))
        if reset:
            say(http, http2_frame(RESET, 0, number, bytes(4)))

    say(http, http2_frame(SETTINGS, 0, 0, b"\0\4\0\0\0\1"))
    for number in (1, 3, 5, 7):
        call(number)
    assert not line.reasons
    assert http.unread == 4 << 20
    call(9)
    assert line.reasons == ["the client leaves 5242880 bytes of answers unread"]


def test_answers_that_are_read_may_have_any_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "MOST_HELD", 2 << 20)
    service = CallService("s", {"say": lambda caller, call, data: caller.answer(call, [bytes(1 << 20)])}, 4)
    http, line = end(service, known=True)
    say(http, http2_frame(SETTINGS, 0, 0, b"\0\4\x7f\0\0\0") + http2_frame(WINDOW, 0, 0, b"\x7e\0\0\0"))
    for number in range(1, 41, 2):
        line.unsent = 0
        say(http, http2_frame(HEADERS, 0x4, number, BLOCK) + http2_frame(DATA, 0x1, number, message(b"")))
    assert not line.reasons
    line.unsent = 0
    assert http.unread == 0


def test_unread_answers_of_all_connections_are_counted(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MOST_ANSWERS", 50_000)
    large, small = port.connect(let_in=True), port.connect(let_in=True)
    for sock, size in ((large, 40_000), (small, 20_000)):
        sock.sendall(http2_frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0"))
        sock.sendall(BEGUN + http2_frame(DATA, 0x1, 1, message(bytes(size))))
    port.turns(8)
    for _ in range(2):  # what is being closed does not count any more
        port.clock.time += 0.6
        port.turns(2)
    assert is_over(large)
    assert not is_over(small)
    assert "60000 bytes of answers on all connections are not read" in port.lines[0]


def test_large_answers_do_not_count_as_unread_replies() -> None:
    """A client that pings while it reads a long answer is no enemy."""
    http, line = end(SERVICE, known=True)
    line.unsent = line.queued = 5000
    say(http, http2_frame(PING, 0, 0, bytes(8)) * 50)
    line.unsent = 10
    say(http, http2_frame(PING, 0, 0, bytes(8)) * 50)
    assert not line.reasons


BIG = http2_frame(DATA, 0, 1, bytes(1 << 18))


@pytest.mark.parametrize("known", [True, False])
def test_a_large_call_brings_what_there_is_a_place_for(known: bool) -> None:
    asked: list[tuple[str, bytes, bool]] = []
    came: list[int] = []

    def room(method: str, begin: bytes, known: bool) -> int:
        asked.append((method, begin[:4], known))
        return 3 << 20

    service = CallService("s", {"say": lambda caller, call, data: came.append(len(data))}, 4, room=room)
    http, line = end(service, known=known)
    http._service = service
    body = message(b"name" + bytes((3 << 20) - 4))
    say(http, BEGUN + b"".join(http2_frame(DATA, 0, 1, body[at : at + 50_000]) for at in range(0, len(body), 50_000)))
    say(http, http2_frame(DATA, 0x1, 1))
    assert asked == [("say", b"name", known)]
    assert came == [3 << 20]
    assert not line.reasons
    say(http, http2_frame(HEADERS, 0x4, 3, BLOCK) + http2_frame(DATA, 0, 3, bytes(1 << 18)) * 13)
    assert b"the call brings more than 3145728 bytes" in line.sent
    assert http._pending_bytes == 0


def test_a_large_call_to_nobody_is_refused_early() -> None:
    http, line = end(SERVICE._replace(room=lambda method, begin, known: LARGE_CALL), known=False)
    say(http, http2_frame(HEADERS, 0x4, 1, b"\x83\x86\x44\x06/x/say") + BIG + http2_frame(DATA, 0, 1, b"123456"))
    assert b"the call brings more than" in line.sent
    assert http._pending_bytes == 0
    say(http, BIG * 4)
    assert line.reasons == [f"a stranger sends more than {STRANGER_BYTES} bytes"]


def test_few_strangers_bring_large_calls_at_once() -> None:
    """One that is not lent more is told to come again."""
    service = SERVICE._replace(room=lambda method, begin, known: LARGE_CALL)
    http, line = end(service, known=False, lends=False)
    say(http, BEGUN + BIG + http2_frame(DATA, 0, 1, b"123456"))
    assert http2_frame(RESET, 0, 1, struct.pack(">I", 7)) in line.sent
    assert http.lent == http._pending_bytes == 0


def test_a_port_lends_to_as_many_as_the_job_has_trainers() -> None:
    port = Port(service=SERVICE._replace(room=lambda method, begin, known: 1 << 20, callers=2))
    socks = [port.connect() for _ in range(3)]
    for sock in socks:
        sock.setblocking(True)
        sock.sendall(PREFACE + BEGUN)
    for sock in socks:
        sock.setblocking(False)
        said = BIG + http2_frame(DATA, 0, 1, b"123456")
        while said:
            with suppress(BlockingIOError):
                said = said[sock.send(said) :]
            port.turns()
    port.turns(20)
    assert [one.stranger.lent > 0 for one in port.newcomers] == [True, True, False]
    port.end()


def test_unfinished_calls_bring_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "MOST_BODIES", 1 << 19)
    http, line = end(SERVICE._replace(room=lambda method, begin, known: LARGE_CALL), known=True)
    for stream in (1, 3, 5):
        say(http, http2_frame(HEADERS, 0x4, stream, BLOCK) + http2_frame(DATA, 0, stream, bytes(200_000)))
    assert line.reasons == ["unfinished calls bring more than 524288 bytes"]
    assert http._pending_bytes == 0


@pytest.mark.parametrize(("kind", "most"), [(DATA, 1 << 18), (HEADERS, 1 << 14), (99, 1 << 14), (SETTINGS, 1 << 14)])
def test_frames_have_a_bounded_size(kind: int, most: int) -> None:
    """Which is seen before they have come."""
    http, line = end(SERVICE, known=True)
    head = struct.pack(">I", most + 1)[1:] + struct.pack(">BBI", kind, 0, 1)
    say(http, head)
    assert line.reasons == [f"a frame of {most + 1} bytes is too long"]


def test_a_turn_writes_a_bounded_number_of_bytes(port: Port) -> None:
    """Also to a peer that reads as fast as this process writes."""
    port.connect()
    port.turns(2)
    found: Any = port.newcomers[0].channel
    sent = 0

    class Endless:
        """A socket that takes everything."""

        def sendmsg(self, pieces: Any) -> int:
            nonlocal sent
            size = sum(map(len, pieces))
            sent += size
            return size

    real, found._sock = found._sock, Endless()
    found._unsent_bytes.extend(memoryview(bytes(1 << 16)) for _ in range(1024))
    assert found._write() == ""
    assert sent <= MOST_WRITTEN + 512 * (1 << 16)
    assert found._unsent_bytes
    found._sock = real
    found._unsent_bytes.clear()


def test_hosts_that_are_gone_are_noticed(port: Port) -> None:
    port.connect()
    port.turns(2)
    sock = port.newcomers[0].channel._sock
    idle, every, tries = (
        sock.getsockopt(socket.IPPROTO_TCP, number)
        for number in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert idle + every * tries == 120


def test_a_large_call_of_fluid_brings_what_its_variable_holds(tmp_path: Path) -> None:
    job = compiled(tmp_path, str(Path(__file__).parents[3] / "examples" / "regression.ir"), "--pservers", "1")
    server = job.cluster(seed=1).servers[0]
    name = next(iter(names_sent_to(job.cluster(seed=1).trainers[0].role.main, server.endpoint)))
    held = {"w": 1000 * 20 * 4, "b": 20 * 4}[name.partition("@")[0]]
    assert most_brought(server, "SendVariable", name) == held + MOST_FIELDS
    assert most_brought(server, "SendVariable", f"{name}@PIECE@1") == held + MOST_FIELDS
    assert most_brought(server, "SendVariable", "other") == most_brought(server, "GetVariable", name) == 0
    assert most_brought(server, "PrefetchVariable", "ids") == LARGE_CALL
    assert most_held(server) == 1000 * 20 * 4
    said = write_value(VariableMessage(name, trainer_id=1), np.zeros(1, "float32"))
    assert [read_name(begin) for begin in (said, said[:40], said[:3], b"", b"\x12\1x")] == [name, name, "", "", ""]


def test_a_change_of_windows_goes_through_the_calls_once() -> None:
    http, line = end(
        SERVICE._replace(open_call_limit=1000, methods={"say": lambda caller, call, data: None}), known=True
    )
    for stream in range(1, 1001, 2):
        say(http, http2_frame(HEADERS, 0x4, stream, BLOCK))
    http._work = TURN_WORK
    http._set(0, 0, memoryview(b"\0\4\0\0\0\1" * 60))
    assert TURN_WORK - http._work == 500
    before = http._work
    http._widen_window(0, 0, memoryview(b"\0\0\0\1"))  # no answer waits for it
    assert http._work == before
    assert not line.reasons


KINDS = st.sampled_from([DATA, HEADERS, 2, RESET, SETTINGS, PING, 7, WINDOW, CONTINUATION, 99])
PARTS = st.sampled_from(
    [b"", BLOCK, b"\x83", KEPT, b"\xbe", b"\0\0\0\1", b"\x7f\xff\xff\xff", bytes(5), bytes(8), message(b""),
     message(b"abc"), b"\0\4\0\0\0\0", b"\0\4\x7f\xff\xff\xff", b"\0\5\0\0\x40\0", b"\x3f\xe1\x1f"]
)  # fmt: skip
SAID = st.lists(
    st.tuples(KINDS, st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D]), st.sampled_from([0, 1, 1, 3, 5, 7]), PARTS)
)


@given(SAID, st.booleans(), st.lists(st.integers(0, 4)))
def test_whatever_is_said_the_books_are_kept(said: list[Any], known: bool, answered: list[int]) -> None:
    """Bytes of unfinished calls, open answers and unread replies are what they are counted as."""
    open_calls: list[tuple[Any, int]] = []
    lost: list[int] = []
    methods = {"say": lambda caller, call, data: open_calls.append((caller, call))}
    http, line = end(CallService("s", methods, 4, lambda caller, call: lost.append(call)), known=known)
    for number, (kind, flags, stream, data) in enumerate(said):
        say(http, http2_frame(kind, flags, stream, data))
        if number in answered and open_calls:
            caller, call = open_calls.pop()
            caller.answer(call, [b"x" * 70_000])
        unfinished = [stream for stream in http._streams.values() if not stream.is_taken]
        assert http._pending_bytes == sum(len(stream.body) for stream in unfinished)
        assert http._answering.items() <= http._streams.items()
        assert http.unread == 70_000 * (len(http._answering) + len(http._answers)) or http._is_over
        assert len(http._streams) <= 5
        assert len(line.reasons) <= 1
        assert bool(line.reasons) == http._is_over
    http.connection_ended("over")
    assert http._pending_bytes == 0
    assert not http._streams


def test_closed_connections_with_tls_leave_no_memory() -> None:
    """Whether they said nothing or began a handshake, and also if Python does not look for objects that hold each other
    meanwhile.
    """
    credentials = read_credentials(FILES)
    port = Port(credentials.listening)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(one, ssl.SSLObject) for one in gc.get_objects())
        tracemalloc.start()
        for number in range(20):
            sock = port.connect()
            if number % 2:
                came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
                with suppress(ssl.SSLWantReadError):
                    credentials.calling.wrap_bio(came, goes, False, "127.0.0.1").do_handshake()
                sock.sendall(goes.read())
            port.turns(2)
            sock.close()
            port.turns(2)
        held, most = tracemalloc.get_traced_memory()
        after = sum(isinstance(one, ssl.SSLObject) for one in gc.get_objects())
    finally:
        tracemalloc.stop()
        gc.enable()
        port.end()
    assert not port.newcomers or all(one.channel.closed for one in port.newcomers)
    assert after == before
    assert most < 2 * CHUNK
    assert held < 2 * CHUNK
