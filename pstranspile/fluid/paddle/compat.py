"""Fluid's `paddle.compat`: text and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

int_type = long_type = int
_HOLDERS: Any = (list, set, dict)


def _each(value: Any, change: Callable[[Any], Any], inplace: bool) -> Any:
    """What a function makes of a value, or of all that a list, a set or a dict holds; `inplace` in the same one."""
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind not in _HOLDERS:
        return change(value)
    pairs = kind is dict
    items: list[Any] = list(value.items() if pairs else value)
    made = kind([tuple(map(change, item)) if pairs else change(item) for item in items])
    if not inplace:
        return made
    value.clear()
    (value.extend if kind is list else value.update)(made)
    return value


def to_text(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Bytes as text, also within lists, sets and dicts (`inplace`: in the same ones); everything else as it is."""

    def change(item: Any) -> Any:
        return item.decode(encoding) if isinstance(item, bytes) else item

    return _each(obj, change, inplace)


def to_bytes(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Text as bytes, also within lists, sets and dicts (`inplace`: in the same ones); everything else as it is."""

    def change(item: Any) -> Any:
        return item.encode(encoding) if isinstance(item, str) else item

    return _each(obj, change, inplace)


def round(x: float, d: int = 0) -> float:
    """x with d digits behind the point; halves go away from zero."""
    scale = 10**d
    return math.copysign(math.floor(abs(x) * scale + 0.5) / scale, x)


def floor_division(x: Any, y: Any) -> Any:
    """x // y."""
    return x // y


def get_exception_message(exc: BaseException | None) -> str:
    """What an exception says. Raises AssertionError for None."""
    assert exc is not None, "there is no exception"
    return str(exc)
