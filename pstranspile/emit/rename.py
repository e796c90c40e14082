"""Ops with variables renamed."""

from __future__ import annotations

from collections.abc import Mapping

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Slots


def rename_slots(slots: Slots, names: Mapping[str, str]) -> Slots:
    """Slots with variable names replaced; the same object if nothing changes."""
    if all(map(names.keys().isdisjoint, slots.values())):
        return slots
    return FrozenMap({slot: tuple([names.get(name, name) for name in row]) for slot, row in slots.items()})


def rename_vars(op: Op, names: Mapping[str, str]) -> Op:
    """The op reading, writing and naming in its role variables the new names."""
    role_vars = op.role_vars
    if role_vars:
        role_vars = tuple([names.get(name, name) for name in role_vars])
    return op._replace(
        inputs=rename_slots(op.inputs, names), outputs=rename_slots(op.outputs, names), role_vars=role_vars
    )
