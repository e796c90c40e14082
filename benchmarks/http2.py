"""The server's end of HTTP/2, beside the same end built on the library `h2`, under trainers of the real Fluid 1.8.5.

    PSTRANSPILE_FLUID=/path/to/fluids/python python benchmarks/http2.py [small] [large] [decoding]

`small` trains 41 layers with parameters of at most 1 KB, `large` one parameter of 8 MB, of which each of the two
servers has 4 MB. Three clusters in turn, all with two trainers of Fluid: servers of Fluid; servers of this package;
the same with `h2`. Each is run 5 times. Printed are the medians of steps per second, their ratio to all Fluid, and the
CPU time of one server per step. `decoding` has both ends read calls of 4 MB, in frames of 16 KB and of 256 KB, and
calls of 1 KB, in this process. Goal for servers under trainers of Fluid: 0.6 times Fluid.

The end with `h2` bounds the size and number of calls. Unlike the package's own it bounds neither the frames and
headers of a stranger nor the work of a turn. Without `h2` or PSTRANSPILE_FLUID the rest is measured; `h2` comes with
`pip install 'pstranspile[bench]'`.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "CPU_NUM"):
    os.environ[_variable] = "1"  # before numpy is imported

import statistics
import struct
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from machines import FLUID, SERVERS, Cluster, Job
from model import Model

from pstranspile.cluster.net import transport
from pstranspile.cluster.net.http2 import (
    MOST_BODIES,
    MOST_HEADERS,
    MOST_SHOWN,
    PREFACE,
    STATUSES,
    CallRefused,
    CallService,
    Http2,
    length_prefixed,
    write_header,
)
from pstranspile.cluster.net.wire import Bytes, WireError
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.ir.types import DType
from pstranspile.tools.cli import main as command

H2 = find_spec("h2") is not None
"""Whether the library is installed."""

CHUNK, FRAME, WIDEST, FIRST_WINDOW, REFUSED_STREAM = 1 << 17, 1 << 18, (1 << 31) - 1, 65_535, 7
"""What the package's own end reads at once and accepts, in bytes; and the code for a call that may come again."""

RESPONSE = (b":status", b"200"), (b"content-type", b"application/grpc")
RUNS = 5


class _Unsent:
    """Stands for a channel while the package's own end would send its settings."""

    def send(self, pieces: Sequence[Bytes]) -> None:
        """Drops bytes."""


class Call:
    """A call from its headers to the end of its answer, with the fields of the package's own."""

    def __init__(self, path: bytes, most: int):
        self.path, self.body_limit, self.body, self.is_taken = path, most, bytearray(), False
        self.answer: deque[memoryview] | None = None


class WithLibrary(Http2):
    """The server's end with the frames, headers, windows and states of `h2`. The calls are handled as in the package's
    own.
    """

    def __init__(self, channel: Any, service: CallService, lends: Callable[[], bool] = lambda: True):
        unsent: Any = _Unsent()
        super().__init__(unsent, service, lends)
        self._channel = channel
        self._events, self._problem = import_module("h2.events"), import_module("h2.exceptions").ProtocolError
        codes = import_module("h2.settings").SettingCodes
        config = import_module("h2.config").H2Configuration(client_side=False, header_encoding=None)
        self._h2 = import_module("h2.connection").H2Connection(config)
        self._h2.initiate_connection()
        settings = {
            codes.MAX_CONCURRENT_STREAMS: max(service.open_call_limit, 1), codes.INITIAL_WINDOW_SIZE: WIDEST,
            codes.MAX_FRAME_SIZE: FRAME, codes.MAX_HEADER_LIST_SIZE: MOST_HEADERS,
        }  # fmt: skip
        self._h2.update_settings(settings)
        self._h2.increment_flow_control_window(WIDEST - FIRST_WINDOW)
        self._flush()
        events = self._events
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.RequestReceived: self._request, events.DataReceived: self._some, events.StreamEnded: self._end,
            events.StreamReset: self._lost, events.WindowUpdated: self._wider,
            events.RemoteSettingsChanged: self._wider,
        }  # fmt: skip

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._channel.send([data])

    # receiving

    def receive(self, size: int) -> bool:
        self._received_bytes += size
        try:
            if not (self.is_admitted or self._is_over):
                self._require_few()
            for event in self._h2.receive_data(self._chunk[:size]):
                handler = self._handlers.get(type(event))
                if handler is not None:
                    handler(event)
            self._flush()
        except self._problem as problem:
            self._fail(str(problem))
        except WireError as problem:
            self._fail(str(problem))
        return size < CHUNK

    def _request(self, event: Any) -> None:
        number = event.stream_id
        self._calls += 1
        if len(self._streams) >= self._service.open_call_limit:
            self._h2.reset_stream(number, REFUSED_STREAM)
            return
        path = next((value for name, value in event.headers if name == b":path"), b"")
        call: Any = Call(path, (1 << 18) + 5)
        self._streams[number] = call

    def _some(self, event: Any) -> None:
        number, data = event.stream_id, event.data
        self._owed += event.flow_controlled_length
        stream = self._streams.get(number)
        if stream is None:
            return
        if len(stream.body) + len(data) > stream.body_limit and not self._has_room(number, stream, memoryview(data)):
            return
        self._pending_bytes += len(data)
        if self._pending_bytes > MOST_BODIES:
            raise WireError(f"unfinished calls bring more than {MOST_BODIES} bytes")
        stream.body += data

    def _end(self, event: Any) -> None:
        if self._owed:
            self._h2.acknowledge_received_data(self._owed, event.stream_id)
            self._owed = 0
        self._complete(event.stream_id)

    def _lost(self, event: Any) -> None:
        self._reset(0, event.stream_id, memoryview(b""))

    def _wider(self, event: Any) -> None:
        number = getattr(event, "stream_id", 0)
        if not number:
            self._pump()
        elif number in self._answering:
            self._pump((number,))

    def _reply(self, data: bytes) -> None:
        """Ends a call; the package's own end makes a frame of it."""
        number, code = struct.unpack(">II", data[5:13])
        self._h2.reset_stream(number, code)

    # sending

    def answer(self, call: int, pieces: Sequence[Bytes]) -> None:
        stream = self._streams.get(call)
        if stream is None or stream.answer is not None:
            return
        stream.answer = length_prefixed(pieces)
        self._answering[call] = stream
        try:
            self._h2.send_headers(call, RESPONSE)
        except self._problem:  # the client has gone
            self._drop(call, stream)
            return
        self._pump((call,))
        self._flush()

    def refuse(self, call: int, problem: CallRefused) -> None:
        stream = self._streams.get(call)
        if stream is None or stream.answer is not None:
            return
        self._drop(call, stream)
        status = b"%d" % STATUSES[problem.status]
        reason = str(problem)[: 4 * MOST_SHOWN].encode("ascii", "replace")
        self._h2.send_headers(call, (*RESPONSE, (b"grpc-status", status), (b"grpc-message", reason)), end_stream=True)
        self._flush()

    def _pump(self, numbers: Sequence[int] | None = None) -> None:
        h2 = self._h2
        for number in list(self._answering) if numbers is None else numbers:
            stream = self._answering[number]
            queue = stream.answer
            assert queue is not None
            try:
                while queue and (room := min(h2.local_flow_control_window(number), h2.max_outbound_frame_size)) > 0:
                    h2.send_data(number, taken(queue, room))
                if not queue:
                    h2.send_headers(number, ((b"grpc-status", b"0"),), end_stream=True)
            except self._problem:  # the client has gone
                queue.clear()
            if not queue:
                del self._streams[number], self._answering[number]


def taken(queue: deque[memoryview], room: int) -> Bytes:
    """Takes up to `room` bytes out of a queue; they are copied only if they are of several pieces."""
    pieces: list[memoryview] = []
    while queue and room:
        piece = queue.popleft()
        if len(piece) > room:
            queue.appendleft(piece[room:])
            piece = piece[:room]
        pieces.append(piece)
        room -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# models


def small() -> Model:
    """41 layers of 16 units at most: 82 parameters of 64 B or 1 KB."""
    model = L.Draft(seed=1)
    value, label = L.data(model, "value", [-1, 16]), L.data(model, "label", [-1, 1], dtype=DType.INT64)
    hidden = value
    for _ in range(40):
        hidden = L.fc(hidden, 16, act="tanh")
    loss = L.mean(L.cross_entropy(L.fc(hidden, 2, act="softmax"), label))
    minimize(loss, SGD(0.01))
    return of(model, loss, "value", 16)


def large() -> Model:
    """One parameter of 1024 x 2048 numbers, and three small ones."""
    model = L.Draft(seed=1)
    value, label = L.data(model, "value", [-1, 1024]), L.data(model, "label", [-1, 1], dtype=DType.INT64)
    loss = L.mean(L.cross_entropy(L.fc(L.fc(value, 2048, act="tanh"), 2, act="softmax"), label))
    minimize(loss, SGD(0.01))
    return of(model, loss, "value", 1024)


def of(model: Any, loss: Any, name: str, width: int) -> Model:
    rng = np.random.default_rng(0)
    feed = {name: rng.normal(size=(4, width)).astype("float32"), "label": rng.integers(0, 2, (4, 1))}
    return Model(model.module(), loss.name, feed, lambda *_: lambda: 0.0, 1.0)


STEPS = {"small": (120, 20), "large": (80, 20)}
"""The steps of a run, and how many of them are not measured."""

OTHER = "our servers, with h2"
CLUSTERS = (
    Cluster("servers of Fluid", ()),
    Cluster("our servers", SERVERS, ("--fluid",)),
    Cluster(OTHER, SERVERS, ("--fluid",)),
)


class Jobs(Job):
    """A compiled model with its data; one cluster has servers with `h2`."""

    def command(self, role: str, cluster: Cluster) -> list[str]:
        """The command line of a machine."""
        line = super().command(role, cluster)
        if cluster.name == OTHER and role in SERVERS:
            assert line[1:3] == ["-m", "pstranspile"]
            line[1:3] = [str(Path(__file__).resolve()), "serve"]
        return line


def train(name: str, model: Model) -> None:
    """Prints the figures of a model."""
    clusters = [cluster for cluster in CLUSTERS if H2 or cluster.name != OTHER]
    found: dict[str, list[tuple[float, float]]] = {cluster.name: [] for cluster in clusters}
    with tempfile.TemporaryDirectory() as folder:
        job = Jobs(model, Path(folder), *STEPS[name])
        for _ in range(RUNS):
            for cluster in clusters:
                run = job.run(cluster)
                found[cluster.name].append((run.speed, sum(run.cpu[role] for role in SERVERS) / len(SERVERS)))
        job.ports.close()
    peer = statistics.median(speed for speed, _ in found[CLUSTERS[0].name])
    for cluster, runs in found.items():
        speed, spent = (statistics.median(values) for values in zip(*runs, strict=True))
        told = f"{speed:8.1f} steps/s  {speed / peer:5.2f} x Fluid  {spent * 1000:7.2f} ms of CPU of a server per step"
        speeds = " ".join(f"{speed:.1f}" for speed, _ in runs)
        print(f"{name:6} {cluster:22} {told}  (steps/s of the runs: {speeds})", flush=True)


# decoding


HEADERS = (
    (":path", "/s/say"), (":authority", "127.0.0.1:6174"), ("te", "trailers"), ("content-type", "application/grpc"),
    ("user-agent", "grpc-c++/1.8.0 grpc-c/5.0.0 (linux; chttp2)"), ("grpc-accept-encoding", "identity,deflate,gzip"),
    ("accept-encoding", "identity,gzip"),
)  # fmt: skip
"""What a trainer of Fluid sends with a call; later calls name them by their numbers in the table."""


class Line:
    """Stands for a channel whose client reads everything."""

    address, closed, unsent, queued = "client", False, 0, 0

    def send(self, pieces: Sequence[Bytes]) -> None:
        """Drops bytes."""

    def refuse(self, reason: str) -> None:
        """Ends the measurement."""
        raise SystemExit(f"the call was refused: {reason}")


def decode() -> None:
    """Prints how fast both ends read calls."""
    ends = {"the package's own": Http2, "with h2": WithLibrary} if H2 else {"the package's own": Http2}
    for length, size, times in ((1 << 22, 1 << 14, 20), (1 << 22, 1 << 18, 20), (1 << 10, 1 << 14, 2000)):
        message = struct.pack(">BI", 0, length) + bytes(length)
        found: dict[str, list[float]] = {name: [] for name in ends}
        for _ in range(RUNS):
            for name, end in ends.items():
                found[name].append(decoded(end, message, size, times))
        own = statistics.median(found["the package's own"])
        for name, seconds in found.items():
            each = statistics.median(seconds)
            told = f"{each * 1e3:7.3f} ms a call, {length / each / 1e6:6.0f} MB/s  {each / own:5.2f} x own"
            print(f"calls of {length >> 10:4} KB, frames of {size >> 10:3} KB, {name:18} {told}", flush=True)


def decoded(end: type[Http2], message: bytes, size: int, times: int) -> float:
    """Seconds for each of `times` calls on a connection, with its short answer."""
    came: list[int] = []

    def take(caller: Any, call: int, data: Bytes) -> None:
        came.append(len(data))
        caller.answer(call, [b""])

    line: Any = Line()
    http = end(line, CallService("s", {"say": take}, 4))
    http.is_admitted = True
    feed(http, PREFACE + frame(4, 0, 0, b"") + 2 * frame(4, 1, 0, b""))
    first = b"\x83\x86" + b"".join(b"\x40" + write_header(*header)[1:] for header in HEADERS)
    later = b"\x83\x86" + bytes(0xBE + place for place in reversed(range(len(HEADERS))))
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    calls = [
        frame(1, 4, 2 * index + 1, later if index else first)
        + b"".join(frame(0, int(piece is pieces[-1]), 2 * index + 1, piece) for piece in pieces)
        for index in range(times)
    ]
    began = perf_counter()
    for call in calls:
        feed(http, call)
    spent = perf_counter() - began
    assert came == [len(message) - 5] * times
    return spent / times


def feed(http: Http2, data: bytes) -> None:
    """Hands bytes to a connection as a channel does, as many as a call of the system reads."""
    for at in range(0, len(data), CHUNK):
        piece = data[at : at + CHUNK]
        http.room()[: len(piece)] = piece
        http.receive(len(piece))
        while http.waiting:
            http.go_on()


def frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(data))[1:] + struct.pack(">BBI", kind, flags, stream) + data


def main() -> None:
    """Measures, and prints."""
    chosen = sys.argv[1:] or ["small", "large", "decoding"]
    if not H2:
        print("h2 is not installed: no comparison with it")
    for name in chosen:
        if name == "decoding":
            decode()
        elif FLUID:
            train(name, {"small": small, "large": large}[name]())
        else:
            print(f"PSTRANSPILE_FLUID does not name the Python of a Fluid 1.8.5: {name} is not measured")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        transport.Http2 = WithLibrary
        raise SystemExit(command(sys.argv[2:]))
    main()
