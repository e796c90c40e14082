"""The progress of a job in the form that Prometheus collects, from the last report of each process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from queue import Empty
from threading import Thread
from typing import Any, NamedTuple

from pstranspile.cluster.net.loop import CALL, ByteReader, Channel, Event, Loop
from pstranspile.cluster.net.transport import Listener
from pstranspile.cluster.net.wire import WireError
from pstranspile.ir.diagnostics import DiagnosticError, error, installing, visible

_METHODS: tuple[bytes, ...] = (b"GET ", b"HEAD")
"""The first bytes of the requests that are answered."""

MOST_REQUEST = 1 << 14
"""The most bytes of a request."""

FRESH = 0.5
"""Seconds for which an answer is reused, so that frequent requests cost little."""


class ProcessReports(NamedTuple):
    """The process in a role: whether it runs, how often it was started, and the fields of its last reports."""

    role: str
    running: bool
    starts: int
    reported: Mapping[str, Any]


class _Request(ByteReader):
    """A connection with a request of HTTP/1; any path is answered, and the connection then closed.

    Clients are never admitted: together they get little processor time.
    """

    def __init__(self, channel: Channel, answer: Callable[[], tuple[str, bytes]]):
        self._channel, self._answer = channel, answer
        self._received_bytes = bytearray()
        self._room = bytearray(1 << 12)

    def room(self) -> memoryview:
        """The buffer that the next received bytes are written to."""
        return memoryview(self._room)

    def receive(self, size: int) -> bool:
        """Takes `size` received bytes; answers once the headers are complete. Raises WireError if they are too long."""
        seen = max(len(self._received_bytes) - 3, 0)
        self._received_bytes += self._room[:size]
        if b"\n\r\n" not in self._received_bytes[seen:] and b"\n\n" not in self._received_bytes[seen:]:
            if len(self._received_bytes) > MOST_REQUEST:
                raise WireError(f"a request has more than {MOST_REQUEST} bytes")
            return False
        kind, body = self._answer()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self._channel.send([head.encode(), b"" if self._received_bytes.startswith(b"HEAD") else body])
        self._channel.close()
        return True

    def connection_ended(self, reason: str) -> None:
        """Called when the client has closed the connection."""


class Metrics:
    """Answers requests at `address` (host:port, any path) with the present result of `look`, until it is closed.

    Raises DiagnosticError if it can't listen there.
    """

    def __init__(self, address: str, look: Callable[[], Iterable[ProcessReports]]):
        if find_spec("prometheus_client") is None:
            message = f"--metrics needs prometheus_client; get it with: {installing('metrics')}"
            raise DiagnosticError([error("start-library", message)])
        library: Any = import_module("prometheus_client")
        self._look = look
        self._registry = library.CollectorRegistry()
        self._registry.register(self)
        self._loop = Loop()
        self._ends = False
        self._last_answer, self._answer_time = b"", 0.0
        """The last answer, and the time at which it was made."""
        requests = dict.fromkeys(_METHODS, self._request)
        try:
            self.port = Listener(address, self._loop, other_protocols=requests, shared=False).port
        except OSError as problem:
            message = f"--metrics {address}: {problem.strerror or problem}"
            self._loop.close(0.0)
            raise DiagnosticError([error("launch-metrics", message)]) from None
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _request(self, channel: Channel) -> ByteReader:
        return _Request(channel, self._answer)

    def _answer(self) -> tuple[str, bytes]:
        """The content type of the answer, and its body."""
        library: Any = import_module("prometheus_client")
        now = self._loop.now()
        if not self._last_answer or now - self._answer_time > FRESH:
            self._last_answer, self._answer_time = library.generate_latest(self._registry), now
        return library.CONTENT_TYPE_LATEST, self._last_answer

    def _serve(self) -> None:
        while not self._ends:
            with suppress(Empty):
                action = self._loop.get(1.0).action
                if action is not None:
                    action()
        self._loop.close()

    def collect(self) -> Iterator[Any]:
        """Yields the metrics by role, each time Prometheus asks."""
        library: Any = import_module("prometheus_client.core")
        running = library.GaugeMetricFamily("pstranspile_running", "1 while the process runs", labels=["role"])
        starts = library.CounterMetricFamily("pstranspile_starts", "how often it was started", labels=["role"])
        steps = library.CounterMetricFamily("pstranspile_steps", "steps done, or updates made", labels=["role"])
        cpu = library.CounterMetricFamily("pstranspile_cpu_seconds", "seconds of CPU used", labels=["role"])
        fetched = library.GaugeMetricFamily(
            "pstranspile_fetched",
            "the last value of what steps fetch, if it is one number",
            labels=["role", "variable"],
        )
        for role, runs, started, fields in self._look():
            running.add_metric([role], float(runs))
            starts.add_metric([role], float(started))
            steps.add_metric([role], float(fields.get("step", 0)))
            cpu.add_metric([role], float(fields.get("cpu", 0.0)))
            for name, value in _numbers(fields.get("values", {})):
                fetched.add_metric([role, visible(name)], value)
        yield from (running, starts, steps, cpu, fetched)

    def close(self) -> None:
        """Stops listening."""
        self._ends = True
        self._loop.put(Event(CALL, None))
        self._thread.join()


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields name and number of each reported variable with a single number."""
    for name, (_, few, *_) in values.items():
        if len(few) == 1:
            yield name, float(few[0])
