"""Reads the folder that `compile -o DIR` wrote, for explaining; `compiler/folders.py` writes it."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

from pstranspile.compiler.emit.rules import WHOLE
from pstranspile.compiler.explain.job import ExplainedJob, Settings
from pstranspile.compiler.folders import Run, load_role, report_changed, roles_in
from pstranspile.frontends.loading import LARGEST, Report
from pstranspile.ir.diagnostics import DiagnosticError, error, warning
from pstranspile.ir.json_text import describe_json_error
from pstranspile.ir.model import Location, Op, Origin, Program
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import read_regular, reason_for
from pstranspile.runtime.files.outputs import PLAN_FILE


class SourceBlock(NamedTuple):
    """The record of one block of the source. `lines` are runs: (first op, its line, how many ops, file), by op."""

    file: str
    line: int
    lines: tuple[tuple[int, int, int, str], ...]
    texts: Mapping[str, str]

    def place_of(self, number: int) -> Location | None:
        """The place of an op, with line 0 if it has none; None if there is no such op. Of op -1: that of the block."""
        if number < 0:
            return Location(self.file, self.line)
        at = bisect_right(self.lines, number, key=lambda run: run[0]) - 1
        first, line, count, file = self.lines[at] if at >= 0 else (0, 0, 0, "")
        if number >= first + count:
            return None
        return Location(file, line + number - first if line else 0)


class Record(NamedTuple):
    """A record as read from plan.json: the settings, the blocks of the source, and the runs of each emitted block."""

    settings: Settings
    source: Mapping[tuple[str, int], SourceBlock]
    runs: Mapping[tuple[str, str, int], list[Run]]

    def line_of(self, origin: Origin) -> str | None:
        """The text of a source op, if it is recorded."""
        block = self.source.get((origin.program, origin.block))
        return block.texts.get(str(origin.op)) if block else None

    def place(self, program: str, block: int, number: int) -> Location | None:
        """The source location of an op, or of its block (`number` -1); None if it is not recorded."""
        known = self.source.get((program, block))
        return known.place_of(number) if known else None


def read_record(plan: Mapping[str, Any]) -> Record | None:
    """The record in a plan.json, None if it has none.

    Raises ValueError, TypeError, KeyError, IndexError or AttributeError if it is damaged.
    """
    if not all(key in plan for key in ("settings", "source_ops", "origins")):
        return None
    source: dict[tuple[str, int], SourceBlock] = {}
    for row in plan["source_ops"]:
        texts = {_text(number): _text(text) for number, text in row["texts"].items()}
        file = _text(row["file"])
        block = SourceBlock(file, count_of(row["line"]), tuple(_lines(row["lines"], file)), texts)
        source[_text(row["program"]), count_of(row["block"])] = block
    runs: dict[tuple[str, str, int], list[Run]] = {}
    for row in plan["origins"]:
        made = [_validated_run(run) for run in row["ops"]]
        for machine in row["machines"]:
            runs[_text(machine), _text(row["program"]), count_of(row["block"])] = made
    return Record(_settings(plan["settings"]), source, runs)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("what should be a text is none")
    return value


def count_of(value: object) -> int:
    """Returns a number unchanged. Raises ValueError unless it is a whole number from 0 to 2**53."""
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError("what should be a number from 0 on is none")
    return value


_MOST = 2**53
"""The largest number that is accepted in a record."""


def _settings(given: Mapping[str, Any]) -> Settings:
    """The settings with which the job cuts and places. Raises ValueError if a value has another type than the
    default.
    """
    defaults = Settings()._asdict()
    if any(type(value) is not type(defaults[key]) for key, value in given.items()):
        raise ValueError("a setting of another kind")
    settings = Settings(**given)
    if not count_of(settings.min_block_size) or count_of(settings.random_seed) >> 32:
        raise ValueError("a setting that no job has")
    return settings


def _validated_run(run: list[object]) -> Run:
    """Returns a run unchanged. Raises ValueError unless it is `rule, first[, count[, program, block]]`."""
    kinds = [type(part) for part in run]
    if kinds not in ([str, int], [str, int, int], [str, int, int, str, int]):
        raise ValueError("a run that says nothing of ops")
    if any(isinstance(part, int) and not WHOLE <= part <= _MOST for part in run):
        raise ValueError("a run of ops that no program has")
    return run


def _lines(runs: Iterable[Sequence[Any]], file: str) -> Iterator[tuple[int, int, int, str]]:
    total = 0
    for first, count, *other in runs:
        if len(other) > 1:
            raise ValueError("a run of lines in several files")
        yield total, count_of(first), count_of(count), _text(other[0]) if other else file
        total += count


def with_origins(record: Record, machine: str, programs: Mapping[str, Program]) -> dict[str, Program]:
    """The programs of a machine with the origins that the record has for their ops.

    Raises ValueError when the record is about other programs.
    """
    return {name: _program(record, machine, name, program) for name, program in programs.items()}


def _program(record: Record, machine: str, name: str, program: Program) -> Program:
    blocks = list(program.blocks)
    for index, block in enumerate(blocks):
        recorded = _origins(record, record.runs.get((machine, name, index), []), name, index)
        origins = list(islice(recorded, len(block.ops) + 1))  # a damaged record may claim any number
        if len(origins) != len(block.ops):
            given = f"not {len(origins)}" if len(origins) < len(block.ops) else "not more"
            raise ValueError(f"@{name}^{index} of {machine} has {len(block.ops)} ops, {given}")
        ops = [op._replace(origin=_in_script(origin, op)) for op, origin in zip(block.ops, origins, strict=True)]
        blocks[index] = block._replace(ops=tuple(ops))
    return program._replace(blocks=tuple(blocks))


def _in_script(origin: Origin, op: Op) -> Origin:
    """The origin of an op with the place in a script from the op's own text, as a record has no such places."""
    script = op.origin.location.script if op.origin and op.origin.location else None
    if script is None:
        return origin
    return origin._replace(location=(origin.location or Location(""))._replace(script=script))


def _origins(record: Record, runs: Iterable[Run], program: str, block: int) -> Iterator[Origin]:
    for run in runs:
        rule, first, *rest = run
        count = rest[0] if rest else 1
        source, index = rest[1:] if len(rest) == 3 else (program, 0 if rule else block)
        for number in range(first, first + count):
            yield Origin(source, index, number, record.place(source, index, number), rule)


_NUMBERED = Pattern(r"(trainer|pserver)_(\d+)")
_ADVICE = "compile again, or explain the source: pstranspile explain INPUT ...job options..."


def read_folder(folder: str | os.PathLike[str], report: Report | None = None) -> ExplainedJob:
    """The job in an output folder, its ops with their origins; warnings of reading go to `report`.

    Raises DiagnosticError when a program or plan.json can't be read, when plan.json does not say where the ops come
    from, or when the programs are not those that it was written with.
    """
    files = roles_in(folder)
    plan_file = str(Path(folder, PLAN_FILE))
    plan = _read_plan(plan_file)
    try:
        record = read_record(plan)
        if record is not None:
            _check_plan(plan)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as problem:
        message = f"what it says of the origin of ops is damaged ({type(problem).__name__}: {problem}); {_ADVICE}"
        raise DiagnosticError([error("explain-record", message, Location(plan_file))]) from None
    if record is None:
        message = f"it does not say where ops come from; {_ADVICE}"
        raise DiagnosticError([error("explain-record", message, Location(plan_file))])
    _require_machines(plan, [name for name in files if _NUMBERED.fullmatch(name)], plan_file, report)
    modules = {n: load_role(files[n], report) for n in sorted(files, key=_order) if _NUMBERED.fullmatch(n)}
    report_changed(plan, files, modules, report)
    machines = {n: _with_origins(record, n, dict(m.programs), str(files[n][0])) for n, m in modules.items()}
    return ExplainedJob(machines, plan, record.settings, record.line_of)


def _require_machines(plan: dict[str, Any], names: list[str], plan_file: str, report: Report | None) -> None:
    """Raises DiagnosticError for programs of a machine that the plan does not have; warns of machines without any."""
    counts = {"trainer": plan["trainers"], "pserver": len(plan["pservers"])}
    found = {kind: {int(name.rpartition("_")[2]) for name in names if name.startswith(kind)} for kind in counts}
    for kind, count in counts.items():
        more = sorted(number for number in found[kind] if number >= count)
        if more:
            message = f"it has {count} {kind}s, but there are programs of {kind}_{more[0]}; {_ADVICE}"
            raise DiagnosticError([error("explain-programs", message, Location(plan_file))])
    missing = [kind for kind, count in counts.items() if len(found[kind]) < count]
    if missing and report is not None:
        parts = " and ".join(f"{len(found[kind])} of {counts[kind]} {kind}s" for kind in missing)
        report([warning("explain-programs", f"there are programs of {parts} only", Location(plan_file))])


def read_plan_json(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of the plan.json of an output folder. Raises DiagnosticError when it can't be read or lacks facts."""
    path = str(Path(folder, PLAN_FILE))
    plan = _read_plan(path)
    try:
        _check_plan(plan)
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise DiagnosticError([error("explain-record", f"not a plan: {problem}", Location(path))]) from None
    return plan


_ROW = {
    "origin": str,
    "origin_shape": list,
    "slice": str,
    "slice_shape": list,
    "offset": int,
    "is_slice": bool,
    "block_id": int,
    "endpoint": str,
    "vtype": str,
}
"""The fields of a distributed variable in plan.json that are used, and their types."""


def _check_plan(plan: dict[str, Any]) -> None:
    """Raises ValueError or TypeError when facts of a plan.json are missing or have another type."""
    for key, kind in {"mode": str, "trainers": int, "pservers": list, "distributed_vars": list}.items():
        if not isinstance(plan.get(key), kind):
            raise ValueError(f"{key} is missing or of another kind")
    for row in plan["distributed_vars"]:
        wrong = next((key for key, kind in _ROW.items() if not isinstance(row.get(key), kind)), None)
        if wrong is not None:
            raise ValueError(f"{wrong} of a distributed variable is missing or of another kind")
        if row["endpoint"] not in plan["pservers"]:
            raise ValueError("a distributed variable on a server that the job does not have")
        for number in (*row["origin_shape"], *row["slice_shape"], row["offset"], row["block_id"]):
            count_of(number)
    count_of(plan["trainers"])
    for group in plan.get("groups", []):
        names = cast("list[object]", group) if isinstance(group, list) else []
        if not names or not all(isinstance(name, str) for name in names):
            raise ValueError("a group that is no list of names")
    if not all(isinstance(endpoint, str) for endpoint in plan["pservers"]):
        raise ValueError("a server of another kind")


def _order(name: str) -> tuple[int, int]:
    """A key that sorts trainers before servers, each by number."""
    match = _NUMBERED.fullmatch(name)
    return (match[1] == "pserver", int(match[2])) if match else (2, 0)


def _with_origins(record: Record, name: str, programs: dict[str, Program], file: str) -> dict[str, Program]:
    try:
        return with_origins(record, name, programs)
    except (ValueError, TypeError) as problem:
        message = f"the programs were changed after {PLAN_FILE} was written: {problem}; {_ADVICE}"
        raise DiagnosticError([error("explain-programs", message, Location(file))]) from None


def _read_plan(path: str) -> dict[str, Any]:
    try:
        plan: object = json.loads(read_regular(path, LARGEST).decode("utf-8"))
    except OSError as problem:
        message = f"can't be read: {reason_for(problem, path)}; it is written by pstranspile compile -o"
        raise DiagnosticError([error("explain-record", message, Location(path))]) from None
    except (ValueError, RecursionError) as problem:  # no UTF-8, no JSON, or nested without end
        raise DiagnosticError(
            [error("explain-record", f"not JSON: {describe_json_error(problem)}", Location(path))]
        ) from None
    if not isinstance(plan, dict):
        raise DiagnosticError([error("explain-record", "not a plan: it holds no JSON object", Location(path))])
    return cast("dict[str, Any]", plan)
