"""The reasons for the cut of a parameter and for the server of a slice: the formulas, with their numbers, and what a
step would cost with the slice on another server.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from pstranspile.compiler.analysis.updates import why_whole
from pstranspile.compiler.compile import Compiled, prepare
from pstranspile.compiler.cost.counts import read_counts
from pstranspile.compiler.emit.rules import UPDATE
from pstranspile.compiler.explain.job import (
    ExplainedJob,
    UnknownNameError,
    near_variables,
    settings_of,
    source_line_of,
)
from pstranspile.compiler.job import COST, DEFAULTS
from pstranspile.compiler.plan.make import NOT_STATE, can_slice, hash_bytes, send_order
from pstranspile.compiler.plan.plan import PlannedParameter, Slice, cut_rows, plan_json, quote_name, row_width
from pstranspile.ir.argument_checks import check_arguments, expect
from pstranspile.ir.diagnostics import DiagnosticError, quantity
from pstranspile.ir.model import MAIN, STARTUP, Block, Op, Program
from pstranspile.ops import is_optimizer, schema_of
from pstranspile.ops.schema import Slicing

PARAMETERS = ("Param", "RemotePrefetch")
"""The kinds of variables on servers that are parameters, or slices of one."""


def rows_of(job: ExplainedJob, origin: str) -> list[dict[str, Any]]:
    """The entries of the plan about one parameter, in order of its slices."""
    return _rows(job).get(origin, [])


@lru_cache(maxsize=1)
def _rows(job: ExplainedJob) -> dict[str, list[dict[str, Any]]]:
    """The entries of the plan about parameters, by parameter; stored for the last job in use."""
    result: dict[str, list[dict[str, Any]]] = {}
    for row in job.plan["distributed_vars"]:
        if row["vtype"] in PARAMETERS:
            result.setdefault(row["origin"], []).append(row)
    return result


def why_cut(job: ExplainedJob, origin: str) -> str:
    """The slice formula with the numbers of a parameter, and the reason if it does not apply."""
    rows = rows_of(job, origin)
    shape = tuple(rows[0]["origin_shape"])
    servers = len(job.plan["pservers"]) if job.settings.slice_var_up else 1
    minimum = job.settings.min_block_size
    expected = cut_rows(shape, servers, minimum)
    text = _formula(shape, servers, minimum, len(expected), job.settings.slice_var_up)
    actual = [(start, stop) for start, stop in map(rows_held, rows)]
    if job.settings.split_method == COST:
        if len(rows) == 1:
            return "split_method cost: a server takes it whole."
        return f"split_method cost: {len(rows)} slices, cut where a server reaches the level that all are filled to."
    if actual == list(expected):
        return text
    if len(rows) == 1:
        return f"{text} It is whole all the same: {_why_whole(job, origin)}."
    return f"{text} The plan was edited: it has {len(rows)} {_plural(len(rows), 'slice')}."


def _formula(shape: tuple[int, ...], servers: int, minimum: int, slices: int, slicing: bool) -> str:
    elements, width = prod(shape), prod(shape[1:])
    dims = " x ".join(map(str, shape))
    what = f"{dims} = {elements}" if len(shape) > 1 else str(elements)
    what = f"{what} {_plural(elements, 'element')}"
    if not slicing:
        return f"slice_var_up is false, so its {what} are one slice."
    if elements == 0:
        return "It has no elements, so it is one slice."
    fit = max(1, elements // minimum)
    parts = min(servers, fit)
    size = -(-elements // parts)
    text = (
        f"{what}; min_block_size {minimum} lets max(1, {elements} // {minimum}) = {fit} fit; "
        f"min({servers} servers, {fit}) = {parts} {_plural(parts, 'part')}; "
        f"ceil({elements} / {parts}) = {size} {_plural(size, 'element')}"
    )
    if len(shape) > 1:
        rows = -(-size // width)
        text += f", which is {rows} {_plural(rows, 'row')} of {width}"
    return f"{text}: {slices} {_plural(slices, 'slice')}."


def _why_whole(job: ExplainedJob, origin: str) -> str:
    """The reason why a parameter is whole although the formula would cut it."""
    for group in job.plan.get("groups", ()):
        if origin in group and len(group) > 1:
            others = ", ".join(f"%{name}" for name in group if name != origin)
            return f"its update is connected with that of {others}, so one server must hold them all"
        if origin in group:
            return "ops that change it after its update need the whole of it"
    machine = job.servers.get(rows_of(job, origin)[0]["endpoint"])
    if machine is not None:
        updates = _updates(job, machine, origin)
        reason = why_whole(Program((Block(ops=updates),)), range(len(updates)))
        if reason:
            return reason
        startup = job.machines[machine].get(STARTUP)
        for op in startup.main_block.ops if startup else ():
            if origin in op.output_names and not can_slice(op):
                return f"its initialiser {op.type} can't make a slice of it"
    return EDITED


EDITED = "the plan was edited"
"""The reason for a parameter that is whole, if nothing in the program needs the whole of it."""


def _updates(job: ExplainedJob, machine: str, origin: str) -> tuple[Op, ...]:
    """The ops of the block that updates a whole parameter."""
    for block in job.machines[machine][MAIN].blocks[1:]:
        if any(op.input("Param") == origin for op in block.ops):
            return tuple(op for op in block.ops if op.origin is not None and op.origin.rule == UPDATE)
    return ()


def rows_held(row: dict[str, Any]) -> tuple[int, int]:
    """The rows (elements at rank 1) of the whole variable in an entry of the plan: from, to."""
    shape = row["slice_shape"]
    width = prod(row["origin_shape"][1:])
    start = row["offset"] // width if width else 0
    return start, start + (shape[0] if shape else 1)


def why_there(job: ExplainedJob, row: dict[str, Any]) -> str:
    """The reason why a slice is on its server: the dispatcher's turn or hash."""
    servers, method = job.plan["pservers"], job.settings.split_method
    number = servers.index(row["endpoint"])
    for group in job.plan.get("groups", ()):
        if row["origin"] in group[1:]:
            return f"it must be on the server of %{group[0]}, with which its update is connected"
    if method == COST:
        return f"split_method cost: on server {number}, so that the busiest server moves as few bytes as can be"
    if method == "HashName":
        code = zlib.crc32(hash_bytes(row["slice"]))
        there = code % len(servers)
        text = f"HashName: crc32({row['slice']!r}) = {code}, modulo {len(servers)} servers = {there}"
    elif method == "RoundRobin":
        turn, count = _turn(job, row)
        there = turn % len(servers)
        shuffled = "" if job.settings.slice_var_up else " (parameters shuffled with the program's seed)"
        text = (
            f"RoundRobin: dealt out as number {turn} of 0 to {count - 1}, in the order of sends{shuffled}; "
            f"{turn} modulo {len(servers)} servers = {there}"
        )
    else:
        return f"the dispatcher {method} chose server {number}"
    return text if there == number else f"the plan was edited: server {number}, where {method} would take {there}"


def _turn(job: ExplainedJob, row: dict[str, Any]) -> tuple[int, int]:
    """The number of slices assigned before this one, and the number of all slices."""
    dealt = _dealt(job)
    return dealt[row["slice"]], len(dealt)


@lru_cache(maxsize=1)
def _dealt(job: ExplainedJob) -> dict[str, int]:
    """The slices in the order in which they were assigned, with their numbers; stored for the last job in use."""
    rows = _rows(job)
    names = list(rows)
    order = send_order(len(names), job.settings.random_seed, job.settings.slice_var_up)
    dealt = [row["slice"] for i in order for row in rows[names[i]]]
    return {name: number for number, name in enumerate(dealt)}


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"


# A slice on other servers: what a step would cost.


class Choice(NamedTuple):
    """A server for a slice. `busiest` are the bytes that the busiest server would move in a step with the slice there,
    `held` the bytes of parameters that this server would hold; `fits`: its memory suffices, where the job limits it.
    """

    endpoint: str
    busiest: float
    held: int
    fits: bool = True


class PlacedSlice(NamedTuple):
    """Rows `start` to `stop` of a parameter, and their server: the bytes that it holds of them, and those that they
    move in a step with all trainers together.

    `rule` is the way by which the server was chosen: a `split_method`, `together` (with another parameter), or `plan`
    (edited by hand); `reason` says it with its numbers. `choices` are all servers: the chosen one, then the others,
    the best first.
    """

    name: str
    start: int
    stop: int
    endpoint: str
    held: int
    moved: float
    rule: str
    reason: str
    choices: tuple[Choice, ...]

    @property
    def runner_up(self) -> Choice | None:
        """The best server other than the chosen one; None if there is no other with room."""
        return next((choice for choice in self.choices[1:] if choice.fits), None)


@check_arguments
@dataclass(frozen=True)
class Placement:
    """The reasons for the place of a variable, as `str` shows them.

    `variable` is a parameter, or follows one as its `role` says: `slice`, `gradient`, `state` (of its optimizer), or
    `table`, which is dealt out by id and has no slices. `split_method` is that of the job; `cut` is the formula of the
    slices, `limit` the constraint that decides their number and `limited` a sentence on it. `together` are the other
    parameters that must be on the same server; costs are then those of all of them. The bytes are those of a `unit`:
    of a step, in mode geo of an exchange.
    """

    variable: str
    parameter: str
    role: str
    split_method: str
    cut: str
    limit: str
    limited: str
    slices: tuple[PlacedSlice, ...]
    together: tuple[str, ...] = ()
    unit: str = "step"

    def __repr__(self) -> str:
        """`<Placement of %fc_0.w_0: 2 slices, RoundRobin>`."""
        return f"<Placement of {quote_name(self.variable)}: {quantity(len(self.slices), 'slice')}, {self.split_method}>"

    def __str__(self) -> str:
        """The lines that `pstranspile plan --why` prints."""
        return placement_text(self).rstrip("\n")


@check_arguments
def why(compiled: Compiled, variable: str) -> Placement:
    """The reasons for the place of a parameter, of a slice, or of a gradient or optimizer state that follows one, and
    what a step would cost with it on other servers.

    Raises LookupError, with similar names, for a variable that is on no server, and DiagnosticError for a file of
    counts that can't be used.
    """
    expect(compiled, Compiled, "why", "Compiled")
    expect(variable, str, "why", "the name of a variable")
    plan, name = compiled.plan, variable.removeprefix("%")
    if not plan.pservers:
        raise UnknownNameError(f"mode {plan.mode} has no servers: each trainer has the whole of every parameter")
    settings = settings_of(compiled)
    table = plan.table
    if table is not None and name in (table.name, table.gradient):
        cut = f"distributed_table modulo: row i is on server i modulo {len(plan.pservers)}, whatever it costs."
        limited = "rows are dealt out by id, one by one"
        return Placement(name, table.name, "table", settings.split_method, cut, "id", limited, ())
    states = _states(compiled)
    parameter, part, role = _resolve_name(compiled, name, states)
    if plan.geo is not None:
        settings = settings._replace(slice_var_up=True)  # geo cuts in any case
    # Why a parameter is whole is read off the programs of its server; no other programs are needed, nor made.
    needed = [] if parameter.is_cut else [compiled.pserver(parameter.slices[0].endpoint)]
    servers = {role.name: role.module.programs for role in needed}
    held = plan_json(plan, compiled.fingerprint, compiled.distributed_vars)
    job = ExplainedJob(servers, held, settings, source_line_of(compiled.source))
    loads = _Loads(compiled, states)
    by_job = _by_job(compiled, parameter.name)
    slices = tuple(_placed_slice(job, loads, parameter, s, by_job) for s in parameter.slices if part in (None, s))
    group = loads.group_of(parameter.name)
    limit, limited = _limit(job, parameter, by_job, group, slices)
    cut = why_cut(job, parameter.name)
    together = tuple(other for other in group if other != parameter.name)
    unit = "exchange" if plan.geo is not None else "step"
    return Placement(name, parameter.name, role, settings.split_method, cut, limit, limited, slices, together, unit)


_States = Mapping[str, Mapping[str, bool]]
"""Parameter -> the variables of its optimizers' state, and whether each is cut like the parameter."""


def _states(compiled: Compiled) -> _States:
    result: dict[str, dict[str, bool]] = {}
    for name, program in compiled.source.programs.items():
        for op in program.main_block.ops if name != STARTUP else ():
            parameter, schema = op.input("Param"), schema_of(op.type)
            if not is_optimizer(op) or schema is None or parameter not in compiled.plan.by_name:
                continue
            for slot in sorted(op.inputs):
                state = op.input(slot)
                var = program.find_var(state) if state is not None and slot not in NOT_STATE else None
                if var is not None:
                    follows = schema.slicing.get(slot) is Slicing.FOLLOWS
                    follows = follows and var.shape == compiled.plan.by_name[parameter].shape
                    result.setdefault(parameter, {}).setdefault(var.name, follows)
    return result


def _resolve_name(compiled: Compiled, name: str, states: _States) -> tuple[PlannedParameter, Slice | None, str]:
    """The parameter, the slice if the name is that of one, and what the variable is to it. Raises UnknownNameError."""
    plan = compiled.plan
    found: dict[str, tuple[PlannedParameter, Slice | None, str]] = {
        p.name: (p, None, "parameter") for p in plan.parameters
    }
    for p in plan.parameters:
        found.setdefault(p.gradient, (p, None, "gradient"))
        for s in p.slices:
            found.setdefault(s.name, (p, s, "slice"))
            found.setdefault(s.gradient, (p, s, "gradient"))
        for state in states.get(p.name, ()):
            found.setdefault(state, (p, None, "state"))
    if name in found:
        return found[name]
    for p in plan.parameters:
        for s in p.slices:
            if name.startswith(s.gradient) and name in (plan.sent_name(s, number) for number in range(plan.trainers)):
                return p, s, "gradient"
    near = near_variables(name, [*found])
    programs = compiled.source.programs.values()
    if any(program.find_var(name) is not None for program in programs):
        what = "no parameter, nor the gradient or optimizer state of one"
        raise UnknownNameError(f"the plan does not place {quote_name(name)}: it is {what}; {near}")
    raise UnknownNameError(f"there is no variable {name!r}; {near}")


def _by_job(compiled: Compiled, name: str) -> tuple[Slice, ...] | None:
    """The slices that the job gives a parameter without an edited plan; None if it can't be planned so."""
    if compiled.job is None:
        return compiled.plan.by_name[name].slices
    try:
        return prepare(compiled.source, compiled.job).plan.by_name[name].slices
    except DiagnosticError:  # an edited plan may fit where this one does not
        return None


class _Loads:
    """What the servers of a plan move, hold, and need memory for, and the parts that each parameter has in it."""

    def __init__(self, compiled: Compiled, states: _States):
        # Imported here and below, so that a compile, which records origins as this package reads them, loads no costs.
        from pstranspile.compiler.cost.jobs import cost_of, planned_lookups

        job, plan, program = compiled.job, compiled.plan, compiled.source.main
        self.plan = plan
        self.counts = read_counts(job.id_counts) if job is not None and job.id_counts else None
        self.rows = job.batch_rows if job is not None else DEFAULTS["batch_rows"]
        self.lookups = planned_lookups(plan, program, self.rows)
        self.groups = {name: group.parameters for group in plan.groups for name in group.parameters}
        self.states = states
        limited = job is not None and job.split_method == COST and job.server_memory
        self.memory = job.server_memory * (1 << 20) if job is not None and limited else None
        servers = cost_of(plan, program, self.rows, self.counts).servers
        self.moved_bytes = {server.endpoint: server.moved for server in servers}
        self.held_bytes = {server.endpoint: server.held for server in servers}
        self.needed_memory = dict.fromkeys(plan.pservers, 0)
        for parameter in plan.parameters:
            for part in parameter.slices:
                self.needed_memory[part.endpoint] += self.held_of(parameter, part) * self._copies(parameter)
        self._busiest = sorted(plan.pservers, key=lambda server: -self.moved_bytes[server])[:3]

    def group_of(self, name: str) -> tuple[str, ...]:
        """The parameters that must be on the server of this one, itself included."""
        return self.groups.get(name, (name,))

    def moved_of(self, parameter: PlannedParameter, part: Slice) -> float:
        """The bytes that a slice moves in a step with all trainers together."""
        from pstranspile.compiler.cost.jobs import moved_of

        moved = moved_of(parameter, self.lookups, self.rows, self.counts)
        return self.plan.trainers * (moved.below(part.stop) - moved.below(part.start))

    def held_of(self, parameter: PlannedParameter, part: Slice) -> int:
        """The bytes of a slice."""
        return row_width(parameter.shape) * parameter.dtype.size * (part.stop - part.start)

    def _copies(self, parameter: PlannedParameter) -> int:
        """How often a server has what is as large as a slice: itself, states of optimizers, and dense gradients."""
        gradients = 0 if parameter.sparse else self.plan.trainers + 1
        return 1 + sum(self.states.get(parameter.name, {}).values()) + gradients

    def choices(self, parameter: PlannedParameter, part: Slice) -> tuple[Choice, ...]:
        """All servers for a slice: its own, then the others, the best first."""
        group = self.group_of(parameter.name)
        moving = [(self.plan.by_name[name], self.plan.by_name[name].slices[0]) for name in group]
        moving = moving if len(group) > 1 else [(parameter, part)]
        moved, held = (sum(of(*each) for each in moving) for of in (self.moved_of, self.held_of))
        needed = sum(self.held_of(*each) * self._copies(each[0]) for each in moving)
        here = part.endpoint
        others: list[Choice] = []
        for server in self.plan.pservers:
            if server != here:
                untouched = next((s for s in self._busiest if s not in (here, server)), None)
                rest = self.moved_bytes[untouched] if untouched is not None else 0.0
                level = max(self.moved_bytes[here] - moved, self.moved_bytes[server] + moved, rest)
                fits = self.memory is None or self.needed_memory[server] + needed <= self.memory
                others.append(Choice(server, level, self.held_bytes[server] + int(held), fits))
        others.sort(key=lambda choice: (not choice.fits, choice.busiest, choice.held))
        return Choice(here, self.moved_bytes[self._busiest[0]], self.held_bytes[here]), *others


def _placed_slice(
    job: ExplainedJob, loads: _Loads, parameter: PlannedParameter, part: Slice, by_job: Sequence[Slice] | None
) -> PlacedSlice:
    row = next(row for row in rows_of(job, parameter.name) if row["slice"] == part.name)
    rule, reason = job.settings.split_method, why_there(job, row)
    without = next((s for s in by_job or () if (s.start, s.stop) == (part.start, part.stop)), None)
    if without is None:
        rule, reason = "plan", f"the plan was edited: {job.settings.split_method} would cut the parameter otherwise"
    elif without.endpoint != part.endpoint:
        rule = "plan"
        reason = f"the plan was edited: {job.settings.split_method} would take {without.endpoint}"
    elif parameter.name in loads.group_of(parameter.name)[1:]:
        rule = "together"
    held, moved = loads.held_of(parameter, part), loads.moved_of(parameter, part)
    choices = loads.choices(parameter, part)
    return PlacedSlice(part.name, part.start, part.stop, part.endpoint, held, moved, rule, reason, choices)


def _limit(
    job: ExplainedJob,
    parameter: PlannedParameter,
    by_job: Sequence[Slice] | None,
    group: Sequence[str],
    slices: Sequence[PlacedSlice],
) -> tuple[str, str]:
    """The constraint that decides the number of slices, in a word and in a sentence."""
    settings, servers = job.settings, len(job.plan["pservers"])
    cuts = [(s.start, s.stop) for s in parameter.slices]
    if cuts != [(s.start, s.stop) for s in by_job or ()]:
        return "plan", "the plan was edited, and states the slices"
    elements, minimum, by_cost = prod(parameter.shape), settings.min_block_size, settings.split_method == COST
    rows = parameter.shape[0] if parameter.shape else 1
    least = max(1, -(-minimum // max(1, row_width(parameter.shape)))) if by_cost else 1
    if any(not choice.fits and choice.busiest < each.choices[0].busiest for each in slices for choice in each.choices):
        return "server_memory", "a server on which it would cost less has no room for it"
    if len(cuts) > 1:
        return _limit_of_cut(settings.split_method, elements, minimum, servers, len(cuts))
    if not settings.slice_var_up:
        return "slice_var_up", "slice_var_up is false, so that no parameter is cut"
    if servers == 1:
        return "servers", "there is one server"
    if elements < 2 * minimum:
        size = f"a slice has at least {quantity(minimum, 'element')}, and it has {elements:,}"
        return "min_block_size", f"min_block_size keeps it whole: {size}"
    if rows < 2:
        return "rows", f"it has {quantity(rows, 'row')}, and rows are not cut"
    if rows < 2 * least:
        size = (
            f"a slice has at least {quantity(minimum, 'element')} in {quantity(least, 'row')}, and it has {rows:,} rows"
        )
        return "min_block_size", f"min_block_size keeps it whole: {size}"
    if len(group) > 1 or any(parameter.name in each for each in job.plan.get("groups", ())):
        return "together", _why_whole(job, parameter.name)
    reason = _why_whole(job, parameter.name)
    if reason != EDITED:
        return "op", reason
    return "level", "a server has room for the whole of it below the level to which all are filled"


def _limit_of_cut(method: str, elements: int, minimum: int, servers: int, slices: int) -> tuple[str, str]:
    if method == COST:
        return "level", "it is cut where a server reaches the level to which all are filled"
    fit = max(1, elements // minimum)
    if slices < min(servers, fit):
        return "rows", f"rows are not cut, so that it has {quantity(slices, 'slice')} of whole rows"
    if fit < servers:
        return "min_block_size", f"a slice has at least {quantity(minimum, 'element')}, so that {slices} fit"
    return "servers", f"it has a slice for each of {quantity(servers, 'server')}"


_SHOWN = 4
"""The most servers that the text shows for a slice."""

_SLICES = 16
"""The most slices that the text shows."""


def placement_text(found: Placement) -> str:
    """The reasons as text: a line on the variable, the formula and its limit, then each slice with its servers."""
    lines = [_heading(found), f"  {found.cut}", f"  limit: {found.limited} ({found.limit})"]
    if found.together:
        names = ", ".join(map(quote_name, found.together))
        lines.append(f"  together with {names}: what other servers would move and hold is that of all of them")
    unit = "an exchange" if found.unit == "exchange" else "a step"
    for part in found.slices[:_SLICES]:
        rows = f", rows {part.start:,} to {part.stop:,}," if part.name != found.parameter else ""
        lines += [
            "",
            f"{quote_name(part.name)}{rows} is on {part.endpoint}: {part.held:,} bytes; "
            f"{part.moved:,.0f} moved in {unit}",
            f"  {part.reason}",
        ]
        if part.rule != COST:
            lines.append(f"  {_regardless(part.rule)}")
        lines += _table(part)
        if len(part.choices) > _SHOWN:
            lines.append(f"  {quantity(len(part.choices) - _SHOWN, 'server')} more, which --json lists")
    if len(found.slices) > _SLICES:
        lines += ["", f"{quantity(len(found.slices) - _SLICES, 'slice')} more, which --json lists"]
    return "\n".join(lines) + "\n"


def _heading(found: Placement) -> str:
    name, parameter = quote_name(found.variable), quote_name(found.parameter)
    if found.role == "table":
        about = "" if found.variable == found.parameter else f" is the gradient of {parameter}, which"
        return f"{name}{about} is dealt out to all servers by id"
    if found.role == "parameter":
        is_cut = found.slices[0].name != found.parameter
        return f"{name} has {quantity(len(found.slices), 'slice')}" if is_cut else f"{name} is whole"
    if found.role == "slice":
        return f"{name} is a slice of {parameter}"
    what = "the gradient" if found.role == "gradient" else "a state of the optimizer"
    return f"{name} is {what} of {parameter}, and is where that is"


def _regardless(rule: str) -> str:
    if rule == "plan":
        return "costs did not matter: the plan states the server"
    if rule == "together":
        return "costs did not matter: the other parameter decides"
    return f"costs did not matter to {rule}"


def _table(part: PlacedSlice) -> list[str]:
    """The servers for a slice, each with what it would move and hold."""
    from pstranspile.compiler.cost.jobs import columns

    table, notes = [("with it on", "busiest moves", "this one holds")], [""]
    for choice in part.choices[:_SHOWN]:
        table.append((choice.endpoint, f"{choice.busiest:,.0f}", f"{choice.held:,}"))
        told = "chosen" if choice is part.choices[0] else "runner-up" if choice is part.runner_up else ""
        notes.append(told if choice.fits else "has no room")
    return [f"  {line}  {note}".rstrip() for line, note in zip(columns(table), notes, strict=True)]


def placement_json(found: Placement) -> dict[str, Any]:
    """The reasons as JSON."""
    slices = [{**part._asdict(), "choices": [choice._asdict() for choice in part.choices]} for part in found.slices]
    return {
        "version": 1,
        "variable": found.variable,
        "parameter": found.parameter,
        "role": found.role,
        "split_method": found.split_method,
        "cut": found.cut,
        "limit": found.limit,
        "limited": found.limited,
        "together": list(found.together),
        "unit": found.unit,
        "slices": slices,
    }
