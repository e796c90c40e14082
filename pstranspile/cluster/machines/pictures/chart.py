"""A message-sequence chart: a column for each machine, and an arrow for each group of similar messages.

Arrows stand in the order in which messages were taken (or lost), in one row each. An arrow is a group of messages: one
machine sent them at one moment, of one kind and about one step, and the other took them one right after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from pstranspile.cluster.machines.message import NOUNS, SEND
from pstranspile.cluster.machines.pictures.recorder import DELIVER, LOST, POST, Event, Recorder

COLUMN = 18
"""Characters from one machine's line to the next in text."""


class Arrow(NamedTuple):
    """Similar messages that went together. `what` happened to them at `tick`; they were sent at `posted`."""

    what: str
    kind: str
    source: str
    target: str
    trainer: int
    step: int
    posted: int
    tick: int
    names: tuple[str, ...]
    bytes: int

    def label(self) -> str:
        """`send fc_0.w_0@GRAD, 512 B` or `send 7 gradients, 14.3 kB`, with what happened if they were not taken."""
        what = self.kind
        if len(self.names) > 1:
            gradients = self.kind == SEND and all("@GRAD" in name for name in self.names)
            what += f" {len(self.names)} {'gradients' if gradients else NOUNS[self.kind]}"
        else:
            what = " ".join(filter(None, (what, *self.names)))
        size = f", {size_label(self.bytes)}" if self.bytes else ""
        return what + size + ("" if self.what == DELIVER else f" ({self.what})")


class Section(NamedTuple):
    """The beginning of a step."""

    name: str


Row: TypeAlias = "Arrow | Section"


def size_label(size: int) -> str:
    """`512 B`, `40.0 kB`, `1.2 MB`."""
    if size < 10_000:
        return f"{size} B"
    return f"{size / 1e3:.1f} kB" if size < 1_000_000 else f"{size / 1e6:.1f} MB"


def arrows_of(events: Iterable[Event]) -> list[Arrow]:
    """The arrows for what became of messages, in the order in which it happened."""
    posted: dict[tuple[str, str, int], int] = {}
    result: list[Arrow] = []
    last: dict[str, int] = {}
    for event in events:
        if event.what == POST:
            posted.setdefault(event.message, event.tick)
            continue
        arrow = Arrow(
            event.what, event.kind, event.source, event.target, event.trainer, event.step,
            posted.get(event.message, event.tick), event.tick, (event.variable,), event.bytes,
        )  # fmt: skip
        before = last.get(event.target, -1)
        if before >= 0 and result[before][:7] == arrow[:7]:
            one = result[before]
            result[before] = one._replace(names=one.names + arrow.names, bytes=one.bytes + arrow.bytes)
            continue
        last[event.target] = len(result)
        if event.what != LOST:  # the target does not see a message that was lost
            last[event.source] = len(result)
        result.append(arrow)
    return result


def rows_of(recorder: Recorder, first: int, last: int) -> list[Row]:
    """The rows of a chart of steps `first` to `last`. A step begins where its first message is taken."""
    inside = {event.message for event in recorder.events if first <= event.step <= last}
    rows: list[Row] = []
    at = None
    for arrow in arrows_of(event for event in recorder.events if event.message in inside):
        if at is None or arrow.step > at:
            at = arrow.step
            rows.append(Section(recorder.step_name(arrow.trainer, at)))
        rows.append(arrow)
    return rows


def machines_of(recorder: Recorder, rows: Sequence[Row]) -> list[str]:
    """The machines that take part, in the order of the cluster. A trainer's own machines come right after it."""
    used = {name for row in rows if isinstance(row, Arrow) for name in (row.source, row.target)}
    place = {name: number for number, name in enumerate(recorder.machines)}
    return sorted(used, key=lambda name: (place.get(name.partition("/")[0], 0), place[name]))


def labels_of(recorder: Recorder, rows: Sequence[Row]) -> list[str]:
    """The label of each row. That of an arrow names its step if another step has begun last."""
    names: list[str] = []
    section = ""
    for row in rows:
        if isinstance(row, Section):
            section = row.name
            names.append(row.name)
        else:
            step = recorder.step_name(row.trainer, row.step)
            names.append(row.label() + (f", {step}" if step != section else ""))
    return names


def chart_text(recorder: Recorder, first: int, last: int) -> str:
    """The messages of steps `first` to `last` as text: one line for each arrow."""
    rows = rows_of(recorder, first, last)
    machines = machines_of(recorder, rows)
    column = max(COLUMN, max(map(len, machines), default=0) + 2)
    lines = ["".join(name.ljust(column) for name in machines).rstrip()]
    for row, label in zip(rows, labels_of(recorder, rows), strict=True):
        if isinstance(row, Section):
            lines.append("".join("|".ljust(column) for _ in machines) + label)
        else:
            lines.append(_line(row, machines, column) + label)
    return "\n".join(lines) + "\n"


def _line(arrow: Arrow, machines: Sequence[str], column: int) -> str:
    places = [number * column for number in range(len(machines))]
    line = [" "] * (column * len(machines))
    for place in places:
        line[place] = "|"
    start, end = places[machines.index(arrow.source)], places[machines.index(arrow.target)]
    low, high = min(start, end), max(start, end)
    line[low + 1 : high] = "-" * (high - low - 1)
    if arrow.what == LOST:
        line[(low + high) // 2] = "x"
    elif start < end:
        line[high - 1] = ">"
    else:
        line[low + 1] = "<"
    return "".join(line)
