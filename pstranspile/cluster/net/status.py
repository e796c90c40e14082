"""Reports of a process of a job to the process that started it: lines of JSON on a pipe."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from queue import Empty
from threading import Thread
from typing import Any, NamedTuple, TextIO

from pstranspile.cluster.net.channel import Channel, Reading
from pstranspile.cluster.net.loop import CALL, Event, Loop
from pstranspile.cluster.net.transport import Listener
from pstranspile.cluster.net.values import WireError
from pstranspile.ir.diagnostics import DiagnosticError, error, visible

# The progress of a job in the form that Prometheus collects: the last report of each process.

_METHODS: tuple[bytes, ...] = (b"GET ", b"HEAD")
"""The first bytes of requests that are answered."""

MOST_REQUEST = 1 << 14
"""Bytes of a request."""

FRESH = 0.5
"""Seconds for which an answer is given again: whoever asks without end keeps nobody else waiting."""


class Known(NamedTuple):
    """The process in a role: whether it runs, how often it was started, and the fields of its last reports."""

    role: str
    running: bool
    starts: int
    reported: Mapping[str, Any]


class _Request(Reading):
    """A connection on which something is asked by HTTP/1; any path is answered, and the connection ended.

    Whoever asks is nobody that is known: the port gives all of them together little time.
    """

    def __init__(self, channel: Channel, answer: Callable[[], tuple[str, bytes]]):
        self._channel, self._answer = channel, answer
        self._came = bytearray()
        self._room = bytearray(1 << 12)

    def room(self) -> memoryview:
        """The buffer that the next received bytes are written to."""
        return memoryview(self._room)

    def came(self, size: int) -> bool:
        """So many bytes have come; answers once the headers are over. Raises WireError if they are too long."""
        seen = max(len(self._came) - 3, 0)
        self._came += self._room[:size]
        if b"\n\r\n" not in self._came[seen:] and b"\n\n" not in self._came[seen:]:
            if len(self._came) > MOST_REQUEST:
                raise WireError(f"a request has more than {MOST_REQUEST} bytes")
            return False
        kind, body = self._answer()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self._channel.send([head.encode(), b"" if self._came.startswith(b"HEAD") else body])
        self._channel.close()
        return True

    def ended(self, reason: str) -> None:
        """Whoever has asked is gone."""


class Metrics:
    """Answers at `address` (host:port, any path) with what `look` gives then, until it is closed.

    Raises DiagnosticError if that can't be done.
    """

    def __init__(self, address: str, look: Callable[[], Iterable[Known]]):
        if find_spec("prometheus_client") is None:
            message = "--metrics needs prometheus_client; get it with: pip install 'pstranspile[metrics]'"
            raise DiagnosticError([error("start-library", message)])
        library: Any = import_module("prometheus_client")
        self._look = look
        self._registry = library.CollectorRegistry()
        self._registry.register(self)
        self._loop = Loop()
        self._ends = False
        self._told, self._told_at = b"", 0.0
        """The last answer, and when it was made."""
        requests = dict.fromkeys(_METHODS, self._request)
        try:
            self.port = Listener(address, self._loop, others=requests, shared=False).port
        except OSError as problem:
            message = f"--metrics {address}: {problem.strerror or problem}"
            self._loop.close(0.0)
            raise DiagnosticError([error("launch-metrics", message)]) from None
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _request(self, channel: Channel) -> Reading:
        return _Request(channel, self._answer)

    def _answer(self) -> tuple[str, bytes]:
        """The type of the answer, and the answer."""
        library: Any = import_module("prometheus_client")
        now = self._loop.now()
        if not self._told or now - self._told_at > FRESH:
            self._told, self._told_at = library.generate_latest(self._registry), now
        return library.CONTENT_TYPE_LATEST, self._told

    def _serve(self) -> None:
        while not self._ends:
            with suppress(Empty):
                action = self._loop.get(1.0).action
                if action is not None:
                    action()
        self._loop.close()

    def collect(self) -> Iterator[Any]:
        """The metrics by role, when Prometheus asks."""
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
        """Nobody is answered any more."""
        self._ends = True
        self._loop.put(Event(CALL, None))
        self._thread.join()


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The variables that hold one number, as a process reports them: form, numbers, ..."""
    for name, (_, few, *_) in values.items():
        if len(few) == 1:
            yield name, float(few[0])


# Fetched values for display: a few numbers as they are, of more the smallest, the mean and the largest.

FEW = 4
"""Numbers that are shown one by one."""


class Shown(NamedTuple):
    """What is shown of a value, or of the values of several trainers together.

    `form` is "" for a number, else element type and dims: `f32[20, 3]`. `few` are the numbers of a value that has only
    few; `low`, `mean` and `high` are of all numbers, or None where there are none.
    """

    form: str
    few: tuple[float, ...] = ()
    low: float | None = None
    mean: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """`0.25`, `f32[2, 1]: 0.25 0.5`, `f32[20, 3] min 0.1 mean 0.25 max 0.4`, or `min 0.1 mean 0.25 max 0.4`."""
        if self.few:
            return (f"{self.form}: " if self.form else "") + " ".join(f"{number:.6g}" for number in self.few)
        if self.mean is None:
            return self.form
        return f"{self.form} min {self.low:.6g} mean {self.mean:.6g} max {self.high:.6g}".lstrip()


NOTHING = Shown("no rows")
"""What is shown of a trainer that was fed no rows."""


def shown(value: Any) -> Shown:
    """What is shown of one fetched value: an array, a LoDTensor, SelectedRows or anything else; None had no rows."""
    if value is None:
        return NOTHING
    from pstranspile.runtime.run.feeds import describe, is_number, numbers_of

    numbers = numbers_of(value)
    if numbers is None or numbers.dtype.kind not in "biuf" or not numbers.size:
        return Shown(describe(value))
    few = tuple(map(float, numbers.ravel())) if numbers.size <= FEW else ()
    extent = float(numbers.min()), float(numbers.mean(dtype="float64")), float(numbers.max())
    return Shown("" if is_number(value) else describe(value), few, *extent)


def together(values: Iterable[Shown]) -> Shown:
    """What is shown of the values of one name on several trainers."""
    known = [value for value in values if value is not NOTHING] or [NOTHING]
    forms = list(dict.fromkeys(value.form for value in known if value.form))
    form = forms[0] + (" ..." if len(forms) > 1 else "") if forms else ""
    means = [value.mean for value in known if value.mean is not None]
    if not means:
        return Shown(form)
    low = min(value.low for value in known if value.low is not None)
    high = max(value.high for value in known if value.high is not None)
    return Shown(form, (), low, sum(means) / len(means), high)


def values_text(values: Mapping[str, Shown], prefix: str = "") -> str:
    """`loss 0.25  accuracy 0.9`, each name after the prefix."""
    return "  ".join(f"{prefix}{visible(name)} {value}" for name, value in values.items())


def numbers_first(values: Mapping[str, Shown]) -> dict[str, Shown]:
    """The same with single numbers in front, for lines whose end may be cut off."""
    return dict(sorted(values.items(), key=lambda item: item[1].form != ""))


STATUS = "PSTRANSPILE_STATUS"
"""The environment variable with the number of the pipe to write reports to."""

PARENT = "PSTRANSPILE_PARENT"
"""The environment variable that says whether stdin ends when the parent does."""

WATCHED = "PSTRANSPILE_WATCHED"
"""The environment variable that says whether the parent wants to see the process at work."""

WAITING = "waiting"
"""The state of a process that waits for others."""

TRAINING = "training"
"""The state of a trainer in its steps."""

SERVING = "serving"
"""The state of a server that takes messages."""

DONE = "done"
"""The state of a process whose part is done."""


class StatusPipe:
    """Sends reports to the parent, if there is one."""

    def __init__(self) -> None:
        number = os.environ.get(STATUS, "")
        self._lock = threading.Lock()
        self.watched = os.environ.get(WATCHED) == "1"
        """Whether the parent wants more than steps and states."""
        self.reported: dict[str, Any] = {}
        """The last value of each field."""
        self._stream: TextIO | None = os.fdopen(int(number), "w", buffering=1) if number.isdecimal() else None

    def __call__(self, **fields: Any) -> None:
        """Sends one line, from any thread, with the seconds of CPU used. Nothing happens if the parent is gone: this
        process then ends anyway.
        """
        fields["cpu"] = round(time.process_time(), 4)
        self.reported = {**self.reported, **fields}
        if self._stream is None:
            return
        line = json.dumps(fields, separators=(",", ":")) + "\n"
        try:
            with self._lock:
                self._stream.write(line)
        except OSError:
            self._stream = None


def end_with_parent() -> None:
    """Ends this process as by SIGTERM when its stdin is closed, however the parent ends."""
    if os.environ.get(PARENT) != "1":
        return

    def watch() -> None:
        while os.read(0, 1024):  # not through sys.stdin, whose lock would keep the process from ending
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
