"""Checks before the run for barriers that can never be met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TypeAlias

from pstranspile.cluster.machines.addresses import text_list
from pstranspile.cluster.machines.exchanges import COLLECTIVES, COMMUNICATING
from pstranspile.cluster.machines.report import listed
from pstranspile.cluster.machines.ring_operations import kind_of, ring_of
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.ir.diagnostics import Diagnostic, at_op, raise_errors
from pstranspile.ir.model import MAIN, Op, Program


def require_barriers(trainers: Sequence[Trainer], servers: Sequence[Server]) -> None:
    """Raises DiagnosticError for every barrier of a synchronous server that some trainer's programs never send.

    So are servers that wait for another number of trainers (`Fanin`) than there are: servers of Fluid would wait for
    ever, or go on too early.
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
    """One finding for all servers that miss the same barrier of the same trainers."""
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
    talking = COMMUNICATING - {"send"} if geo else COMMUNICATING
    missing: dict[str, Op] = {}
    for trainer in trainers:
        for program in trainer.role.all:
            for op in program.main_block.ops:
                named = [*text_list(op, "epmap"), *text_list(op, "endpoints")] if op.type in talking else ()
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

    They would wait for each other for ever, or take each other's values. Ops that set up rings are compared likewise.
    """
    raise_errors(
        finding
        for part in ("start-up", *dict.fromkeys(name for trainer in trainers for name in trainer.role.names))
        for finding in _orders({t.name: _collectives(t, part) for t in trainers})
    )


SETTING_UP = ("gen_nccl_id", "c_gen_nccl_id", "c_comm_init", "c_comm_init_all")
"""Ops that set up a ring, in which all its trainers must take part. (Here they do nothing; on a real cluster, a trainer
that lacks one leaves the others waiting.)"""

Operations: TypeAlias = dict[str, list[tuple[str, Op]]]
"""By ring, the operations of a trainer in order; and those that set up rings."""


def _collectives(trainer: Trainer, part: str) -> Operations:
    program = trainer.role.startup if part == "start-up" else trainer.role.programs[part]
    result: Operations = {}
    for op in program.main_block.ops:
        if op.type in COLLECTIVES:
            result.setdefault(ring_of(op), []).append((kind_of(op), op))
        elif op.type in SETTING_UP:
            ring = f" for {ring_of(op)}" if "ring_id" in op.attrs else ""
            result.setdefault("the set-up", []).append((op.type + ring, op))
    return result


def _orders(operations: Mapping[str, Operations]) -> Iterator[Diagnostic]:
    """For every ring, the first place where a trainer has another operation than the first trainer."""
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
    return f"{names[0]} of {', '.join(names[1].input_names)}" if names[1].type in COLLECTIVES else names[0]


def _sent(program: Program) -> dict[str, set[str]]:
    """The endpoints to which a program sends each kind of barrier. A communicator's barrier is both kinds."""
    lines: dict[str, set[str]] = {"send_barrier": set(), "fetch_barrier": set()}
    for op in program.main_block.ops:
        if op.type in lines:
            lines[op.type].update(text_list(op, "endpoints"))
            if op.attrs.get("half_async", False):
                lines["fetch_barrier"].update(text_list(op, "endpoints"))
    return lines
