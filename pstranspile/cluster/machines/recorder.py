"""Records every message of a cluster: the traffic by server and variable, and the run as a trace that browsers show."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from pstranspile.cluster.machines import message as kinds
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.message import COMPLETE, END, REPLY, SEND, Message, step_label
from pstranspile.ir.diagnostics import visible
from pstranspile.runtime.run.feeds import size_in_bytes
from pstranspile.runtime.values import LoDTensor, SelectedRows

# A recorder of every message of a cluster.

POST = "post"
"""The event of a message that was sent."""

DELIVER = "deliver"
"""The event of a message that was handed to its target."""

LOST = "lost"
"""The event of a message that was lost on its way."""

DUPLICATE = "duplicate"
"""The event of a message that came a second time."""

DATA = (kinds.SEND, kinds.REPLY, kinds.COLLECTIVE, kinds.PIECE, kinds.TOTAL, kinds.STATEMENT)
"""Kinds of messages that carry values of variables."""

ASKING = (kinds.GET, kinds.GET_NOW, kinds.GET_ROWS, kinds.LOOKUP, kinds.PREFETCH)
"""Kinds of messages that are answered with values."""


MOST = 1 << 16
"""The most characters of a name that are recorded."""


class Event(NamedTuple):
    """Something that happened to a message, at a tick of the virtual clock.

    `step` is that of the trainer the message is about, an index from 0, below 0 during start-up, or END.
    `variable` is, of a reply, that of the request; `bytes` counts the values that the message carries.
    """

    tick: int
    occurrence: str
    kind: str
    source: str
    target: str
    trainer: int
    step: int
    sequence: int
    variable: str
    bytes: int

    @property
    def message(self) -> tuple[str, str, int]:
        """The source, target and number that identify the message."""
        return self.source, self.target, self.sequence


def event_of(tick: int, occurrence: str, message: Message) -> Event:
    """The event for a message, to which `occurrence` happened."""
    kind, source, target, trainer, step, sequence, variable, payload, _ = message
    step = END if kind == COMPLETE else step
    return Event(
        tick, occurrence, kind, source, target, trainer, step, sequence, visible(variable, MOST), _size(payload)
    )


class Recorder:
    """Records what happens to every message of a cluster. It must be made before the cluster starts.

    `events` were recorded before, such as those of processes that play its machines.
    """

    def __init__(self, cluster: Cluster, events: Iterable[Event] = ()):
        self.machines = [machine.name for machine in cluster.machines.values()]
        self.events = list(events)
        self._clock = cluster.scheduler
        self.trainers = [trainer.name for trainer in cluster.trainers]
        self._trainers = {trainer.index: trainer for trainer in cluster.trainers}
        self.together = any(server.mode == 0 for server in cluster.servers)
        """Whether servers wait for the gradients of all trainers, and make one update of all of them."""
        cluster.network.observe(self)

    def __call__(self, event: str, message: Message) -> None:
        """Records an event of the network."""
        self.events.append(event_of(self._clock.now, event, message))

    def step_name(self, trainer: int, step: int) -> str:
        """`start-up`, `step 3`, or `step 3 of @generator` where several programs take turns; `end` for END."""
        if step == END:
            return "end"
        known = self._trainers.get(trainer)
        if step < 0 or known is None or known.role.turns is None:
            return step_label(step)
        return f"{step_label(step)} of @{known.role.program_of(step)}"


def _size(payload: Any) -> int:
    """The number of bytes of the values that a message carries."""
    if isinstance(payload, tuple) and not isinstance(payload, SelectedRows | LoDTensor):
        return sum(_size(part) for part in cast("tuple[Any, ...]", payload))
    return size_in_bytes(payload)


# Traffic: messages and bytes by server and variable, and how stale gradients were.


class Traffic(NamedTuple):
    """The messages between a server and the trainers about one variable ("" for messages that are about none).

    `stalest` is the largest number of updates of a variable that the server made between two moments: when a trainer
    was last answered by this server, and when the server took the trainer's next gradient. 0 where servers wait for all
    trainers before an update. -1 where the variable is no gradient.
    """

    server: str
    variable: str
    to_server: int
    bytes_to_server: int
    from_server: int
    bytes_from_server: int
    lost: int
    stalest: int


class _Row:
    def __init__(self) -> None:
        self.inward = [0, 0]
        self.outward = [0, 0]
        self.lost = 0
        self.stalest = -1

    def lose(self) -> None:
        self.lost += 1

    def was_stale(self, updates: int) -> None:
        self.stalest = max(self.stalest, updates, 0)


def traffic_of(recorder: Recorder, servers: tuple[str, ...]) -> list[Traffic]:
    """The traffic of a run, by server and variable, the largest first."""
    rows: dict[tuple[str, str], _Row] = {}
    taken: dict[tuple[str, str], int] = {}
    base: dict[tuple[str, str, int], int] = {}
    for event in recorder.events:
        server = next((name for name in (event.target, event.source) if name in servers), "")
        if not server:
            continue
        row = rows.setdefault((server, event.variable), _Row())
        if event.occurrence == LOST:
            row.lose()
        if event.occurrence == POST:
            counts = row.inward if event.target == server else row.outward
            counts[0] += 1
            counts[1] += event.bytes
        if event.occurrence == (POST if event.kind == REPLY else DELIVER):
            _note_staleness(event, server, row, taken, base, together=recorder.together)
    result = [
        Traffic(server, name, row.inward[0], row.inward[1], row.outward[0], row.outward[1], row.lost, row.stalest)
        for (server, name), row in rows.items()
    ]
    return sorted(result, key=lambda item: (item.server, -item.bytes_to_server - item.bytes_from_server, item.variable))


def _note_staleness(
    event: Event,
    server: str,
    row: _Row,
    taken: dict[tuple[str, str], int],
    base: dict[tuple[str, str, int], int],
    *,
    together: bool,
) -> None:
    """Counts the updates of a server between answering a trainer and taking that trainer's next gradient: one for each
    gradient that it took, or, where those of all trainers go `together` into one update, for each step.
    """
    if event.kind == SEND and event.target == server:
        name = event.variable.removesuffix(f".trainer_{event.trainer}")
        count = event.step if together else taken.get((server, name), 0)
        row.was_stale(count - base.get((server, name, event.trainer), count if together else 0))
        taken[server, name] = count + 1
        base[server, name, event.trainer] = count + 1
    elif event.kind == REPLY and event.source == server:
        for (place, name), count in taken.items():
            if place == server:
                base[server, name, event.trainer] = count


def traffic_table(rows: list[Traffic]) -> str:
    """The traffic as a table."""
    width = max((len(row.variable or "(barriers and the like)") for row in rows), default=8)
    lines: list[str] = []
    server = None
    for row in rows:
        if row.server != server:
            server = row.server
            lines.append(
                f"{server:<{width + 2}}{'sent':>9}{'bytes':>12}{'answered':>10}{'bytes':>12}{'lost':>6}{'stale':>7}"
            )
        name = row.variable or "(barriers and the like)"
        stale = "" if row.stalest < 0 else str(row.stalest)
        lines.append(
            f"  {name:<{width}}{row.to_server:>9}{row.bytes_to_server:>12}{row.from_server:>10}"
            f"{row.bytes_from_server:>12}{row.lost:>6}{stale:>7}".rstrip()
        )
    return "\n".join(lines) + "\n"


# A run as a trace that Chrome's `about:tracing` and Perfetto show (the JSON Trace Event Format).
#
# One millisecond of the trace is one tick of the virtual clock. Every machine is a thread. A message is a slice where
# it was posted, a slice where it was taken, and an arrow between them. The slices of one machine in one tick divide the
# tick evenly, so slices of a thread are disjoint or nested. A trainer's step is a slice around its messages.

PROCESS = 1

TICK = 1000
"""Microseconds of the trace in a tick, unless a machine does more than that in one."""


class _TimedEvent(NamedTuple):
    """An event with the time that it takes on the thread of its machine."""

    event: Event
    thread: int
    start: int
    duration: int


def trace_json(recorder: Recorder) -> str:
    """The text of a trace file."""
    threads = {name: number for number, name in enumerate(recorder.machines, start=1)}
    placed = _timed_events(recorder, threads)
    result: list[dict[str, Any]] = [metadata_event("process_name", 0, "cluster")]
    result += (metadata_event("thread_name", number, name) for name, number in threads.items())
    result += ({**about(number, 0), "ph": "M", "name": "thread_sort_index", "args": {"sort_index": number}}
              for number in threads.values())  # fmt: skip
    for name, number in threads.items():
        if name.startswith("trainer"):
            result += _steps(recorder, [item for item in placed if item.thread == number])
    flows: dict[tuple[str, str, int], int] = {}
    for item in placed:
        result += _message(recorder, item, flows)
    return trace_text(result)


def trace_text(events: Iterable[Mapping[str, Any]]) -> str:
    """The text of a trace file with these events."""
    lines = ",\n".join(map(json.dumps, events))
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def about(thread: int, start: int, process: int = PROCESS) -> dict[str, Any]:
    """The fields of a trace event for its process, its thread, and its start time in microseconds."""
    return {"pid": process, "tid": thread, "ts": start}


def metadata_event(kind: str, thread: int, name: str, process: int = PROCESS) -> dict[str, Any]:
    """The trace event that names a process (`process_name`) or a thread (`thread_name`)."""
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _timed_events(recorder: Recorder, threads: dict[str, int]) -> list[_TimedEvent]:
    """Every event with its time: those of one machine and tick share the tick evenly."""
    where = [event.source if event.occurrence in (POST, LOST) else event.target for event in recorder.events]
    together = Counter((name, event.tick) for name, event in zip(where, recorder.events, strict=True))
    tick = TICK
    while tick < max(together.values(), default=0):
        tick *= 10
    done: Counter[tuple[str, int]] = Counter()
    result: list[_TimedEvent] = []
    for name, event in zip(where, recorder.events, strict=True):
        key = name, event.tick
        start, end = (tick * count // together[key] for count in (done[key], done[key] + 1))
        done[key] += 1
        result.append(_TimedEvent(event, threads.get(name, 0), event.tick * tick + start, end - start))
    return result


def _steps(recorder: Recorder, placed: list[_TimedEvent]) -> list[dict[str, Any]]:
    """The trace slice of every step of a trainer, from the first message sent in it to the last event before the next.

    An event that comes late, about an earlier step, lies within the current step.
    """
    spans: list[tuple[str, int, int]] = []
    for event, _, start, duration in placed:
        name = recorder.step_name(event.trainer, event.step)
        if not spans or (event.occurrence == POST and name != spans[-1][0]):
            spans.append((name, start, start + duration))
        else:
            spans[-1] = (*spans[-1][:2], start + duration)
    thread = placed[0].thread if placed else 0
    return [
        {"name": name, "cat": "step", "ph": "X", **about(thread, start), "dur": end - start}
        for name, start, end in spans
    ]


def _message(recorder: Recorder, item: _TimedEvent, flows: dict[tuple[str, str, int], int]) -> list[dict[str, Any]]:
    """The slice of one event, with its end of the arrow."""
    event = item.event
    name = f"{event.kind} {event.variable}".rstrip()
    common: dict[str, Any] = {"cat": event.kind, **about(item.thread, item.start)}
    if event.occurrence in (LOST, DUPLICATE):
        return [{**common, "name": f"{event.occurrence}: {name}", "ph": "i", "s": "t"}]
    step = recorder.step_name(event.trainer, event.step)
    args = {"from": event.source, "to": event.target, "step": step, "tick": event.tick, "bytes": event.bytes}
    shown = {**common, "name": name, "ph": "X", "dur": item.duration, "args": args}
    if event.occurrence == POST:
        flows[event.message] = len(flows) + 1
        return [shown, {**common, "name": name, "ph": "s", "id": flows[event.message]}]
    if event.occurrence == DELIVER and event.message in flows:
        return [shown, {**common, "name": name, "ph": "f", "bp": "e", "id": flows[event.message]}]
    return [shown]
