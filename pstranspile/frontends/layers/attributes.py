"""Conversion of attributes given as plain Python values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pstranspile.ir.attributes import (
    PYTHON_TYPES,
    AttrKind,
    AttrValue,
    BlockRef,
    BlockRefs,
    Ints,
    Long,
    float32,
    kind_of,
)
from pstranspile.ir.types import DType
from pstranspile.ops import schema_of
from pstranspile.ops.schema import AttrSpec

_LISTS = {
    AttrKind.BOOLEAN: AttrKind.BOOLEANS,
    AttrKind.INT: AttrKind.INTS,
    AttrKind.LONG: AttrKind.LONGS,
    AttrKind.FLOAT: AttrKind.FLOATS,
    AttrKind.STRING: AttrKind.STRINGS,
}


def attributes(op_type: str, attrs: Mapping[str, object]) -> dict[str, AttrValue]:
    """Plain Python values converted to the attribute kinds in the op type's schema.

    Raises KeyError for an attribute that is not declared, TypeError for a value of another kind, OutOfRange for an
    integer of too many bits.
    """
    schema = schema_of(op_type)
    if schema is None:
        raise KeyError(f"op type {op_type} is not declared")
    return {name: _typed(op_type, name, value, schema.attrs.get(name)) for name, value in attrs.items()}


class OutOfRange(ValueError):
    """Raised for an integer that has more bits than the attribute it is given to."""


_BITS = {AttrKind.INT: 32, AttrKind.INTS: 32, AttrKind.LONG: 64, AttrKind.LONGS: 64}


def _require_range(op_type: str, name: str, value: object, kind: AttrKind) -> None:
    bits = _BITS.get(kind, 0)
    if not bits:
        return
    for number in value if isinstance(value, Sequence) else (value,):  # pyright: ignore[reportUnknownVariableType]
        if isinstance(number, int) and not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise OutOfRange(f"the attribute {name} of {op_type} would be {number}; it is an integer of {bits} bits")


def _typed(op_type: str, name: str, value: object, spec: AttrSpec | None) -> AttrValue:
    if isinstance(value, DType):
        return value.value
    if spec is None:
        if name in ("op_namescope", "op_device") and isinstance(value, str):
            return value
        raise KeyError(f"{op_type} has no attribute {name}")
    if spec.kind is AttrKind.FLOAT and isinstance(value, int | float):
        return float32(float(value))
    if spec.kind is AttrKind.FLOATS and isinstance(value, Sequence):
        return PYTHON_TYPES[spec.kind](float32(float(item)) for item in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    python = PYTHON_TYPES[spec.kind]
    if isinstance(value, int):
        _require_range(op_type, name, value, spec.kind)
    scalar = isinstance(value, bool | int | float | str)
    if scalar and spec.kind in (AttrKind.INTS, AttrKind.LONGS) and isinstance(value, int):
        return Ints((value,)) if spec.kind is AttrKind.INTS else python((value,))
    if spec.kind in (AttrKind.INT, AttrKind.LONG) and not isinstance(value, int):
        raise TypeError(f"{op_type}: attribute {name} is an integer, got {value!r}")
    if spec.kind is AttrKind.STRING and not isinstance(value, str):
        raise TypeError(f"{op_type}: attribute {name} is a string, got {value!r}")
    _require_range(op_type, name, value, spec.kind)
    return python(value)


def inferred(value: object) -> AttrValue:
    """A plain Python value as an attribute that no schema declares: flags become numbers, as in Fluid. Raises TypeError
    for what no attribute holds.
    """
    if isinstance(value, str | BlockRef | BlockRefs):
        return value
    if isinstance(value, int):
        return int(value) if -(2**31) <= value < 2**31 else Long(value)
    if isinstance(value, float):
        return float32(value)
    if isinstance(value, Sequence):
        items: list[AttrValue] = [inferred(item) for item in value]  # pyright: ignore
        kind = kind_of(items[0]) if items else AttrKind.INT
        if kind is AttrKind.INT and any(isinstance(item, Long) for item in items):
            kind = AttrKind.LONG
        if kind in _LISTS:
            return PYTHON_TYPES[_LISTS[kind]](items)
    raise TypeError(f"no attribute holds {value!r}")
