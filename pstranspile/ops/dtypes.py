"""Ops that declare what they write with the element type of what they read, whatever was declared before."""

from __future__ import annotations

from pstranspile.ops import schema_of


def typed_slots(op_type: str) -> tuple[str, str]:
    """The input slot whose element type Fluid gives to an output slot as it appends the op, and that output slot.

    Both are "" for ops that have none.
    """
    schema = schema_of(op_type)
    if schema is None or schema.facts.typed_by not in schema.inputs:
        return "", ""
    return schema.facts.typed_by, next(iter(schema.outputs))
