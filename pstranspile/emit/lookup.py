"""Lookups in tables that stay on the servers."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.ir.attributes import Longs, Strings
from pstranspile.ir.model import Op
from pstranspile.ops.build import make_op
from pstranspile.plan.plan import PlannedParameter


def fetch_rows(table: PlannedParameter, lookups: Sequence[Op], trainer: int) -> list[Op]:
    """One `distributed_lookup_table` in place of lookups of one kind and one padding (A2.68)."""
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
    origin = first.origin._replace(rule="lookup-on-servers") if first.origin else None
    return [
        make_op(
            "distributed_lookup_table",
            {"Ids": ids, "W": [table.name]},
            {"Outputs": results},
            attrs,
            origin=origin,
        )
    ]
