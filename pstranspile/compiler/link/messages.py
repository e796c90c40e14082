"""Checks that every message between trainers and servers is received, in the form that the receiver expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose

from pstranspile.compiler.link.machines import (
    Calls,
    Cluster,
    Server,
    Trainer,
    describe_type,
    finding,
    is_slice_type,
    names_text,
    remade,
    same_type,
    unmade,
)
from pstranspile.ir.attributes import BlockRefs
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op, Var
from pstranspile.ir.types import VarKind
from pstranspile.ops import facts_of, schema_of
from pstranspile.ops.attributes import int_attr, ints_attr, strings_attr
from pstranspile.ops.schema import Slicing

# Mode geo: trainers update on their own and send the changes; servers add them to their slices.
#
# The communicator of a trainer sends the change of a slice as `<slice>.delta`, and for tables only the changed rows.
# The closing `send` of each step gives it their ids; `param_init` has told it at start-up that it may begin. The names
# are the protocol: no op of the trainer sends a change.

BEGIN = "param_init"
"""The variable whose send reports to the communicator that the parameters are initialised."""


def check_geo(cluster: Cluster) -> Iterator[Diagnostic]:
    """Checks a job whose servers are all in mode geo; the start-up receives have been checked before."""
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
        for name in server.receivable_variables:
            own, other = main.vars.get(name), server.vars.get(name)
            if not same_type(own, other):
                message = f"%{name} is {describe_type(own)} here, {describe_type(other)} on {server.role.name}"
                yield finding("link-geo", role, tick, message, name)


def _check_tick(trainer: Trainer, op: Op, held: Mapping[str, Var | None], pushed: set[str]) -> Iterator[Diagnostic]:
    """Checks that a send of ids names as many tables as ids, tables that the servers hold whole, and ids that are
    looked up in them.

    A parameter that is not sparse is exchanged whole, whatever ids the communicator gets for it.
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
            message = f"the servers hold {rows} rows of %{table}, which is {describe_type(whole)}"
            yield finding("link-geo", role, op, message, table)
    looked_up: dict[str, set[str]] = {}
    for _, lookup in trainer.main.lookups():
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
    """Maps variables with numbers of rows in which 0 replaces -1 to the variables from which they are made."""
    ops = trainer.main.program.blocks[0].ops
    return {name: set(op.input_names) for op in ops if op.type == "elementwise_max" for name in op.output_names}


def _slices_listed(trainer: Trainer) -> dict[str, list[str]]:
    """The slices of each parameter, as far as the program has them."""
    distribution = trainer.role.main.distribution
    lines: dict[str, list[str]] = {}
    for row in distribution.variables if distribution else ():
        lines.setdefault(row.origin, []).append(row.slice)
    return lines


def _slices(table: str, listed: Mapping[str, list[str]], held: Mapping[str, Var | None]) -> list[str]:
    """The slices of a table: those that are listed, or else the table itself, or `<table>.block0`, `<table>.block1` and
    so on.
    """
    if table in listed:
        return [name for name in listed[table] if name in held]
    if table in held:
        return [table]
    names: list[str] = []
    while (name := f"{table}.block{len(names)}") in held:
        names.append(name)
    return names


def _check_server(server: Server, trainers: int, pushed: set[str]) -> Iterator[Diagnostic]:
    """Checks that a server has one block per slice, which adds its change, and that every slice is fetched at start-up
    or pushed row by row.
    """
    role, op = server.role, server.op
    mapped = {entry.rpartition(":")[0] for entry in strings_attr(op, "grad_to_block_id")}
    for name in (*op.inputs.get("X", ()), *(name for name in mapped if name not in server.outside_reads)):
        yield finding("link-geo", role, op, f"%{name} is received, but not added to a slice", name)
    for name, (index, reader) in server.outside_reads.items():
        parameter = server.feeds.get(name)
        if reader.type != "sum" or parameter is None or name != f"{parameter}.delta":
            message = f"block {index} reads %{name}, which is no change of %{parameter or '?'}"
            yield finding("link-geo", role, reader, message, name)
        elif name not in mapped:
            yield finding("link-blocks", role, reader, f"grad_to_block_id does not name %{name}", name)
        elif not _fits(server.vars.get(name), server.vars.get(parameter)):
            message = f"%{name} is {describe_type(server.vars.get(name))}, "
            yield finding(
                "link-geo", role, reader, f"{message}%{parameter} {describe_type(server.vars.get(parameter))}", name
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


# Every gradient must go to the server that waits for it, in the type declared there, in the order of slices.
#
# A trainer cuts a gradient itself and sends the pieces, or gives it whole to its communicator with `sections` and
# `send_varnames`, which cuts and sends it.


def check_sends(trainer: Trainer, cluster: Cluster) -> Iterator[Diagnostic]:
    """Checks the sends of a trainer's step, without the notices of step counters (`use_send_handler` false)."""
    role = trainer.role
    for op, name in unmade(trainer.main):
        code = "link-order" if op.type == "recv" else "link-unmade"
        yield finding(code, role, op, f"no op before it makes %{name}", name)
    for _, op in trainer.main.of("send"):
        if op.attrs.get("use_send_handler") is not False:
            yield from _check_send(trainer, op, cluster)
    for _, op in trainer.startup.of("send") if not trainer.part else ():
        yield finding("link-send", role, op, "nothing is sent to servers at start-up", next(op.input_names, ""))


def _check_send(trainer: Trainer, op: Op, cluster: Cluster) -> Iterator[Diagnostic]:
    role, variables = trainer.role, trainer.main.vars
    input_names = op.inputs.get("X", ())
    sections = ints_attr(op, "sections")
    sent, endpoints = strings_attr(op, "send_varnames") or input_names, strings_attr(op, "epmap")
    if len(sent) != len(endpoints):
        message = f"{len(sent)} variables are sent to {len(endpoints)} servers"
        yield finding("link-send", role, op, message, next(iter(sent or input_names), ""))
    if sections or sent is not input_names:
        yield from _check_sections(trainer, op, input_names, sections, sent)
    layout = trainer.layouts.get(op.role_vars[0]) if op.role_vars else None
    servers = cluster.servers
    for position, (name, endpoint) in enumerate(zip(sent, endpoints, strict=False)):
        server = servers.get(endpoint)
        if server is None or name not in server.receivable_variables:
            yield finding("link-send", role, op, f"%{name} goes to {endpoint!r}, which does not expect it", name)
            continue
        server.senders.setdefault(name, []).append(trainer.number)
        server_var = server.vars.get(name)
        if sent is not input_names:
            whole = variables.get(input_names[0]) if input_names else None
            rows = sections[position] if position < len(sections) else -1
            fits = whole is not None and server_var is not None and is_slice_type(server_var, rows, whole)
            mine = f"{rows} rows of {describe_type(whole)}"
        else:
            fits, mine = same_type(variables.get(name), server_var), ""
        if not fits:
            mine = mine or describe_type(variables.get(name))
            message = f"%{name} has another type on {server.role.name}: {mine} here, {describe_type(server_var)} there"
            yield finding("link-send", role, op, message, name)
        if layout is not None:
            yield from _check_place(trainer, op, server, position, name, layout)


def _check_place(
    trainer: Trainer, op: Op, server: Server, position: int, name: str, layout: Sequence[str]
) -> Iterator[Diagnostic]:
    """Checks that the k-th piece of a gradient is applied to the k-th slice of the parameter."""
    fed = server.feeds.get(name)
    wanted = layout[position] if position < len(layout) else None
    if fed is not None and fed != wanted:
        there = f"slice {position} of the parameter is %{wanted}" if wanted else f"it has {len(layout)} slices"
        message = f"%{name} is piece {position} and is applied to %{fed} on {server.role.name}, but {there}"
        yield finding("link-partition", trainer.role, op, message, name)


def _check_sections(
    trainer: Trainer, op: Op, given: Sequence[str], sections: Sequence[int], sent: Sequence[str]
) -> Iterator[Diagnostic]:
    """Checks a send of a whole variable to the communicator: it has as many sections as names, and these have all rows
    of the variable together.
    """
    if len(given) != 1 or len(sections) != len(sent):
        message = f"{len(given)} variables with {len(sections)} sections are sent as {len(sent)}"
        yield finding("link-partition", trainer.role, op, message, next(iter(given), ""))
        return
    whole = trainer.main.vars.get(given[0])
    rows = whole.shape[0] if whole is not None and whole.shape else -1
    if sum(sections) != rows:
        message = f"the sections {list(sections)} of %{given[0]} have {sum(sections)} rows, it has {rows}"
        yield finding("link-partition", trainer.role, op, message, given[0])


def check_senders(server: Server, trainers: int) -> Iterator[Diagnostic]:
    """Checks that the variables which a server receives are sent by the expected number of trainers: one in a
    synchronous job.

    A variable that no op of a synchronous server merges comes from every trainer: the gradient of a table under
    completely_not_async, which Fluid sends under one name.
    """
    listed = set(server.op.inputs.get("X", ()))
    summed: set[str] | None = None
    for name, senders in server.senders.items():
        wanted, reader = trainers, server.op
        if name not in listed:
            reader = server.outside_reads[name][1]
            if summed is None:
                summed = {name for merged in server.merges for name in merged.op.inputs["X"]}
            wanted = 1 if server.mode == 0 and name in summed else trainers
            var = server.vars.get(name)
            if var is not None and var.kind is not VarKind.SELECTED_ROWS:
                yield finding("link-send", server.role, server.op, f"%{name} is sent, but it is not an input", name)
        elif server.mode == 0:
            wanted = 1
        if len(senders) != wanted or len(set(senders)) != wanted:
            yield _unsent(server, reader, name, senders, wanted, trainers)


def check_awaited(server: Server, trainers: int) -> Iterator[Diagnostic]:
    """Checks that the variables a server waits for are sent in some part of the job."""
    for name in server.op.inputs.get("X", ()):
        if name not in server.sent_variables:
            yield _unsent(server, server.op, name, (), 1 if server.mode == 0 else trainers, trainers)


def _unsent(server: Server, op: Op, name: str, senders: Sequence[int], wanted: int, trainers: int) -> Diagnostic:
    who = ", ".join([f"trainer {n}" for n in sorted(senders)]) or "no trainer"
    needed = "every trainer once" if wanted == trainers and wanted > 1 else f"{wanted}"
    message = f"%{name} is sent by {len(senders)} trainers ({who}), must be {needed}"
    return finding("link-unsent", server.role, op, message, name)


# Every parameter is fetched from the server that updates it, by every trainer, at start-up and in every step.
#
# A trainer fetches the slices and joins them, or has its communicator fetch them into the whole (`recv_varnames`).


def check_receives(trainer: Trainer, cluster: Cluster) -> Iterator[Diagnostic]:
    """Checks all recv ops of a trainer, and the joins after them. Fills in the trainer's layouts."""
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
            op = next(op for _, op in trainer.main.of("recv") if set(slices) & set(_fetched_names(op)))
            message = f"%{name} is made of {_list(slices)} in a step, of {_list(first)} at start-up"
            yield finding("link-partition", trainer.role, op, message, name)


def _fetched_names(op: Op) -> Sequence[str]:
    return strings_attr(op, "recv_varnames") or op.outputs.get("Out", ())


def _list(names: Sequence[str]) -> str:
    return ", ".join([f"%{name}" for name in names])


def _check_program(
    trainer: Trainer, calls: Calls, layouts: dict[str, tuple[str, ...]], cluster: Cluster, *, startup: bool
) -> Iterator[Diagnostic]:
    variables = calls.vars
    arrived: dict[str, int] = {}
    for position, op in calls.of("recv"):
        outputs, names, endpoints = op.outputs.get("Out", ()), _fetched_names(op), strings_attr(op, "epmap")
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
            server_var = server.vars.get(name) if server else None
            if server is None or server_var is None or not server_var.persistable:
                yield finding("link-receive", trainer.role, op, f"{endpoint!r} does not hold %{name}", name)
                continue
            counts = server.fetched_at_startup if startup else server.fetch_counts
            counts[name] = counts.get(name, 0) + 1
            if whole is not None:
                rows += server_var.shape[0] if server_var.shape else 0
                fits = server_var.dtype is whole.dtype and server_var.shape[1:] == whole.shape[1:]
            else:
                fits = names is not outputs or same_type(variables.get(name), server_var)
            if not fits:
                mine = describe_type(whole or variables.get(name))
                message = (
                    f"%{name} has another type on {server.role.name}: {mine} here, {describe_type(server_var)} there"
                )
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
    """Checks that fetched slices are joined after they arrived, in the order of their rows, and that all are used."""
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
    """Checks that `parts` are the rows of `whole`, each declared with its number of rows (in `sections`, if the op has
    them).
    """
    full = variables.get(whole)
    result = [variables.get(name) for name in parts]
    dims = full.shape if full is not None else ()
    rows = [var.shape[0] if var is not None and var.shape else 0 for var in result]
    fits = bool(dims) and sum(rows) == dims[0] and op.attrs.get("axis", 0) == 0
    if not fits or any(var is None or var.dtype is not full.dtype or var.shape[1:] != dims[1:] for var in result):  # pyright: ignore
        types = ", ".join([f"%{name} {describe_type(var)}" for name, var in zip(parts, result, strict=True)])
        yield finding(
            "link-partition", trainer.role, op, f"{types} are not the rows of %{whole}, {describe_type(full)}", whole
        )
    if sections and list(sections) != rows:
        message = f"the sections {list(sections)} of %{whole} are not the {rows} rows of {_list(parts)}"
        yield finding("link-partition", trainer.role, op, message, whole)


def check_fetched(server: Server, trainers: Sequence[Trainer]) -> Iterator[Diagnostic]:
    """Checks that every parameter updated in a part of the job comes back to every trainer: fetched, or looked up by
    row.

    A variable that is fetched in every step must be fetched at start-up too, so that all trainers begin with the
    servers' values.
    """
    fed: set[str] | None = None
    for name, op in server.parameters.items():
        count = server.fetch_counts.get(name, 0)
        if count == len(trainers):
            continue
        if fed is None:
            fed = {server.feeds[sent] for sent in server.senders if sent in server.feeds}
        if count or name in fed:
            lacking = ", ".join([t.role.name for t in trainers if not _fetches(t, name)]) or "none"
            message = f"%{name} is updated here, but fetched by {count} of {len(trainers)} trainers (not {lacking})"
            yield finding("link-unfetched", server.role, op, message, name)
    for name, count in server.fetch_counts.items():
        first = server.fetched_at_startup.get(name, 0)
        if first != count and (first or name not in server.looked_up):
            message = f"%{name} is fetched by {count} trainers in every step, by {first} at start-up"
            yield finding("link-unfetched", server.role, server.op, message, name)


def _fetches(trainer: Trainer, name: str) -> bool:
    return any(name in slices for slices in trainer.layouts.values())


def check_never_fetched(server: Server) -> Iterator[Diagnostic]:
    """Checks that every parameter that the server updates is fetched, or looked up, in some part of the job."""
    for name, op in server.parameters.items():
        if name not in server.fetched_variables:
            yield finding(
                "link-unfetched", server.role, op, f"%{name} is updated here, but no trainer fetches it", name
            )


# A table that is distributed by id: every server has the rows whose id modulo the number of servers is its number.
#
# The trainer splits the ids (`split_ids`), has each server look its part up (`prefetch`) and puts the rows together
# (`merge_ids`); it splits and sends the gradient in the same way.

SAVE_PATH = "kLookupTablePath"
"""The variable that carries the path for a server's part of the table."""


def check_prefetches(trainer: Trainer, cluster: Cluster) -> Iterator[Diagnostic]:
    """Checks the lookups of a trainer in the table, and that its gradients are split in the same way."""
    main, role = trainer.main, trainer.role
    prefetches = main.of("prefetch")
    if not prefetches:
        return
    splits = {op.outputs.get("Out", ()): op for _, op in main.of("split_ids")}
    merges = {op.inputs.get("X", ()): op for _, op in main.of("merge_ids")}
    tables: dict[str, Sequence[str]] = {}
    counted: set[tuple[str, str]] = set()
    for _, op in prefetches:
        sent, answers, endpoints = op.inputs.get("X", ()), op.outputs.get("Out", ()), strings_attr(op, "epmap")
        split, merge = splits.get(sent), merges.get(answers)
        if not len(sent) == len(answers) == len(endpoints) or len(set(endpoints)) != len(endpoints):
            message = f"{len(sent)} parts of the ids go to the servers {list(endpoints)}, {len(answers)} come back"
            yield finding("link-prefetch", role, op, message, next(iter(sent), ""))
        if not sent or not answers:
            continue
        if split is None:
            yield finding(
                "link-prefetch", role, op, f"no split_ids makes %{sent[0]} and the other parts in order", sent[0]
            )
        if merge is None or merge.inputs.get("Rows") != sent:
            message = f"no merge_ids puts %{answers[0]} and the other parts together in order"
            yield finding("link-prefetch", role, op, message, answers[0])
        elif split is not None and merge.inputs.get("Ids") != split.inputs.get("Ids"):
            message = "it puts the rows of other ids together than those that were split"
            yield finding("link-prefetch", role, merge, message, next(iter(merge.inputs.get("Ids", ())), ""))
        for name, result, endpoint in zip(sent, answers, endpoints, strict=False):
            server = cluster.servers.get(endpoint)
            table = _answering_table(server, name, result) if server else None
            if server is None or table is None:
                message = f"{endpoint!r} does not answer the ids %{name} with %{result}"
                yield finding("link-prefetch", role, op, message, name)
                continue
            server.looked_up.add(table)
            if (endpoint, table) not in counted:
                counted.add((endpoint, table))
                server.fetch_counts[table] = server.fetch_counts.get(table, 0) + 1
            yield from _check_rows(trainer, op, server, table, result, len(endpoints))
            if tables.setdefault(table, endpoints) != endpoints:
                yield finding(
                    "link-prefetch", role, op, f"%{table} is dealt out in another order than elsewhere", table
                )
    yield from check_dims(trainer, dict.fromkeys(tables, prefetches[0].op))
    yield from _check_gradients(trainer, cluster, tables)


def _answering_table(server: Server, ids: str, result: str) -> str | None:
    """The table whose rows the server returns for these ids under that name; None if it does not."""
    for entry in strings_attr(server.op, "prefetch_var_name_to_block_id"):
        name, _, text = entry.rpartition(":")
        lookup = _lookup(server, text)
        if name == ids and lookup is not None and lookup.input("Ids") == ids and lookup.output("Out") == result:
            return lookup.input("W")
    return None


def _lookup(server: Server, text: str) -> Op | None:
    blocks = server.role.main.blocks
    index = int(text) if text.isdigit() else -1
    if not 0 < index < len(blocks):
        return None
    return next((op for op in blocks[index].ops if op.type == "lookup_sparse_table"), None)


def _check_rows(
    trainer: Trainer, op: Op, server: Server, table: str, result: str, servers: int
) -> Iterator[Diagnostic]:
    """Checks that the server has its share of the table's rows, with the width that the trainer expects."""
    whole, server_var, rows = trainer.main.vars.get(table), server.vars.get(table), trainer.main.vars.get(result)
    if whole is None or server_var is None or not whole.shape:
        message = f"%{table} is {describe_type(whole)} here, {describe_type(server_var)} on {server.role.name}"
        yield finding("link-prefetch", trainer.role, op, message, table)
        return
    share = (-(-whole.shape[0] // servers), *whole.shape[1:])
    if server_var.shape != share or server_var.dtype is not whole.dtype:
        there = f"{describe_type(server_var)} on {server.role.name}"
        message = f"%{table} is {there}, {list(share)} is its share of {servers} servers"
        yield finding("link-prefetch", trainer.role, op, message, table)
    if rows is None or rows.shape[1:] != whole.shape[1:] or rows.dtype is not whole.dtype:
        yield finding(
            "link-prefetch", trainer.role, op, f"%{result} is {describe_type(rows)}, a row of %{table} is not", result
        )


def _check_gradients(trainer: Trainer, cluster: Cluster, tables: dict[str, Sequence[str]]) -> Iterator[Diagnostic]:
    """Checks that the k-th part of the table's gradient goes to the same server as the k-th part of the ids."""
    sends = {op.inputs.get("X", ()): op for _, op in trainer.main.of("send")}
    done: set[str] = set()
    prefetched = {op.inputs.get("X", ()) for _, op in trainer.main.of("prefetch")}
    for _, op in trainer.main.of("split_ids"):
        parts, whole = op.outputs.get("Out", ()), op.input("Ids") or ""
        if parts in prefetched:
            continue
        send, gradient = sends.get(parts), trainer.main.vars.get(whole)
        if send is None or not parts:
            name = next(iter(parts), whole)
            yield finding("link-prefetch", trainer.role, op, f"%{name} and the other parts are not sent", name)
            continue
        if gradient is None or gradient.kind is not VarKind.SELECTED_ROWS:
            message = f"it splits %{whole}, {describe_type(gradient)}, which is no sparse gradient"
            yield finding("link-prefetch", trainer.role, op, message, whole)
        endpoints = strings_attr(send, "epmap")
        for name, endpoint in zip(parts, endpoints, strict=False):
            server = cluster.servers.get(endpoint)
            table = server.feeds.get(name) if server else None
            if table is None or tables.get(table) != endpoints:
                message = f"%{name} goes to {endpoint!r}, ids of the rows of %{table or '?'} are split otherwise"
                yield finding("link-prefetch", trainer.role, send, message, name)
            else:
                done.add(table)
    for table in tables if len(cluster.parts) == 1 else ():
        if table not in done and any(table in server.parameters for server in cluster.servers.values()):
            op = trainer.main.of("prefetch")[0].op
            yield finding("link-prefetch", trainer.role, op, f"the gradient of %{table} is not split and sent", table)


def check_table_blocks(server: Server) -> Iterator[Diagnostic]:
    """Checks that the blocks that look rows up and save the table exist, and use a table that the server updates."""
    role, op = server.role, server.op
    entries = strings_attr(op, "prefetch_var_name_to_block_id")
    checkpoint = int_attr(op, "checkpint_block_id", -1)
    blocks = role.main.blocks
    tables: set[str] = set()
    for entry in entries:
        name, _, text = entry.rpartition(":")
        lookup = _lookup(server, text)
        table = lookup.input("W") if lookup is not None else None
        if lookup is None or table is None or lookup.input("Ids") != name or name not in server.vars:
            message = f"prefetch_var_name_to_block_id names {entry!r}, but that block does not look %{name} up"
            yield finding("link-prefetch", role, op, message, name)
            continue
        tables.add(table)
        if table not in server.parameters or table not in server.initialised:
            message = f"rows of %{table} are looked up, which no block updates or nothing initialises"
            yield finding("link-prefetch", role, lookup, message, table)
    if checkpoint == -1 and not entries:
        return
    saved = blocks[checkpoint].ops if 0 < checkpoint < len(blocks) else ()
    names = {name for save in saved if save.type == "save" for name in save.inputs.get("X", ())}
    if not saved or not names <= tables or not names or SAVE_PATH not in server.vars:
        shown = ", ".join([f"%{name}" for name in sorted(names)]) or "nothing"
        message = f"checkpint_block_id {checkpoint} saves {shown}, not the table that is looked up"
        yield finding("link-blocks", role, op, message, next(iter(sorted(tables)), ""))


# Lookups of rows of a table whose slices are on servers: the slices exist there, and are the table's rows in order.
#
# This is Fluid's remote prefetch: an op with `table_names`, `height_sections` and `endpoints`.


def check_lookups(trainer: Trainer, cluster: Cluster) -> Iterator[Diagnostic]:
    """Checks all lookups of a trainer that go to servers. Fills in the layouts of the tables."""
    lookups = [op for _, op in trainer.main.lookups() if op.attrs.get("table_names")]
    for op in lookups:
        yield from _check_lookup(trainer, op, cluster)
    pairs = [op for kind in ("distributed_lookup_table", "merge_ids") for _, op in trainer.main.of(kind)]
    backward = _backward(trainer) if pairs else {}
    for op in pairs:
        yield from _check_pairs(trainer, op, backward)
    yield from check_dims(trainer, {_table_of(op): op for op in lookups})
    faked = {name for _, op in trainer.startup.of("fake_init") for name in op.output_names}
    results = {name: op for op in lookups for name in op.output_names}
    results |= {name: op for _, op in trainer.main.of("merge_ids") for name in op.output_names}
    if faked or results:
        yield from _check_uses(trainer, faked, results)


def _table_of(op: Op) -> str:
    """The table in which an op looks rows up."""
    return op.input(facts_of(op.type).looks_up) or ""


def _check_lookup(trainer: Trainer, op: Op, cluster: Cluster) -> Iterator[Diagnostic]:
    role, table = trainer.role, _table_of(op)
    names, heights = strings_attr(op, "table_names"), ints_attr(op, "height_sections")
    endpoints = strings_attr(op, "endpoints") or strings_attr(op, "epmap")
    if not len(names) == len(heights) == len(endpoints):
        message = f"%{table} has {len(names)} table_names, {len(heights)} height_sections, {len(endpoints)} endpoints"
        yield finding("link-lookup", role, op, message, table)
    whole = trainer.main.vars.get(table)
    dims = whole.shape if whole is not None else ()
    if whole is None or not dims or sum(heights) != dims[0]:
        message = f"height_sections {list(heights)} are not the rows of %{table}, {describe_type(whole)}"
        yield finding("link-lookup", role, op, message, table)
        return
    again = table in trainer.layouts
    for name, height, endpoint in zip(names, heights, endpoints, strict=False):
        server = cluster.servers.get(endpoint)
        server_var = server.vars.get(name) if server else None
        if server is None or server_var is None or not server_var.persistable:
            yield finding("link-lookup", role, op, f"{endpoint!r} does not hold %{name}, a slice of %{table}", name)
            continue
        server.looked_up.add(name)
        if not again:
            server.fetch_counts[name] = server.fetch_counts.get(name, 0) + 1
        if server_var.dtype is not whole.dtype or server_var.shape != (height, *dims[1:]):
            message = (
                f"%{name} is {describe_type(server_var)} on {server.role.name}, the lookup takes {height} rows of it"
            )
            yield finding("link-lookup", role, op, message, name)
        owners = cluster.owners.get(name)
        if owners != [endpoint]:
            shown = ", ".join(owners or ()) or "none"
            yield finding("link-owner", role, op, f"%{name} is looked up on {endpoint}, updated by {shown}", name)
    known = trainer.layouts.setdefault(table, tuple(names))
    if known != tuple(names):
        yield finding("link-lookup", role, op, f"%{table} is made of other slices than in another op", table)


def _backward(trainer: Trainer) -> dict[str, str]:
    """Maps the gradient of every looked-up result to the ids with which the gradient of the table is computed."""
    return {
        gradient.input("Out@GRAD") or "": gradient.input("Ids") or ""
        for kind in ("lookup_table_grad", "lookup_table_v2_grad")
        for _, gradient in trainer.main.of(kind)
    }


def _check_pairs(trainer: Trainer, op: Op, backward: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Checks a lookup: as many results as ids, all declared, each result's gradient computed with the same ids."""
    code = "link-prefetch" if op.type == "merge_ids" else "link-lookup"
    results = op.outputs.get("Outputs") or op.outputs.get("Out", ())
    ids = op.inputs.get("Ids", ())
    missing = [name for name in (*ids, *results) if name not in trainer.main.vars]
    if len(ids) != len(results) or not ids or missing:
        message = f"{names_text(ids)} are looked up as {names_text(results)}"
        message += f", of which {names_text(missing)} are not declared" if missing else ""
        yield finding(code, trainer.role, op, message, next(iter(missing or ids or results), ""))
    for name, result in zip(ids, results, strict=False):
        other = backward.get(f"{result}@GRAD")
        if other is not None and other != name:
            message = f"%{result} are the rows at %{name}, but its gradient is that of the rows at %{other}"
            yield finding(code, trainer.role, op, message, result)


def check_dims(trainer: Trainer, tables: Mapping[str, Op]) -> Iterator[Diagnostic]:
    """Checks that tables (each with an op that looks it up) get their dims from the start-up program."""
    if not tables:
        return
    made = {name for op in trainer.startup.program.main_block.ops for name in op.output_names}
    for table, op in tables.items():
        if table not in made:
            yield finding("link-lookup", trainer.role, op, f"no op at start-up gives %{table} its dims", table)
    for _, op in trainer.startup.of("fake_init"):
        name = op.output("Out") or ""
        var = trainer.main.vars.get(name)
        if name in tables and var is not None and tuple(ints_attr(op, "shape")) != var.shape:
            message = f"it gives %{name} the dims {list(ints_attr(op, 'shape'))}, which is {describe_type(var)}"
            yield finding("link-lookup", trainer.role, op, message, name)


def _reads_values(op: Op, slot: str) -> bool:
    """Whether an op needs the values in its input slot, and not only the dims or the existence of the variable."""
    facts = facts_of(op.type)
    return not facts.sparse_gradient and (facts.communicates != "request" or slot == facts.sends)


def _check_uses(trainer: Trainer, faked: set[str], results: dict[str, Op]) -> Iterator[Diagnostic]:
    """Checks that rows are used after they were looked up, that ids are made before, and that a table without memory is
    not read.
    """
    role, absent = trainer.role, faked.difference(trainer.startup_layouts)
    lookups = {id(op): op for op in results.values()}
    available_names: set[str] = set()
    awaited: dict[str, Op] = {}
    for op in trainer.main.program.blocks[0].ops:
        for slot, names in op.inputs.items():
            for name in names:
                if name in results and name not in available_names:
                    message = f"%{name} is used by {op.type} before it is looked up"
                    yield finding("link-order", role, results[name], message, name)
                    available_names.add(name)
                elif name in absent and _reads_values(op, slot) and not op.attrs.get("table_names"):
                    yield finding("link-unfetched", role, op, f"%{name} has no value on this machine", name)
        for names in op.outputs.values():
            available_names.update(names)
            for name in names:
                if name in awaited:
                    message = f"it takes the ids %{name}, which {op.type} makes after it"
                    yield finding("link-order", role, awaited[name], message, name)
        if id(op) in lookups:
            awaited.update((name, op) for name in op.inputs.get("Ids", ()) if name not in available_names)


# Delay compensation: a server keeps, for each trainer, a copy of every slice as that trainer saw it last.
#
# The server's loop refreshes the copies under the names `<slice>.trainer_<i>_bak` when trainer i fetches the slice, so
# these names are part of the protocol.


def check_backups(server: Server, trainers: int) -> Iterator[Diagnostic]:
    """Checks that a slice updated with a dense gradient has a copy per trainer, initialised at start-up, for its
    block.
    """
    compensated = server.op.attrs.get("dc_asgd") is True
    chosen: dict[str, Op] = {}
    blocks = server.role.main.blocks
    for index in server.blocks if compensated else ():
        for op in blocks[index].ops:
            if op.type == "ref_by_trainer_id":
                chosen.update(dict.fromkeys(op.inputs.get("X", ()), op))
    if not compensated:
        for name, (_, op) in server.outside_reads.items():
            if op.type == "ref_by_trainer_id":
                yield finding(
                    "link-backup", server.role, op, f"%{name} is chosen by trainer, but dc_asgd is not set", name
                )
        return
    filled = {
        name: op.input("X")
        for op in server.role.startup.main_block.ops
        if op.type == "assign"
        for name in op.outputs.get("Out", ())
    }
    sparse = {
        parameter
        for gradient, parameter in server.feeds.items()
        if (var := server.vars.get(gradient)) is not None and var.kind is VarKind.SELECTED_ROWS
    }
    for parameter, op in server.parameters.items():
        wanted = tuple(f"{parameter}.trainer_{number}_bak" for number in range(trainers))
        ref = chosen.get(wanted[0]) or next((chosen[name] for name in wanted if name in chosen), None)
        if ref is None and parameter in sparse:
            continue  # only dense gradients are compensated
        if ref is None or ref.inputs.get("X") != wanted:
            shown = names_text(ref.inputs.get("X", ())) if ref is not None else "nothing"
            message = f"the copies of %{parameter} are {shown}, must be {names_text(wanted)}"
            yield finding("link-backup", server.role, ref or op, message, parameter)
        for name in wanted:
            if filled.get(name) != parameter:
                message = f"%{name} is not filled with %{parameter} at start-up"
                yield finding("link-backup", server.role, ref or op, message, name)
            elif not same_type(server.vars.get(name), server.vars.get(parameter)):
                slot, backup = describe_type(server.vars.get(name)), describe_type(server.vars.get(parameter))
                yield finding("link-backup", server.role, ref or op, f"%{name} is {slot}, %{parameter} {backup}", name)


# Step counters in asynchronous jobs: each trainer sends its own counter to all servers, which add all of them up.
#
# A trainer sends its counter past the communicator (`use_send_handler` false, `merge_add`); a server's learning-rate
# block begins with a `sum` over the counters of all trainers.


def check_notices(trainer: Trainer, cluster: Cluster) -> Iterator[Diagnostic]:
    """Checks that step counters, which a trainer sends past the communicator, go to servers that have the variable."""
    for _, op in trainer.main.of("send"):
        if op.attrs.get("use_send_handler") is not False:
            continue
        for name in op.inputs.get("X", ()):
            for endpoint in strings_attr(op, "epmap"):
                server = cluster.servers.get(endpoint)
                server_var = server.vars.get(name) if server else None
                if server is None or server_var is None:
                    message = f"%{name} goes to {endpoint!r}, which does not know it"
                    yield finding("link-counter", trainer.role, op, message, name)
                    continue
                server.notices.setdefault(name, []).append(trainer.number)
                mine = trainer.main.vars.get(name)
                if not same_type(mine, server_var):
                    message = (
                        f"%{name} is {describe_type(mine)} here, {describe_type(server_var)} on {server.role.name}"
                    )
                    yield finding("link-counter", trainer.role, op, message, name)


def check_counters(server: Server, trainers: int) -> Iterator[Diagnostic]:
    """Checks that every counter that the server adds up comes from one trainer, and that every trainer has one."""
    added: set[str] = set()
    ops = server.role.main.blocks[server.rates].ops if server.rates in server.blocks else ()
    for op in ops:
        if op.type != "sum":
            continue
        names, total = op.inputs.get("X", ()), op.output("Out")
        if not any(name in server.notices or name.startswith(f"{total}.trainer_") for name in names):
            continue
        added.update(names)
        if total not in server.initialised:
            message = f"%{total}, the sum of the counters, is no counter that is initialised"
            yield finding("link-counter", server.role, op, message, names[0])
        for name in names:
            senders = server.notices.get(name, ())
            if len(senders) != 1:
                message = f"%{name} is sent by {len(senders)} trainers, must be 1"
                yield finding("link-counter", server.role, op, message, name)
        numbers = sorted(sender for name in names for sender in server.notices.get(name, ()))
        if numbers != list(range(trainers)):
            message = f"%{total} adds up the counters of trainers {numbers}, there are {trainers}"
            yield finding("link-counter", server.role, op, message, names[0])
    for name in server.notices:
        if name not in added:
            yield finding("link-counter", server.role, server.op, f"%{name} is received, but not added up", name)


# The blocks of a server: listed, mapped to their gradients, fed with all they read, merging every trainer's part.

FILLED_BY_THE_SERVER = frozenset({"@TRAINER_ID@"})
"""Variables that the server's loop writes itself."""


def check_server(server: Server) -> Iterator[Diagnostic]:
    """Checks one server by itself; the variables that it is sent (`sent`) are known."""
    yield from _check_blocks(server)
    yield from _check_updates(server)
    yield from _check_gradient_map(server)
    yield from _check_reads(server)
    yield from _check_dims(server)


def _check_blocks(server: Server) -> Iterator[Diagnostic]:
    role, op, blocks = server.role, server.op, server.role.main.blocks
    listed = op.attrs.get("optimize_blocks")
    given = tuple(listed) if isinstance(listed, BlockRefs) else ()
    if not given or len(given) != len(server.blocks) or len(set(given)) != len(given):
        message = f"optimize_blocks {list(given)} are not blocks of the program, each once ({len(blocks)} blocks)"
        yield finding("link-blocks", role, op, message)
    if server.rates != -1 and server.rates not in server.blocks[:1]:
        message = f"lr_decay_block_id {server.rates} is not the first of optimize_blocks {list(server.blocks)}"
        yield finding("link-blocks", role, op, message)
    for index in server.blocks:
        if index != server.rates and not blocks[index].ops and len(server.blocks) > 1:
            yield finding("link-blocks", role, op, f"block {index} has no ops")


def _check_updates(server: Server) -> Iterator[Diagnostic]:
    """Checks that every block updates a parameter, in place, with a received variable."""
    for index, op in server.idle_blocks:
        name = op.input("Param") or next(op.input_names, "")
        message = f"block {index} does not update %{name}, or not with what it receives"
        yield finding("link-blocks", server.role, op, message, name)


def _check_gradient_map(server: Server) -> Iterator[Diagnostic]:
    """Checks that `grad_to_block_id` names the block of every gradient, and `sparse_grad_to_param` the slice of a
    sparse one.
    """
    role, op = server.role, server.op
    mapped: dict[str, int] = {}
    for entry in strings_attr(op, "grad_to_block_id"):
        name, _, text = entry.rpartition(":")
        block = int(text) if text.isdigit() else -1
        if name not in server.vars or name not in server.block_variables.get(block, ()) or name in mapped:
            yield finding(
                "link-blocks", role, op, f"grad_to_block_id names {entry!r}, but that block does not use it", name
            )
        mapped[name] = block
    served = set(mapped.values())
    for name, (index, reader) in server.outside_reads.items():
        if name in server.sent_variables and index not in served:
            message = f"block {index} uses %{name}, but grad_to_block_id does not name the block"
            yield finding("link-blocks", role, reader, message, name)
        elif server.mode != 0 and name in server.sent_variables and name not in mapped:
            yield finding("link-blocks", role, reader, f"grad_to_block_id does not name %{name}", name)
    for name in op.inputs.get("X", ()):
        if name not in server.outside_reads:
            yield finding("link-blocks", role, op, f"%{name} is received, but no block uses it", name)
    yield from _check_sparse(server, mapped)


def _check_sparse(server: Server, mapped: dict[str, int]) -> Iterator[Diagnostic]:
    role, op = server.role, server.op
    paired: set[str] = set()
    for entry in strings_attr(op, "sparse_grad_to_param"):
        name, _, parameter = entry.rpartition(":")
        paired.add(name)
        server_var = server.vars.get(parameter)
        touched = server.block_variables.get(mapped.get(name, -1), ())
        if name not in mapped or server_var is None or parameter not in touched:
            yield finding(
                "link-blocks", role, op, f"sparse_grad_to_param names {entry!r}, which no block updates", name
            )
    for name, block in mapped.items():
        var = server.vars.get(name)
        if var is None or var.kind is not VarKind.SELECTED_ROWS or name in paired:
            continue
        table = server.feeds.get(name) or next(
            iter(server.parameters.keys() & server.block_variables.get(block, ())), ""
        )
        server_var, update = server.vars.get(table), server.parameters.get(table)
        direct = update is not None and (update.type == "sum" or update.inputs.get("Grad") == (name,))
        if direct and server_var is not None and server_var.kind is VarKind.LOD_TENSOR:
            yield finding("link-blocks", role, op, f"sparse_grad_to_param does not name %{name}", name)


def _check_reads(server: Server) -> Iterator[Diagnostic]:
    listed = set(server.op.inputs.get("X", ()))
    for name, (_, op) in server.outside_reads.items():
        if name not in listed and name not in server.sent_variables and name not in FILLED_BY_THE_SERVER:
            message = f"%{name} is neither received, made before this, nor initialised"
            yield finding("link-unserved", server.role, op, message, name)


def check_merges(server: Server, trainers: int) -> Iterator[Diagnostic]:
    """Checks the sums on the server of the gradients that are sent in one part of the job.

    They must have one gradient of every trainer, and become the mean if the server waits for all trainers. (The
    gradients of a table that is distributed by id are not inputs of the server; they are only added up.)
    """
    listed, all_trainers = set(server.op.inputs.get("X", ())), list(range(trainers))
    for merged in server.merges if server.mode == 0 else ():
        names = merged.names
        senders = [trainer for name in names for trainer in server.senders.get(name, ())]
        if not senders:
            continue
        if len(names) != trainers or sorted(senders) != all_trainers:
            who = ", ".join(map(str, sorted(senders)))
            message = f"it adds up {len(names)} gradients of the trainers {who}, there are {trainers}"
            yield finding("link-merge", server.role, merged.op, message, names[0])
        if names[0] in listed and (merged.factor is None or not isclose(merged.factor, 1.0 / trainers, rel_tol=1e-6)):
            name = merged.op.output("Out") or names[0]
            message = f"%{name}, the sum of {trainers} gradients, is multiplied by {merged.factor}"
            yield finding("link-merge", server.role, merged.scale or merged.op, message, name)


def _check_dims(server: Server) -> Iterator[Diagnostic]:
    """Checks that optimizer state that is cut like its parameter has the dims of the slice, and initialisers the
    declared dims.
    """
    variables = server.vars
    following: dict[str, tuple[str, ...]] = {}
    for name, op in server.parameters.items():
        parameter = variables.get(name)
        if op.type not in following:
            following[op.type] = _following(op.type)
        for slot in following[op.type]:
            names = op.inputs.get(slot)
            state = variables.get(names[0]) if names else None
            if state is None or parameter is None or state.tensor == parameter.tensor:
                continue
            if state.shape != parameter.shape and state.kind is not VarKind.SELECTED_ROWS:
                message = f"%{state.name} is {list(state.shape)}, but %{name} is {list(parameter.shape)}"
                yield finding("link-state", server.role, op, message, state.name)
    for op in server.misfits:
        name = op.outputs["Out"][0]
        message = f"it makes %{name} as {list(ints_attr(op, 'shape'))}, which is {list(variables[name].shape)} here"
        yield finding("link-state", server.role, op, message, name)


def _following(kind: str) -> tuple[str, ...]:
    """The inputs of an optimizer that are cut like the parameter."""
    schema = schema_of(kind)
    if schema is None:
        return ()
    return tuple(slot for slot in schema.inputs if slot != "Param" and schema.slicing.get(slot) is Slicing.FOLLOWS)
