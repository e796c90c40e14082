"""A run as a trace that Chrome's `about:tracing` and Perfetto show (the JSON Trace Event Format).

One microsecond of the trace is one tick of the virtual clock. Every machine is a thread; a message is a slice where it
was posted, one where it was taken, and an arrow between them; a trainer's step is a slice around its messages.
"""

from __future__ import annotations

import json
from typing import Any

from pstranspile.run.cluster.recorder import DELIVER, DUPLICATE, LOST, POST, Event, Recorder

PROCESS = 1


def trace_json(recorder: Recorder) -> str:
    """The text of a trace file."""
    threads = {name: number for number, name in enumerate(recorder.machines, start=1)}
    found: list[dict[str, Any]] = [_named("process_name", 0, "cluster")]
    found += (_named("thread_name", number, name) for name, number in threads.items())
    found += _steps(recorder, threads)
    flows: dict[tuple[str, str, int], int] = {}
    for event in recorder.events:
        found += _message(event, threads, flows)
    lines = ",\n".join(json.dumps(item) for item in found)
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def _named(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": thread, "args": {"name": name}}


def _steps(recorder: Recorder, threads: dict[str, int]) -> list[dict[str, Any]]:
    """A slice for every step of every trainer, from the first of its messages to the last."""
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    names: dict[tuple[str, int], str] = {}
    for event in recorder.events:
        for machine in (event.source, event.target):
            if machine.startswith("trainer") and machine in threads:
                first, last = spans.get((machine, event.step), (event.tick, event.tick))
                if (machine, event.step) not in names:
                    names[machine, event.step] = recorder.step_name(event.trainer, event.step)
                spans[machine, event.step] = min(first, event.tick), max(last, event.tick)
    return [
        {
            "name": names[machine, step],
            "cat": "step",
            "ph": "X",
            "ts": first,
            "dur": last - first + 1,
            "pid": PROCESS,
            "tid": threads[machine],
        }
        for (machine, step), (first, last) in spans.items()
    ]


def _message(event: Event, threads: dict[str, int], flows: dict[tuple[str, str, int], int]) -> list[dict[str, Any]]:
    """The slice of one event, with its end of the arrow."""
    machine = event.source if event.what in (POST, LOST) else event.target
    name = f"{event.kind} {event.variable}".rstrip()
    common: dict[str, Any] = {"cat": event.kind, "pid": PROCESS, "tid": threads.get(machine, 0), "ts": event.tick}
    if event.what in (LOST, DUPLICATE):
        return [{**common, "name": f"{event.what}: {name}", "ph": "i", "s": "t"}]
    told = {"from": event.source, "to": event.target, "step": event.step + 1, "bytes": event.bytes}
    shown = {**common, "name": name, "ph": "X", "dur": 1, "args": told}
    if event.what == POST:
        flows[event.message] = len(flows) + 1
        return [shown, {**common, "name": name, "ph": "s", "id": flows[event.message]}]
    if event.what == DELIVER and event.message in flows:
        return [shown, {**common, "name": name, "ph": "f", "bp": "e", "id": flows[event.message]}]
    return [shown]
