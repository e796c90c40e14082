"""The distributed lookup table: a sparse table that is not cut but dealt out by id, and grows as ids come."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from pstranspile.compiler.analysis.opgraph import op_graph
from pstranspile.compiler.analysis.updates import Update
from pstranspile.ir.diagnostics import Diagnostic, Severity, at_op
from pstranspile.ir.model import Op, Program

LOOKUP = "lookup_table"
"""The op type whose `is_distributed` makes a table distributed; Fluid ignores the flag of others."""

_REMEDY = "; distributed_table=rows distributes it by ranges of rows instead"


class LookupTable(NamedTuple):
    """The table, its update and its lookups, by index in program order."""

    parameter: str
    gradient: str
    update: Update
    lookups: tuple[int, ...]


def find_lookup_table(
    program: Program, updates: Sequence[Update], moved: Container[int]
) -> tuple[LookupTable | None, list[Diagnostic]]:
    """The distributed lookup table of a program, if it has one that it trains.

    Findings are errors for what Fluid's rewrite can't do: two tables, other readers of the table, ids that depend
    on an earlier lookup, updates joined with those of other parameters.
    """
    ops = program.main_block.ops
    lookups = [i for i, op in enumerate(ops) if i not in moved and _is_distributed(op)]
    by_parameter = {update.parameter: update for update in updates}
    tables = list(dict.fromkeys(name for i in lookups for name in ops[i].inputs["W"] if name in by_parameter))
    if not tables:
        return None, []
    if len(tables) > 1:
        second = next(i for i in lookups if tables[1] in ops[i].inputs["W"])
        message = f"%{tables[0]} and %{tables[1]} are both distributed; there can be one distributed lookup table"
        return None, [at_op("table-several", message + _REMEDY, ops[second], focus=f"%{tables[1]}")]
    name = tables[0]
    lookups = [i for i in lookups if name in ops[i].inputs["W"]]
    update = by_parameter[name]
    table = LookupTable(name, update.gradient, update, tuple(lookups))
    findings = [*_other_readers(program, table, moved), *_late_ids(program, table), *_joined(program, table, updates)]
    return table, findings


def lookups_in(ops: Sequence[Op], table: str, moved: Container[int]) -> list[int]:
    """The lookups in the distributed lookup table `table` that stay on a trainer."""
    return [i for i, op in enumerate(ops) if _is_distributed(op) and op.inputs["W"] == (table,) and i not in moved]


def _is_distributed(op: Op) -> bool:
    return op.type == LOOKUP and op.attrs.get("is_distributed") is True


def _other_readers(program: Program, table: LookupTable, moved: Container[int]) -> list[Diagnostic]:
    """Errors for ops on the trainer that read the table itself."""
    findings: list[Diagnostic] = []
    focus = f"%{table.parameter}"
    for index, op in enumerate(program.main_block.ops):
        if index in moved or index in table.lookups or table.parameter not in op.input_names:
            continue
        if op.type == f"{LOOKUP}_grad":
            continue  # reads no more of it than its height
        message = f"{focus} is a distributed lookup table, which this op on the trainer can't read"
        findings.append(at_op("table-reader", message, op, focus=focus))
    return findings


def _late_ids(program: Program, table: LookupTable) -> list[Diagnostic]:
    """Errors for lookups whose ids are made after the first lookup, where all of them take place."""
    ops, first = program.main_block.ops, table.lookups[0]
    wanted = {ops[i].inputs["Ids"][0]: i for i in table.lookups[1:]}  # the last lookup of each ids
    findings: list[Diagnostic] = []
    for index in range(first, table.lookups[-1]):
        for name in ops[index].output_names:
            if index < wanted.get(name, -1):
                message = f"the ids %{name} are made after the first lookup in %{table.parameter}, too late for it"
                findings.append(at_op("table-order", message + _REMEDY, ops[wanted[name]], focus=f"%{name}"))
    return findings


def _joined(program: Program, table: LookupTable, updates: Sequence[Update]) -> list[Diagnostic]:
    """Errors for optimize ops of other parameters that need what the table's make, which are not run."""
    if len(table.update.ops) == 1:
        return []
    owner = {index: update.parameter for update in updates for index in update.ops}
    for a, b in op_graph(program, sorted(owner)).edges:
        if owner[a] != owner[b] and table.parameter in (owner[a], owner[b]):
            other = owner[b] if owner[a] == table.parameter else owner[a]
            message = f"the update of %{table.parameter}, a distributed lookup table, is joined with that of %{other}"
            op = program.main_block.ops[b]
            return [at_op("table-joined", message + _REMEDY, op, focus=f"%{table.parameter}")]
    return []


def table_warnings(program: Program, table: LookupTable, trainers: int) -> list[Diagnostic]:
    """Deviations of the table's lookups and updates from the program, as in Fluid."""
    return [*_padding(program, table), *_update(program, table, trainers)]


def _padding(program: Program, table: LookupTable) -> list[Diagnostic]:
    for index in table.lookups:
        op = program.main_block.ops[index]
        padding = op.attrs.get("padding_idx", -1)
        if isinstance(padding, int) and padding >= 0:
            message = f"row {padding} of the distributed lookup table %{table.parameter} is looked up like any other, "
            message += "instead of giving zeros as padding_idx says" + _REMEDY
            focus = f"%{table.parameter}"
            return [at_op("table-padding", message, op, focus=focus, severity=Severity.WARNING)]
    return []


def _update(program: Program, table: LookupTable, trainers: int) -> list[Diagnostic]:
    optimizer = program.main_block.ops[table.update.optimizer[0]]
    changes: list[str] = []
    if optimizer.type != "sgd":
        changes.append(f"by sgd, not {optimizer.type}")
    if len(table.update.ops) > len(table.update.optimizer):
        changes.append("without weight decay or clipping")
    if trainers > 1:
        changes.append("by the sum of the trainers' gradients, not their mean")
    if not changes:
        return []
    message = f"the distributed lookup table %{table.parameter} is updated {', '.join(changes)}" + _REMEDY
    return [at_op("table-update", message, optimizer, focus=f"%{table.parameter}", severity=Severity.WARNING)]
