"""The link check: do all programs of a job fit together? It reads the emitted programs as a linker reads object files.

Every program is read once, then the messages of the machines are compared: their order, barriers and the numbers of
trainers in this file, their contents in `messages`, and the rings of trainers in `rings`. Each server waits for a
barrier of every trainer, once per step, under one number:

* synchronous servers (`distributed_mode` 0): one send_barrier after all sends, one fetch_barrier after all recvs
* synchronous servers and trainers with a communicator: one local send_barrier (`half_async`), no fetch_barrier
* other servers: no barrier, or the local one of a communicator
* in all modes one fetch_barrier at start-up

The cost is that of reading all ops, plus one step for every variable that travels between two machines.

The check knows nothing of how the programs were made. A finding is a fault of the compiler, so it ends in LinkError
(exit code 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pstranspile.compiler.link.machines import Cluster, LinkError, PositionedOp, Server, Trainer, collect, finding
from pstranspile.compiler.link.messages import (
    check_awaited,
    check_backups,
    check_counters,
    check_cut,
    check_fetched,
    check_geo,
    check_lookups,
    check_merges,
    check_never_fetched,
    check_notices,
    check_prefetches,
    check_receives,
    check_senders,
    check_sends,
    check_server,
    check_table_blocks,
)
from pstranspile.compiler.link.rings import check_collectives, check_meeting, check_rings
from pstranspile.ir.diagnostics import Diagnostic
from pstranspile.ir.model import Op, Role
from pstranspile.ops.attributes import int_attr, ints_attr, strings_attr

__all__ = ["LinkError", "link"]

# The pieces into which a gradient is cut must be all of its rows, in order, once.

SECTIONS = {"split_byref": "sections", "split_selected_rows": "height_sections"}
"""The ops that cut a gradient, and their attribute with the rows of each piece."""


def check_splits(trainer: Trainer) -> Iterator[Diagnostic]:
    """Checks that every piece has the rows that the split gives it, and is sent, in the order of the pieces."""
    splits = [item for kind in SECTIONS for item in trainer.main.of(kind)]
    if not splits:
        return
    sent = {names[0]: names for _, op in trainer.main.of("send") if (names := op.inputs.get("X"))}
    for _, op in splits:
        whole, parts, name = op.input("X") or "", op.outputs.get("Out", ()), SECTIONS[op.type]
        sections = ints_attr(op, name)
        if len(sections) != len(parts):
            message = f"{len(sections)} {name} for {len(parts)} pieces of %{whole}"
            yield finding("link-partition", trainer.role, op, message, whole)
        else:
            yield from check_cut(trainer, op, trainer.main.vars, whole, parts, sections)
        if not parts or sent.get(parts[0]) != parts:
            message = f"the pieces of %{whole} are not sent together in their order"
            yield finding("link-partition", trainer.role, op, message, whole)


GEO = 3
"""The `distributed_mode` of servers in mode geo."""

NUMBERED = ("send_barrier", "recv", "fetch_barrier", "distributed_lookup_table")
"""Op types whose messages carry the number of the trainer."""


def check_barriers(trainer: Trainer, servers: Mapping[str, Server]) -> Iterator[Diagnostic]:
    """Checks number, position and targets of one trainer's barriers."""
    main, role = trainer.main, trainer.role
    if not trainer.part:
        yield from _check_one(role, trainer.startup.of("fetch_barrier"), "fetch_barrier", servers, "at start-up")
        for _, op in trainer.startup.of("send_barrier"):
            yield finding("link-barrier", role, op, "there is nothing to wait for at start-up")
    elif not main.of("send"):  # this program only reads parameters
        for kind in ("send_barrier", "fetch_barrier"):
            for _, op in main.of(kind):
                yield finding("link-barrier", role, op, "servers do not wait for a program that sends nothing")
        return
    sends = main.of("send_barrier")
    modes = {server.mode for server in servers.values()}
    local = _has_communicator(trainer) and modes != {GEO}
    if 0 in modes:
        yield from _check_one(role, sends, "send_barrier", servers, "per step")
        if not local:
            yield from _check_one(role, main.of("fetch_barrier"), "fetch_barrier", servers, "per step")
    elif sends:
        yield from _check_one(role, sends, "send_barrier", servers, "per step")
    for _, op in sends:
        if bool(op.attrs.get("half_async", False)) != local:
            what = "a communicator does" if local else "no communicator does"
            yield finding("link-barrier", role, op, f"half_async is {not local}, but {what} the sending")
    if local or 0 not in modes:
        for _, op in main.of("fetch_barrier"):
            yield finding("link-barrier", role, op, f"no server waits for it (distributed_mode {sorted(modes)})")
    yield from _check_order(trainer, local)


def _has_communicator(trainer: Trainer) -> bool:
    """Whether a communicator sends what the trainer computes: its sends name the pieces they are cut into.

    Where only rows of a table distributed by id are sent, this follows from the barrier.
    """
    dealt = {name for _, op in trainer.main.of("split_ids") for name in op.output_names}
    handled = [op for _, op in trainer.main.of("send") if op.attrs.get("use_send_handler") is not False]
    sends = [op for op in handled if not dealt.issuperset(op.input_names)]
    if not sends:
        return any(op.attrs.get("half_async") is True for _, op in trainer.main.of("send_barrier"))
    return any(op.attrs.get("send_varnames") for op in sends)


def _check_one(
    role: Role, result: list[PositionedOp], kind: str, servers: Mapping[str, Server], when: str
) -> Iterator[Diagnostic]:
    endpoints = [strings_attr(op, "endpoints") for _, op in result]
    if len(result) != 1 or len(endpoints[0]) != len(servers) or set(endpoints[0]) != set(servers):
        op = result[0].op if result else Op(kind)
        message = f"{len(result)} {kind} ops {when}, to {[list(e) for e in endpoints]}"
        yield finding("link-barrier", role, op, f"{message}; one to every server is needed: {list(servers)}")


def _check_order(trainer: Trainer, local: bool) -> Iterator[Diagnostic]:
    """Checks the order: sends, then the send_barrier that waits for all of them, then recvs that wait for it, then the
    fetch_barrier.
    """
    main, role = trainer.main, trainer.role
    sends, recvs = main.of("send"), main.of("recv")
    barrier = next(iter(main.of("send_barrier")), None)
    last = next(iter(main.of("fetch_barrier")), None)
    gradients = [item for item in sends if item.op.attrs.get("use_send_handler") is not False]
    if barrier is not None:
        waits = set(barrier.op.inputs.get("X", ()))
        for position, op in gradients:
            missing = [name for name in op.outputs.get("Out", ()) if name not in waits]
            if missing or position > barrier.position:
                sent = next(op.input_names, "")
                message = f"it does not wait for the send of %{sent}"
                yield finding("link-order", role, barrier.op, message, sent)
    after = barrier.op.outputs.get("Out", ()) if barrier is not None and not local else None
    own = {op.role_vars[0]: op.outputs.get("Out", ()) for _, op in gradients if op.role_vars}
    for position, op in recvs:
        name = next(op.output_names, "")
        wanted = after if after is not None else own.get(op.role_vars[0]) if op.role_vars else None
        if wanted is not None and op.inputs.get("X", ()) != wanted:
            what = "the send_barrier" if after is not None else "the send of the parameter's gradient"
            yield finding("link-order", role, op, f"the fetch of %{name} does not wait for {what}", name)
        elif after is not None and barrier is not None and position < barrier.position:
            yield finding("link-order", role, op, f"%{name} is fetched before the send_barrier", name)
        if last is not None and position > last.position:
            yield finding("link-order", role, op, f"%{name} is fetched after the fetch_barrier", name)
    if last is not None:
        if after is not None and last.op.inputs.get("X", ()) != after:
            yield finding(
                "link-order", role, last.op, "it does not wait for the send_barrier", next(last.op.output_names, "")
            )
        covered = set(last.op.output_names)
        lost = [name for _, op in recvs for name in op.outputs.get("Out", ()) if name not in covered]
        if lost:
            message = f"what reads %{lost[0]} may run before it: it is not among the outputs"
            yield finding("link-order", role, last.op, message, lost[0])
        for position, op in main.joins():
            if position < last.position and not covered.isdisjoint(op.input_names):
                name = op.output("Out") or ""
                yield finding("link-order", role, op, f"%{name} is joined before the fetch_barrier", name)


def check_alike(trainers: Sequence[Trainer]) -> Iterator[Diagnostic]:
    """Checks that all trainers have as many barriers per step as the first."""
    for trainer in trainers[1:]:
        for kind in ("send_barrier", "fetch_barrier"):
            here, there = trainer.main.of(kind), trainers[0].main.of(kind)
            if len(here) != len(there):
                op = (here or there)[0].op
                message = f"{len(here)} {kind} ops per step, {len(there)} in {trainers[0].role.name}"
                yield finding("link-barrier", trainer.role, op, message)


def check_fan_in(server: Server, trainers: int) -> Iterator[Diagnostic]:
    """Checks that a server waits for as many trainers as there are."""
    if server.op.attrs.get("Fanin") != trainers:
        message = f"it waits for {server.op.attrs.get('Fanin')} trainers of {trainers}"
        yield finding("link-barrier", server.role, server.op, message)


def check_identities(cluster: Cluster) -> Iterator[Diagnostic]:
    """Checks that every trainer has its own number below their count, and every server its own endpoint and number."""
    taken: dict[int, str] = {}
    for trainer in cluster.trainers:
        known_id: int | None = None
        others = [other.main for part in cluster.parts[1:] for other in part if other.number == trainer.number]
        for calls in (trainer.startup, trainer.main, *others):
            for kind in NUMBERED:
                for _, op in calls.of(kind):
                    trainer_id = int_attr(op, "trainer_id")
                    if known_id is None:
                        known_id = trainer_id
                    elif known_id != trainer_id:
                        name = next(op.output_names, "")
                        message = f"it says trainer_id {trainer_id} for %{name}, other ops say {known_id}"
                        yield finding("link-identity", trainer.role, op, message, name)
        if known_id is None or not cluster.servers:
            continue
        first = next(iter(trainer.startup.of("fetch_barrier") or trainer.main.of("recv")), None)
        op = first.op if first is not None else Op("recv")
        if known_id in taken:
            yield finding("link-identity", trainer.role, op, f"trainer_id {known_id} is that of {taken[known_id]} too")
        elif not 0 <= known_id < len(cluster.trainers):
            yield finding(
                "link-identity", trainer.role, op, f"trainer_id {known_id} of {len(cluster.trainers)} trainers"
            )
        taken.setdefault(known_id, trainer.role.name)
    yield from _check_servers(cluster)


def _check_servers(cluster: Cluster) -> Iterator[Diagnostic]:
    for double in cluster.doubles:
        first = cluster.servers[double.endpoint].role.name
        yield finding("link-identity", double.role, double.op, f"the endpoint {double.endpoint} is that of {first} too")
    numbers: dict[int, str] = {}
    model: Server | None = None
    for server in cluster.servers.values():
        own = int_attr(server.op, "pserver_id", -1)
        if own in numbers and own >= 0:
            yield finding("link-identity", server.role, server.op, f"pserver_id {own} is that of {numbers[own]} too")
        elif own >= len(cluster.servers):
            message = f"pserver_id is {own} of {len(cluster.servers)} servers"
            yield finding("link-identity", server.role, server.op, message)
        numbers[own] = server.role.name
        model = model or server
        for name in ("distributed_mode", "dc_asgd"):
            here, there = server.op.attrs.get(name), model.op.attrs.get(name)
            if here != there:
                message = f"{name} is {here}, on {model.role.name} it is {there}"
                yield finding("link-barrier", server.role, server.op, message)


def link(roles: Iterable[Role]) -> None:
    """Checks all emitted programs of a job together. Raises LinkError with every finding."""
    findings = list(_findings(collect(roles)))
    if findings:
        raise LinkError(findings)


def _findings(cluster: Cluster) -> Iterator[Diagnostic]:
    yield from check_identities(cluster)
    if any(server.mode == GEO for server in cluster.servers.values()):
        yield from _geo(cluster)
    elif cluster.servers:
        yield from _check_served_job(cluster)
    else:
        yield from check_rings(cluster)
        for part in cluster.parts:
            yield from check_meeting(part)
            yield from check_collectives(part)


def _check_served_job(cluster: Cluster) -> Iterator[Diagnostic]:
    """Checks a job whose servers update the parameters."""
    trainers = len(cluster.trainers)
    for part in cluster.parts:
        for trainer in part:
            yield from check_receives(trainer, cluster)
            yield from check_lookups(trainer, cluster)
            yield from check_prefetches(trainer, cluster)
            yield from check_splits(trainer)
            yield from check_sends(trainer, cluster)
            yield from check_notices(trainer, cluster)
            yield from check_barriers(trainer, cluster.servers)
        yield from check_alike(part)
        for server in cluster.servers.values():
            yield from check_senders(server, trainers)
            yield from check_merges(server, trainers)
            yield from check_fetched(server, part)
            server.end_part()
    for server in cluster.servers.values():
        yield from check_fan_in(server, trainers)
        yield from check_awaited(server, trainers)
        yield from check_never_fetched(server)
        yield from check_server(server)
        yield from check_counters(server, trainers)
        yield from check_table_blocks(server)
        yield from check_backups(server, trainers)


def _geo(cluster: Cluster) -> Iterator[Diagnostic]:
    """Checks a job whose trainers update the parameters and send the changes (mode geo)."""
    for trainer in cluster.trainers:
        yield from check_receives(trainer, cluster)
        yield from check_barriers(trainer, cluster.servers)
    yield from check_geo(cluster)
    for server in cluster.servers.values():
        yield from check_fan_in(server, len(cluster.trainers))
        server.sent_variables.update(server.outside_reads)
        yield from check_server(server)
