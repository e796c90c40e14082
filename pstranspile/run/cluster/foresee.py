"""Barriers that can never be met, found before the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pstranspile.ir.diagnostics import Diagnostic, at_op, raise_errors
from pstranspile.ir.model import Program
from pstranspile.run.cluster import codes
from pstranspile.run.cluster.report import listed
from pstranspile.run.cluster.rpc import text_list
from pstranspile.run.cluster.server import Server
from pstranspile.run.cluster.trainer import Trainer


def require_barriers(trainers: Sequence[Trainer], servers: Sequence[Server]) -> None:
    """Raises DiagnosticError for every barrier of a synchronous server that some trainer's programs never send.

    Servers that wait for another number of trainers than there are (`Fanin`) are found as well: Fluid's would wait for
    ever, or go on too early.
    """
    raise_errors([*_numbers(trainers, servers), *_barriers(trainers, servers)])


def _numbers(trainers: Sequence[Trainer], servers: Sequence[Server]) -> Iterator[Diagnostic]:
    for server in servers:
        count = server.op.attrs.get("Fanin", len(trainers))
        if server.mode == 0 and count != len(trainers):
            message = f"{server.name} waits for {count} trainers, but there are {len(trainers)}"
            yield at_op(codes.BARRIER, message, server.op)


def _barriers(trainers: Sequence[Trainer], servers: Sequence[Server]) -> Iterator[Diagnostic]:
    """One finding for all servers that miss the same barrier of the same trainers."""
    synchronous = [server for server in servers if server.mode == 0]
    sent = {
        (trainer.name, part): _sent(program)
        for trainer in trainers
        for part, program in (("start-up", trainer.startup), ("main", trainer.main))
    }
    for kind, part in (("fetch_barrier", "start-up"), ("send_barrier", "main"), ("fetch_barrier", "main")):
        missed: dict[tuple[str, ...], list[Server]] = {}
        for server in synchronous:
            endpoint = server.endpoint
            without = tuple(t.name for t in trainers if endpoint not in sent[t.name, part][kind])
            if without:
                missed.setdefault(without, []).append(server)
        for names, waiting in missed.items():
            who = "no trainer sends" if len(names) == len(trainers) else f"{listed(names)} never sends"
            servers_told = listed([server.name for server in waiting])
            message = f"{servers_told} will wait for a {kind} which {who} in its {part} program"
            yield at_op(codes.BARRIER, message, waiting[0].op)


def _sent(program: Program) -> dict[str, set[str]]:
    """The endpoints to which a program sends each kind of barrier. A communicator's barrier is both kinds."""
    found: dict[str, set[str]] = {"send_barrier": set(), "fetch_barrier": set()}
    for op in program.main_block.ops:
        if op.type in found:
            found[op.type].update(text_list(op, "endpoints"))
            if op.attrs.get("half_async", False):
                found["fetch_barrier"].update(text_list(op, "endpoints"))
    return found
