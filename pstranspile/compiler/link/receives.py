"""Every parameter is fetched from the server that updates it, by every trainer, at start-up and in every step.

A trainer fetches the slices and joins them, or has its communicator fetch them into the whole (`recv_varnames`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pstranspile.compiler.link.base import described, finding, same_type
from pstranspile.compiler.link.collect import remade
from pstranspile.compiler.link.machines import Calls, Cluster, Server, Trainer
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op, Var
from pstranspile.ops.attributes import strings_attr


def check_receives(trainer: Trainer, cluster: Cluster) -> Iterator[Diagnostic]:
    """All recv ops of a trainer, and the joins after them. Fills in the trainer's layouts."""
    if not trainer.part:
        yield from _check_program(trainer, trainer.startup, trainer.startup_layouts, cluster, startup=True)
    yield from _check_program(trainer, trainer.main, trainer.layouts, cluster, startup=False)
    for op, name in remade(trainer.main):
        if name in trainer.layouts:
            yield finding(
                "link-unfetched", trainer.role, op, f"what the step computed for %{name} is overwritten", name
            )
    for name, slices in trainer.layouts.items():
        first = trainer.startup_layouts.get(name)
        if first is not None and first != slices:
            op = next(op for _, op in trainer.main.of("recv") if set(slices) & set(_fetched(op)))
            message = f"%{name} is made of {_list(slices)} in a step, of {_list(first)} at start-up"
            yield finding("link-partition", trainer.role, op, message, name)


def _fetched(op: Op) -> Sequence[str]:
    return strings_attr(op, "recv_varnames") or op.outputs.get("Out", ())


def _list(names: Sequence[str]) -> str:
    return ", ".join([f"%{name}" for name in names])


def _check_program(
    trainer: Trainer, calls: Calls, layouts: dict[str, tuple[str, ...]], cluster: Cluster, *, startup: bool
) -> Iterator[Diagnostic]:
    variables = calls.vars
    arrived: dict[str, int] = {}
    for position, op in calls.of("recv"):
        outputs, names, endpoints = op.outputs.get("Out", ()), _fetched(op), strings_attr(op, "epmap")
        if len(names) != len(endpoints):
            message = f"{len(names)} variables are fetched from {len(endpoints)} servers"
            yield finding("link-receive", trainer.role, op, message, next(iter(names), ""))
        if len(outputs) == 1:
            layouts[outputs[0]] = tuple(names)
        whole = variables.get(outputs[0]) if names is not outputs and outputs else None
        rows = 0
        if names is not outputs and whole is None:
            yield finding(
                "link-receive", trainer.role, op, f"there is no variable for {_list(names)}", next(iter(names), "")
            )
        for name, endpoint in zip(names, endpoints, strict=False):
            server = cluster.servers.get(endpoint)
            held = server.vars.get(name) if server else None
            if server is None or held is None or not held.persistable:
                yield finding("link-receive", trainer.role, op, f"{endpoint!r} does not hold %{name}", name)
                continue
            counts = server.fetched_at_startup if startup else server.fetched
            counts[name] = counts.get(name, 0) + 1
            if whole is not None:
                rows += held.shape[0] if held.shape else 0
                fits = held.dtype is whole.dtype and held.shape[1:] == whole.shape[1:]
            else:
                fits = names is not outputs or same_type(variables.get(name), held)
            if not fits:
                mine = described(whole or variables.get(name))
                message = f"%{name} has another type on {server.role.name}: {mine} here, {described(held)} there"
                yield finding("link-receive", trainer.role, op, message, name)
            owners = cluster.owners.get(name)
            if owners is None or len(owners) != 1 or owners[0] != endpoint:
                shown = ", ".join(owners or ()) or "none"
                yield finding(
                    "link-owner", trainer.role, op, f"%{name} is fetched from {endpoint}, updated by {shown}", name
                )
        if whole is not None and rows != whole.shape[0]:
            message = f"the slices of %{outputs[0]} have {rows} rows, it has {whole.shape[0]}"
            yield finding("link-partition", trainer.role, op, message, outputs[0])
        arrived.update(dict.fromkeys(outputs, position))
    yield from _check_joins(trainer, calls, layouts, arrived)


def _check_joins(
    trainer: Trainer, calls: Calls, layouts: dict[str, tuple[str, ...]], arrived: Mapping[str, int]
) -> Iterator[Diagnostic]:
    """Fetched slices are joined after they arrived, in the order of their rows; nothing fetched is left over."""
    joined: set[str] = set()
    for position, op in calls.joins():
        parts, whole = op.inputs.get("X", ()), op.output("Out") or ""
        joined.update(parts)
        layouts[whole] = parts
        late = [name for name in parts if arrived.get(name, position) >= position]
        if late:
            yield finding(
                "link-order", trainer.role, op, f"%{late[0]} has not arrived when %{whole} is joined", late[0]
            )
        yield from check_cut(trainer, op, calls.vars, whole, parts)
    for name in arrived:
        var = calls.vars.get(name)
        if name not in joined and var is not None and not var.persistable:
            op = next(op for _, op in calls.of("recv") if name in op.outputs.get("Out", ()))
            yield finding("link-partition", trainer.role, op, f"%{name} is fetched, but joined to no variable", name)


def check_cut(
    trainer: Trainer,
    op: Op,
    variables: Mapping[str, Var],
    whole: str,
    parts: Sequence[str],
    sections: Sequence[int] = (),
) -> Iterator[Diagnostic]:
    """`parts` are the rows of `whole`, each declared with its number of rows (in `sections`, if the op has them)."""
    full = variables.get(whole)
    result = [variables.get(name) for name in parts]
    dims = full.shape if full is not None else ()
    rows = [var.shape[0] if var is not None and var.shape else 0 for var in result]
    fits = bool(dims) and sum(rows) == dims[0] and op.attrs.get("axis", 0) == 0
    if not fits or any(var is None or var.dtype is not full.dtype or var.shape[1:] != dims[1:] for var in result):  # pyright: ignore
        types = ", ".join([f"%{name} {described(var)}" for name, var in zip(parts, result, strict=True)])
        yield finding(
            "link-partition", trainer.role, op, f"{types} are not the rows of %{whole}, {described(full)}", whole
        )
    if sections and list(sections) != rows:
        message = f"the sections {list(sections)} of %{whole} are not the {rows} rows of {_list(parts)}"
        yield finding("link-partition", trainer.role, op, message, whole)


def check_fetched(server: Server, trainers: Sequence[Trainer]) -> Iterator[Diagnostic]:
    """Every parameter that is updated in a part of the job comes back to every trainer: fetched, or looked up by row.

    What is fetched in every step is fetched at start-up too, so that all trainers begin with the servers' values.
    """
    fed: set[str] | None = None
    for name, op in server.parameters.items():
        count = server.fetched.get(name, 0)
        if count == len(trainers):
            continue
        if fed is None:
            fed = {server.feeds[sent] for sent in server.senders if sent in server.feeds}
        if count or name in fed:
            lacking = ", ".join([t.role.name for t in trainers if not _fetches(t, name)]) or "none"
            message = f"%{name} is updated here, but fetched by {count} of {len(trainers)} trainers (not {lacking})"
            yield finding("link-unfetched", server.role, op, message, name)
    for name, count in server.fetched.items():
        first = server.fetched_at_startup.get(name, 0)
        if first != count and (first or name not in server.looked_up):
            message = f"%{name} is fetched by {count} trainers in every step, by {first} at start-up"
            yield finding("link-unfetched", server.role, server.op, message, name)


def _fetches(trainer: Trainer, name: str) -> bool:
    return any(name in slices for slices in trainer.layouts.values())


def check_never_fetched(server: Server) -> Iterator[Diagnostic]:
    """Every parameter that the server updates is fetched, or looked up, in some part of the job."""
    for name, op in server.parameters.items():
        if name not in server.fetched_ever:
            yield finding(
                "link-unfetched", server.role, op, f"%{name} is updated here, but no trainer fetches it", name
            )
