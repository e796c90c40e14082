"""Planning the distributed lookup table: its names and the room it gets on each server."""

from __future__ import annotations

from pstranspile.compiler.analysis.facts import Facts
from pstranspile.compiler.analysis.lookup_table import LookupTable
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.names import CONTROL, NameMint, trainer_suffix
from pstranspile.compiler.plan.plan import PlannedTable
from pstranspile.compiler.plan.reserved import TABLE_PATH
from pstranspile.ir.diagnostics import DiagnosticError, at_op


def plan_table(facts: Facts, job: Job, table: LookupTable, mint: NameMint) -> PlannedTable:
    """Names and sizes for the distributed lookup table. Raises DiagnosticError if its shape is not static."""
    ops, variables = facts.program.main_block.ops, facts.program.main_block.vars
    optimizer, first = ops[table.update.optimizer[0]], ops[table.lookups[0]]
    var = variables.get(table.parameter)
    if var is None or var.tensor is None or len(var.shape) != 2 or min(var.shape) < 0:
        message = f"%{table.parameter} has no static shape [rows, width]"
        raise DiagnosticError([at_op("parameter-shape", message, optimizer, focus=f"%{table.parameter}")])
    rate = optimizer.input("LearningRate")
    if rate is None:
        message = f"the distributed lookup table %{table.parameter} is updated by sgd, and {optimizer.type} has no rate"
        raise DiagnosticError([at_op("table-update", message, optimizer, focus=f"%{table.parameter}")])
    ids, rows = variables[first.inputs["Ids"][0]].tensor, variables[first.outputs["Out"][0]].tensor
    if ids is None or rows is None:
        wrong = first.inputs["Ids"][0] if ids is None else first.outputs["Out"][0]
        message = f"%{wrong} must be declared with an element type and dims to be looked up on servers"
        raise DiagnosticError([at_op("parameter-shape", message, first, focus=f"%{wrong}")])
    servers = range(len(job.pservers))
    suffixes = [f"{who}.pserver_{s}" for who in ("", *map(trainer_suffix, range(job.trainers))) for s in servers]
    return PlannedTable(
        name=table.parameter,
        gradient=table.gradient,
        sent=mint.extend(table.gradient, suffixes),
        tensor=var.tensor,
        rows_per_server=-(-var.shape[0] // len(job.pservers)),
        learning_rate=rate,
        ids_sent=tuple(mint.mint(f"prefetch_compress_in_tmp_{s}") for s in servers),
        rows_got=tuple(mint.mint(f"prefetch_compress_out_tmp_{s}") for s in servers),
        ids=ids._replace(lod_level=0),
        rows=rows._replace(lod_level=0),
        path=TABLE_PATH,
        send_control=mint.mint(CONTROL + table.parameter),
        updated_by=optimizer.origin,
        looked_up_by=first.origin,
    )
