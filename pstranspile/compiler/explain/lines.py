"""The ops of all machines that come from a line of the user's source: of a program's text, or of a Python script."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pstranspile.compiler.explain.answers import LineAnswer, Link, Place, rule_of
from pstranspile.compiler.explain.job import ExplainedJob, Unknown, line_of
from pstranspile.ir.diagnostics import listed
from pstranspile.ir.model import Location, Op

NEAREST = 8
"""The most lines that are named where a line has no ops."""


def explain_line(job: ExplainedJob, line: str, machine: str | None = None) -> LineAnswer:
    """The ops that come from a line, machine by machine: `22`, or `train.py:22` where the source has several files.

    Both the text of a program and the Python script that made it count as source; `machine` limits the answer to one
    machine. Raises Unknown for a line without ops, for a number that several files have, and for no such machine.
    """
    machines = [job.machine(machine)] if machine else list(job.machines)
    file, _, number = line.strip().rpartition(":")
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise Unknown(f"{line[:60]!r} is no line; write 22 or train.py:22")
    found = [(each, place, op) for place, op in _ops(job, machines) for each in _lines_of(op)]
    here = [(each, place, op) for each, place, op in found if not file or _is_named(each.file, file)]
    matching = [(each, place, op) for each, place, op in here if each.line == int(number)]
    if not matching:
        raise Unknown(_without(line, file, int(number), [each for each, _, _ in here or found], here=bool(here)))
    files = list(dict.fromkeys(each.file for each, _, _ in matching))
    if len(files) > 1:
        named = listed(f"{each}:{int(number)}" for each in files)
        raise Unknown(f"several files have ops of a line {int(number)}: {named}")
    uses = tuple(Link(rule_of(op), place, line_of(op)) for _, place, op in matching)
    return LineAnswer(files[0], int(number), uses)


def _ops(job: ExplainedJob, machines: list[str]) -> Iterator[tuple[Place, Op]]:
    for machine in machines:
        for place in job.places(machine):
            yield place, job.op(place)


def _lines_of(op: Op) -> Iterator[Location]:
    """Yields the lines that an op comes from: that of the program's text, and that of the script which made it.

    Ops for the program as a whole come from no line.
    """
    location = op.origin.location if op.origin is not None and op.origin.op >= 0 else None
    for place in (location, location.script if location is not None else None):
        if place is not None and place.line:
            yield place


def _is_named(file: str, name: str) -> bool:
    """Whether a name stands for a file: it is the file's path, or the end of it."""
    parts, ends = (os.path.normpath(path).replace(os.sep, "/").split("/") for path in (file, name))
    return parts[-len(ends) :] == ends


def _without(line: str, file: str, number: int, places: list[Location], *, here: bool) -> str:
    """The message for a line without ops, with the nearest lines that have some."""
    if not places:
        return f"no op comes from line {line}; the programs state no lines of a source"
    files = list(dict.fromkeys(place.file for place in places))
    if file and not here:
        return f"no op comes from {file}; the source is {listed(files)}"
    near = sorted({place.line for place in places}, key=lambda each: (abs(each - number), each))[:NEAREST]
    of = f" of {files[0]}" if len(files) == 1 else ""
    return f"no op comes from line {number}{of}; the nearest lines with ops are {listed(map(str, sorted(near)))}"
