"""Clusters whose trainers have several programs: which one a step runs, and what servers must know of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, at_op, error, raise_errors
from pstranspile.ir.model import Program
from pstranspile.run.cluster import codes
from pstranspile.run.cluster.report import listed
from pstranspile.run.cluster.rpc import said_to
from pstranspile.run.cluster.server import Server
from pstranspile.run.cluster.trainer import Trainer
from pstranspile.run.turns import GivenTurns, fetches_by_program, turns_of


def give_turns(trainers: Sequence[Trainer], given: GivenTurns | None, fetch: Sequence[str]) -> None:
    """Tells trainers which program each of their steps runs, and what to fetch of it. Raises DiagnosticError."""
    names = list(dict.fromkeys(name for trainer in trainers for name in trainer.programs))
    turns = turns_of(given, names) if isinstance(given, str) else given
    for trainer in trainers:
        if turns is None:
            trainer.fetches = dict.fromkeys(trainer.programs, tuple(fetch))
            continue
        trainer.turns = turns_of(turns, names, trainer.index)
        missing = [name for name in trainer.scheduled if name not in trainer.programs]
        if missing:
            known = listed([f"@{name}" for name in trainer.programs])
            message = (
                f"{trainer.name} has no program @{missing[0]}, just {known}: the collective modes compile no other "
                "program than @main"
            )
            raise DiagnosticError([error(codes.NO_PROGRAM, message)])
        run = {name: trainer.programs[name] for name in trainer.scheduled}
        trainer.fetches = fetches_by_program(fetch, run, lambda program: ())


def said_by_program(trainers: Sequence[Trainer], endpoint: str) -> dict[str, frozenset[str]]:
    """The names under which each program, on any trainer, sends gradients and step counters to a server."""
    found: dict[str, set[str]] = {}
    for trainer in trainers:
        for name, program in trainer.programs.items():
            found.setdefault(name, set()).update(said_to(program, endpoint))
    return {name: frozenset(said) for name, said in found.items()}


def require_rounds(trainers: Sequence[Trainer], servers: Sequence[Server]) -> None:
    """Raises DiagnosticError for programs among the steps that the synchronous servers have no part in.

    Scenarios of faults count the steps of trainers and the updates of servers alike.
    """
    raise_errors(_without_rounds(trainers, servers))


def _without_rounds(trainers: Sequence[Trainer], servers: Sequence[Server]) -> Iterator[Diagnostic]:
    synchronous = next((server for server in servers if server.mode == 0), None)
    names = dict.fromkeys(name for trainer in trainers for name in trainer.scheduled)
    for name in names if synchronous is not None else ():
        if not any(_reports(trainer.programs[name]) for trainer in trainers if name in trainer.programs):
            message = (
                f"@{name} updates nothing, so its steps are none to the servers, and a scenario of faults could not "
                "say in which step something happens; leave it out"
            )
            assert synchronous is not None
            yield at_op(codes.SCENARIO, message, synchronous.op)


def _reports(program: Program) -> bool:
    return any(op.type == "send_barrier" for op in program.main_block.ops)
