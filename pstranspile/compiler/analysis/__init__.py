"""Facts about a program, which can be computed from it at any time: def-use, roles, parameter/gradient pairs, update
groups; and all facts of a training program in one frozen value.
"""

from __future__ import annotations

from dataclasses import dataclass

from pstranspile.compiler.analysis.tables import (
    LookupTable,
    RemoteTable,
    find_lookup_table,
    find_remote_tables,
    sparse_parameters,
)
from pstranspile.compiler.analysis.updates import Roles, Update, UpdateGroup, find_groups, find_roles, find_updates
from pstranspile.compiler.analysis.uses import ReadersAndWriters, names_in, uses_of
from pstranspile.ir.argument_checks import check_arguments, expect, expect_program
from pstranspile.ir.diagnostics import Diagnostic, raise_errors
from pstranspile.ir.model import Program
from pstranspile.ir.passes import Steps


@dataclass(frozen=True)
class Facts:
    """The facts of a training program that the transpiler needs; they can be computed from the program at any time.

    `moved` are the indices of all ops that leave the trainer: updates, learning rates, ops that follow an update.
    `updates` do not include that of the distributed lookup table, `lookup_table`, which has blocks of its own.
    """

    program: Program
    uses: ReadersAndWriters
    roles: Roles
    updates: tuple[Update, ...]
    groups: tuple[UpdateGroup, ...]
    moved: frozenset[int]
    tables: tuple[RemoteTable, ...] = ()
    lookup_table: LookupTable | None = None
    findings: tuple[Diagnostic, ...] = ()


@check_arguments
def analyze(program: Program, steps: Steps | None = None, *, tables_by_rows: bool = False) -> Facts:
    """The facts of a training program. Raises DiagnosticError when it can't be distributed.

    `tables_by_rows`: tables marked `is_distributed` are distributed like other sparse tables, by ranges of rows.
    """
    expect_program(program, "analyze")
    steps = Steps() if steps is None else steps
    expect(steps, Steps, "analyze")
    roles = steps.run("find-roles", find_roles, program.main_block)
    block = program.main_block
    uses = steps.run("find-uses", uses_of, block, roles.moved_by_role, names_in(block, roles.moved_by_role))
    updates, findings = steps.run("find-updates", find_updates, program, roles, uses)
    raise_errors(findings)
    table, problems = None, []
    if not tables_by_rows:
        table, problems = steps.run("find-lookup-table", find_lookup_table, program, updates, roles.moved_by_role)
        raise_errors(problems)
    if table is not None:
        updates = tuple(update for update in updates if update.parameter != table.parameter)
    groups, more = steps.run("group-updates", find_groups, program, updates, roles)
    raise_errors(more)
    moved = roles.moved_by_role.union(*(group.after for group in groups))
    if len(moved) > len(roles.moved_by_role):
        uses = uses_of(block, moved, names_in(block, moved))
    sparse = sparse_parameters(program, updates)
    remote = steps.run("find-tables", find_remote_tables, program, sparse, moved, distributed=tables_by_rows)
    findings = (*findings, *problems, *more, *remote.warnings)
    return Facts(program, uses, roles, updates, groups, moved, remote.tables, table, findings)
