"""The progress of a job in the form that Prometheus collects, from the last report of each process; and how fast its
machines go.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from math import isfinite
from queue import Empty
from statistics import median_low
from threading import Thread
from typing import Any, NamedTuple, cast

from pstranspile.cluster.net.loop import CALL, ByteReader, Channel, Event, Loop
from pstranspile.cluster.net.transport import Listener
from pstranspile.cluster.net.wire import WireError
from pstranspile.ir.diagnostics import DiagnosticError, error, installing, quantity, visible
from pstranspile.ir.json_text import describe_json_error, json_text
from pstranspile.ir.model import Location
from pstranspile.ir.reading import read_named

_METHODS: tuple[bytes, ...] = (b"GET ", b"HEAD")
"""The first bytes of the requests that are answered."""

MOST_REQUEST = 1 << 14
"""The most bytes of a request."""

FRESH = 0.5
"""Seconds for which an answer is reused, so that frequent requests cost little."""


# How fast the machines of a job go.


class Mark(NamedTuple):
    """A report of a machine: how many steps it has done (of a server, updates), the seconds of a processor that it has
    used, the time in seconds from an arbitrary moment, and how often its process has slept.
    """

    step: float
    processor: float
    clock: float
    sleeps: float = 0.0


def note_mark(marks: list[Mark], mark: Mark) -> None:
    """Appends a report of a machine. What its process before has reported counts no more, if another one has begun."""
    if marks and (mark.step <= marks[-1].step or mark.processor < marks[-1].processor):
        marks.clear()
    marks.append(mark)


class Pace(NamedTuple):
    """The seconds of a step of a job, on average over its trainers, and what each machine needs in that time: seconds
    of a processor, and how often its process sleeps. `job` is the fingerprint of the job (`job_fingerprint`), "" if it
    is not known.
    """

    step: float
    processor: Mapping[str, float]
    sleeps: Mapping[str, float]
    job: str = ""


SKIPPED = 0.15
"""The share of a run's steps, at its begin, that does not count."""


def steady_pace(marks: Mapping[str, Sequence[Mark]]) -> Pace | None:
    """The mean over the steady part of a run; None if it has none.

    That begins when every trainer has done some steps and ends when the first of them does its last. What servers did
    meanwhile counts, however many updates they made, and so does what trainers did that waited.
    """
    found = _steady_part(marks)
    return None if found is None else _pace(marks, *found)


STRETCHES = 8
"""The number of stretches into which a run is cut on a host that is used by others."""


def quiet_pace(marks: Mapping[str, Sequence[Mark]]) -> Pace:
    """The pace of a run beside which others may work: the steady part is cut into stretches, and each number is the
    lower median of those of the stretches. Raises ValueError for a run without a steady part.
    """
    found = _steady_part(marks)
    if found is None:
        raise ValueError("a run without steady part has no pace")
    begin, end = found
    ends = [begin + (end - begin) * number / STRETCHES for number in range(STRETCHES + 1)]
    paces = [_pace(marks, *of) for of in pairwise(ends)]

    roles = [*paces[0].processor]
    return Pace(
        median_low([pace.step for pace in paces]),
        {role: median_low([pace.processor[role] for pace in paces]) for role in roles},
        _pace(marks, begin, end).sleeps,
    )


def _steady_part(marks: Mapping[str, Sequence[Mark]]) -> tuple[float, float] | None:
    """When the steady part of a run begins and ends."""
    trainers = [of for role, of in marks.items() if role.startswith("trainer") and len(of) > 1]
    if not trainers:
        return None
    begin = max(_at(of, 0, 2, of[0].step + SKIPPED * (of[-1].step - of[0].step)) for of in trainers)
    end = min(of[-1].clock for of in trainers)
    return (begin, end) if begin < end else None


def _pace(marks: Mapping[str, Sequence[Mark]], begin: float, end: float) -> Pace:
    trainers = [of for role, of in marks.items() if role.startswith("trainer") and len(of) > 1]
    steps = sum(_at(of, 2, 0, end) - _at(of, 2, 0, begin) for of in trainers) / len(trainers)
    steps = max(steps, 1e-9)
    processor, sleeps = (
        {role: (_at(of, 2, field, end) - _at(of, 2, field, begin)) / steps for role, of in marks.items() if len(of) > 1}
        for field in (1, 3)
    )
    return Pace((end - begin) / steps, processor, sleeps)


def _at(marks: Sequence[Mark], along: int, field: int, place: float) -> float:
    """A field of a machine's reports where another one (`along`) has the value `place`, between two reports on a
    straight line.
    """
    after = min(max(bisect_left(marks, place, key=lambda mark: mark[along]), 1), len(marks) - 1)
    last, following = marks[after - 1], marks[after]
    gap = following[along] - last[along]
    share = min(max((place - last[along]) / gap, 0.0), 1.0) if gap else 1.0
    return last[field] + share * (following[field] - last[field])


PACE_VERSION = 1
"""The version of the format of a file with a pace."""

MOST_PACE = 1 << 24
"""The largest size of such a file, in bytes."""


def pace_text(pace: Pace) -> str:
    """A pace as JSON."""
    return json_text(
        {
            "version": PACE_VERSION,
            "job": pace.job,
            "step": pace.step,
            "machines": [{"machine": role, "processor": seconds} for role, seconds in pace.processor.items()],
        }
    )


def read_pace(path: str) -> Pace:
    """The pace in a file that `launch --pace` has written. Raises DiagnosticError (`cost-profile`, `input-unreadable`)
    with what is wrong.
    """
    try:
        held: Any = json.loads(read_named(path, MOST_PACE))
    except OSError as problem:
        raise DiagnosticError([error("input-unreadable", problem.strerror or str(problem), Location(path))]) from None
    except (ValueError, RecursionError) as problem:
        raise DiagnosticError([error("cost-profile", describe_json_error(problem), Location(path))]) from None
    fields = cast("dict[str, Any]", held) if isinstance(held, dict) else {}
    machines = fields.get("machines")
    listed = cast("list[Any]", machines) if isinstance(machines, list) else []
    each_of = [cast("dict[str, Any]", each) for each in listed if isinstance(each, dict)]
    processor_seconds: dict[Any, Any] = {str(each.get("machine")): each.get("processor") for each in each_of}
    numbers: list[Any] = [fields.get("step"), *processor_seconds.values()]
    job = fields.get("job")
    if (
        fields.get("version") != PACE_VERSION
        or not isinstance(job, str)
        or not listed
        or len(processor_seconds) < len(listed)
        or not all(map(_is_time, numbers))
    ):
        message = "it does not say how fast a job went; `pstranspile launch --pace FILE` writes that"
        raise DiagnosticError([error("cost-profile", message, Location(path))])
    return Pace(float(fields["step"]), {name: float(seconds) for name, seconds in processor_seconds.items()}, {}, job)


def require_pace_of(pace: Pace, job: str, machines: Iterable[str], path: str) -> None:
    """Raises DiagnosticError (`cost-measured`) for the pace in a file that is not that of the job with this fingerprint
    and these machines.
    """
    if pace.job == job:
        return
    measured, asked = ({*names} for names in (pace.processor, machines))
    there, here = (
        " and ".join(quantity(sum(name.startswith(kind) for name in names), word) for kind, word in _KINDS)
        for names in (measured, asked)
    )
    told = f"{there}, and this job has {here}" if measured != asked else "as many machines, with other programs"
    message = f"it was measured of another job: that has {told}"
    raise DiagnosticError([error("cost-measured", message, Location(path))])


_KINDS = (("trainer", "trainer"), ("pserver", "server"))
"""How the names of machines of each kind begin, and what these are called."""


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0


class ProcessReports(NamedTuple):
    """The process in a role: whether it runs, how often it was started, and the fields of its last reports."""

    role: str
    running: bool
    starts: int
    last_reports: Mapping[str, Any]


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
