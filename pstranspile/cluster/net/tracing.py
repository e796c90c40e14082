"""Traces of the processes of a job: turns of machines, steps, and the messages between them, with times.

Every process writes a file of its own. The files of a job, whose processes have one clock, are combined into the
results that `run` shows of a simulated cluster: a chart, the traffic, and a trace for Chrome's `about:tracing` or
Perfetto.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TextIO

from pstranspile.cluster.machines.message import Message
from pstranspile.cluster.machines.network import Machine, TurnHook
from pstranspile.cluster.machines.recorder import (
    DELIVER,
    POST,
    Event,
    Recorder,
    about,
    event_of,
    metadata_event,
    trace_text,
)
from pstranspile.cluster.machines.trainer import Trainer, TrainerListener
from pstranspile.cluster.net.site import Site
from pstranspile.runtime.run.source import Source

# Profiles of a process: its time by type of op, and by activity between its programs.
#
# The thread that runs the machine is sampled a few hundred times a second, so that nothing is measured around each
# of many small ops. A sample counts for the time since the last one.

PAUSE = 0.004
"""Seconds between samples."""

WAITING = "(waiting)"
"""The name in a profile of time spent waiting."""

WIRE = "(sending and receiving)"
"""The name in a profile of time spent sending and receiving."""

MACHINE = "(the machine itself)"
"""The name in a profile of time that a machine spends between ops."""

_WIRE = tuple(f"/net/{name}.py" for name in ("channel", "transport", "frames", "values", "peer", "http2", "loop"))


class Profile:
    """Samples the thread that has created it, until it is closed."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._thread = threading.get_ident()
        self._end_event = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()

    def _look(self) -> None:
        before = time.perf_counter()
        while not self._end_event.wait(PAUSE):
            frame = sys._current_frames().get(self._thread)  # pyright: ignore[reportPrivateUsage] (documented)
            now = time.perf_counter()
            if frame is not None:
                name = doing(frame)
                self.seconds[name] = self.seconds.get(name, 0.0) + now - before
            before = now

    def close(self) -> dict[str, float]:
        """Ends sampling; returns the seconds by activity."""
        self._end_event.set()
        self._looking.join()
        return self.seconds


def doing(frame: FrameType | None) -> str:
    """The activity of a thread at this frame: the type of an op, or one of the names above."""
    outside = ""
    while frame is not None:
        source = frame.f_globals.get("__source__")
        if isinstance(source, Source):
            index = source.owners.get(frame.f_lineno, -1)
            return source.bound[index].op.type if index >= 0 else MACHINE
        file = frame.f_code.co_filename.replace("\\", "/")
        if not outside and file.endswith("/selectors.py"):
            outside = WAITING
        elif not outside and file.endswith(_WIRE):
            outside = WIRE
        frame = frame.f_back
    return outside or MACHINE


def table(by_role: Mapping[str, Mapping[str, float]]) -> str:
    """The profiles of machines as a table: the most expensive activity first, waiting last."""
    lines: list[str] = []
    for role, seconds in by_role.items():
        total = sum(seconds.values()) or 1.0
        lines.append(f"{role:<32}{'seconds':>9}{'share':>8}")
        for name, spent in sorted(seconds.items(), key=lambda item: (item[0] == WAITING, -item[1], item[0])):
            lines.append(f"  {name:<30}{spent:>9.3f}{100 * spent / total:>7.1f}%")
    return "\n".join(lines) + "\n"


TURN = "turn"
"""The kind of a span in which a machine has a turn."""

STEP = "step"
"""The kind of a span in which a trainer makes a step."""

SENT = "sent"
"""The kind of a span in which posted messages are sent."""


def _now() -> int:
    return time.time_ns() // 1000


class Activity(NamedTuple):
    """An activity of a process: from when to when, in microseconds; `machine` did it, or was sent the messages.

    `step` is the index of a step, `messages` how many were taken or sent, with `bytes` of values.
    """

    kind: str
    machine: str
    begin: int
    end: int
    step: int = -1
    messages: int = 0
    bytes: int = 0


class Tracing(TurnHook, TrainerListener):
    """Writes the activities of a site's process to a file. It must be made before the machines begin."""

    def __init__(self, site: Site, path: str):
        self._file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        self._local_names = site.local_names
        self._step_start: int | None = None
        """The time at which the current step began."""
        for machine in site.cluster.machines.values():
            machine.hook(self)
            if machine.name in site.local_names and isinstance(machine, Trainer):
                machine.listen(self)

    def _write(self, item: Activity | Event) -> None:
        self._file.write(json.dumps(item, separators=(",", ":")) + "\n")

    def take(self, machine: Machine, turn: Callable[[], object]) -> None:
        """Records a turn of a machine of this process, or the sending of messages to another machine, unless it is
        postponed.
        """
        messages, begin = list(machine.inbox), _now()
        if machine.name not in self._local_names:
            turn()
            if messages and not machine.inbox:
                self._record_sent(machine.name, messages, begin)
            return
        if self._step_start is None and isinstance(machine, Trainer):
            self._step_start = begin
        for message in messages:
            if message.source in self._local_names:
                self._write(event_of(begin, POST, message))
            self._write(event_of(begin, DELIVER, message))
        turn()
        self._write(Activity(TURN, machine.name, begin, _now(), messages=len(messages)))

    def _record_sent(self, target: str, messages: Sequence[Message], begin: int) -> None:
        events = [event_of(begin, POST, message) for message in messages]
        for event in events:
            self._write(event)
        size = sum(event.bytes for event in events)
        self._write(Activity(SENT, target, begin, _now(), messages=len(messages), bytes=size))

    def step_done(self, trainer: Trainer, step: int) -> None:
        """Records a step of a trainer of this process."""
        end = _now()
        self._write(Activity(STEP, trainer.name, end if self._step_start is None else self._step_start, end, step))
        self._step_start = None

    def close(self) -> None:
        """Closes the file; nothing more is recorded."""
        self._file.close()


class JobTrace(NamedTuple):
    """The traces of a job's processes: their activities, and the events of messages. Times are microseconds since the
    first activity.
    """

    spans: Mapping[str, Sequence[Activity]]
    events: Sequence[Event]


def read_traced(files: Mapping[str, str]) -> JobTrace:
    """Combines the files of processes, by role. An incomplete last line is left out."""
    spans: dict[str, list[Activity]] = {role: [] for role in files}
    events: list[Event] = []
    for role, file in files.items():
        if not Path(file).exists():
            continue
        for line in Path(file).read_text("utf-8").split("\n")[:-1]:
            fields = json.loads(line)
            if fields[0] in (TURN, STEP, SENT):
                spans[role].append(Activity(*fields))
            else:
                events.append(Event(*fields))
    start = min([span.begin for own in spans.values() for span in own] + [event.tick for event in events], default=0)
    events.sort(key=lambda event: (event.tick, event.occurrence == DELIVER))
    return JobTrace(
        {role: [s._replace(begin=s.begin - start, end=s.end - start) for s in own] for role, own in spans.items()},
        [event._replace(tick=event.tick - start) for event in events],
    )


def trace_of(traced: JobTrace, recorder: Recorder) -> str:
    """The text of a trace file: a process for each role, a thread for each of its machines, and one that sends.

    An arrow goes from the sending of messages to the turn that takes the last of them.
    """
    result: list[dict[str, Any]] = []
    arrows = _Arrows(traced.events)
    for process, (role, spans) in enumerate(traced.spans.items(), start=1):
        machines = list(dict.fromkeys(span.machine for span in spans if span.kind != SENT))
        threads = {name: number for number, name in enumerate(machines, start=1)}
        result += [metadata_event("process_name", 0, role, process)]
        result += [{**about(0, 0, process), "ph": "M", "name": "process_sort_index", "args": {"sort_index": process}}]
        result += [metadata_event("thread_name", number, name, process) for name, number in threads.items()]
        result += [metadata_event("thread_name", len(threads) + 1, "network", process)]
        for span in spans:
            thread = threads.get(span.machine, len(threads) + 1) if span.kind != SENT else len(threads) + 1
            at = about(thread, span.begin, process)
            shown = {**at, "name": _name(span, recorder), "cat": span.kind, "ph": "X", "dur": span.end - span.begin}
            args = (
                {"messages": span.messages, "bytes": span.bytes} if span.kind == SENT else {"messages": span.messages}
            )
            result.append({**shown, "args": {} if span.kind == STEP else args})
            if span.kind == SENT:
                result += [{**at, "name": "messages", "cat": SENT, "ph": "s", "id": one} for one in arrows.from_(span)]
            elif span.kind == TURN:
                ends = arrows.to(span)
                result += [{**at, "name": "messages", "cat": SENT, "ph": "f", "bp": "e", "id": one} for one in ends]
    return trace_text(result)


def _name(span: Activity, recorder: Recorder) -> str:
    if span.kind == STEP:
        trainer = next((n for n, machine in enumerate(recorder.trainers) if machine == span.machine), 0)
        return recorder.step_name(trainer, span.step)
    if span.kind == SENT:
        return f"to {span.machine}"
    return f"takes {span.messages}" if span.messages else "goes on"


class _Arrows:
    """The numbers of arrows, by the place and time of sending and taking."""

    def __init__(self, events: Sequence[Event]):
        last: dict[tuple[str, str, int], Event] = {}
        for event in events:
            if event.occurrence == POST:
                last[event.source, event.target, event.tick] = event
        taken = {event.message: event for event in events if event.occurrence == DELIVER}
        self._outgoing_numbers: dict[tuple[str, int], list[int]] = {}
        self._incoming_numbers: dict[tuple[str, int], list[int]] = {}
        for number, event in enumerate(last.values(), start=1):
            end = taken.get(event.message)
            if end is not None:
                self._outgoing_numbers.setdefault((event.target, event.tick), []).append(number)
                self._incoming_numbers.setdefault((end.target, end.tick), []).append(number)

    def from_(self, span: Activity) -> list[int]:
        """The arrows that begin at a sending."""
        return self._outgoing_numbers.get((span.machine, span.begin), [])

    def to(self, span: Activity) -> list[int]:
        """The arrows that end in a turn."""
        return self._incoming_numbers.get((span.machine, span.begin), [])
