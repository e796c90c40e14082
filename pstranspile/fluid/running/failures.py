"""Reports of a script that has failed or was interrupted.

A failed script's error is shown with the script's own lines, without the lines of this package that ran them; an
interrupted one is told by the line where it was interrupted, and by what it was waiting for.
"""

from __future__ import annotations

import atexit
import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGINT
from traceback import FrameSummary, StackSummary, TracebackException, extract_tb
from typing import TypeVar

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, Note, did_you_mean, nearest, render
from pstranspile.ir.model import Location
from pstranspile.ir.patterns import Pattern

_PACKAGE = str(Path(__file__).parents[2])
_LIBRARY = sysconfig.get_paths()["stdlib"]


def _is_ours(frame: FrameSummary) -> bool:
    return frame.filename.startswith(_PACKAGE)


def _is_of_script(frame: FrameSummary) -> bool:
    is_of_python = frame.filename.startswith(_LIBRARY) and "site-packages" not in frame.filename
    return not (_is_ours(frame) or is_of_python or frame.filename.startswith("<"))


def render_diagnostics(problem: DiagnosticError) -> str:
    """Diagnostics as text, with the lines of the script that they are about and the line that was run."""
    diagnostics = list(problem.diagnostics)
    frames = [frame for frame in extract_tb(problem.__traceback__) if _is_of_script(frame)]
    if frames and frames[-1].lineno:
        location = Location(frames[-1].filename, frames[-1].lineno, 0)
        nowhere = (None, Location(location.file))
        diagnostics = [one._replace(location=location) if one.location in nowhere else one for one in diagnostics]
        last = diagnostics[-1]
        if last.location is not None and last.location[:2] != location[:2]:
            diagnostics[-1] = last._replace(notes=(*last.notes, Note("when this was run", location)))
    diagnostics = [_at_line(d)._replace(notes=tuple(map(_at_line, d.notes))) for d in diagnostics]
    places = [each.location for d in diagnostics for each in (d, *d.notes) if each.location is not None]
    sources = {place.file: "".join(linecache.getlines(place.file)) for place in places}
    return render(diagnostics, sources)


def line_of_script(problem: BaseException) -> str:
    """The line of the script that was run last, as `FILE:LINE`; "" where there is none.

    A line of an installed package counts only where no other line led to it.
    """
    frames = [frame for frame in extract_tb(problem.__traceback__) if _is_of_script(frame)]
    frames = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


_Finding = TypeVar("_Finding", Diagnostic, Note)


def _at_line(finding: _Finding) -> _Finding:
    """The finding with its whole line marked where no column is known, unless the line contains the name that the
    finding is about.
    """
    place = finding.location
    line = linecache.getline(place.file, place.line) if place is not None and not place.column else ""
    if place is None or not line.strip() or (finding.focus and finding.focus in line):
        return finding
    return finding._replace(location=place._replace(column=len(line) - len(line.lstrip()) + 1), focus="")


def traceback_of(problem: BaseException) -> str:
    """The traceback as Python prints it, without the lines that start a script.

    Lines of this package are left out where it raises the exception itself, or the system does (OSError). Other
    exceptions keep them, because they may be a fault of this package.
    """
    if isinstance(problem, ImportError):
        _suggest(problem)
    shown = TracebackException.from_exception(problem)
    for each in _chain(shown):
        frames = list(each.stack)
        first = next((place for place, frame in enumerate(frames) if _is_of_script(frame)), len(frames))
        raised = not frames or frames[-1].line.startswith("raise ")  # pyright: ignore[reportOptionalMemberAccess]
        refused = raised or issubclass(each.exc_type, OSError)
        each.stack = StackSummary.from_list(_without_ours(frames[first:]) if refused else frames[first:])
    return "".join(shown.format())


_NOT_IMPORTED = Pattern(r"cannot import name '([^']+)' from '([^']+)'")


def _name_of_paddle(module: str) -> str:
    """The name by which a script imports a module of this package."""
    inner = module.removeprefix("pstranspile.")
    return inner.removeprefix("fluid.") if f"{inner}.".startswith("fluid.paddle.") else f"paddle.{inner}"


def _suggest(problem: ImportError) -> None:
    """Adds the nearest name to the message of a failed import, where a name of Paddle may be misspelt. A module has the
    name that the script imports it by.
    """
    given = _NOT_IMPORTED.match(problem.msg)
    held = sys.modules.get(given[2]) if given else None
    if given and held is not None and given[2].startswith("pstranspile."):
        known = [name for name in (*dir(held), *(["fluid"] if given[2].endswith(".paddle") else ())) if name[0] != "_"]
        written = f"cannot import name '{given[1]}' from '{_name_of_paddle(given[2])}'"
        problem.msg = written + did_you_mean(given[1], known)
    elif isinstance(problem, ModuleNotFoundError) and problem.name and "did you mean" not in problem.msg:
        top, _, rest = problem.name.partition(".")
        near = nearest(top, ["paddle"], 0.8)
        problem.msg += f"; did you mean {near}{'.' if rest else ''}{rest}?" if near and top != near else ""


def _without_ours(frames: Iterable[FrameSummary]) -> Iterator[FrameSummary]:
    """The frames without those of this package, and without those of other libraries that this package has called."""
    beneath = False
    for frame in frames:
        beneath = _is_ours(frame) or (beneath and not _is_of_script(frame))
        if not beneath:
            yield frame


def _chain(shown: TracebackException) -> Iterator[TracebackException]:
    """An exception, its cause, the cause of the cause, and so on; the context where there is no cause."""
    current: TracebackException | None = shown
    while current is not None:
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


# Reports of an interrupted script: the line where it was interrupted, and what it was waiting for.


STATUS = 128 + SIGINT
"""The exit status of an interrupted script, as shells report it."""

_told_at_exit: list[bool] = []


@contextmanager
def naming_wait(what: Callable[[], str]) -> Generator[None]:
    """A context manager that adds to an interrupt in its block the sentence of what the block waits for.

    The script still catches a KeyboardInterrupt; the sentence is its text.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(*(stop.args or filter(None, (what(),)))) from None


def interrupt_message(stop: KeyboardInterrupt) -> str:
    """The sentence that reports a script ended by an interrupt: its line, and what it was waiting for there."""
    place = line_of_script(stop)
    return ": ".join(filter(None, (f"interrupted at {place}" if place else "interrupted", str(stop))))


def end_as_interrupted() -> None:
    """Makes this process, which is ending, exit with the status of an interrupt after everything else is done."""
    _told_at_exit.append(True)


def _end() -> None:
    if _told_at_exit:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a script may have closed the stream, or its reader has gone
                stream.flush()
        os._exit(STATUS)


atexit.register(_end)  # registered first, so it runs after all functions that scripts register
