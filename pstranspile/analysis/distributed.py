"""Programs that have been distributed before, and so can't be again."""

from __future__ import annotations

from pstranspile.ir.diagnostics import Diagnostic, at_op
from pstranspile.ir.model import Program

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
