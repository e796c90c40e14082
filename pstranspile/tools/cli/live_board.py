"""The state of a running job for `--live`: machines, steps, numbers, messages per second, and waits."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pstranspile.cluster.net.status import DisplayedValue
from pstranspile.ir.diagnostics import installing, visible
from pstranspile.tools.cli.progress import is_terminal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


# `--live`: a board on the terminal, drawn with rich.

OFTEN = 0.1
"""Seconds between two pictures."""

WIDTH = 24
"""Characters of a curve where there is room."""

NARROW = 6
"""Characters of a curve where there is little room."""

OTHERS = 62
"""Characters that the rest of a line needs."""


MOST = 4000
"""Characters of a cell that may be drawn."""


def add_live(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:  # pyright: ignore[reportPrivateUsage]
    """`--live`."""
    parser.add_argument(
        "--live",
        action="store_true",
        help="show the machines at work on the terminal: steps, numbers as curves, messages per second, who waits for "
        f"whom (needs rich: {installing('live')})",
    )


def check_live(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command if `--live` is asked for where it can't be had."""
    if not options.live:
        return
    if find_spec("rich") is None:
        parser.error(f"--live needs rich: {installing('live')}")
    if not is_terminal(sys.stdout):
        parser.error("--live draws on a terminal, which the output is not")


class Screen:
    """Draws a board on a terminal, a few times a second at most; what is printed meanwhile goes above it."""

    def __init__(self, board: Board):
        from rich.console import Console
        from rich.live import Live

        self.board = board
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()
        self._draw_time = 0.0

    def due(self) -> bool:
        """Whether the last picture is old enough for another one."""
        return time.monotonic() - self._draw_time >= OFTEN

    def look(self, *, at_once: bool = False) -> None:
        """Draws the board as it is now, unless that was done just before."""
        if at_once or self.due():
            self._live.update(picture(self.board, self._console), refresh=True)
            self._draw_time = time.monotonic()

    def end(self) -> None:
        """The last picture stays."""
        self.look(at_once=True)
        self._live.stop()


def picture(board: Board, console: Console) -> RenderableType:
    """The board as rich draws it, no higher than the terminal."""
    from rich.console import Group
    from rich.text import Text

    rows, left_out = board.rows(max(console.height - 5, 1))
    lines: list[RenderableType] = [Text(board.head(), style="bold", no_wrap=True), _table(rows, console)]
    below = f"and {left_out} more machines  " if left_out else ""
    awaited = board.awaited_machines()
    lines.append(
        Text(below + (f"waited for: {visible(awaited, MOST)}" if awaited else ""), no_wrap=True, overflow="ellipsis")
    )
    return Group(*lines)


def _table(rows: list[Row], console: Console) -> Table:
    from rich.table import Table
    from rich.text import Text

    width = min(max(console.width - OTHERS, NARROW), WIDTH)
    table = Table(box=None, padding=(0, 2, 0, 0), expand=False, header_style="dim")
    for heading, column in (("machine", "name"), ("", "state"), ("step", "step")):
        least = max((len(getattr(row, column)) for row in rows), default=0)
        table.add_column(heading, no_wrap=True, min_width=max(least, len(heading)))
    table.add_column("messages/s", no_wrap=True, justify="right", min_width=len("messages/s"))
    fetched = [
        "  ".join(f"{name} {sparkline(curve, width)} {last:.5g}" for name, curve, last in row.curves) for row in rows
    ]
    least = min(max(map(len, fetched), default=0), console.width // 2)  # what is waited for is cut off first
    table.add_column("fetched", no_wrap=True, overflow="ellipsis", min_width=least)
    table.add_column("waits for", no_wrap=True, overflow="ellipsis", ratio=1)
    for row, curves in zip(rows, fetched, strict=True):
        cells = (row.name, row.state, row.step, f"{row.messages:.0f}", curves, row.waits)
        styles = ("", "red" if row.state == "failed" else "", "", "", "cyan", "yellow")
        table.add_row(*(Text(visible(cell, MOST), style) for cell, style in zip(cells, styles, strict=True)))
    return table


WINDOW = 3.0
"""Seconds over which messages per second are counted."""

KEPT = 240
"""The last numbers of a curve that are kept and drawn."""

BARS = "▁▂▃▄▅▆▇█"
"""The heights of a curve, from the lowest."""


class Row(NamedTuple):
    """What is shown of a machine. `curves`: of each number that it fetches the name, the course and the last."""

    name: str
    state: str
    step: str
    messages: float
    curves: tuple[tuple[str, tuple[float, ...], float], ...]
    waits: str


class Pace:
    """The rate at which a count grew in the last `window` seconds. Times are seconds from an arbitrary origin."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._marks: deque[tuple[float, int]] = deque()

    def mark(self, count: int, now: float) -> None:
        """The count at a moment. A count below the last one begins anew, as that of a restarted machine does."""
        if self._marks and count < self._marks[-1][1]:
            self._marks.clear()
        self._marks.append((now, count))
        while len(self._marks) > 2 and self._marks[1][0] < now - self._window:
            self._marks.popleft()

    def speed(self, now: float) -> float | None:
        """The growth per second, which falls while no count arrives; None before the second count."""
        if len(self._marks) < 2:
            return None
        (began, first), (_, last) = self._marks[0], self._marks[-1]
        return (last - first) / max(now - began, 1e-9)


class _MachineReports:
    def __init__(self) -> None:
        self.last_reports: dict[str, Any] = {}
        self.curves: dict[str, deque[float]] = {}
        self._messages = Pace(WINDOW)
        self._report_time = 0.0
        self.last_step = 0
        """The last step whose numbers were taken; steps that are done again after a restart are not taken again."""

    def do(self, step: int) -> bool:
        """A step was done; gives whether it was not done before."""
        new, self.last_step = step > self.last_step, max(self.last_step, step)
        return new

    def count(self, messages: int, now: float) -> None:
        """The machine has sent so many messages so far."""
        self._messages.mark(messages, now)
        self._report_time = now

    def messages(self, now: float) -> float:
        """Messages per second; none if the machine has not reported their number of late."""
        return 0.0 if now - self._report_time > WINDOW else self._messages.speed(now) or 0.0


class Board:
    """Takes reports of machines: `state`, `step`, `values` (`DisplayedValue` by name), `messages` that were sent so
    far, and `waits`: for what, and of each machine that has not come its name, with the share of the time.
    """

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic):
        self.steps = steps
        self.doing = ""
        """What is done, where a command does several things."""
        self._clock = clock
        self._began = clock()
        self._steps = Pace(WINDOW)
        self._machines: dict[str, _MachineReports] = {}

    def set_activity(self, doing: str) -> None:
        """Sets what the board shows as being done, where a command does several things."""
        self.doing = doing

    def begin(self, roles: Sequence[str], steps: int | None = None) -> None:
        """These are the machines, all at their beginning; they do so many steps, if it is not as many as before."""
        self.steps = self.steps if steps is None else steps
        self._machines = {role: _MachineReports() for role in roles}
        self._steps = Pace(WINDOW)

    def update(self, role: str, fields: Mapping[str, Any]) -> None:
        """Takes a report of a machine."""
        machine, now = self._machines.setdefault(role, _MachineReports()), self._clock()
        machine.last_reports.update(fields)
        if "messages" in fields:
            machine.count(fields["messages"], now)
        if "step" in fields and not self._serves(role):
            if machine.do(fields["step"]):
                self._take_values(machine, fields.get("values", {}))
            self._steps.mark(self._completed_step(), now)

    def _take_values(self, machine: _MachineReports, values: Mapping[str, Any]) -> None:
        for name, (_, few, *_) in values.items():
            if len(few) == 1:
                machine.curves.setdefault(name, deque(maxlen=KEPT)).append(float(few[0]))

    def _serves(self, role: str) -> bool:
        return role.startswith("pserver")

    def _completed_step(self) -> int:
        """The step that all trainers have done."""
        return min((m.last_step for role, m in self._machines.items() if not self._serves(role)), default=0)

    def head(self) -> str:
        """The progress of the job, its speed, and the time it has run."""
        now = self._clock()
        parts = [self.doing] if self.doing else []
        parts += [f"step {self._completed_step()}/{self.steps}", f"{self._steps.speed(now) or 0:.1f} steps/s"]
        if any("messages" in machine.last_reports for machine in self._machines.values()):
            rate = sum(machine.messages(now) for machine in self._machines.values())
            parts.append(f"{rate:.0f} messages/s")
        seconds = int(now - self._began)
        return "  ".join([*parts, f"{seconds // 60}:{seconds % 60:02}"])

    def awaited_machines(self) -> str:
        """The machines that others wait for, as text, beginning with those that most machines wait for."""
        counts: dict[str, int] = {}
        for machine in self._machines.values():
            for name in machine.last_reports.get("waits", {}).get("missing", {}):
                counts[name] = counts.get(name, 0) + 1
        most = sorted(counts.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} by {count}" for name, count in most)

    def rows(self, most: int) -> tuple[list[Row], int]:
        """The machines, but no more than so many, and how many are left out: first those that serve."""
        now = self._clock()
        names = list(self._machines)
        if len(names) > most:
            names = sorted(names, key=self._serves)[:most]
        return [self._row(name, self._machines[name], now) for name in names], len(self._machines) - len(names)

    def _row(self, name: str, machine: _MachineReports, now: float) -> Row:
        reported = machine.last_reports
        step = f"{'update' if self._serves(name) else 'step'} {reported['step']}" if "step" in reported else ""
        curves = tuple((name, tuple(curve), curve[-1]) for name, curve in machine.curves.items())
        waits: Mapping[str, Any] = reported.get("waits", {})
        return Row(name, str(reported.get("state", "")), step, machine.messages(now), curves, _waits(waits))


def _waits(fields: Mapping[str, Any]) -> str:
    """`trainer_1 80%: send barriers of step 3`; "" where nothing is waited for."""
    missing: Mapping[str, float] = fields.get("missing", {})
    if not missing:
        return str(fields.get("what", ""))
    shares = [f"{name} {share:.0%}" if share < 1 else name for name, share in missing.items()]
    names = ", ".join(shares[:3]) + (f" and {len(shares) - 3} more" if len(shares) > 3 else "")
    return f"{names}: {fields.get('what', '')}"


def sparkline(numbers: Sequence[float], width: int) -> str:
    """Numbers as bars between the smallest and the largest; a space where one is no number. Where there are more than
    fit, a bar is the mean of several.
    """
    bounds = [len(numbers) * bar // width for bar in range(width + 1)] if len(numbers) > width else []
    means = [sum(numbers[begin:end]) / (end - begin) for begin, end in pairwise(bounds)]
    shown = means or numbers
    real = [number for number in shown if abs(number) < float("inf")]
    if not real:
        return " " * len(shown)
    low, high = min(real), max(real)
    top = len(BARS) - 1
    result = ""
    for number in shown:
        if not abs(number) < float("inf"):
            result += " "
        else:
            result += BARS[round((number - low) / (high - low) * top) if high > low else 0]
    return result


def values_of(results: Mapping[str, DisplayedValue]) -> dict[str, list[Any]]:
    """The fetched values of a step in the form of reports."""
    return {name: list(value) for name, value in results.items()}
