"""A message-sequence chart, as text and as a picture: a column for each machine, arrows for messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias
from xml.sax.saxutils import escape

from pstranspile.cluster.machines import message as kinds
from pstranspile.cluster.machines.message import NOUNS, SEND
from pstranspile.cluster.machines.recorder import DELIVER, LOST, POST, Event, Recorder

# A message-sequence chart: a column for each machine, and an arrow for each group of similar messages.
#
# Arrows stand in the order in which messages were taken (or lost), in one row each. An arrow is a group of messages:
# one machine sent them at one moment, of one kind and about one step, and the other took them one right after the
# other.

COLUMN = 18
"""Characters from one machine's line to the next in text."""


class Arrow(NamedTuple):
    """Similar messages that went together. `occurrence` happened to them at `tick`; they were sent at `post_tick`."""

    occurrence: str
    kind: str
    source: str
    target: str
    trainer: int
    step: int
    post_tick: int
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
        return what + size + ("" if self.occurrence == DELIVER else f" ({self.occurrence})")


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
        if event.occurrence == POST:
            posted.setdefault(event.message, event.tick)
            continue
        arrow = Arrow(
            event.occurrence, event.kind, event.source, event.target, event.trainer, event.step,
            posted.get(event.message, event.tick), event.tick, (event.variable,), event.bytes,
        )  # fmt: skip
        before = last.get(event.target, -1)
        if before >= 0 and result[before][:7] == arrow[:7]:
            one = result[before]
            result[before] = one._replace(names=one.names + arrow.names, bytes=one.bytes + arrow.bytes)
            continue
        last[event.target] = len(result)
        if event.occurrence != LOST:  # the target does not see a message that was lost
            last[event.source] = len(result)
        result.append(arrow)
    return result


def rows_of(recorder: Recorder, first: int, last: int) -> list[Row]:
    """The rows of a chart of steps `first` to `last`: arrows, and a heading where a step begins, which is where its
    first message is taken.
    """
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
    """The machines that occur in the rows, in the order of the cluster. A trainer's own machines come right after
    it.
    """
    used = {name for row in rows if isinstance(row, Arrow) for name in (row.source, row.target)}
    place = {name: number for number, name in enumerate(recorder.machines)}
    return sorted(used, key=lambda name: (place.get(name.partition("/")[0], 0), place[name]))


def labels_of(recorder: Recorder, rows: Sequence[Row]) -> list[str]:
    """The label of each row. The label of an arrow names its step if that is not the step that began last."""
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
    if arrow.occurrence == LOST:
        line[(low + high) // 2] = "x"
    elif start < end:
        line[high - 1] = ">"
    else:
        line[low + 1] = "<"
    return "".join(line)


# The message-sequence chart as a picture: a colour for each kind of message, a band where a step begins.


class MessageStyle(NamedTuple):
    """How messages are drawn, and what the legend calls them."""

    name: str
    colour: str
    kinds: tuple[str, ...]


MESSAGE_STYLES = (
    MessageStyle("gradients and other values sent", "#0072b2", (kinds.SEND, kinds.NOTIFY)),
    MessageStyle("collective operations", "#0072b2", (kinds.COLLECTIVE, kinds.PIECE, kinds.TOTAL, kinds.STATEMENT)),
    MessageStyle("requests for variables", "#777777", (kinds.GET, kinds.GET_NOW, kinds.GET_ROWS)),
    MessageStyle("lookups of rows", "#9440a0", (kinds.LOOKUP, kinds.PREFETCH)),
    MessageStyle("answers", "#00855f", (kinds.REPLY,)),
    MessageStyle("barriers", "#d07000", (kinds.SEND_BARRIER, kinds.FETCH_BARRIER)),
    MessageStyle("leaving and saving", "#222222", (kinds.COMPLETE, kinds.CHECKPOINT, kinds.SHRINK)),
)
"""The kinds of messages, in colours that most people with a colour vision deficiency can distinguish."""

TROUBLE = MessageStyle("lost, or come twice", "#cc0000", ())

_OF_KIND = {kind: look for look in MESSAGE_STYLES for kind in look.kinds}

_ROW = 22
"""The height of a row, in pixels."""

_BAND = 30
"""The height of the band where a step begins, in pixels."""

_LEFT = 120
"""The margin on the left for steps and ticks, in pixels."""

_CHARACTER = 6.2
"""The width of a letter, in pixels."""

_WIDEST = 270
"""The widest column, in pixels."""


class _Page:
    """The layout of a chart: its width, the width of its columns, and the horizontal position of each machine."""

    def __init__(self, machines: Sequence[str], rows: Sequence[Row], labels: Sequence[str]):
        longest = max((len(text) for row, text in zip(rows, labels, strict=True) if isinstance(row, Arrow)), default=0)
        names = max(map(len, machines), default=0)
        self.column = min(max(longest * _CHARACTER + 26, names * 7.5 + 24, 110), max(_WIDEST, names * 7.5 + 24))
        self.x = {name: _LEFT + self.column / 2 + number * self.column for number, name in enumerate(machines)}
        self.width = max(_LEFT + self.column * max(len(machines), 1), 640)
        self.letters = int((self.column - 22) / _CHARACTER)


def chart_svg(recorder: Recorder, first: int, last: int) -> str:
    """The messages of steps `first` to `last` as a picture. Each arrow has a tooltip."""
    rows = rows_of(recorder, first, last)
    labels = labels_of(recorder, rows)
    page = _Page(machines_of(recorder, rows), rows, labels)
    used = {_look(row) for row in rows if isinstance(row, Arrow)}
    looks = [look for look in (*MESSAGE_STYLES, TROUBLE) if look in used]
    top, legend = _head(rows, looks, page)
    parts: list[str] = []
    bands: list[str] = []
    y = float(top)
    for row, label in zip(rows, labels, strict=True):
        if isinstance(row, Section):
            bands += _band(y, label, page)
            y += _BAND
        else:
            y += _ROW
            parts += _arrow(row, label, y - 5, page)
    height = y + 16
    lines = [f'<path d="M{x:g},{top} V{height - 8:g}" stroke="#bbb"/>' for x in page.x.values()]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{page.width:g}" height="{height:g}" '
        f'viewBox="0 0 {page.width:g} {height:g}" font-family="sans-serif" font-size="11">'
    )
    paper = f'<rect width="{page.width:g}" height="{height:g}" fill="white"/>'
    return "\n".join([head, *_markers(looks), paper, *legend, *lines, *bands, *parts, "</svg>"]) + "\n"


def _look(arrow: Arrow) -> MessageStyle:
    return _OF_KIND[arrow.kind] if arrow.occurrence == DELIVER else TROUBLE


def _markers(looks: Sequence[MessageStyle]) -> Iterator[str]:
    """The SVG definition of an arrowhead for each colour."""
    yield "<defs>"
    for colour in dict.fromkeys(look.colour for look in looks):
        yield (
            f'<marker id="head-{colour[1:]}" markerWidth="9" markerHeight="8" refX="8.5" refY="4" orient="auto" '
            f'markerUnits="userSpaceOnUse"><path d="M0,0.5 L9,4 L0,7.5 z" fill="{colour}"/></marker>'
        )
    yield "</defs>"


def _head(rows: Sequence[Row], looks: Sequence[MessageStyle], page: _Page) -> tuple[float, list[str]]:
    """The vertical position below the title and the legend, where the rows begin, and the SVG elements of both."""
    steps = [row.name for row in rows if isinstance(row, Section)]
    steps_shown = "nothing" if not steps else steps[0] if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    parts = [
        f'<text x="12" y="24" font-size="15" font-weight="bold">Messages: {escape(steps_shown)}</text>',
        '<text x="12" y="41" fill="#666">from top to bottom in the order in which they are taken; the numbers are '
        "ticks of the virtual clock</text>",
    ]
    x, y = 12.0, 60.0
    for look in looks:
        wide = 34 + len(look.name) * _CHARACTER + 14
        if x > 12 and x + wide > page.width:
            x, y = 12.0, y + 18
        parts.append(f'<path d="M{x:g},{y - 4:g} h26" stroke="{look.colour}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 32:g}" y="{y:g}">{escape(look.name)}</text>')
        x += wide
    return y + 14, parts


def _band(y: float, name: str, page: _Page) -> Iterator[str]:
    """The SVG elements of a step's heading: its name, and the names of the machines above their lines."""
    yield f'<rect x="0" y="{y + 5:g}" width="{page.width:g}" height="{_BAND - 8}" fill="#eef1f5"/>'
    yield f'<path d="M0,{y + 5:g} H{page.width:g}" stroke="#8a94a6"/>'
    base = y + 20
    yield f'<text x="12" y="{base:g}" font-weight="bold">{escape(name)}</text>'
    for machine, x in page.x.items():
        style = 'text-anchor="middle" font-weight="bold" fill="#445"'
        yield f'<text x="{x:g}" y="{base:g}" {style}>{escape(machine)}</text>'


def _arrow(arrow: Arrow, label: str, y: float, page: _Page) -> Iterator[str]:
    """One arrow, with its label between the line of its source and the next one, where nothing crosses it."""
    x1, x2 = page.x[arrow.source], page.x[arrow.target]
    colour, way = _look(arrow).colour, 1 if x1 <= x2 else -1
    shown = label if len(label) <= page.letters else label[: page.letters - 1] + "…"
    taken = arrow.occurrence == DELIVER
    yield "<g>"
    yield f"<title>{escape(_tooltip(arrow, label))}</title>"
    yield f'<text x="12" y="{y:g}" fill="#999" font-size="9">{arrow.tick}</text>'
    anchor = "start" if way > 0 else "end"
    yield f'<text x="{x1 + 9 * way:g}" y="{y - 4:g}" text-anchor="{anchor}" fill="{colour}">{escape(shown)}</text>'
    if taken:
        end = f'marker-end="url(#head-{colour[1:]})"'
        yield f'<line x1="{x1:g}" y1="{y:g}" x2="{x2:g}" y2="{y:g}" stroke="{colour}" stroke-width="1.4" {end}/>'
    else:
        stop = x1 + way * page.column * 0.6
        yield f'<line x1="{x1:g}" y1="{y:g}" x2="{stop:g}" y2="{y:g}" stroke="{colour}" stroke-dasharray="5 3"/>'
        yield f'<path d="M{stop - 4:g},{y - 4:g} l8,8 m0,-8 l-8,8" stroke="{colour}" stroke-width="1.6"/>'
    yield f'<circle cx="{x1:g}" cy="{y:g}" r="2.2" fill="{colour}"/>'
    yield "</g>"


def _tooltip(arrow: Arrow, label: str) -> str:
    """The whole label of an arrow, when and between which machines it went, and the variables."""
    when = f"{arrow.source} to {arrow.target}, sent at tick {arrow.post_tick}, {arrow.occurrence} at tick {arrow.tick}"
    return "\n".join([label, when, *(name for name in arrow.names if name and len(arrow.names) > 1)])
