"""What rules for op types read and give (see `uses`)."""

from __future__ import annotations

from pstranspile.ir.model import Op
from pstranspile.proof.dims import Known, constant

ONE = constant(1)


def out_of(op: Op, known: Known, slot: str = "Out") -> dict[str, Known]:
    """What is known of an output, by name."""
    name = op.output(slot)
    return {} if name is None else {name: known}


def int_of(op: Op, name: str, default: int = 0) -> int:
    """An attribute that is an integer."""
    value = op.attrs.get(name)
    return int(value) if isinstance(value, int) else default
