"""Fluid's `paddle.compat`: conversions of text and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

int_type = long_type = int


def _map_items(value: Any, change: Callable[[Any], Any], inplace: bool) -> Any:
    """The result of a function for a value, or for every item of a list, a set or a dict; `inplace` changes the
    container itself.
    """
    kind: Any = next((kind for kind in (list, set, dict) if value.__class__ is kind), None)
    if kind is None:
        return change(value)
    pairs = kind is dict
    items: list[Any] = list(value.items() if pairs else value)
    made: Any = kind([tuple(map(change, item)) if pairs else change(item) for item in items])
    if not inplace:
        return made
    value.clear()
    (value.extend if kind is list else value.update)(made)
    return value


def to_text(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Bytes converted to text, also within lists, sets and dicts (`inplace`: in the container itself); other values
    unchanged.
    """

    def change(item: Any) -> Any:
        return item.decode(encoding) if isinstance(item, bytes) else item

    return _map_items(obj, change, inplace)


def to_bytes(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Text converted to bytes, also within lists, sets and dicts (`inplace`: in the container itself); other values
    unchanged.
    """

    def change(item: Any) -> Any:
        return item.encode(encoding) if isinstance(item, str) else item

    return _map_items(obj, change, inplace)


def round(x: float, d: int = 0) -> float:
    """x rounded to d decimal places; halves are rounded away from zero."""
    scale = 10**d
    return math.copysign(math.floor(abs(x) * scale + 0.5) / scale, x)


def floor_division(x: Any, y: Any) -> Any:
    """x // y."""
    return x // y


def get_exception_message(exc: BaseException | None) -> str:
    """The text of an exception. Raises AssertionError for None."""
    assert exc is not None, "there is no exception"
    return str(exc)
