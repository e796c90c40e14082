"""A plan file, read back: its lines checked against the program and the job, then turned into a Plan."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pstranspile.compiler.analysis.facts import Facts
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.make import Piece, assemble, send_order
from pstranspile.compiler.plan.plan import Cut, Plan, quoted
from pstranspile.ir.diagnostics import MAX_FINDINGS, Diagnostic, Note, did_you_mean, error, first_findings, raise_errors
from pstranspile.ir.model import Location, SourceText

# What a plan changes of another: what is added, moved or cut otherwise, and what goes.

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
    """What `new` changes of `old`, both as `plan.json` holds them: the job, then every variable on servers."""
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
        result += [Change("~", f"{_named(a)}: {_difference(a, b)}") for a, b in zip(gone, come, strict=False)]
        result += [Change("-", f"{_named(row)} {row['slice_shape']} @ {row['endpoint']}") for row in gone[len(come) :]]
        result += [Change("+", f"{_named(row)} {row['slice_shape']} @ {row['endpoint']}") for row in come[len(gone) :]]
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
    """The variables on servers by what stays the same when they move: origin, kind and number of the slice."""
    result: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in plan["distributed_vars"]:
        result.setdefault((row["origin"], row["vtype"], row["block_id"]), []).append(row)
    return result


def _named(row: Mapping[str, Any]) -> str:
    return f"{quoted(row['slice'])} of {quoted(row['origin'])}" if row["is_slice"] else quoted(row["origin"])


def _difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    parts = [f"{key}: {a[key]} -> {b[key]}" for key in _FIELDS if a[key] != b[key]]
    return ", ".join(parts) or "another declaration"


_NAME = r'%("(?:[^"\\]|\\.)*"|[A-Za-z0-9_.@/]+)'
_SLICE = re.compile(rf'slice {_NAME} rows (\d{{1,18}})\.\.(\d{{1,18}})(?: -> {_NAME})? @ ("(?:[^"\\]|\\.)*")')
_WHOLE = re.compile(rf'whole {_NAME}(?: -> {_NAME})? @ ("(?:[^"\\]|\\.)*")')
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_JOB = re.compile(r"job mode=(\S+) trainers=(\d{1,18}) pservers=(\[.*\])")


class PlanLine(NamedTuple):
    """One placement of a plan file: rows of a parameter (None: all of it), and the server they go to."""

    parameter: str
    cut: Cut | None
    name: str | None
    endpoint: str
    location: Location


class PlanFile(NamedTuple):
    """A plan file as read: what it was made for, and its placements in order."""

    text: SourceText
    source: str
    mode: str
    trainers: int
    pservers: tuple[str, ...]
    lines: tuple[PlanLine, ...]


def _is_unreadable(literal: str) -> bool:
    try:
        json.loads(literal)
    except json.JSONDecodeError:
        return True
    return False


def _unquoted(name: str | None) -> str | None:
    return json.loads(name) if name and name.startswith('"') else name


def read_plan(text: str, file: str = "<plan>") -> PlanFile:
    """Reads what `plan_text` prints, edited or not. Raises DiagnosticError with every line it can't read."""
    findings: list[Diagnostic] = []
    header: dict[str, str] = {}
    job: tuple[str, int, tuple[str, ...]] = ("", 0, ())
    lines: list[PlanLine] = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if len(findings) == MAX_FINDINGS:
            break
        location = Location(file, number, raw.index(line) + 1)
        unreadable = next(filter(_is_unreadable, _STRINGS.findall(line)), None)
        if unreadable is not None:
            message = f"{unreadable[:80]} is no string: it has an escape or a character that strings don't have"
            findings.append(error("plan-syntax", message, location, focus=unreadable))
            continue
        if match := _SLICE.fullmatch(line):
            name, start, stop, given, endpoint = match.groups()
            cut = Cut(int(start), int(stop))
            lines.append(PlanLine(_unquoted(name) or "", cut, _unquoted(given), json.loads(endpoint), location))
        elif match := _WHOLE.fullmatch(line):
            name, given, endpoint = match.groups()
            lines.append(PlanLine(_unquoted(name) or "", None, _unquoted(given), json.loads(endpoint), location))
        elif match := _JOB.fullmatch(line):
            job = (match[1], int(match[2]), _endpoints(match[3]))
        elif line.split(" ")[0] in ("plan", "source") and line.count(" ") == 1:
            header.update([(line.split(" ")[0], line.split(" ")[1])])
        else:
            findings.append(error("plan-syntax", f"not a line of a plan: {line[:80]!r}", location))
    if header.get("plan") != "1":
        message = (
            f"the file is not a plan of version 1 (its first line must be `plan 1`): {header.get('plan', '')[:40]!r}"
        )
        findings.append(error("plan-syntax", message, Location(file, 1, 1)))
    raise_errors(first_findings(findings))
    return PlanFile(SourceText(file, text), header.get("source", ""), *job, tuple(lines))


def _endpoints(text: str) -> tuple[str, ...]:
    try:
        result: object = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(item for item in result if isinstance(item, str)) if isinstance(result, list) else ()  # pyright: ignore


def apply_plan(plan: PlanFile, source: str, facts: Facts, job: Job, pieces: Sequence[Piece], per_trainer: bool) -> Plan:
    """The Plan that a plan file describes, for this program and job.

    `source` is the fingerprint of the module, `pieces` its parameters as they would be cut. Raises DiagnosticError
    when the file was made for something else, leaves rows without a server or gives them two, names a server the
    job does not have, or cuts or separates what must stay whole or together.
    """
    raise_errors(_mismatches(plan, source, job))
    findings: list[Diagnostic] = []
    known = {piece.update.parameter for piece in pieces}
    by_parameter: dict[str, list[PlanLine]] = {}
    for line in plan.lines:
        if line.parameter not in known:
            hint = did_you_mean(line.parameter, known, quoted)
            message = f"{quoted(line.parameter)} is not a parameter that the program distributes{hint}"
            findings.append(error("plan-invalid", message, line.location, focus=quoted(line.parameter)))
        if line.endpoint not in job.pservers:
            message = f"{line.endpoint!r} is not a server of the job"
            findings.append(error("plan-invalid", message, line.location, focus=json.dumps(line.endpoint)))
        by_parameter.setdefault(line.parameter, []).append(line)
    edited: list[Piece] = []
    placed: dict[int, tuple[str, ...]] = {}
    for index, piece in enumerate(pieces):
        rows = piece.tensor.shape[0] if piece.tensor.shape else 1
        lines = sorted(by_parameter.get(piece.update.parameter, ()), key=lambda line: line.cut or Cut(0, rows))
        cuts = tuple(line.cut or Cut(0, rows) for line in lines)
        findings += _cover_problems(plan, piece, rows, lines, cuts)
        edited.append(piece._replace(cuts=cuts))
        placed[index] = tuple(line.endpoint for line in lines)
    raise_errors(findings)
    raise_errors(_together_problems(facts, by_parameter))
    order = send_order(len(pieces), facts.program.random_seed, job.slice_var_up)
    result = assemble(facts, job, edited, order, placed, per_trainer)
    raise_errors(_name_problems(result, by_parameter))
    return result


def check_plan_without_servers(plan: PlanFile, source: str, job: Job) -> None:
    """Raises DiagnosticError when a plan file was made for something else, or places parameters on servers."""
    raise_errors(_mismatches(plan, source, job))
    message = f"mode {job.mode} has no servers on which a parameter could be placed"
    raise_errors(error("plan-invalid", message, line.location) for line in plan.lines)


def _mismatches(plan: PlanFile, source: str, job: Job) -> list[Diagnostic]:
    start = Location(plan.text.file, 1, 1)
    findings: list[Diagnostic] = []
    if plan.source != source:
        message = f"the plan was made for another program: it says {plan.source or 'nothing'}, this one is {source}"
        findings.append(error("plan-mismatch", message, start))
    wanted = (job.mode, job.trainers, job.pservers)
    if (plan.mode, plan.trainers, plan.pservers) != wanted:
        given = f"mode={plan.mode} trainers={plan.trainers} pservers={list(plan.pservers)}"
        message = f"the plan was made for another job ({given}), not for mode={job.mode} trainers={job.trainers}"
        findings.append(error("plan-mismatch", f"{message} pservers={list(job.pservers)}", start))
    return findings


def _cover_problems(
    plan: PlanFile, piece: Piece, rows: int, lines: Sequence[PlanLine], cuts: Sequence[Cut]
) -> list[Diagnostic]:
    """Rows that no line or two lines place, and slices of a parameter that can't be cut."""
    name = quoted(piece.update.parameter)
    if not lines:
        return [error("plan-invalid", f"no line places {name}", Location(plan.text.file, 1, 1))]
    findings: list[Diagnostic] = []
    at = 0
    for line, cut in zip(lines, cuts, strict=True):
        if cut.start != at or cut.stop <= cut.start:
            what = "overlap" if cut.start < at else "leave a gap"
            message = f"rows {cut.start}..{cut.stop} of {name} {what}: row {at} comes next"
            findings.append(error("plan-invalid", message, line.location))
        at = max(at, cut.stop)
    if at != rows and not findings:
        findings.append(error("plan-invalid", f"{name} has rows 0..{rows}, the plan 0..{at}", lines[-1].location))
    if len(cuts) > 1 and piece.update.whole:
        findings.append(error("plan-invalid", f"{name} can't be cut: {piece.update.whole}", lines[1].location))
    return findings


def _together_problems(facts: Facts, by_parameter: dict[str, list[PlanLine]]) -> list[Diagnostic]:
    findings: list[Diagnostic] = []
    for group in facts.groups:
        lines = [line for name in group.parameters for line in by_parameter[name]]
        apart = next((line for line in lines if line.endpoint != lines[0].endpoint or line.cut is not None), None)
        if apart is not None:
            names = " ".join(quoted(name) for name in group.parameters)
            note = Note(f"together and uncut: {names}", lines[0].location)
            message = f"{quoted(apart.parameter)} must stay whole, and together with the other parameters of its group"
            findings.append(error("plan-invalid", message, apart.location, notes=[note]))
    return findings


def _name_problems(plan: Plan, by_parameter: dict[str, list[PlanLine]]) -> list[Diagnostic]:
    """Names in the file that are not the ones that will be used: names are minted, not chosen."""
    findings: list[Diagnostic] = []
    for parameter in plan.parameters:
        lines = sorted(by_parameter[parameter.name], key=lambda line: line.cut or Cut(0, 0))
        for s, line in zip(parameter.slices, lines, strict=True):
            if line.name is not None and line.name != s.name:
                message = f"this slice is called {quoted(s.name)}; names can't be chosen (leave out the arrow)"
                findings.append(error("plan-invalid", message, line.location, focus=quoted(line.name)))
    return findings
