"""Reads a plan file: its lines are checked against the program and the job, then turned into a Plan."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeVar, cast

from pstranspile.compiler.analysis import Facts
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.make import Piece, assemble, send_order
from pstranspile.compiler.plan.plan import Plan, RowRange, fingerprint, quote_name
from pstranspile.ir.argument_checks import check_arguments, expect_fields, path_of, wrong_type
from pstranspile.ir.diagnostics import (
    MAX_FINDINGS,
    Diagnostic,
    DiagnosticError,
    Note,
    did_you_mean,
    error,
    first_findings,
    name_list,
    raise_errors,
    visible,
)
from pstranspile.ir.json_text import describe_json_error
from pstranspile.ir.model import MAIN, STARTUP, Location, Module, SourceText
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import misspelt, read_named, read_regular, reason_for

_Value = TypeVar("_Value")

# The differences of two plans: variables that are added, moved, cut otherwise or removed.

_SETTINGS = (
    *("source", "mode", "trainers", "trainer_endpoints"),
    *("distributed_lookup_table", "groups", "geo", "collective"),
)
"""The keys of a plan that are compared as a whole."""
_FIELDS = ("slice", "slice_shape", "offset", "endpoint")


class Change(NamedTuple):
    """One change: `sign` is `+` for an addition, `-` for a removal, `~` for another value; `text` describes it."""

    sign: str
    text: str


def plan_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """The changes from `old` to `new`, both with the content of `plan.json`: first the job, then every variable on
    servers.
    """
    result = [*_settings(old, new), *_changed_endpoints(old["pservers"], new["pservers"])]
    before, after = _rows(old), _rows(new)
    for key in dict.fromkeys([*before, *after]):
        gone = list(before.get(key, ()))
        come: list[Mapping[str, Any]] = []
        for row in after.get(key, ()):
            if row in gone:
                gone.remove(row)
            else:
                come.append(row)
        result += [Change("~", f"{_slice_label(a)}: {_difference(a, b)}") for a, b in zip(gone, come, strict=False)]
        result += [
            Change("-", f"{_slice_label(row)} {row['slice_shape']} @ {row['endpoint']}") for row in gone[len(come) :]
        ]
        result += [
            Change("+", f"{_slice_label(row)} {row['slice_shape']} @ {row['endpoint']}") for row in come[len(gone) :]
        ]
    return result


def changes_text(changes: list[Change]) -> str:
    """A line for each change, and a last one that counts them."""
    counts = {sign: sum(change.sign == sign for change in changes) for sign in "+~-"}
    lines = [f"{change.sign} {change.text}" for change in changes]
    last = f"{counts['+']} to add, {counts['~']} to change, {counts['-']} to remove" if changes else "no changes"
    return "\n".join([*lines, last, ""])


def _settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for key in _SETTINGS:
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if isinstance(before, list | dict) or isinstance(after, list | dict) or key == "source":
            yield Change("~", "the programs" if key == "source" else key)
        else:
            yield Change("~", f"{key}: {before} -> {after}")


def _changed_endpoints(old: list[str], new: list[str]) -> Iterator[Change]:
    yield from (Change("-", f"server {endpoint}") for endpoint in old if endpoint not in new)
    yield from (Change("+", f"server {endpoint}") for endpoint in new if endpoint not in old)
    kept = [endpoint for endpoint in old if endpoint in new]
    if kept != [endpoint for endpoint in new if endpoint in old]:
        yield Change("~", "the order of the servers")


def _rows(plan: Mapping[str, Any]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """The variables on servers by a key that stays the same when they move: origin, kind and number of the slice."""
    result: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in plan["distributed_vars"]:
        result.setdefault((row["origin"], row["vtype"], row["block_id"]), []).append(row)
    return result


def _slice_label(row: Mapping[str, Any]) -> str:
    return (
        f"{quote_name(row['slice'])} of {quote_name(row['origin'])}" if row["is_slice"] else quote_name(row["origin"])
    )


def _difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    parts = [f"{key}: {a[key]} -> {b[key]}" for key in _FIELDS if a[key] != b[key]]
    return ", ".join(parts) or "another declaration"


# A plan as read from a text, which the user may have edited, or from the plan.json of a compiled folder.

_WIDTH = r"[ \t]+"
_NAME = r'%("[^"\\]*(?:\\.[^"\\]*)*"|[A-Za-z0-9_.@/]+)'
_SERVER = r'("[^"\\]*(?:\\.[^"\\]*)*")'
_SLICE = Pattern(
    rf"slice{_WIDTH}{_NAME}{_WIDTH}rows{_WIDTH}(\d{{1,18}})\.\.(\d{{1,18}})(?:{_WIDTH}->{_WIDTH}{_NAME})?"
    rf"{_WIDTH}@{_WIDTH}{_SERVER}",
    re.ASCII,
)
_WHOLE = Pattern(rf"whole{_WIDTH}{_NAME}(?:{_WIDTH}->{_WIDTH}{_NAME})?{_WIDTH}@{_WIDTH}{_SERVER}", re.ASCII)
_STRINGS = Pattern(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_JOB = Pattern(rf"job{_WIDTH}mode=(\S+){_WIDTH}trainers=(\d{{1,18}}){_WIDTH}pservers=(\[.*\])", re.ASCII)
_SOURCE = Pattern(rf"source{_WIDTH}(\S+)")
_VERSION = Pattern(rf"plan{_WIDTH}(\d+)", re.ASCII)
_BEFORE_COMMENT = Pattern(r'[^"#]*(?:"[^"\\]*(?:\\.[^"\\]*)*"[^"#]*)*(?=#|$)')

VERSION = 1
"""The version of the format of plans, as text and as JSON."""

MOST_BYTES = 1 << 30
"""The most bytes that the file of a plan may have."""

PLAN_JSON = "plan.json"
"""The plan in a folder of compiled programs."""

_FORMS = Note('a line is `whole %NAME @ "SERVER"` or `slice %NAME rows FIRST..END @ "SERVER"`, and # begins a comment')


class PlanLine(NamedTuple):
    """One line of a plan file: rows of a parameter (None: all of it), and their server."""

    parameter: str
    cut: RowRange | None
    name: str | None
    endpoint: str
    location: Location


class PlanFile(NamedTuple):
    """A plan as read: the program and the job for which it was made, and its placements in order.

    `source_at` and `job_at` are the locations of the former.
    """

    text: SourceText
    source: str
    mode: str
    trainers: int
    pservers: tuple[str, ...]
    lines: tuple[PlanLine, ...]
    source_at: Location
    job_at: Location

    def __str__(self) -> str:
        """The text that was read."""
        return self.text.text


@check_arguments
def load_plan(path: str | os.PathLike[str]) -> PlanFile:
    """The plan in a file that `plan` or `compile -o` wrote, edited or not, or in a folder that `compile -o` wrote.

    Raises DiagnosticError.
    """
    return plan_of_bytes(*plan_bytes(path_of(path, "load_plan")))


def plan_bytes(path: str) -> tuple[bytes, str]:
    """The content of a plan file, or of the plan in a folder, and the file's name. Raises DiagnosticError."""
    in_folder = os.path.isdir(path)
    file = os.path.join(path, PLAN_JSON) if in_folder else path
    if not file:
        raise DiagnosticError([error("input-unreadable", "the name of a plan is empty")])
    try:
        return (read_regular if in_folder else read_named)(file, MOST_BYTES), file
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL character
        missing = isinstance(problem, FileNotFoundError)
        message = (
            f"there is no such file{misspelt(file)}"
            if missing
            else f"the plan can't be read: {reason_for(problem, file)}"
        )
        notes = [Note(f"{path} is a folder; `compile -o` writes the plan of one")] if missing and in_folder else []
        raise DiagnosticError([error("input-unreadable", message, Location(file), notes=notes)]) from None


def plan_of_bytes(data: bytes, file: str) -> PlanFile:
    """The plan in the content of a file. Raises DiagnosticError."""
    try:
        return parse_plan(data.decode("utf-8-sig"), file)
    except UnicodeDecodeError as problem:
        message = f"not a plan: byte {problem.start} is not UTF-8"
        raise DiagnosticError([error("plan-syntax", message, Location(file))]) from None


@check_arguments
def parse_plan(text: str, file: str = "<plan>") -> PlanFile:
    """The plan in a text, such as that of `str(plan)`, edited or not; also in the JSON of `plan.json`.

    `file` is its name in messages. Raises DiagnosticError with every line that can't be read.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise wrong_type("parse_plan", "the text of a plan", text)
    source = SourceText(file, text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))
    return _of_json(source) if source.text.lstrip().startswith("{") else _of_text(source)


class _Line(NamedTuple):
    """A line of a plan without its comment, and the position where it begins."""

    text: str
    location: Location


def _lines_of(source: SourceText) -> Iterator[_Line]:
    """The lines that are not empty without their comments."""
    for number, raw in enumerate(source.text.split("\n"), 1):
        match = _BEFORE_COMMENT.match(raw)
        line = (raw if match is None else match[0]).strip()
        if line:
            yield _Line(line, Location(source.file, number, raw.index(line) + 1))


def _of_text(source: SourceText) -> PlanFile:
    lines = _lines_of(source)
    _require_version(next(lines, None), source.file)
    findings: list[Diagnostic] = []
    header: dict[str, tuple[re.Match[str], Location]] = {}
    placed: list[PlanLine] = []
    for line, location in lines:
        if len(findings) == MAX_FINDINGS:
            break
        unreadable = next(filter(_is_unreadable, _STRINGS.findall(line)), None)
        if unreadable is not None:
            message = f"{unreadable[:80]} is no string: it has an escape or a character that strings don't have"
            findings.append(error("plan-syntax", message, location, focus=unreadable))
        elif match := _SLICE.fullmatch(line):
            name, start, stop, given, endpoint = match.groups()
            cut = RowRange(int(start), int(stop))
            placed.append(
                PlanLine(_unquote_name(name) or "", cut, _unquote_name(given), json.loads(endpoint), location)
            )
        elif match := _WHOLE.fullmatch(line):
            name, given, endpoint = match.groups()
            placed.append(
                PlanLine(_unquote_name(name) or "", None, _unquote_name(given), json.loads(endpoint), location)
            )
        elif match := _header(line):
            kind = line.split(maxsplit=1)[0]
            if kind in header:
                notes = [Note("the other one", header[kind][1])]
                findings.append(error("plan-syntax", f"a second line `{kind}`", location, notes=notes))
            header[kind] = match, location
        else:
            findings.append(error("plan-syntax", f"not a line of a plan: {line[:80]!r}", location, notes=[_FORMS]))
    raise_errors(first_findings(findings))
    start = Location(source.file, 1, 1)
    made_for, source_at = header.get("source", (None, start))
    job, job_at = header.get("job", (None, start))
    described = ("", 0, ()) if job is None else (job[1], int(job[2]), _endpoints(job[3]) or ())
    return PlanFile(source, "" if made_for is None else made_for[1], *described, tuple(placed), source_at, job_at)


def _require_version(first: _Line | None, file: str) -> None:
    """Raises DiagnosticError unless the first line of a plan states the version that can be read."""
    line, location = first or _Line("", Location(file, 1, 1))
    match = _VERSION.fullmatch(line)
    if match is None:
        message = f"this is not a plan: a plan begins with the line `plan {VERSION}`"
        raise DiagnosticError([error("plan-syntax", message, location)])
    if match[1].lstrip("0") != str(VERSION):
        message = f"this is a plan of version {match[1][:20]}; version {VERSION} is read here"
        note = Note("`pstranspile plan` prints one for the same program and job")
        raise DiagnosticError([error("plan-syntax", message, location, focus=match[1], notes=[note])])


def _header(line: str) -> re.Match[str] | None:
    """The parts of a line that states for what the plan was made; None if it is no such line."""
    match = _JOB.fullmatch(line)
    return _SOURCE.fullmatch(line) if match is None else match if _endpoints(match[3]) is not None else None


def _is_unreadable(literal: str) -> bool:
    try:
        json.loads(literal)
    except json.JSONDecodeError:
        return True
    return False


def _unquote_name(name: str | None) -> str | None:
    return json.loads(name) if name and name.startswith('"') else name


def _endpoints(text: str) -> tuple[str, ...] | None:
    """The servers in a text with a list of strings; None if it is no such list."""
    try:
        result: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    names = cast("list[object]", result) if isinstance(result, list) else [None]
    return tuple(cast("list[str]", names)) if all(isinstance(name, str) for name in names) else None


def _of_json(source: SourceText) -> PlanFile:
    """The plan in a plan.json: the rows of its `distributed_vars` that are parameters."""
    place = Location(source.file)
    try:
        document: Any = json.loads(source.text)
    except (ValueError, RecursionError) as problem:
        raise DiagnosticError([error("plan-syntax", f"not JSON: {describe_json_error(problem)}", place)]) from None
    if document.get("version") != VERSION or type(document["version"]) is not int:
        message = (
            f"this is not a plan of version {VERSION} (`version` is {visible(json.dumps(document.get('version')), 40)})"
        )
        raise DiagnosticError([error("plan-syntax", message, place)])
    try:
        job = (
            _kind(document["mode"], str),
            _kind(document["trainers"], int),
            _endpoints(json.dumps(document["pservers"])),
        )
        if job[2] is None:
            raise ValueError("pservers is no list of servers")
        table = document["distributed_lookup_table"]
        given: list[dict[str, Any]] = [
            _kind(row, dict) for row in cast("list[Any]", _kind(document["distributed_vars"], list))
        ]
        rows = [row for row in given if row["vtype"] in _PLACED and row["origin"] != table]
        first = _first_row(source)
        at = {id(row): _row_at(source, first, number) for number, row in enumerate(given)}
        lines = tuple(_line_of_row(row, at[id(row)]) for row in rows)
        made_for = _kind(document["source"], str)
    except (ValueError, TypeError, LookupError) as problem:
        reason = f"{problem} is missing" if isinstance(problem, KeyError) else str(problem)
        raise DiagnosticError([error("plan-syntax", f"not a plan: {reason}", place)]) from None
    return PlanFile(source, made_for, job[0], job[1], job[2], lines, place, place)


_PLACED = ("Param", "RemotePrefetch")
"""The kinds of variables on servers that a plan places; the others follow them."""


def _line_of_row(row: Any, location: Location) -> PlanLine:
    """The placement in a row of `distributed_vars`. Raises ValueError, TypeError or LookupError."""
    origin, name, endpoint = (_kind(row[key], str) for key in ("origin", "slice", "endpoint"))
    if not _kind(row["is_slice"], bool):
        return PlanLine(origin, None, name, endpoint, location)
    shape, offset = [_kind(dim, int) for dim in row["slice_shape"]], _kind(row["offset"], int)
    if not shape or min(*shape, offset, 0) < 0:
        raise ValueError(f"a slice of {origin} has no rows")
    width = prod(shape[1:]) or 1
    if offset % width:
        raise ValueError(f"a slice of {origin} begins within a row, at element {offset} of rows of {width}")
    first = offset // width
    return PlanLine(origin, RowRange(first, first + shape[0]), name, endpoint, location)


def _kind(value: Any, kind: type[_Value]) -> _Value:
    """Returns a value unchanged. Raises TypeError if it has another type."""
    if type(value) is not kind:
        raise TypeError(f"{visible(json.dumps(value), 40)} is no {_CALLED[kind]}")
    return value


_CALLED: Mapping[type, str] = {str: "text", int: "number", bool: "truth value", list: "list", dict: "object"}


def _first_row(source: SourceText) -> int:
    """The number of the line with the first row, in JSON as this package writes it; 0 for another layout."""
    before, found, _ = source.text.partition('"distributed_vars": [\n')
    return before.count("\n") + 2 if found else 0


def _row_at(source: SourceText, first: int, number: int) -> Location:
    return Location(source.file, first + number, 5) if first else Location(source.file)


# The program and the job of a plan, and its placements of the program's parameters.


def require_made_for(plan: Plan | PlanFile, module: Module, job: Job) -> None:
    """Raises DiagnosticError unless a plan was made for the programs of this module, and for this job."""
    if isinstance(plan, PlanFile):
        expect_fields(plan, "PlanFile")
    findings: list[Diagnostic] = []
    source_at, job_at = (plan.source_at, plan.job_at) if isinstance(plan, PlanFile) else (None, None)
    if not _is_of(plan, module):
        says = f"it says {plan.source}" if plan.source else "it has no line `source`"
        message = f"the plan was made for another program: {says}, this one is {fingerprint(module)}"
        findings.append(error("plan-mismatch", message, source_at, focus=plan.source))
    listed_servers = json.dumps(list(plan.pservers))
    differing = [
        (plan.mode, job.mode, f"mode={plan.mode}", f"mode={job.mode}"),
        (plan.trainers, job.trainers, f"trainers={plan.trainers}", f"trainers={job.trainers}"),
        (plan.pservers, job.pservers, f"pservers={listed_servers}", f"pservers={json.dumps(list(job.pservers))}"),
    ]
    for held, wanted, focus, asked in differing:
        if held != wanted:
            says = f"it says {focus}" if plan.mode else "it has no line `job`"
            message = f"the plan was made for another job: {says}, this one has {asked}"
            findings.append(error("plan-mismatch", message, job_at, focus=focus))
            if not plan.mode:
                break
    raise_errors(findings)


def _is_of(plan: Plan | PlanFile, module: Module) -> bool:
    """Whether a plan was made for the programs of a module; a plan made by hand is assumed to be."""
    if isinstance(plan, PlanFile):
        return plan.source == fingerprint(module)
    made_for = plan.made_for
    if made_for is None or made_for is module:
        return True
    return all(made_for.programs.get(name) is module.programs.get(name) for name in (MAIN, STARTUP)) or (
        plan.source == fingerprint(module)
    )


def apply_plan(plan: PlanFile, facts: Facts, job: Job, pieces: Sequence[Piece], per_trainer: bool) -> Plan:
    """The Plan that a plan file describes, for this program and job.

    `pieces` are the parameters as they would be cut. Raises DiagnosticError when the file leaves rows without a server
    or gives them two, names a server the job does not have, or cuts or separates what must stay whole or together.
    """
    findings: list[Diagnostic] = []
    known = {piece.update.parameter for piece in pieces}
    by_parameter: dict[str, list[PlanLine]] = {}
    for line in plan.lines:
        if line.parameter not in known:
            hint = did_you_mean(line.parameter, known, quote_name)
            message = f"{quote_name(line.parameter)} is not a parameter that the program distributes{hint}"
            findings.append(error("plan-invalid", message, line.location, focus=quote_name(line.parameter)))
        if line.endpoint not in job.pservers:
            hint = did_you_mean(line.endpoint, job.pservers) or f"; the servers are {name_list(job.pservers)}"
            message = f"{line.endpoint!r} is not a server of the job{hint}"
            findings.append(error("plan-invalid", message, line.location, focus=json.dumps(line.endpoint)))
        by_parameter.setdefault(line.parameter, []).append(line)
    edited: list[Piece] = []
    placed: dict[int, tuple[str, ...]] = {}
    for index, piece in enumerate(pieces):
        rows = piece.tensor.shape[0] if piece.tensor.shape else 1
        lines = sorted(by_parameter.get(piece.update.parameter, ()), key=lambda line: line.cut or RowRange(0, rows))
        cuts = tuple(line.cut or RowRange(0, rows) for line in lines)
        findings += _cover_problems(plan, piece, rows, lines, cuts)
        edited.append(piece._replace(cuts=cuts))
        placed[index] = tuple(line.endpoint for line in lines)
    raise_errors(first_findings(findings))
    raise_errors(_together_problems(facts, by_parameter))
    order = send_order(len(pieces), facts.program.random_seed, job.slice_var_up)
    result = assemble(facts, job, edited, order, placed, per_trainer)
    raise_errors(first_findings(_name_problems(result, by_parameter)))
    return result


def require_nothing_placed(plan: PlanFile, job: Job) -> None:
    """Raises DiagnosticError when a plan file places parameters, for a mode without servers."""
    message = f"mode {job.mode} has no servers on which a parameter could be placed"
    raise_errors(first_findings([error("plan-invalid", message, line.location) for line in plan.lines]))


def _cover_problems(
    plan: PlanFile, piece: Piece, rows: int, lines: Sequence[PlanLine], cuts: Sequence[RowRange]
) -> list[Diagnostic]:
    """Errors for rows that no line or two lines place, and for slices of a parameter that can't be cut."""
    name = quote_name(piece.update.parameter)
    if not lines:
        return [error("plan-invalid", f"no line places {name}", Location(plan.text.file, 1, 1))]
    findings: list[Diagnostic] = []
    at, before = 0, lines[0]
    for line, cut in zip(lines, cuts, strict=True):
        focus = f"{cut.start}..{cut.stop}" if line.cut is not None else name
        if cut.stop <= cut.start and (line.cut is not None or rows):
            findings.append(error("plan-invalid", f"{focus} are no rows of {name}", line.location, focus=focus))
        elif cut.start < at:
            notes = [Note(f"the other line, whose rows end before row {at}", before.location)]
            message = f"rows {cut.start}..{cut.stop} of {name} overlap those of another line"
            findings.append(error("plan-invalid", message, line.location, focus=focus, notes=notes))
        elif cut.start > at:
            message = f"rows {at}..{cut.start} of {name} leave a gap: no line places them"
            findings.append(error("plan-invalid", message, line.location, focus=focus))
        if cut.stop > at:
            at, before = cut.stop, line
    if at != rows and not findings:
        message = f"{name} has rows 0..{rows}, the plan 0..{at}"
        findings.append(error("plan-invalid", message, before.location, focus=f"{before.cut[0]}..{at}"))  # pyright: ignore
    if len(cuts) > 1 and piece.update.uncut_reason:
        findings.append(error("plan-invalid", f"{name} can't be cut: {piece.update.uncut_reason}", lines[1].location))
    return findings


def _together_problems(facts: Facts, by_parameter: dict[str, list[PlanLine]]) -> list[Diagnostic]:
    findings: list[Diagnostic] = []
    for group in facts.groups:
        lines = [line for name in group.parameters for line in by_parameter.get(name, ())]
        apart = next((line for line in lines if line.endpoint != lines[0].endpoint or line.cut is not None), None)
        if apart is not None:
            names = " ".join(quote_name(name) for name in group.parameters)
            note = Note(f"together and uncut: {names}", lines[0].location)
            message = (
                f"{quote_name(apart.parameter)} must stay whole, and together with the other parameters of its group"
            )
            findings.append(error("plan-invalid", message, apart.location, notes=[note]))
    return findings


def _name_problems(plan: Plan, by_parameter: dict[str, list[PlanLine]]) -> list[Diagnostic]:
    """Errors for names in the file that differ from those that will be used: names are generated, not chosen."""
    findings: list[Diagnostic] = []
    for parameter in plan.parameters:
        lines = sorted(by_parameter[parameter.name], key=lambda line: line.cut or RowRange(0, 0))
        for s, line in zip(parameter.slices, lines, strict=True):
            if line.name is not None and line.name != s.name:
                message = f"this slice is called {quote_name(s.name)}; names can't be chosen (leave out the arrow)"
                findings.append(error("plan-invalid", message, line.location, focus=quote_name(line.name)))
    return findings
