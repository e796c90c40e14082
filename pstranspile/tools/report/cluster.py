"""What each machine of a job holds, and what machines exchange in a step, for a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from pstranspile.compiler.explain.job import ExplainedJob
from pstranspile.compiler.explain.placement import PARAMETERS, rows_held, rows_of, why_cut, why_there
from pstranspile.ir.model import MAIN, Var
from pstranspile.ir.types import VarKind


def machines_data(job: ExplainedJob) -> list[dict[str, Any]]:
    """The machines: name, kind, endpoint, and what each keeps from step to step, in bytes.

    `parameters` and `state` count bytes of declared dims, `rows` the rows of parameters and their slices. Parts of
    tables that trainers only look up are not counted for them.
    """
    endpoints = {machine: endpoint for endpoint, machine in job.servers.items()}
    looked_up = {row["origin"] for row in job.plan["distributed_vars"] if row["vtype"] == "RemotePrefetch"}
    placed: dict[str, set[str]] = {}
    for row in job.plan["distributed_vars"]:
        if row["vtype"] in PARAMETERS:
            placed.setdefault(row["endpoint"], set()).add(row["slice"])
    table = job.plan.get("distributed_lookup_table")
    result: list[dict[str, Any]] = []
    for name, programs in job.machines.items():
        own = placed.get(endpoints.get(name, ""), set())
        kept = [v for v in programs[MAIN].main_block.vars.values() if v.persistable] if MAIN in programs else []
        if name not in endpoints:
            kept = [v for v in kept if v.name not in looked_up and v.name != table]
        parameters = [v for v in kept if v.name in own or (name not in endpoints and v.parameter is not None)]
        if name in endpoints:
            parameters += [v for v in kept if v.name == table]
        names = {v.name for v in parameters}
        result.append(
            {
                "name": name,
                "kind": "server" if name in endpoints else "trainer",
                "endpoint": endpoints.get(name, ""),
                "parameters": sum(map(size_of, parameters)),
                "state": sum(size_of(v) for v in kept if v.name not in names),
                "rows": sum(v.shape[0] for v in parameters if v.shape and v.shape[0] > 0),
                "slices": len(parameters),
            }
        )
    return result


def size_of(var: Var | None) -> int:
    """The bytes of a variable's declared dims; 0 where they are not known before it runs."""
    if var is None or var.tensor is None or var.kind is VarKind.SELECTED_ROWS or min(var.shape, default=0) < 0:
        return 0
    return prod(var.shape) * var.tensor.dtype.size


def pairs_data(job: ExplainedJob) -> list[list[Any]]:
    """The messages of each pair of machines in a step, from the programs.

    Rows: sender, receiver, messages, bytes of declared dims, and messages whose bytes depend on the data.
    """
    totals: dict[tuple[str, str], list[int]] = {}
    for source, target, size in _messages(job):
        total = totals.setdefault((source, target), [0, 0, 0])
        total[0] += 1
        total[1] += max(size, 0)
        total[2] += size < 0
    order = {name: number for number, name in enumerate(job.machines)}
    return [[*pair, *totals[pair]] for pair in sorted(totals, key=lambda pair: (order[pair[0]], order[pair[1]]))]


def _messages(job: ExplainedJob) -> Iterator[tuple[str, str, int]]:
    """Every message of a step: source, target, and its bytes (-1: they depend on the data)."""
    messages, servers = job.messages, job.servers
    for (endpoint, name), places in messages.sent.items():
        for place in places:
            if place.program == MAIN and endpoint in servers:
                yield place.machine, servers[endpoint], _size(job, place.machine, servers[endpoint], name)
    for table, asking in ((messages.fetched, True), (messages.looked_up, False)):
        for (endpoint, name), places in table.items():
            for place in places:
                if place.program == MAIN and endpoint in servers:
                    yield place.machine, servers[endpoint], 0 if asking else -1
                    size = _size(job, place.machine, servers[endpoint], name) if asking else -1
                    yield servers[endpoint], place.machine, size
    for endpoint, places in messages.barriers.items():
        for place in places:
            if place.program == MAIN and endpoint in servers:
                yield place.machine, servers[endpoint], 0


def _size(job: ExplainedJob, trainer: str, server: str, name: str) -> int:
    for machine in (trainer, server):
        var = job.machines[machine][MAIN].main_block.vars.get(name)
        if var is not None and var.tensor is not None:
            known = var.kind is not VarKind.SELECTED_ROWS and min(var.shape, default=0) >= 0
            return size_of(var) if known else -1
    return -1


def parameters_data(job: ExplainedJob) -> list[dict[str, Any]]:
    """The parameters on servers: shape, bytes, why cut so, and of each slice the server, rows, bytes, and why there.

    Servers are numbered as in the plan.
    """
    servers: Mapping[str, int] = {endpoint: number for number, endpoint in enumerate(job.plan["pservers"])}
    names = dict.fromkeys(row["origin"] for row in job.plan["distributed_vars"] if row["vtype"] in PARAMETERS)
    result: list[dict[str, Any]] = []
    for name in names:
        rows = rows_of(job, name)
        machine = job.servers.get(rows[0]["endpoint"])
        var = job.machines[machine][MAIN].main_block.vars.get(rows[0]["slice"]) if machine else None
        width = var.tensor.dtype.size if var is not None and var.tensor is not None else 4
        slices: list[list[Any]] = []
        for row in rows:
            size = prod(row["slice_shape"]) * width
            slices.append([servers[row["endpoint"]], *rows_held(row), size, row["slice"], why_there(job, row)])
        result.append(
            {
                "name": name,
                "shape": rows[0]["origin_shape"],
                "dtype": var.tensor.dtype.text if var is not None and var.tensor is not None else "",
                "bytes": sum(entry[3] for entry in slices),
                "table": rows[0]["vtype"] == "RemotePrefetch",
                "why": why_cut(job, name),
                "slices": slices,
            }
        )
    return result
