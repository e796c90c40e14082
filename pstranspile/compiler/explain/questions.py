"""The explanations of an op, of a job and its machines, of a variable, and of a line of the source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from typing import Any

from pstranspile.compiler.emit.rules import FILL_BACKUP, FIRST_SNAPSHOT, RULES, SEND_COUNTER
from pstranspile.compiler.explain.answers import (
    HeldPart,
    LineAnswer,
    Link,
    ListedOp,
    OpAnswer,
    OpPosition,
    Overview,
    Source,
    VariableAnswer,
    notes_of,
    rule_of,
)
from pstranspile.compiler.explain.job import (
    ExplainedJob,
    Messages,
    UnknownNameError,
    blocks_named,
    line_of,
    near_variables,
)
from pstranspile.compiler.explain.peers import peers_of
from pstranspile.compiler.explain.placement import PARAMETERS, rows_held, rows_of, why_cut, why_there
from pstranspile.ir.diagnostics import name_list
from pstranspile.ir.model import STARTUP, Location, Op, Origin, Var
from pstranspile.ir.text.printer import var_parts
from pstranspile.ir.types import OpRole
from pstranspile.ops import facts_of

# The explanation of an op.


def explain_op(job: ExplainedJob, machine: str, op: str) -> OpAnswer:
    """Explains an op of a machine: `17`, `^2#0` or `@startup^0#3` (block 0 of @main if not given).

    Raises UnknownNameError when there is no such machine or op.
    """
    place = job.place(job.machine(machine), op)
    compiled = job.op(place)
    origin = compiled.origin
    rule = RULES.get(origin.rule) if origin else None
    return OpAnswer(
        place,
        line_of(compiled),
        rule.name if rule else "",
        _with_opaque(compiled, rule.reason if rule else why_kept(job, place.machine, place.program)),
        source_of(job, origin),
        tuple(peers_of(job).of(place)),
        notes_of(compiled),
    )


def _with_opaque(op: Op, reason: str) -> str:
    """A reason, and what is to be said of an op that another library runs."""
    opaque = facts_of(op.type).opaque
    return f"{reason} {opaque[0].upper()}{opaque[1:]}." if opaque else reason


def source_of(job: ExplainedJob, origin: Origin | None) -> Source | None:
    """The source op that an origin names, with its line."""
    if origin is None:
        return None
    place = origin.location
    script = str(place.script) if place and place.script else ""
    text = job.source_line(origin) if origin.rule and origin.op >= 0 else None
    return Source(str(origin), place.file if place else "", place.line if place else 0, text, script)


def why_kept(job: ExplainedJob, machine: str, program: str) -> str:
    """The reason why an op of the source is on a machine unchanged."""
    if machine in job.servers.values():
        return "An initialiser of the source, of a variable that this server holds whole."
    if not job.servers:
        return "An op of the source; every trainer runs it, on its own part of the data."
    if program == STARTUP:
        return "An initialiser of the source, of a variable that the trainer has; the servers' value may follow."
    if job.plan["mode"] == "geo":
        return "An op of the source; in this mode trainers run all of them."
    return "An op of the source that needs nothing which moved to the servers, so it stays on the trainer."


# The ops of a job by machine and rule.


def explain_job(job: ExplainedJob) -> Overview:
    """The numbers of ops of each machine that come from the source and that each rule made."""
    machines: list[tuple[str, str, tuple[tuple[str, str, int], ...]]] = []
    endpoints = {machine: endpoint for endpoint, machine in job.servers.items()}
    for machine in job.machines:
        counts: dict[tuple[str, str], int] = {}
        for place in job.places(machine):
            key = (place.program, rule_of(job.op(place)))
            counts[key] = counts.get(key, 0) + 1
        what = f"server at {endpoints[machine]}" if machine in endpoints else "trainer"
        machines.append((machine, what, tuple((*key, count) for key, count in counts.items())))
    plan = job.plan
    return Overview(plan["mode"], plan["trainers"], tuple(plan["pservers"]), tuple(machines))


def explain_role(job: ExplainedJob, machine: str) -> Overview:
    """The counts of one machine, and its ops that rules made, one by one. Raises UnknownNameError."""
    name = job.machine(machine)
    listed = [
        ListedOp(place, rule_of(op), source_of(job, op.origin), line_of(op))
        for place in job.places(name)
        if rule_of(op := job.op(place))
    ]
    overview = explain_job(job)
    return overview._replace(machines=tuple(m for m in overview.machines if m[0] == name), listed=tuple(listed))


def _only_orders(op_type: str) -> bool:
    """Whether the outputs of an op have no value, and only order the ops that read them."""
    facts = facts_of(op_type)
    return facts.communicates == "request" and not facts.receives


def explain_variable(job: ExplainedJob, name: str, machine: str | None = None) -> VariableAnswer:
    """The explanation of a variable: what it is a part of, and its owners, writers and readers; `machine` limits these.

    Raises UnknownNameError when no machine (or not this one) has such a variable.
    """
    machines = [job.machine(machine)] if machine else list(job.machines)
    name = name.removeprefix("%")
    declared = _declarations(job, name, machines)
    rows = [row for row in job.plan["distributed_vars"] if name in (row["slice"], row["origin"])]
    used = any(job.uses[m].read(name) or job.uses[m].written(name) for m in machines)
    if not declared and not used and (machine or not rows):
        known = sorted({n for m in machines for p in job.machines[m].values() for b in p.blocks for n in b.vars})
        where = f"{machines[0]} has" if machine else "there is"
        raise UnknownNameError(f"{where} no variable {name!r}; {near_variables(name, known)}")
    messages = job.messages
    origin, part, gradient = _parameter_of(job, messages, name, rows)
    held = rows or [row for row in rows_of(job, origin) if part in ("", row["slice"])]
    cut = why_cut(job, origin) if origin and rows_of(job, origin) else ""
    return VariableAnswer(
        name,
        tuple(_about(job, messages, name, rows, gradient)),
        origin,
        tuple(_held_part(job, row) for row in held),
        cut,
        tuple(declared),
        tuple(_uses(job, name, machines)),
    )


def _declarations(job: ExplainedJob, name: str, machines: list[str]) -> list[tuple[str, str]]:
    """The declarations of a variable, each with its place: (machine @program^block, declaration)."""
    result: list[tuple[str, str]] = []
    for machine in machines:
        for program_name, program in job.machines[machine].items():
            for index, block in enumerate(program.blocks):
                if name in block.vars:
                    result.append((f"{machine} @{program_name}^{index}", _declaration(block.vars[name])))
    return result


def _declaration(var: Var) -> str:
    left, right = var_parts(var)
    return " ".join(f"{left.replace('%', '')} {right.removeprefix(' : ')}".split())


def _parameter_of(job: ExplainedJob, messages: Messages, name: str, rows: list[dict[str, Any]]) -> tuple[str, str, str]:
    """The parameter to which a variable belongs (empty: none), its slice, and the relation (the parameter, a part, or a
    gradient).
    """
    for row in rows:
        if row["vtype"] in PARAMETERS:
            return row["origin"], "", ""
    for (endpoint, sent), places in messages.sends.items():
        for place in places:
            op = job.op(place)
            if op.role_vars and (op.origin is None or op.origin.rule != SEND_COUNTER):
                parameter = op.role_vars[0]
                if sent == name:
                    part = _updated_with(job, messages, endpoint, name)
                    return parameter, part, f"The gradient of %{part or parameter} as {place.machine} sends it."
                if op.role_vars[1:2] == (name,):
                    return parameter, "", f"The gradient of %{parameter}, as a trainer computes it."
    for endpoint, serving in messages.serving.items():
        if name in blocks_named(job.op(serving), "grad_to_block_id"):
            part = _updated_with(job, messages, endpoint, name)
            known = {row["slice"]: row["origin"] for row in job.plan["distributed_vars"] if row["vtype"] in PARAMETERS}
            if job.plan["mode"] == "geo":
                return known.get(part, ""), part, f"What a trainer changed of %{part}, as {endpoint} adds it."
            return known.get(part, ""), part, f"The gradient of %{part} on {endpoint}, as its update uses it."
    return "", "", ""


def _updated_with(job: ExplainedJob, messages: Messages, endpoint: str, name: str) -> str:
    """The parameter that the block of a server updates with a gradient; empty if there is not exactly one."""
    serving = messages.serving.get(endpoint)
    if serving is None:
        return ""
    block = blocks_named(job.op(serving), "grad_to_block_id").get(name)
    used = [u.block for u in job.uses[serving.machine].read(name) if u.program == serving.program and u.block > 0]
    if block is None and not used:
        return ""
    ops = job.machines[serving.machine][serving.program].blocks[used[0] if used else block or 0].ops
    kept = [name for op in ops if op.type == "sum" for name in op.output_names if name in op.inputs["X"]]
    updated = list(dict.fromkeys([*(op.inputs["Param"][0] for op in ops if op.inputs.get("Param")), *kept]))
    return updated[0] if len(updated) == 1 else ""


def _about(
    job: ExplainedJob, messages: Messages, name: str, rows: list[dict[str, Any]], gradient: str
) -> Iterator[str]:
    """Yields sentences about the meaning of a variable."""
    yield from _about_rows(job, name, rows)
    if name == job.plan.get("distributed_lookup_table"):
        count = len(job.plan["pservers"])
        yield f"The distributed lookup table: row i lies on server i modulo {count}."
    if gradient:
        yield gradient
    by_type, rules = _writers(job, name)
    orders = bool(by_type) and all(map(_only_orders, by_type)) and not rows
    if orders:
        yield "It carries no value, only an order: what reads it runs after what writes it."
    if FILL_BACKUP in rules:
        yield "A trainer's backup: the parameter as it fetched it last, to compensate its delay by."
    if FIRST_SNAPSHOT in rules:
        yield "A snapshot: the parameter as all trainers had it when the step began."
    if any(
        rule_of(job.op(place)) == SEND_COUNTER for key, at in messages.sends.items() if key[1] == name for place in at
    ):
        yield "A trainer's own count of its steps."
    if not rows and not gradient and not orders and job.servers:
        yield from _about_place(job, name)


def _about_rows(job: ExplainedJob, name: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    parameter_rows = [row for row in rows if row["origin"] == name]
    kinds = {row["vtype"] for row in parameter_rows}
    if kinds & set(PARAMETERS):
        count = len(parameter_rows)
        looked_up = "; trainers look its rows up and never hold it" if "RemotePrefetch" in kinds else ""
        cut = f"cut into {count} slices" if count > 1 else "whole on one server"
        yield f"A parameter of {_dims(parameter_rows[0]['origin_shape'])}, {cut}{looked_up}."
    for row in rows:
        if row["vtype"] in PARAMETERS and row["slice"] == name and row["is_slice"]:
            start, stop = rows_held(row)
            yield (
                f"Slice {row['block_id']} of the parameter %{row['origin']}: rows {start} to {stop} of "
                f"{row['origin_shape'][0]}, from element {row['offset']} on."
            )
    if "Optimizer" in kinds:
        if any(row["is_slice"] for row in parameter_rows):
            yield "State of an optimizer, cut like its parameter: each server keeps the part that goes with its slice."
        else:
            yield "State of an optimizer; every server that updates a part of its parameter has its own."


def _about_place(job: ExplainedJob, name: str) -> Iterator[str]:
    """Yields a sentence about the place of a variable that is neither placed by the plan nor a gradient."""
    servers = set(job.servers.values())
    here = {m for m in job.machines if job.uses[m].read(name) or job.uses[m].written(name)}
    schedule = any(
        job.op(OpPosition(m, *u)).role in (OpRole.LR_SCHED,) for m in here for u in job.uses[m].written(name)
    )
    if here and here <= servers:
        why = "it belongs to the learning rate" if schedule else "only what moved to the servers uses it"
        yield f"It is on the servers only: {why}."
    elif not here and job.plan["mode"] == "geo":
        yield "No op uses it; the trainer's communicator does."
    elif here and not here & servers:
        yield "It is on the trainers only: nothing that moved to the servers uses it."


def _writers(job: ExplainedJob, name: str) -> tuple[set[str], set[str]]:
    """The op types and the rules of all ops that write a variable."""
    ops = [job.op(OpPosition(m, *used)) for m in job.machines for used in job.uses[m].written(name)]
    return {op.type for op in ops}, {op.origin.rule for op in ops if op.origin}


def _dims(shape: list[int]) -> str:
    count = prod(shape)
    dims = f"{' x '.join(map(str, shape))} = {count}" if len(shape) > 1 else str(count)
    return f"{dims} element{'' if count == 1 else 's'}"


def _held_part(job: ExplainedJob, row: dict[str, Any]) -> HeldPart:
    start, stop = rows_held(row)
    why = why_there(job, row) if row["vtype"] in PARAMETERS else "it is where the update of its parameter is"
    return HeldPart(
        row["slice"],
        tuple(row["slice_shape"]),
        start,
        stop,
        row["offset"],
        row["endpoint"],
        job.servers.get(row["endpoint"], ""),
        row["vtype"],
        why,
    )


def _uses(job: ExplainedJob, name: str, machines: list[str]) -> Iterator[Link]:
    for machine in machines:
        uses = job.uses[machine]
        for relation, result in (("writes", uses.written(name)), ("reads", uses.read(name))):
            for used in result:
                place = OpPosition(machine, *used)
                yield Link(relation, place, line_of(job.op(place)))


# The explanation of a line of the source: of a program's text, or of a Python script.


NEAREST = 8
"""The most lines that are named where a line has no ops."""


def explain_line(job: ExplainedJob, line: str, machine: str | None = None) -> LineAnswer:
    """The ops that come from a line, machine by machine: `22`, or `train.py:22` where the source has several files.

    Both the text of a program and the Python script that made it count as source; `machine` limits the answer to one
    machine. Raises UnknownNameError for a line without ops, for a number that several files have, and for no such
    machine.
    """
    machines = [job.machine(machine)] if machine else list(job.machines)
    file, _, number = line.strip().rpartition(":")
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise UnknownNameError(f"{line[:60]!r} is no line; write 22 or train.py:22")
    found = [(each, place, op) for place, op in _ops(job, machines) for each in _lines_of(op)]
    here = [(each, place, op) for each, place, op in found if not file or _is_named(each.file, file)]
    matching = [(each, place, op) for each, place, op in here if each.line == int(number)]
    if not matching:
        raise UnknownNameError(
            _no_ops_message(line, file, int(number), [each for each, _, _ in here or found], here=bool(here))
        )
    files = list(dict.fromkeys(each.file for each, _, _ in matching))
    if len(files) > 1:
        named = name_list(f"{each}:{int(number)}" for each in files)
        raise UnknownNameError(f"several files have ops of a line {int(number)}: {named}")
    uses = tuple(Link(rule_of(op), place, line_of(op)) for _, place, op in matching)
    return LineAnswer(files[0], int(number), uses)


def _ops(job: ExplainedJob, machines: list[str]) -> Iterator[tuple[OpPosition, Op]]:
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


def _no_ops_message(line: str, file: str, number: int, places: list[Location], *, here: bool) -> str:
    """The message for a line without ops, with the nearest lines that have some."""
    if not places:
        return f"no op comes from line {line}; the programs state no lines of a source"
    files = list(dict.fromkeys(place.file for place in places))
    if file and not here:
        return f"no op comes from {file}; the source is {name_list(files)}"
    near = sorted({place.line for place in places}, key=lambda each: (abs(each - number), each))[:NEAREST]
    of = f" of {files[0]}" if len(files) == 1 else ""
    return f"no op comes from line {number}{of}; the nearest lines with ops are {name_list(map(str, sorted(near)))}"
