"""Lookups in tables that stay on the servers."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial

from pstranspile.compiler.analysis.tables import RemoteTable, lookups_in
from pstranspile.compiler.emit.rules import LOOKUP, made
from pstranspile.compiler.emit.table import fetch_table_rows
from pstranspile.compiler.plan.plan import Plan, PlannedParameter
from pstranspile.ir.attributes import Longs, Strings
from pstranspile.ir.model import Op, Program, Var
from pstranspile.ops.build import make_op

Insertion = Callable[[int], Sequence[Op]]
"""Ops that a place of a trainer's program holds for each trainer, by its number."""


def insert_lookups(
    inserted: dict[int, list[Insertion]],
    ops: Sequence[Op],
    tables: Sequence[RemoteTable],
    plan: Plan,
    moved: Container[int],
) -> set[int]:
    """Adds the lookups on servers to what is `inserted` after which op; returns the local lookups they replace."""
    fused: set[int] = set()
    for table in tables:
        for merged in reversed(table.lookups):
            fused.update(merged.lookups)
            fetch = partial(fetch_rows, plan.by_name[table.parameter], [ops[i] for i in merged.lookups])
            inserted.setdefault(merged.after, []).insert(0, fetch)
    if plan.table is not None:
        lookups = lookups_in(ops, plan.table.name, moved)
        fused.update(lookups)
        if lookups:
            first = partial(fetch_table_rows, plan, plan.table, [ops[i] for i in lookups])
            inserted.setdefault(lookups[0], []).append(first)
    return fused


def lookup_vars(program: Program, plan: Plan, moved: Container[int]) -> dict[str, Var]:
    """What a trainer's program declares for lookups in the distributed lookup table, if it has any."""
    if plan.table is None or not lookups_in(program.main_block.ops, plan.table.name, moved):
        return {}
    variables = {name: Var(name, tensor=plan.table.ids) for name in plan.table.ids_sent}
    variables.update((name, Var(name, tensor=plan.table.rows)) for name in plan.table.rows_got)
    return variables


def fetch_rows(table: PlannedParameter, lookups: Sequence[Op], trainer: int) -> list[Op]:
    """One `distributed_lookup_table` in place of lookups of one kind and one padding."""
    first = lookups[0]
    attrs = {
        "table_names": Strings(s.name for s in table.slices),
        "height_sections": Longs(s.stop - s.start for s in table.slices),
        "endpoints": Strings(s.endpoint for s in table.slices),
        "padding_idx": first.attrs.get("padding_idx", -1),
        "trainer_id": trainer,
        "lookup_table_version": first.type,
    }
    ids = [op.inputs["Ids"][0] for op in lookups]
    results = [op.outputs["Out"][0] for op in lookups]
    return [
        make_op(
            "distributed_lookup_table",
            {"Ids": ids, "W": [table.name]},
            {"Outputs": results},
            attrs,
            origin=made(first.origin, LOOKUP),
        )
    ]
