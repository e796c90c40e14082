"""Programs of a job that update nothing, such as an evaluation: as they are, but for tables that the servers keep."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.compiler.analysis.sparse_tables import RemoteTable
from pstranspile.compiler.emit.lookup import Insertion, insert_lookups, lookup_vars
from pstranspile.compiler.plan.plan import Plan
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program


def emit_reader(program: Program, tables: Sequence[RemoteTable], plan: Plan, trainer: int) -> Program:
    """The program with its lookups in tables that are not on a trainer done on the servers.

    It reads the parameters that the trainer received last.
    """
    block = program.main_block
    inserted: dict[int, list[Insertion]] = {}
    fused = insert_lookups(inserted, block.ops, tables, plan, ())
    if not fused:
        return program
    ops: list[Op] = [op for insertion in inserted.get(-1, ()) for op in insertion(trainer)]
    for index, op in enumerate(block.ops):
        if index not in fused:
            ops.append(op)
        for insertion in inserted.get(index, ()):
            ops += insertion(trainer)
    variables = FrozenMap({**block.vars, **lookup_vars(program, plan, ())})
    return program.with_main_block(block._replace(vars=variables, ops=tuple(ops)))


def variables_used(program: Program) -> set[str]:
    """Every variable that an op of the program reads or writes."""
    return {name for block in program.blocks for op in block.ops for name in op.names}
