"""Ops with variables renamed."""

from __future__ import annotations

from collections.abc import Mapping

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Slots


def rename_slots(slots: Slots, names: Mapping[str, str]) -> Slots:
    """Slots with variable names replaced; the same object if nothing changes."""
    for row in slots.values():
        for name in row:
            if name in names:
                return FrozenMap({slot: tuple([names.get(n, n) for n in given]) for slot, given in slots.items()})
    return slots


def rename_vars(op: Op, names: Mapping[str, str]) -> Op:
    """The op reading, writing and naming in its role variables the new names."""
    op_type, inputs, outputs, attrs, role, role_vars, is_target, origin = op
    if role_vars:
        role_vars = tuple([names.get(name, name) for name in role_vars])
    renamed_inputs, renamed_outputs = rename_slots(inputs, names), rename_slots(outputs, names)
    return Op(op_type, renamed_inputs, renamed_outputs, attrs, role, role_vars, is_target, origin)
