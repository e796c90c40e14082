"""A message-sequence chart: machines side by side, and an arrow for every message, in the order of events."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from pstranspile.run.cluster.recorder import DELIVER, LOST, POST, Event, Recorder

COLUMN = 18
"""Characters from one machine's line to the next in text."""

_APART, _ROW, _MARGIN, _LABEL = 190, 18, 40, 11


def chart_text(recorder: Recorder, first: int, last: int) -> str:
    """The messages of steps `first` to `last` as text: one line for each that was taken or lost."""
    events = [event for event in recorder.of_steps(first, last) if event.what != POST]
    machines = _machines(recorder, events)
    column = max(COLUMN, max(map(len, machines), default=0) + 2)
    lines = ["".join(name.ljust(column) for name in machines).rstrip()]
    step = None
    for event in events:
        if event.step != step:
            step = event.step
            lines.append("".join("|".ljust(column) for _ in machines) + recorder.step_name(event.trainer, step))
        lines.append(_arrow(event, machines, column))
    return "\n".join(lines) + "\n"


def _machines(recorder: Recorder, events: Sequence[Event]) -> list[str]:
    """The machines that take part, in the order of the cluster."""
    used = {name for event in events for name in (event.source, event.target)}
    return [name for name in recorder.machines if name in used]


def _arrow(event: Event, machines: Sequence[str], column: int) -> str:
    places = [number * column for number in range(len(machines))]
    line = [" "] * (column * len(machines))
    for place in places:
        line[place] = "|"
    start, end = places[machines.index(event.source)], places[machines.index(event.target)]
    low, high = min(start, end), max(start, end)
    line[low + 1 : high] = "-" * (high - low - 1)
    if event.what == LOST:
        line[(low + high) // 2] = "x"
    elif start < end:
        line[high - 1] = ">"
    else:
        line[low + 1] = "<"
    return "".join(line) + label(event)


def label(event: Event) -> str:
    """`send fc_0.w_0@GRAD, 512 B`, with what happened if it was not simply taken."""
    what = f"{event.kind} {event.variable}".rstrip()
    size = f", {event.bytes} B" if event.bytes else ""
    return f"{what}{size}" + ("" if event.what == DELIVER else f" ({event.what})")


def chart_svg(recorder: Recorder, first: int, last: int) -> str:
    """The messages of steps `first` to `last` as a picture; an arrow falls as long as its message is under way."""
    events = recorder.of_steps(first, last)
    machines = _machines(recorder, events)
    x = {name: _MARGIN + 60 + number * _APART for number, name in enumerate(machines)}
    height = 2 * _MARGIN + _ROW * (len(events) + 1)
    width = 2 * _MARGIN + 120 + _APART * max(len(machines) - 1, 1) + 160
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="{_LABEL}">',
        '<defs><marker id="head" markerWidth="8" markerHeight="6" refX="8" refY="3" orient="auto">'
        '<path d="M0,0 L8,3 L0,6 z" fill="#336"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for name, place in x.items():
        parts.append(
            f'<text x="{place}" y="{_MARGIN - 14}" text-anchor="middle" font-weight="bold">{escape(name)}</text>'
        )
        parts.append(f'<line x1="{place}" y1="{_MARGIN}" x2="{place}" y2="{height - _MARGIN}" stroke="#999"/>')
    parts += _arrows(recorder, events, x)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _arrows(recorder: Recorder, events: Sequence[Event], x: dict[str, int]) -> list[str]:
    posted: dict[tuple[str, str, int], int] = {}
    parts: list[str] = []
    labels: list[str] = []  # at the start of their arrows, each in a row of its own
    step = None
    for row, event in enumerate(events, start=1):
        y = _MARGIN + _ROW * row
        if event.step != step:
            step = event.step
            told = escape(recorder.step_name(event.trainer, step))
            parts.append(f'<text x="4" y="{y}" fill="#666">{told}</text>')
        if event.what == POST:
            posted[event.message] = y
            continue
        x1, x2, y1 = x[event.source], x[event.target], posted.get(event.message, y)
        colour, head = ("#336", ' marker-end="url(#head)"') if event.what == DELIVER else ("#c33", "")
        parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y}" stroke="{colour}"{head}/>')
        place, anchor = (x1 + 6, "start") if x1 <= x2 else (x1 - 6, "end")
        where = f'x="{place}" y="{y1 - 4}" text-anchor="{anchor}"'
        told = escape(label(event))
        labels.append(f'<text {where} stroke="white" stroke-width="3">{told}</text>')
        labels.append(f'<text {where} fill="{colour}">{told}</text>')
    return [*parts, *labels]
