"""The slices of parameters in mode geo: by size only, since no server updates them."""

from __future__ import annotations

from collections.abc import Container

from pstranspile.compiler.analysis.facts import Facts
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.initialisers import can_slice
from pstranspile.compiler.plan.make import Piece
from pstranspile.compiler.plan.slices import Cut, cut_rows
from pstranspile.ir.diagnostics import Diagnostic, Severity, at_op
from pstranspile.ir.model import Program


def cut_for_geo(
    facts: Facts, sparse: Container[str], startup: Program | None, job: Job
) -> tuple[list[Piece], list[Diagnostic]]:
    """Cuts every parameter, whatever its optimizer, and as in Fluid also if `slice_var_up` is off.

    One whose initialiser can't make a slice stays whole. Findings: errors for parameters without a static shape,
    warnings for those.
    """
    findings: list[Diagnostic] = []
    pieces: list[Piece] = []
    makers = startup.main_block.ops if startup else ()
    whole = {name: op for op in makers if not can_slice(op) for name in op.output_names}
    variables = facts.program.main_block.vars
    for update in facts.updates:
        name, focus = update.parameter, f"%{update.parameter}"
        var = variables.get(name)
        if var is None or var.tensor is None or min(var.shape, default=-1) < 0:
            shown = "no declaration" if var is None else "no static shape"
            op = facts.program.main_block.ops[update.optimizer[0]]
            findings.append(at_op("parameter-shape", f"{focus} has {shown}", op, focus=focus))
            continue
        tensor = var.tensor
        cuts = cut_rows(tensor.shape, len(job.pservers), job.min_block_size)
        if name in whole:
            update = update._replace(whole=f"{whole[name].type} can't make a slice of it")
        if len(cuts) > 1 and name in whole:
            message = f"{focus} is kept whole: {update.whole}"
            findings.append(at_op("whole-initialiser", message, whole[name], focus=focus, severity=Severity.WARNING))
            cuts = (Cut(0, tensor.shape[0]),)
        pieces.append(Piece(update, tensor, cuts, name in sparse))
    return pieces, findings
