"""The display of `launch`: on a terminal one line for each machine, elsewhere one line for each step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Protocol

from pstranspile.cluster.net.status import DisplayedValue, values_text
from pstranspile.ir.diagnostics import name_list
from pstranspile.tools.cli.live_board import Pace
from pstranspile.tools.cli.progress import Lines, Progress, is_terminal

RECENT = 5.0
"""The window, in seconds, over which steps per second are measured."""


PATIENCE = 30.0
"""The time, in seconds, after which is said which machines have been started, if none of them has done a step."""


class MachineStatus(Protocol):
    """A machine: its last reports, how often it was started, and how it ended (None: it runs)."""

    role: str
    last_reports: dict[str, Any]
    starts: int
    exit_status: int | None


class Silence:
    """Tells a text once, where for a while no machine has done a step, and no terminal shows what they do."""

    def __init__(self, text: str, tell: Callable[[str], object]):
        self._text, self._tell = text, tell
        self._end: float | None = monotonic() + PATIENCE

    def look(self, members: Mapping[str, MachineStatus]) -> None:
        """Looks whether it is time."""
        if self._end is None:
            return
        if any("step" in member.last_reports for member in members.values()):
            self._end = None
        elif monotonic() >= self._end:
            self._end = None
            self._tell(self._text)


class View:
    """Shows the reports of the machines as they come."""

    def __init__(self, members: Mapping[str, MachineStatus], trainers: Sequence[str], steps: int):
        self.members = members
        self.trainers = trainers
        self._lines = Lines(sys.stdout) if is_terminal(sys.stdout) else None
        self._steps: dict[int, dict[str, dict[str, DisplayedValue]]] = {}
        self._stream = sys.stdout
        """The stream to which lines of steps go, also while other output of this process is sent elsewhere."""
        self._progress = Progress(steps, self._stream, live=False)
        self._last = 0
        """The last step that was shown; a job that goes back does steps again, which are not shown again."""
        self._paces: dict[str, Pace] = {}
        self._waits: dict[str, Sequence[str]] = {}
        """The machines that are waited for, by the machine that waits."""

    def begin(self, members: Mapping[str, MachineStatus], steps: int) -> None:
        """The job begins, or begins again, with these machines, and does so many steps in all."""
        self.members = members
        self.trainers = [role for role in members if role.startswith("trainer")]
        self._progress = Progress(steps, self._stream, live=False)
        self._steps = {}

    def update(self, member: MachineStatus, fields: Mapping[str, Any]) -> None:
        """Takes a report of a machine."""
        if "waits_for" in fields:
            self._waits[member.role] = fields["waits_for"]
        elif "step" in fields or "state" in fields:
            self._waits.pop(member.role, None)
        if "step" in fields:
            self._paces.setdefault(member.role, Pace(RECENT)).mark(fields["step"], monotonic())
        if "values" not in fields or self._lines is not None:
            return
        by_trainer = self._steps.setdefault(fields["step"], {})
        by_trainer[member.role] = _fetched_values(fields)
        if len(by_trainer) == len(self.trainers):
            self._show(fields["step"])

    def _show(self, step: int) -> None:
        by_trainer = self._steps.pop(step)
        if step <= self._last:
            return
        self._last = step
        self._progress.step(step, by_trainer)

    def clear(self) -> None:
        """Erases the table until it is drawn again, so that other text can be printed."""
        if self._lines is not None:
            self._lines.clear()

    def look(self) -> None:
        """Draws the table."""
        if self._lines is None:
            return
        width = max(map(len, self.members))
        self._lines.draw([f"{name:<{width}}  {self._line(member)}" for name, member in self.members.items()])

    def _line(self, member: MachineStatus) -> str:
        """State, step, steps per second, for whom it waits, how often it was started, and what it fetched last."""
        fields, role = member.last_reports, member.role
        ended = "ended" if not member.exit_status else "failed"
        state = str(fields.get("state", "starting")) if member.exit_status is None else ended
        parts = [f"{state:<8}"]
        if "step" in fields:
            parts.append(f"{'update' if role.startswith('pserver') else 'step'} {fields['step']}")
        speed = self._paces[role].speed(monotonic()) if role in self._paces else None
        if member.exit_status is None and speed is not None:
            parts.append(f"{speed:.3g} {'updates' if role.startswith('pserver') else 'steps'}/s")
        if member.exit_status is None and self._waits.get(role):
            parts.append(f"waits for {name_list(self._waits[role], 3)}")
        if member.starts > 1:
            parts.append(f"started {member.starts} times")
        return "  ".join([*parts, values_text(_fetched_values(fields))]).rstrip()

    def end(self) -> None:
        """The job is over."""
        if self._lines is not None:
            self.look()
            self._lines.leave()
        for step in sorted(self._steps):
            self._show(step)


def _fetched_values(fields: Mapping[str, Any]) -> dict[str, DisplayedValue]:
    """The fetched values in a report of a machine, by name."""
    values: Mapping[str, Any] = fields.get("values", {})
    return {name: DisplayedValue(form, tuple(few), *rest) for name, (form, few, *rest) in values.items()}
