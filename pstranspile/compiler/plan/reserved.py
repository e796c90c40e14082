"""Names that have a meaning of their own on servers, by which Fluid's server loop finds them at run time."""

from __future__ import annotations

from pstranspile.compiler.plan.names import trainer_suffix
from pstranspile.compiler.plan.plan import Plan, Slice
from pstranspile.ir.diagnostics import Diagnostic, error
from pstranspile.ir.model import Program

TRAINER_ID = "@TRAINER_ID@"
"""The variable in which a server finds the number of the trainer whose gradient it applies."""

TABLE_PATH = "kLookupTablePath"
"""The variable that carries the path for a server's part of the distributed lookup table."""


def backup_name(s: Slice, trainer: int) -> str:
    """The copy of a slice that a server keeps for a trainer, and refreshes when that trainer fetches it."""
    return f"{s.name}{trainer_suffix(trainer)}_bak"


def reserved_names(program: Program, startup: Program, plan: Plan) -> list[Diagnostic]:
    """Errors for variables of a program that have one of these names, which can't be given another way out.

    Names of slices avoid those of the main programs; a server's start-up program holds what `startup` makes besides.
    """
    taken: dict[str, str] = {}
    if plan.table is not None:
        taken[TABLE_PATH] = "the path to save the distributed lookup table to"
    if plan.dc_asgd:
        taken[TRAINER_ID] = "the trainer whose gradient is applied"
        for parameter in plan.parameters:
            for s in () if parameter.sparse else parameter.slices:
                for trainer in range(plan.trainers):
                    taken[backup_name(s, trainer)] = f"%{s.name} as trainer {trainer} saw it last"
    named = [(name, var) for name, var in program.main_block.vars.items() if name in taken] if taken else []
    cut = {s.name: f"a slice of %{p.name}" for p in plan.parameters if p.is_cut for s in p.slices}
    taken.update(cut)
    named += [(name, var) for name, var in startup.main_block.vars.items() if name in cut]
    findings: list[Diagnostic] = []
    for name, var in named:
        message = f"%{name} must have another name: servers keep there {taken[name]}"
        findings.append(error("reserved-name", message, var.location, focus=f"%{name}"))
    return findings
