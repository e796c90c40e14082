"""Reading what `compile -o DIR` wrote, for explaining."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, cast

from pstranspile.compiler.diff.folders import load_role, roles_in
from pstranspile.compiler.explain.job import ExplainedJob
from pstranspile.compiler.explain.record import Record, count_of, read_record, with_origins
from pstranspile.frontends.loading import LARGEST, Report
from pstranspile.ir.diagnostics import DiagnosticError, error, warning
from pstranspile.ir.json_faults import told
from pstranspile.ir.model import Location, Program
from pstranspile.ir.reading import read_regular
from pstranspile.runtime.files.outputs import PLAN_FILE

_NUMBERED = re.compile(r"(trainer|pserver)_(\d+)")
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
    machines: dict[str, dict[str, Program]] = {}
    for name in sorted(files, key=_order):
        if _NUMBERED.fullmatch(name):
            programs = dict(load_role(files[name], report).programs)
            machines[name] = _with_origins(record, name, programs, str(files[name][0]))
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
    """What the plan.json of an output folder holds. Raises DiagnosticError when it can't be read or lacks facts."""
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
"""The fields of a distributed variable in plan.json that are relied on, and what they hold."""


def _check_plan(plan: dict[str, Any]) -> None:
    """Raises ValueError or TypeError when the facts of a plan.json are missing or of another kind."""
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
    """Trainers before servers, each by number."""
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
        message = f"can't be read: {problem.strerror or problem}; it is written by pstranspile compile -o"
        raise DiagnosticError([error("explain-record", message, Location(path))]) from None
    except (ValueError, RecursionError) as problem:  # no UTF-8, no JSON, or nested without end
        raise DiagnosticError([error("explain-record", f"not JSON: {told(problem)}", Location(path))]) from None
    if not isinstance(plan, dict):
        raise DiagnosticError([error("explain-record", "not a plan: it holds no JSON object", Location(path))])
    return cast("dict[str, Any]", plan)
