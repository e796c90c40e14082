"""Fluid's `paddle.compat`: text and bytes."""

from __future__ import annotations

import math
from typing import Any

long_type = int


def _each(value: Any, change: Any) -> Any:
    if isinstance(value, list):
        return [_each(item, change) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, set):
        return {_each(item, change) for item in value}  # pyright: ignore[reportUnknownVariableType]
    return change(value)


def to_text(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Bytes as text, also within lists and sets; everything else as it is."""

    def change(item: Any) -> Any:
        return item.decode(encoding) if isinstance(item, bytes) else item

    return _each(obj, change)


def to_bytes(obj: Any, encoding: str = "utf-8", inplace: bool = False) -> Any:
    """Text as bytes, also within lists and sets; everything else as it is."""

    def change(item: Any) -> Any:
        return item.encode(encoding) if isinstance(item, str) else item

    return _each(obj, change)


def round(x: float, d: int = 0) -> float:
    """x with d digits behind the point; halves go away from zero."""
    scale = 10**d
    return math.copysign(math.floor(abs(x) * scale + 0.5) / scale, x)


def floor_division(x: Any, y: Any) -> Any:
    """x // y."""
    return x // y


def get_exception_message(exc: BaseException) -> str:
    """What an exception says."""
    return str(exc)
