"""Values in words, for messages."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.values import NUMPY_TYPES, Array, LoDTensor, SelectedRows

_TEXT = {name: dtype.text for dtype, name in NUMPY_TYPES.items()}


def describe(value: Value) -> str:
    """`f32[8, 13]`, `f32[20, 4] in 3 sequences`, `3 rows of 100, f32[3, 16]`, ..."""
    if value is None:
        return "nothing"
    if isinstance(value, LoDTensor):
        levels = " of ".join(str(len(level) - 1) for level in value.lod)
        return f"{describe(value.data)} in {levels} sequences"
    if isinstance(value, SelectedRows):
        return f"{len(value.rows)} rows of {value.height}, {describe(value.value)}"
    if isinstance(value, LargeTable):
        return f"{len(value)} rows of the {value.height} x {value.width} of a large table"
    if isinstance(value, TableState):
        return "a state of the rows of a large table"
    if isinstance(value, np.ndarray):
        name = str(value.dtype)
        return f"{_TEXT.get(name, name)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, list):
        return f"an array of {len(value)} tensors"  # pyright: ignore[reportUnknownArgumentType]
    return type(value).__name__


def numbers_of(value: Value) -> Array | None:
    """The numbers of a value as one array, None if it has none."""
    if isinstance(value, LoDTensor):
        return value.data
    if isinstance(value, SelectedRows):
        return value.value
    return value if isinstance(value, np.ndarray) else None


def described(values: Iterable[tuple[str, Value]]) -> str:
    """`x f32[8, 13], w f32[13, 1]`."""
    return ", ".join(f"{name} {describe(value)}" for name, value in values)


def is_number(value: object) -> bool:
    """Whether a value is a single number."""
    return getattr(value, "size", 0) == 1 and hasattr(value, "ravel")


def size_in_bytes(value: Value) -> int:
    """The memory of a value's numbers."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, LoDTensor):
        return int(value.data.nbytes)
    if isinstance(value, SelectedRows):
        return int(value.rows.nbytes + value.value.nbytes)
    if isinstance(value, LargeTable):
        return value.nbytes
    if isinstance(value, list):
        return sum(size_in_bytes(item) for item in value)  # pyright: ignore[reportUnknownVariableType]
    return 0
