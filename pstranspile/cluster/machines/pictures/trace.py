"""A run as a trace that Chrome's `about:tracing` and Perfetto show (the JSON Trace Event Format).

One millisecond of the trace is one tick of the virtual clock. Every machine is a thread. A message is a slice where it
was posted, a slice where it was taken, and an arrow between them. The slices of one machine in one tick divide the tick
evenly, so slices of a thread are disjoint or nested. A trainer's step is a slice around its messages.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pstranspile.cluster.machines.pictures.recorder import DELIVER, DUPLICATE, LOST, POST, Event, Recorder

PROCESS = 1

TICK = 1000
"""Microseconds of the trace in a tick, unless a machine does more than that in one."""


class _Placed(NamedTuple):
    """An event with the time that it takes on the thread of its machine."""

    event: Event
    thread: int
    start: int
    duration: int


def trace_json(recorder: Recorder) -> str:
    """The text of a trace file."""
    threads = {name: number for number, name in enumerate(recorder.machines, start=1)}
    placed = _placed(recorder, threads)
    result: list[dict[str, Any]] = [named("process_name", 0, "cluster")]
    result += (named("thread_name", number, name) for name, number in threads.items())
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
    """Where an event stands, and when, in microseconds."""
    return {"pid": process, "tid": thread, "ts": start}


def named(kind: str, thread: int, name: str, process: int = PROCESS) -> dict[str, Any]:
    """The name of a process (`process_name`) or of a thread (`thread_name`)."""
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _placed(recorder: Recorder, threads: dict[str, int]) -> list[_Placed]:
    """Every event with its time: those of one machine and tick share the tick evenly."""
    where = [event.source if event.what in (POST, LOST) else event.target for event in recorder.events]
    together = Counter((name, event.tick) for name, event in zip(where, recorder.events, strict=True))
    tick = TICK
    while tick < max(together.values(), default=0):
        tick *= 10
    done: Counter[tuple[str, int]] = Counter()
    result: list[_Placed] = []
    for name, event in zip(where, recorder.events, strict=True):
        key = name, event.tick
        start, end = (tick * count // together[key] for count in (done[key], done[key] + 1))
        done[key] += 1
        result.append(_Placed(event, threads.get(name, 0), event.tick * tick + start, end - start))
    return result


def _steps(recorder: Recorder, placed: list[_Placed]) -> list[dict[str, Any]]:
    """A slice for every step of a trainer, from the first message that it sends in it to what it does before the next.

    What comes late, about an earlier step, lies within the step under way.
    """
    spans: list[tuple[str, int, int]] = []
    for event, _, start, duration in placed:
        name = recorder.step_name(event.trainer, event.step)
        if not spans or (event.what == POST and name != spans[-1][0]):
            spans.append((name, start, start + duration))
        else:
            spans[-1] = (*spans[-1][:2], start + duration)
    thread = placed[0].thread if placed else 0
    return [
        {"name": name, "cat": "step", "ph": "X", **about(thread, start), "dur": end - start}
        for name, start, end in spans
    ]


def _message(recorder: Recorder, item: _Placed, flows: dict[tuple[str, str, int], int]) -> list[dict[str, Any]]:
    """The slice of one event, with its end of the arrow."""
    event = item.event
    name = f"{event.kind} {event.variable}".rstrip()
    common: dict[str, Any] = {"cat": event.kind, **about(item.thread, item.start)}
    if event.what in (LOST, DUPLICATE):
        return [{**common, "name": f"{event.what}: {name}", "ph": "i", "s": "t"}]
    step = recorder.step_name(event.trainer, event.step)
    args = {"from": event.source, "to": event.target, "step": step, "tick": event.tick, "bytes": event.bytes}
    shown = {**common, "name": name, "ph": "X", "dur": item.duration, "args": args}
    if event.what == POST:
        flows[event.message] = len(flows) + 1
        return [shown, {**common, "name": name, "ph": "s", "id": flows[event.message]}]
    if event.what == DELIVER and event.message in flows:
        return [shown, {**common, "name": name, "ph": "f", "bp": "e", "id": flows[event.message]}]
    return [shown]
