"""Clusters whose trainers have several programs: the program that each step runs, and the gradients that servers may
expect of each program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pstranspile.cluster.machines.rpc import counts_steps
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.trainer import Trainer, text_list
from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError, at_op, error, listed, raise_errors
from pstranspile.ir.model import Program
from pstranspile.runtime.run.step_feeds import GivenTurns, fetches_by_program, turns_of


def give_turns(trainers: Sequence[Trainer], given: GivenTurns | None, fetch: Sequence[str]) -> None:
    """Sets the program that each step of each trainer runs, and the variables fetched of it. Raises DiagnosticError."""
    names = list(dict.fromkeys(name for trainer in trainers for name in trainer.role.programs))
    turns = turns_of(given, names) if isinstance(given, str) else given
    for trainer in trainers:
        role = trainer.role
        if turns is None:
            role.fetch(dict.fromkeys(role.programs, tuple(fetch)))
            continue
        role.take_turns(turns_of(turns, names, trainer.index))
        missing = [name for name in role.names if name not in role.programs]
        if missing:
            known = listed([f"@{name}" for name in role.programs])
            message = (
                f"{trainer.name} has no program @{missing[0]}, just {known}: the collective modes compile no other "
                "program than @main"
            )
            raise DiagnosticError([error("cluster-no-program", message)])
        run = {name: role.programs[name] for name in role.names}
        role.fetch(fetches_by_program(fetch, run, lambda program: ()))


def sent_by_program(trainers: Sequence[Trainer], endpoint: str) -> dict[str, frozenset[str]]:
    """The names under which each program, on any trainer, sends gradients and step counters to a server."""
    sent: dict[str, set[str]] = {}
    for trainer in trainers:
        for name, program in trainer.role.programs.items():
            sent.setdefault(name, set()).update(names_sent_to(program, endpoint))
    return {name: frozenset(names) for name, names in sent.items()}


def names_sent_to(program: Program, endpoint: str) -> Iterator[str]:
    """The names under which a program sends gradients and step counters to a server."""
    for op in program.main_block.ops:
        if op.type == "send":
            names, endpoints = op.inputs.get("X", ()), text_list(op, "epmap")
            if counts_steps(op):
                yield from names if endpoint in endpoints else ()
            else:
                pairs = zip(text_list(op, "send_varnames") or names, endpoints, strict=False)
                yield from (name for name, place in pairs if place == endpoint)


def require_rounds(trainers: Sequence[Trainer], servers: Sequence[Server]) -> None:
    """Raises DiagnosticError for programs of steps in which the synchronous servers make no update.

    Scenarios of faults use one number for a step of the trainers and an update of the servers.
    """
    synchronous = next((server for server in servers if server.mode == 0), None)
    if synchronous is None:
        return
    findings: list[Diagnostic] = []
    for name in dict.fromkeys(name for trainer in trainers for name in trainer.role.names):
        programs = [trainer.role.programs[name] for trainer in trainers if name in trainer.role.programs]
        if not any(op.type == "send_barrier" for program in programs for op in program.main_block.ops):
            message = (
                f"@{name} updates nothing, so its steps are none to the servers, and a scenario of faults could not "
                "say in which step something happens; leave it out"
            )
            findings.append(at_op("cluster-scenario", message, synchronous.op))
    raise_errors(findings)
