"""What `launch` shows of the machines of a job: on a terminal a line for each, elsewhere a line for each step."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pstranspile.cli.progress import Lines, Progress, is_terminal
from pstranspile.net.shown import Shown, told


class Watched(Protocol):
    """A machine: the last that it told, how often it was started, and how it ended (None: it runs)."""

    role: str
    told: dict[str, Any]
    starts: int
    ended: int | None


class View:
    """Shows what the machines tell, as it comes."""

    def __init__(self, members: Mapping[str, Watched], trainers: Sequence[str], steps: int):
        self.members = members
        self.trainers = trainers
        self._lines = Lines(sys.stdout) if is_terminal(sys.stdout) else None
        self._steps: dict[int, dict[str, dict[str, Shown]]] = {}
        self._progress = Progress(steps, live=False)
        self._last = 0
        """The last step that was shown; a job that goes back does steps again, which are not shown again."""

    def expect(self, steps: int) -> None:
        """The job begins, or begins again, and does so many steps in all."""
        self._progress = Progress(steps, live=False)
        self._steps = {}

    def told(self, member: Watched, fields: Mapping[str, Any]) -> None:
        """A machine has told something."""
        if "values" not in fields or self._lines is not None:
            return
        by_trainer = self._steps.setdefault(fields["step"], {})
        by_trainer[member.role] = _shown(fields)
        if len(by_trainer) == len(self.trainers):
            self._show(fields["step"])

    def _show(self, step: int) -> None:
        by_trainer = self._steps.pop(step)
        if step <= self._last:
            return
        self._last = step
        self._progress.step(step, by_trainer)

    def look(self) -> None:
        """Draws the table."""
        if self._lines is None:
            return
        width = max(map(len, self.members))
        self._lines.draw([f"{name:<{width}}  {_line(member)}" for name, member in self.members.items()])

    def end(self) -> None:
        """The job is over."""
        if self._lines is not None:
            self.look()
            self._lines.leave()
        for step in sorted(self._steps):
            self._show(step)


def _shown(fields: Mapping[str, Any]) -> dict[str, Shown]:
    """What a step has fetched, as a machine has told it."""
    values: Mapping[str, Any] = fields.get("values", {})
    return {name: Shown(form, tuple(few), *rest) for name, (form, few, *rest) in values.items()}


def _line(member: Watched) -> str:
    fields = member.told
    state = str(fields.get("state", "starting")) if member.ended is None else "ended" if not member.ended else "failed"
    again = f"  started {member.starts} times" if member.starts > 1 else ""
    step = f"  {'update' if member.role.startswith('pserver') else 'step'} {fields['step']}" if "step" in fields else ""
    return f"{state:<9}{step}{again}  {told(_shown(fields))}".rstrip()
