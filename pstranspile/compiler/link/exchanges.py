"""Mode geo: trainers update on their own and push what changed; servers add it to the slices they hold.

The communicator of a trainer sends the change of a slice as `<slice>.delta`, and for tables only the changed rows. The
closing `send` of each step gives it their ids; `param_init` has told it at start-up that it may begin. The names are
the protocol: no op of the trainer sends a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pstranspile.compiler.link.base import described, finding, same_type
from pstranspile.compiler.link.collect import REMOTE_LOOKUPS
from pstranspile.compiler.link.machines import Cluster, Server, Trainer
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op, Var
from pstranspile.ir.types import VarKind
from pstranspile.ops.attributes import strings_attr

BEGIN = "param_init"
"""The variable whose send reports to the communicator that the parameters are initialised."""


def check_geo(cluster: Cluster) -> Iterator[Diagnostic]:
    """A job whose servers are all in mode geo; what the receives at start-up fetched is known."""
    held = {name: server.vars.get(name) for server in cluster.servers.values() for name in server.parameters}
    pushed: set[str] = set()
    for trainer in cluster.trainers:
        yield from _check_trainer(trainer, cluster, held, pushed)
    for server in cluster.servers.values():
        yield from _check_server(server, len(cluster.trainers), pushed)


def _check_trainer(
    trainer: Trainer, cluster: Cluster, held: Mapping[str, Var | None], pushed: set[str]
) -> Iterator[Diagnostic]:
    """Checks the messages of one trainer to its communicator, and that it has every change that servers wait for."""
    role, main, startup = trainer.role, trainer.main, trainer.startup
    begins = [item for item in startup.of("send") if item.op.inputs.get("X") == (BEGIN,)]
    arrivals = [*startup.of("recv"), *startup.of("fetch_barrier"), *startup.joins()]
    if len(begins) != 1 or len(startup.of("send")) != 1:
        op = begins[0].op if begins else Op("send")
        yield finding("link-geo", role, op, f"%{BEGIN} is sent {len(begins)} times at start-up, must be once", BEGIN)
    elif any(item.position > begins[0].position for item in arrivals):
        yield finding("link-order", role, begins[0].op, f"%{BEGIN} is sent before all parameters are there", BEGIN)
    for _, op in main.of("recv"):
        yield finding("link-geo", role, op, "the communicator fetches, not a step", next(op.output_names, ""))
    ticks = [op for _, op in main.of("send")]
    tick = ticks[0] if ticks else Op("send")
    if len(ticks) != 1:
        yield finding("link-geo", role, tick, f"{len(ticks)} send ops per step, one that tells the ids is needed")
    for op in ticks:
        yield from _check_tick(trainer, op, held, pushed)
    for server in cluster.servers.values():
        for name in server.awaited:
            own, other = main.vars.get(name), server.vars.get(name)
            if not same_type(own, other):
                message = f"%{name} is {described(own)} here, {described(other)} on {server.role.name}"
                yield finding("link-geo", role, tick, message, name)


def _check_tick(trainer: Trainer, op: Op, held: Mapping[str, Var | None], pushed: set[str]) -> Iterator[Diagnostic]:
    """As many tables as ids; the servers hold every table between them, and the ids are those of its lookups.

    A parameter that is not sparse is exchanged whole, whatever the communicator gets for it.
    """
    role, ids, tables = trainer.role, op.inputs.get("X", ()), strings_attr(op, "send_varnames")
    if not tables and any(name in trainer.main.vars for name in _slices_listed(trainer) or held):
        yield finding(
            "link-geo", role, op, "a communicator takes no notice of a send that names nothing, so nobody exchanges"
        )
    if len(ids) != len(tables):
        message = f"{len(ids)} variables with ids are sent for {len(tables)} tables"
        yield finding("link-geo", role, op, message, next(iter(ids), ""))
    variables, listed = trainer.main.vars, _slices_listed(trainer)
    for _, lookup in trainer.main.of("lookup_table"):
        if lookup.attrs.get("is_sparse") is True:  # such a table is initialised here, and not fetched
            pushed.update(_slices(lookup.input("W") or "", listed, held))
    sparse = {t for t in tables if (change := variables.get(f"{t}.delta")) and change.kind is VarKind.SELECTED_ROWS}
    for table in dict.fromkeys(tables):
        whole = trainer.main.vars.get(table)
        slices = _slices(table, listed, held)
        if table in sparse:
            pushed.update(slices)
        rows = sum(var.shape[0] for name in slices if (var := held[name]) is not None and var.shape)
        if whole is None or not whole.shape or rows != whole.shape[0]:
            message = f"the servers hold {rows} rows of %{table}, which is {described(whole)}"
            yield finding("link-geo", role, op, message, table)
    looked_up: dict[str, set[str]] = {}
    for kind in REMOTE_LOOKUPS:
        for _, lookup in trainer.main.of(kind):
            names = {*lookup.input_names, *lookup.outputs.get("SampleLabels", ())}
            for table in names.intersection(tables):
                looked_up.setdefault(table, set()).update(names)
    sent = [(name, looked_up.get(table, ()), table) for name, table in zip(ids, tables, strict=False)]
    unknown = [(name, known, table) for name, known, table in sent if table in sparse and name not in known]
    made_of = _without_padding(trainer) if unknown else {}
    for name, known, table in unknown:
        if made_of.get(name, set()).isdisjoint(known):
            yield finding(
                "link-geo", role, op, f"%{name} is told as ids of %{table}, which is not looked up at them", name
            )


def _without_padding(trainer: Trainer) -> dict[str, set[str]]:
    """Numbers of rows with 0 in the place of -1 -> what they are made of."""
    ops = trainer.main.program.blocks[0].ops
    return {name: set(op.input_names) for op in ops if op.type == "elementwise_max" for name in op.output_names}


def _slices_listed(trainer: Trainer) -> dict[str, list[str]]:
    """Parameter -> its slices, as far as the program has them."""
    distribution = trainer.role.main.distribution
    lines: dict[str, list[str]] = {}
    for row in distribution.variables if distribution else ():
        lines.setdefault(row.origin, []).append(row.slice)
    return lines


def _slices(table: str, listed: Mapping[str, list[str]], held: Mapping[str, Var | None]) -> list[str]:
    """The slices of a table: those that are listed, or else itself, or `<table>.block0`, `<table>.block1` and so on."""
    if table in listed:
        return [name for name in listed[table] if name in held]
    if table in held:
        return [table]
    names: list[str] = []
    while (name := f"{table}.block{len(names)}") in held:
        names.append(name)
    return names


def _check_server(server: Server, trainers: int, pushed: set[str]) -> Iterator[Diagnostic]:
    """One block per slice, which adds its change; every slice is fetched at start-up or pushed row by row."""
    role, op = server.role, server.op
    mapped = {entry.rpartition(":")[0] for entry in strings_attr(op, "grad_to_block_id")}
    for name in (*op.inputs.get("X", ()), *(name for name in mapped if name not in server.outside)):
        yield finding("link-geo", role, op, f"%{name} is received, but not added to a slice", name)
    for name, (index, reader) in server.outside.items():
        parameter = server.feeds.get(name)
        if reader.type != "sum" or parameter is None or name != f"{parameter}.delta":
            message = f"block {index} reads %{name}, which is no change of %{parameter or '?'}"
            yield finding("link-geo", role, reader, message, name)
        elif name not in mapped:
            yield finding("link-blocks", role, reader, f"grad_to_block_id does not name %{name}", name)
        elif not _fits(server.vars.get(name), server.vars.get(parameter)):
            message = f"%{name} is {described(server.vars.get(name))}, "
            yield finding(
                "link-geo", role, reader, f"{message}%{parameter} {described(server.vars.get(parameter))}", name
            )
    for name, reader in server.parameters.items():
        count = server.fetched_at_startup.get(name, 0)
        if count != trainers and (count or name not in pushed):
            message = (
                f"%{name} is fetched by {count} of {trainers} trainers at start-up, and no trainer pushes its rows"
            )
            yield finding("link-unfetched", role, reader, message, name)


def _fits(change: Var | None, slice_: Var | None) -> bool:
    return change is not None and slice_ is not None and (change.dtype, change.shape) == (slice_.dtype, slice_.shape)
