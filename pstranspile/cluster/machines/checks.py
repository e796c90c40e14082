"""Checks before a run for programs that can't work in a cluster, and for barriers that can never be met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TypeAlias

from pstranspile.cluster.machines.rings import kind_of, ring_of
from pstranspile.cluster.machines.script import exchanges_messages, is_collective
from pstranspile.cluster.machines.server import Server, listening_op
from pstranspile.cluster.machines.trainer import Trainer, number_list, text_list
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, at_op, error, listed, raise_errors
from pstranspile.ir.expect import expect
from pstranspile.ir.model import MAIN, Op, Program, Role
from pstranspile.ir.patterns import Pattern
from pstranspile.ops import facts_of

# Checks before the run for barriers that can never be met.


def require_barriers(trainers: Sequence[Trainer], servers: Sequence[Server]) -> None:
    """Raises DiagnosticError for every barrier of a synchronous server that some trainer's programs never send.

    It also raises DiagnosticError for servers that expect another number of trainers (`Fanin`) than there are: servers
    of Fluid would wait for ever, or continue too early.
    """
    raise_errors([*_numbers(trainers, servers), *_barriers(trainers, servers)])


def _numbers(trainers: Sequence[Trainer], servers: Sequence[Server]) -> Iterator[Diagnostic]:
    for server in servers:
        count = server.op.attrs.get("Fanin", len(trainers))
        if server.mode == 0 and count != len(trainers):
            there = f"there {'is' if len(trainers) == 1 else 'are'} {len(trainers)}"
            message = f"{server.name} waits for {count} {'trainer' if count == 1 else 'trainers'}, but {there}"
            yield at_op("cluster-barrier", message, server.op)


def _barriers(trainers: Sequence[Trainer], servers: Sequence[Server]) -> Iterator[Diagnostic]:
    """Yields one finding for all servers that miss the same barrier of the same trainers."""
    synchronous = [server for server in servers if server.mode == 0]
    sent = {
        (trainer.name, part): _sent(program)
        for trainer in trainers
        for part, program in {"start-up": trainer.role.startup, **trainer.role.programs}.items()
    }
    others = [name for name in dict.fromkeys(name for t in trainers for name in t.role.names) if name != MAIN]
    updating = [name for name in others if any(any(sent.get((t.name, name), {}).values()) for t in trainers)]
    parts = [(kind, name) for name in (MAIN, *updating) for kind in ("send_barrier", "fetch_barrier")]
    for kind, part in (("fetch_barrier", "start-up"), *parts):
        missed: dict[tuple[str, ...], list[Server]] = {}
        for server in synchronous:
            endpoint = server.endpoint
            without = tuple(t.name for t in trainers if endpoint not in sent[t.name, part][kind])
            if without:
                missed.setdefault(without, []).append(server)
        for names, waiting in missed.items():
            who = "no trainer sends" if len(names) == len(trainers) else f"{listed(names)} never sends"
            names_of_servers = listed([server.name for server in waiting])
            message = f"{names_of_servers} will wait for a {kind} which {who} in its {part} program"
            yield at_op("cluster-barrier", message, waiting[0].op)


def require_servers(trainers: Sequence[Trainer], servers: Mapping[str, Server]) -> None:
    """Raises DiagnosticError for every endpoint that a trainer's programs name and no server listens at.

    With geo-SGD a `send` goes to the trainer's own communicator, whatever endpoint it names.
    """
    geo = any(server.mode == 3 for server in servers.values())
    missing: dict[str, Op] = {}
    for trainer in trainers:
        for program in trainer.role.all:
            for op in program.main_block.ops:
                talking = exchanges_messages(op.type) and not (geo and op.type == "send")
                named = [*text_list(op, "epmap"), *text_list(op, "endpoints")] if talking else ()
                for endpoint in named:
                    if endpoint not in servers:
                        missing.setdefault(endpoint, op)
    known = listed(list(servers)) or "none"
    raise_errors(
        at_op("cluster-no-server", f"no server listens at {endpoint}; the servers of this cluster: {known}", op)
        for endpoint, op in missing.items()
    )


def require_collectives(trainers: Sequence[Trainer]) -> None:
    """Raises DiagnosticError where trainers of a ring do not name the same collective operations in the same order.

    They would wait for each other for ever, or take each other's values. Ops that set up rings are compared in the same
    way.
    """
    raise_errors(
        finding
        for part in ("start-up", *dict.fromkeys(name for trainer in trainers for name in trainer.role.names))
        for finding in _orders({t.name: _collectives(t, part) for t in trainers})
    )


Operations: TypeAlias = dict[str, list[tuple[str, Op]]]
"""A trainer's collective operations by ring, in order, as (kind, op); set-up ops have a key of their own."""


def _collectives(trainer: Trainer, part: str) -> Operations:
    program = trainer.role.startup if part == "start-up" else trainer.role.programs[part]
    result: Operations = {}
    for op in program.main_block.ops:
        if is_collective(op.type):
            result.setdefault(ring_of(op), []).append((kind_of(op), op))
        elif facts_of(op.type).communicates == "set-up":  # a real cluster waits for ever for a trainer without the op
            ring = f" for {ring_of(op)}" if "ring_id" in op.attrs else ""
            result.setdefault("the set-up", []).append((op.type + ring, op))
    return result


def _orders(operations: Mapping[str, Operations]) -> Iterator[Diagnostic]:
    """Yields, for every ring, the first operation in which a trainer differs from the first trainer."""
    (first, wanted), *others = operations.items()
    rings = dict.fromkeys(ring for of in operations.values() for ring in of)
    for ring in rings:
        for name, of in others:
            pairs = zip_longest(wanted.get(ring, []), of.get(ring, []))
            for place, (a, b) in enumerate(pairs, start=1):
                if (a and a[0]) != (b and b[0]):
                    difference = f"{first} has {_operation(a)}, {name} has {_operation(b)}"
                    message = f"operation {place} of {ring} is not the same for all trainers: {difference}"
                    yield at_op("cluster-collective-order", message, (a or b)[1])  # pyright: ignore[reportOptionalSubscript]
                    break
            else:
                continue
            break


def _operation(names: tuple[str, Op] | None) -> str:
    if names is None:
        return "nothing more"
    return f"{names[0]} of {', '.join(names[1].input_names)}" if is_collective(names[1].type) else names[0]


def _sent(program: Program) -> dict[str, set[str]]:
    """The endpoints to which a program sends each kind of barrier. A communicator's barrier is both kinds."""
    lines: dict[str, set[str]] = {"send_barrier": set(), "fetch_barrier": set()}
    for op in program.main_block.ops:
        if op.type in lines:
            lines[op.type].update(text_list(op, "endpoints"))
            if op.attrs.get("half_async", False):
                lines["fetch_barrier"].update(text_list(op, "endpoints"))
    return lines


# Checks before the run for programs that can't work in a cluster: lists of ops that don't match, servers of different
# modes, and ops of trainers at a point where a synchronous server can't take their messages.

_NUMBER = Pattern(r"(\d+)$")


def _by_number(name: str) -> tuple[int, str]:
    match = _NUMBER.search(name)
    return (int(match[1]) if match else 0), name


def by_kind(roles: Mapping[str, Role]) -> tuple[dict[str, Role], dict[str, Role]]:
    """The roles of servers and those of trainers, each by the numbers that end their names.

    Raises DiagnosticError if there is no trainer, or if the role of a trainer is named as one of a server.
    """
    for name, role in roles.items():
        if not hasattr(role, "main") or not hasattr(role, "startup"):
            expect(role, Role, "roles", "a Role for each name, as compiled.roles() gives")
        expect(name, str, "roles", "names of machines, such as trainer_0")
    ordered = {name: roles[name] for name in sorted(roles, key=_by_number)}
    serving = {name: role for name, role in ordered.items() if listening_op(role.main) is not None}
    training = {name: role for name, role in ordered.items() if name not in serving}
    if not training:
        raise DiagnosticError([error("cluster-roles", "there is no trainer among the roles")])
    raise_errors(
        error("cluster-roles", f"{name} has no listen_and_serv in its main program, so it is no server")
        for name in training
        if name.startswith("pserver")
    )
    return serving, training


def require_one_mode(servers: Sequence[Server]) -> None:
    """Raises DiagnosticError unless all servers wait for all trainers or none does, and all or none are in mode geo."""
    if not servers:
        return
    kinds = {server.name: _KINDS.get(server.mode, "asynchronous") for server in servers}
    first = servers[0]
    for server in servers[1:]:
        if kinds[server.name] != kinds[first.name]:
            message = (
                f"{first.name} is {kinds[first.name]} (distributed_mode {first.mode}), "
                f"but {server.name} is {kinds[server.name]} (distributed_mode {server.mode})"
            )
            raise DiagnosticError([at_op("cluster-modes", message, server.op)])


_KINDS = {0: "synchronous", 3: "for geo-SGD"}


# Lists of ops


def require_lists(trainers: Sequence[Trainer], servers: Sequence[Server]) -> None:
    """Raises DiagnosticError for every op that exchanges messages with servers and whose lists don't fit together.

    With geo-SGD the lists of a `send` are not used.
    """
    geo = any(server.mode == 3 for server in servers)
    findings: dict[int, Diagnostic] = {}
    for program in {id(p): p for trainer in trainers for p in trainer.role.all}.values():
        for op in program.main_block.ops:
            if op.type in _LISTS and not (geo and op.type == "send"):
                unequal = next((counts for counts in _LISTS[op.type](op) if len(set(counts.values())) > 1), None)
                if unequal is not None:
                    counted = ", but ".join(f"{count} {what}" for what, count in unequal.items())
                    findings[id(op)] = at_op("cluster-op", f"has {counted}", op)
    raise_errors(findings.values())


Counts = dict[str, int]
"""The lengths of an op's lists by name. All must be equal."""


def _send(op: Op) -> Iterator[Counts]:
    if not op.attrs.get("use_send_handler", True):
        return
    inputs, names, endpoints = op.inputs.get("X", ()), text_list(op, "send_varnames"), text_list(op, "epmap")
    if names and len(inputs) == 1:
        sections = number_list(op, "sections")
        yield {"send_varnames": len(names), "epmap": len(endpoints), "sections": len(sections)}
    elif names:
        yield {"inputs": len(inputs), "send_varnames": len(names), "epmap": len(endpoints)}
    else:
        yield {"inputs": len(inputs), "epmap": len(endpoints)}


def _recv(op: Op) -> Iterator[Counts]:
    outputs, slices, names = op.outputs.get("Out", ()), text_list(op, "recv_varnames"), text_list(op, "varnames")
    endpoints = text_list(op, "epmap")
    if slices:
        yield {"recv_varnames": len(slices), "epmap": len(endpoints)}
        yield {"outputs": len(outputs), "variable to be made of recv_varnames": 1}
    elif names:
        yield {"outputs": len(outputs), "varnames": len(names), "epmap": len(endpoints)}
    else:
        yield {"outputs": len(outputs), "epmap": len(endpoints)}


def _lookup(op: Op) -> Iterator[Counts]:
    yield {
        name: len(op.attrs.get(name, ()))  # pyright: ignore[reportArgumentType]
        for name in ("endpoints", "table_names", "height_sections")
    }
    yield {"Ids": len(op.inputs.get("Ids", ())), "Outputs": len(op.outputs.get("Outputs", ()))}


def _prefetch(op: Op) -> Iterator[Counts]:
    yield {
        "inputs": len(op.inputs.get("X", ())),
        "outputs": len(op.outputs.get("Out", ())),
        "epmap": len(text_list(op, "epmap")),
    }


_LISTS = {"send": _send, "recv": _recv, "distributed_lookup_table": _lookup, "prefetch": _prefetch}


# Order


def require_order(trainers: Sequence[Trainer], servers: Sequence[Server]) -> None:
    """Raises DiagnosticError where a trainer's program has a message to a synchronous server in the wrong place.

    A step is: gradients, `send_barrier`, parameters, `fetch_barrier`. The start-up program begins with parameters. A
    `recv` in another place may wait for an update that waits for this trainer; a `send` after the barrier counts for
    the next step. Programs without barriers may fetch anywhere.
    """
    endpoints = {server.endpoint: server.name for server in servers if server.mode == 0}
    findings: dict[int, Diagnostic] = {}
    for program, starting in {id(p): (p, p is t.role.startup) for t in trainers for p in t.role.all}.values():
        misplaced: dict[int, tuple[Op, str, list[str]]] = {}
        for endpoint, ops in _places(program).items():
            for op, reason in _misplaced(ops, starting) if endpoint in endpoints else ():
                misplaced.setdefault(id(op), (op, reason, []))[2].append(endpoints[endpoint])
        for key, (op, reason, names) in misplaced.items():
            findings[key] = at_op("cluster-order", reason.format(listed(names)), op)
    raise_errors(findings.values())


def _places(program: Program) -> dict[str, list[Op]]:
    """The ops of a program that exchange messages with a server in the order of a step, by endpoint."""
    result: dict[str, list[Op]] = {}
    for op in program.main_block.ops:
        endpoints: Sequence[str] = ()
        if op.type in ("send_barrier", "fetch_barrier"):
            endpoints = text_list(op, "endpoints")
        elif (op.type == "send" and op.attrs.get("use_send_handler", True)) or (
            op.type == "recv" and op.attrs.get("with_barrier", True)
        ):
            endpoints = text_list(op, "epmap")
        for endpoint in dict.fromkeys(endpoints):
            result.setdefault(endpoint, []).append(op)
    return result


def _misplaced(ops: Sequence[Op], starting: bool) -> Iterator[tuple[Op, str]]:
    """The misplaced ops, each with the consequence as a message about the servers `{}`."""
    kinds = [op.type for op in ops]
    sent = kinds.index("send_barrier") if "send_barrier" in kinds else -1
    fetched = kinds.index("fetch_barrier") if "fetch_barrier" in kinds else len(ops)
    if sent < 0 and not starting:
        return
    for index, (op, kind) in enumerate(zip(ops, kinds, strict=True)):
        if kind == "recv" and not starting and index < sent:
            yield op, "stands before the send_barrier to {}: it may wait for an update that waits for this trainer"
        elif kind == "recv" and index > fetched:
            yield op, "stands after the fetch_barrier to {}: it may wait for an update that waits for this trainer"
        elif kind == "send" and not starting and index > sent:
            yield op, "stands after the send_barrier to {}: what it sends would count for the step after"
        elif kind == "fetch_barrier" and not starting and index < sent:
            yield op, "stands before the send_barrier to {}: it may wait for an update that waits for this trainer"
