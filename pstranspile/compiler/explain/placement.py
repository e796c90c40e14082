"""The reasons for the cut of a parameter and for the server of a slice: the formulas, with their numbers."""

from __future__ import annotations

import zlib
from functools import lru_cache
from math import prod
from typing import Any

from pstranspile.compiler.analysis.updates import why_whole
from pstranspile.compiler.emit.rules import UPDATE
from pstranspile.compiler.explain.job import ExplainedJob
from pstranspile.compiler.job import COST
from pstranspile.compiler.plan.make import can_slice, hash_bytes, send_order
from pstranspile.compiler.plan.plan import cut_rows
from pstranspile.ir.model import MAIN, STARTUP, Block, Op, Program

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
    return "the plan was edited"


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
