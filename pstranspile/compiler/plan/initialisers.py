"""Start-up ops that can make a slice of what they make."""

from __future__ import annotations

from math import prod

from pstranspile.ir.attributes import Bools, Floats, Ints, Long, Longs
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.ops import facts_of
from pstranspile.ops.attributes import ints_attr

Listed = Floats | Ints | Longs | Bools

_TABLE = "large_table_state"
"""What an optimizer keeps for each row of a table that is cut itself."""
_VALUES = ("fp32_values", "int32_values", "int64_values", "bool_values")


def can_slice(op: Op) -> bool:
    """Whether `sliced` knows how to make a part of what this start-up op makes."""
    if op.type == "load":
        return "seek" in op.attrs
    if op.type == _TABLE:
        return True
    return (op.type == "assign_value" or facts_of(op.type).part_by_shape) and not any(op.input_names)


def sliced(op: Op, shape: tuple[int, ...], offset: int) -> Op:
    """The op that makes `prod(shape)` elements from element `offset` on, in place of the whole variable.

    Generators and constants take the slice's shape; `assign_value` the slice's values (Fluid keeps the whole
    array); `load` reads from `offset` on. Raises ValueError for an op that `can_slice` refuses.
    """
    if not can_slice(op):
        raise ValueError(f"{op.type} can't make a slice")
    attrs = {**op.attrs, "shape": _like(op.attrs.get("shape"), shape)}
    if op.type == "large_table" and takes_any_id(ints_attr(op, "shape")):
        attrs["any_id"] = True
    if op.type == "assign_value":
        for name in _VALUES:
            values = op.attrs.get(name)
            if isinstance(values, Floats | Ints | Longs | Bools) and values:
                attrs[name] = _part(values, offset, offset + prod(shape))
    elif op.type == "load":
        attrs["seek"] = Long(offset)
    return op._replace(attrs=FrozenMap(attrs))


def _part(values: Listed, start: int, stop: int) -> Listed:
    if isinstance(values, Floats):
        return Floats(values[start:stop])
    if isinstance(values, Bools):
        return Bools(values[start:stop])
    return type(values)(values[start:stop])


def _like(value: object, shape: tuple[int, ...]) -> Ints | Longs:
    return Ints(shape) if isinstance(value, Ints) else Longs(shape)
