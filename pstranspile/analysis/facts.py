"""All facts of a training program in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from pstranspile.analysis.roles import Roles, find_roles
from pstranspile.analysis.tables import RemoteTable, find_remote_tables
from pstranspile.analysis.updates import Update, UpdateGroup, find_groups, find_updates
from pstranspile.analysis.uses import Uses, uses_of
from pstranspile.ir.diagnostics import Diagnostic, raise_errors
from pstranspile.ir.model import Program
from pstranspile.passes import Steps


@dataclass(frozen=True)
class Facts:
    """What the transpiler needs to know of a training program; recomputable from it.

    `moved` are the indices of all ops that leave the trainer: updates, learning rates, what follows an update.
    """

    program: Program
    uses: Uses
    roles: Roles
    updates: tuple[Update, ...]
    groups: tuple[UpdateGroup, ...]
    moved: frozenset[int]
    tables: tuple[RemoteTable, ...] = ()
    findings: tuple[Diagnostic, ...] = ()


def analyze(program: Program, steps: Steps | None = None) -> Facts:
    """The facts of a training program. Raises DiagnosticError when it can't be distributed."""
    steps = steps or Steps()
    roles = steps.run("find-roles", find_roles, program.main_block)
    uses = steps.run("find-uses", uses_of, program.main_block, roles.moved)
    updates, findings = steps.run("find-updates", find_updates, program, roles, uses)
    raise_errors(findings)
    groups, more = steps.run("group-updates", find_groups, program, updates, roles)
    raise_errors(more)
    moved = roles.moved.union(*(group.after for group in groups))
    if len(moved) > len(roles.moved):
        uses = uses_of(program.main_block, moved)
    tables, warnings = steps.run("find-tables", find_remote_tables, program, updates, moved)
    return Facts(program, uses, roles, updates, groups, moved, tables, (*findings, *more, *warnings))
