"""Attributes of ops as plain Python values."""

from __future__ import annotations

from pstranspile.ir.attributes import Floats, Ints, Longs, Strings
from pstranspile.ir.model import Op


def int_attr(op: Op, name: str, default: int = 0) -> int:
    """An INT or LONG attribute; `default` if the op has none of that kind."""
    value = op.attrs.get(name)
    return value if isinstance(value, int) else default


def ints_attr(op: Op, name: str) -> tuple[int, ...]:
    """An INTS or LONGS attribute; empty if the op has none of that kind."""
    value = op.attrs.get(name)
    return value if isinstance(value, Ints | Longs) else ()


def strings_attr(op: Op, name: str) -> tuple[str, ...]:
    """A STRINGS attribute; empty if the op has none of that kind."""
    value = op.attrs.get(name)
    return value if isinstance(value, Strings) else ()


def flag(op: Op, name: str) -> bool:
    """A BOOLEAN attribute; False if the op does not have it."""
    return op.attrs.get(name) is True


def real(op: Op, name: str) -> float:
    """A FLOAT attribute. Raises KeyError if the op does not have it, ValueError if it is of another kind."""
    value = op.attrs[name]
    if not isinstance(value, float):
        raise ValueError(f"the attribute {name} is {value!r}, not a float")
    return value


def reals_attr(op: Op, name: str) -> tuple[float, ...]:
    """A FLOATS attribute; empty if the op has none of that kind."""
    value = op.attrs.get(name)
    return value if isinstance(value, Floats) else ()


def text(op: Op, name: str) -> str:
    """A STRING attribute; "" if the op does not have it."""
    value = op.attrs.get(name)
    return value if isinstance(value, str) else ""
