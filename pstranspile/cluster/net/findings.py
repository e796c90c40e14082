"""Findings that the processes of a job report to the process that started them, which prints each once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from pstranspile.frontends.loading import loads
from pstranspile.ir.diagnostics import Diagnostic, Note, Severity, name_list
from pstranspile.ir.model import MAIN, STARTUP, FrozenMap, Location, Program, Role
from pstranspile.ir.patterns import Pattern
from pstranspile.ops.textual import print_module

MOST = 20
"""The most findings that a process reports."""

_WHERE = Pattern(r"on (trainer_[0-9]+|pserver_[0-9]+)(, .+)?")
"""Matches the note that names the machine of a finding, and its step."""


def findings_to_json(findings: Iterable[Diagnostic]) -> list[Any]:
    """Findings in the JSON that `read_findings` reads."""
    return [
        [*found[:2], _place(found.location), found.focus, found.severity.value, _notes(found.notes), found.subject]
        for found in [*findings][:MOST]
    ]


def _notes(notes: Iterable[Note]) -> list[Any]:
    return [[note.message, _place(note.location), note.focus] for note in notes]


def _place(location: Location | None) -> list[Any] | None:
    return None if location is None else [*location[:3], _place(location.script)]


def read_findings(held: Sequence[Any]) -> list[Diagnostic]:
    """The findings in the JSON that `findings_to_json` has returned."""
    return [
        Diagnostic(
            code,
            message,
            _location(place),
            focus,
            Severity(severity),
            tuple(Note(text, _location(at), mark) for text, at, mark in notes),
            subject,
        )
        for code, message, place, focus, severity, notes, subject in held
    ]


def _location(held: Sequence[Any] | None) -> Location | None:
    return None if held is None else Location(held[0], held[1], held[2], _location(held[3]))


_PROGRAMS = Pattern(r"(?<![^/\\])trainer_[0-9]+(?=\.[^/\\]*$)")
"""Matches a trainer's name in the name of a file with its programs."""

Moved = Callable[[Location], Location]
"""Maps a location in a file of a job to one in a user's file."""


def to_sources(compiled: Role, source: Role | None) -> Moved:
    """A function that maps locations in the text of a machine's programs to those in the source, whose programs
    `source` has; None: the user has only the text.

    Files below the working folder are named relative to it.
    """
    known = {} if source is None else dict(_pairs(compiled, source))
    here = os.path.join(os.getcwd(), "")
    files = {file: Location(place.file) for (file, _, _), place in known.items()}

    def source_location(place: Location) -> Location:
        # what has a line in the text alone, such as an input of a traced model, is at no line of the user's
        result = known.get(place[:3]) or files.get(place.file, place)
        return result._replace(file=result.file.removeprefix(here))

    return source_location


def of_hosts(findings: Iterable[Diagnostic], roles: Mapping[str, Role]) -> list[Diagnostic]:
    """The findings of machines on other hosts, with locations in the source of the machines' programs (`roles`).

    Such hosts have the programs as `trainer_0.ir` in folders of their own.
    """
    known: dict[str, dict[tuple[str, int, int], Location]] = {}
    here = os.path.join(os.getcwd(), "")

    def location_in_source(place: Location) -> Location:
        name = os.path.basename(place.file).removesuffix(".ir")
        if name in roles and place.file.endswith(f"{name}.ir"):
            if name not in known:
                module = loads(print_module(roles[name].module))
                others = {other: p for other, p in module.programs.items() if other not in (MAIN, STARTUP)}
                read = Role(name, module[MAIN], module[STARTUP], FrozenMap(others))
                known[name] = {("", *at[1:]): to for at, to in _pairs(read, roles[name])}
            place = known[name].get(("", place.line, place.column), place)
        return place._replace(file=place.file.removeprefix(here))

    return relocate_findings(findings, location_in_source)


def _pairs(compiled: Role, source: Role) -> Iterator[tuple[tuple[str, int, int], Location]]:
    """Yields each location in a machine's text with the corresponding one in the source."""
    pairs: list[tuple[Program, Program]] = [(compiled.main, source.main), (compiled.startup, source.startup)]
    pairs += [(program, source.others[name]) for name, program in compiled.others.items() if name in source.others]
    for mine, theirs in pairs:
        for block, other in zip(mine.blocks, theirs.blocks, strict=False):
            for name, var in block.vars.items():
                made = other.vars.get(name)
                if var.location is not None and made is not None and made.location is not None:
                    yield var.location[:3], made.location
            for op, made in zip(block.ops, other.ops, strict=False):
                origin = made.origin
                if op.origin is not None and op.origin.location is not None and origin is not None and origin.location:
                    yield op.origin.location[:3], origin.location


def told_once(by_role: Mapping[str, Sequence[Diagnostic]]) -> list[Diagnostic]:
    """The findings of several machines, each once, with a note that names the machines.

    A finding about the same line of several trainers' programs has the location of the first one's.
    """
    machines: dict[Diagnostic, list[tuple[str, str]]] = {}
    first: dict[Diagnostic, Diagnostic] = {}
    for role, findings in by_role.items():
        for found in findings:
            where = [match for note in found.notes if (match := _WHERE.fullmatch(note.message))]
            plain = found._replace(notes=tuple(note for note in found.notes if not _WHERE.fullmatch(note.message)))
            places = [(match[1], match[2] or "") for match in where] or [(role, "")]
            place = plain.location
            anywhere = place and place._replace(file=_PROGRAMS.sub("trainer", place.file))
            shown = first.setdefault(plain._replace(location=anywhere), plain)
            machines.setdefault(shown, []).extend(places)
    result: list[Diagnostic] = []
    for found, places in machines.items():
        notes = [
            Note(f"on {name_list(dict.fromkeys(role for role, _ in group))}{when}")
            for when, group in groupby(sorted(places, key=lambda place: place[1]), key=lambda place: place[1])
        ]
        result.append(found._replace(notes=(*found.notes, *notes)))
    return result


def relocate_findings(findings: Iterable[Diagnostic], moved: Moved) -> list[Diagnostic]:
    """The findings with the locations, and those of their notes, mapped."""

    def place(location: Location | None) -> Location | None:
        return None if location is None else moved(location)

    return [
        found._replace(
            location=place(found.location),
            notes=tuple(note._replace(location=place(note.location)) for note in found.notes),
        )
        for found in findings
    ]
