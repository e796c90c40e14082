"""Programs that can't be distributed: they have been before, or train in a block that not every step runs."""

from __future__ import annotations

from pstranspile.ir.diagnostics import Diagnostic, at_op, first_findings
from pstranspile.ir.model import Program
from pstranspile.ir.roles import OpRole
from pstranspile.ops import is_optimizer

_TALKING = frozenset({"send", "recv", "send_barrier", "fetch_barrier", "listen_and_serv", "distributed_lookup_table"})
"""Types of ops that talk to servers, or are one."""


def already_distributed(program: Program, name: str) -> tuple[Diagnostic, ...]:
    """An error at the first op that talks to other machines; a program for one machine has none."""
    ops = program.main_block.ops if program.blocks else ()
    if _TALKING.isdisjoint([op.type for op in ops]):
        return ()
    first = next(op for op in ops if op.type in _TALKING)
    message = f"@{name} is the program of one machine of a cluster already; compile the program it was made from"
    return (at_op("already-distributed", message, first),)


def trained_in_blocks(program: Program, name: str, *, served: bool) -> tuple[Diagnostic, ...]:
    """Errors at losses that are minimised in a block of a branch or a loop, whose gradients no machine would send.

    If updates are `served`, those in a block are errors too: servers run those of the main block.
    """
    found: list[Diagnostic] = []
    for number, block in enumerate(program.blocks[1:], 1):
        for op in block.ops:
            if op.role == OpRole.BACKWARD | OpRole.LOSS:
                message = f"a loss is minimised in block ^{number} of @{name}, whose gradients no other machine is sent"
                found.append(at_op("trained-in-block", message, op))
            elif served and is_optimizer(op) and (param := op.input("Param")):
                message = (
                    f"%{param} is updated in block ^{number} of @{name}; servers run the updates of the main block"
                )
                found.append(at_op("trained-in-block", message, op, focus=f"%{param}"))
    return tuple(first_findings(found))
