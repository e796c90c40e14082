"""How a command is going: on terminals lines that are drawn over and never wrap, elsewhere a line for each step."""

from __future__ import annotations

import argparse
import os
import sys
import unicodedata
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TextIO

from pstranspile.cluster.net.status import DisplayedValue, merge_displayed_values, numbers_first, values_text
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, shell_word
from pstranspile.tools.cli.report import CommandFailure, report, status_of
from pstranspile.tools.cli.written_files import PENDING, checkpoints_in, folder_made, kept_in, say

OFTEN = 0.05
"""Seconds between two pictures on a terminal."""

MOST_SHOWN = 8
"""Trainers whose numbers are shown one by one; of more, the smallest, the mean and the largest are shown."""

PATIENCE = 0.5
"""Seconds before a command that prints its result at the end shows its progress."""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether lines of a stream can be drawn over; a stream that was closed before the start is None."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def _size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows of a terminal; COLUMNS and LINES take their place, as for other programs."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, rows = 0, 0
    given = [int(text) if (text := os.environ.get(name, "")).isdecimal() else 0 for name in ("COLUMNS", "LINES")]
    return given[0] or columns or 80, given[1] or rows or 24


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def truncate_line(line: str, columns: int) -> str:
    """The line, or as much of it as fits into so many columns, with `…` in place of the rest."""
    line = "".join(character if character.isprintable() else "?" for character in line)
    if sum(map(_width, line)) <= columns:
        return line
    kept, used = "", 1
    for character in line:
        used += _width(character)
        if used > columns:
            break
        kept += character
    return kept + "…" if columns > 0 else ""


class Lines:
    """Lines at the end of a terminal that take the place of those drawn before."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._line_count = 0

    @property
    def columns(self) -> int:
        """How many columns a line may have: one less than there are, as the last one makes some terminals wrap."""
        return max(_size(self._stream)[0] - 1, 1)

    def draw(self, lines: Sequence[str]) -> None:
        """Draws the lines, as far as there are rows for them."""
        most, columns = max(_size(self._stream)[1] - 1, 1), self.columns
        shown = [truncate_line(line, columns) for line in lines[:most]]
        text = self._start() + "\x1b[K\n".join(shown) + "\x1b[J"
        print(text, end="", file=self._stream, flush=True)
        self._line_count = len(shown)

    def _start(self) -> str:
        return (f"\x1b[{self._line_count - 1}A" if self._line_count > 1 else "") + "\r"

    def clear(self) -> None:
        """Removes the lines from the terminal."""
        if self._line_count:
            print(f"{self._start()}\x1b[J", end="", file=self._stream, flush=True)
        self._line_count = 0

    def leave(self) -> None:
        """What was drawn last stays; what is printed next begins below it."""
        if self._line_count:
            print(file=self._stream)
        self._line_count = 0


class Progress:
    """Shows what the steps of a run fetch, as it comes, by trainer (`""` where there is one machine)."""

    def __init__(self, steps: int, stream: TextIO | None = None, *, first: int = 0, live: bool = True):
        self._steps = steps
        self._first_step = first
        self._stream = stream or sys.stdout
        self._lines = Lines(self._stream) if live and is_terminal(self._stream) else None
        self._start = perf_counter()
        self._display_time = 0.0

    def step(self, number: int, fetched: Mapping[str, Mapping[str, DisplayedValue]]) -> None:
        """Step `number`, counted from 1, has given these values."""
        if len(fetched) > MOST_SHOWN:
            names = dict.fromkeys(name for values in fetched.values() for name in values)
            fetched = {
                "": {name: merge_displayed_values(v[name] for v in fetched.values() if name in v) for name in names}
            }
        fetched = dict(sorted(fetched.items()))
        head = f"step {number}/{self._steps}"
        line = "  ".join(
            [head, *(values_text(values, f"{who} " if who else "") for who, values in fetched.items())]
        ).rstrip()
        if self._lines is None:
            print(line, file=self._stream, flush=True)
            return
        now = perf_counter()
        if now - self._display_time < OFTEN and number < self._steps:
            return
        self._display_time = now
        rate = f"{(number - self._first_step) / max(now - self._start, 1e-9):.1f} steps/s"
        if len(line) + len(rate) + 2 <= self._lines.columns:
            self._lines.draw([f"{line}  {rate}"])
        else:
            groups = [f"  {who}  {values_text(numbers_first(v))}" for who, v in fetched.items()]
            self._lines.draw([f"{head}  {rate}", *groups])

    def end(self) -> None:
        """The last step is done, or the run has stopped."""
        if self._lines is not None:
            self._lines.leave()


class Status:
    """A line on stderr, if that is a terminal, with the progress of a command; it is erased at the end."""

    def __init__(self, command: str, stream: TextIO | None = None):
        self._command = command
        shown = stream or sys.stderr
        self._lines = Lines(shown) if is_terminal(shown) else None
        self._next_time = perf_counter() + PATIENCE

    def __call__(self, what: str, done_count: int, of: int) -> None:
        """So many things of a kind are done."""
        if self._lines is None or perf_counter() < self._next_time:
            return
        self._lines.draw([f"{self._command}: {what} {done_count}/{of}"])
        self._next_time = perf_counter() + OFTEN

    def clear(self) -> None:
        """Removes the line from the terminal."""
        if self._lines is not None:
            self._lines.clear()


@contextmanager
def status(command: str) -> Generator[Status]:
    """The status line of a command, which is gone when the block has ended, however it does."""
    status_line = Status(command)
    try:
        yield status_line
    finally:
        status_line.clear()


# What is kept of a run that is interrupted.


class RunCheckpoints:
    """The checkpoints that a run leaves in a folder ("": none). A run goes on from those in `resumed_folder` ("": it
    begins).
    """

    def __init__(self, folder: str, resumed_folder: str = ""):
        self.folder = folder
        self._resumed_folder = resumed_folder
        self._folder_note = folder_made(folder) if folder else ""
        self._earlier_checkpoints = checkpoints_in(folder)
        self._has_begun = False

    def begin_steps(self, *, steps_left: bool = True) -> None:
        """Called before the first step: from here on, whatever stops the run is reported with what is left of it.

        `steps_left`: whether steps are left to do, as far as is known.
        """
        self._has_begun = True
        if steps_left and self._resumed_folder and not PENDING.files:
            advice = "--checkpoint DIR keeps it to go on from, --save FILE.npz its results"
            say(f"{self._resumed_folder}: nothing is kept of the run that goes on from here; {advice}")

    @property
    def new_checkpoints(self) -> list[str]:
        """The names of the checkpoints that were written, in order."""
        return [
            name for name, what in checkpoints_in(self.folder).items() if self._earlier_checkpoints.get(name) != what
        ]

    def tell_of_end(self) -> None:
        """Says on stderr which checkpoints the run has written and left."""
        new = self.new_checkpoints
        PENDING.written(self.folder)
        if new:
            what = "the checkpoint" if len(new) == 1 else "the checkpoints"
            given = f"--resume {shell_word(self.folder)}"
            say(f"{self.folder}: {what} {' and '.join(new)}, to go on from with {given}{self._folder_note}")

    def tell_of_stop(self, findings: Iterable[Diagnostic] = ()) -> None:
        """Says on stderr what a run that an error has stopped can go on from, and which results are not written, once
        it has begun. Nothing is said of a folder that another run uses or has used, whose checkpoints are that run's.
        """
        if any(found.code in ("checkpoint-busy", "checkpoint-run") for found in findings):
            return
        if self._has_begun or self.new_checkpoints:
            PENDING.tell_of_stop(kept_in(self.folder) if self.folder else "")


@contextmanager
def telling_what_is_kept(options: argparse.Namespace) -> Generator[RunCheckpoints]:
    """Prints on stderr which checkpoints a run has left: at its end, and where an error stops it, with the option by
    which another run goes on from there, and which results are not written. Of a run that keeps nothing nothing is
    said.
    """
    keeping = RunCheckpoints(options.checkpoint or "", options.resume or "")
    try:
        yield keeping
    except DiagnosticError as problem:  # shown first, so that what can be done about it stands below it
        report(problem.diagnostics)
        keeping.tell_of_stop(problem.diagnostics)
        raise CommandFailure(status_of(problem), problem.diagnostics, ()) from problem
    except CommandFailure as problem:
        keeping.tell_of_stop(problem.findings)
        raise
    except Exception:
        keeping.tell_of_stop()
        raise
    keeping.tell_of_end()
