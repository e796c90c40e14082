"""Comparing large arrays in parts, so that no comparison takes a large array of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

CHUNK = 1 << 20
"""Elements that are worked on at a time, so that no work takes a large array of its own."""


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays have the same element type, dims and bits."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "O" or not a.flags.c_contiguous or not b.flags.c_contiguous:
        return a.tobytes() == b.tobytes()
    return all(np.array_equal(_bits(one), _bits(other)) for one, other in chunks(a, b))


def same_arrays(a: Any, b: Any) -> bool:
    """Whether two values are arrays with the same element type, dims and bits."""
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and same_bits(a, b)


def is_zero(array: Any) -> bool:
    """Whether all bits of an array are 0. A new array of zeros takes no memory until it is written to."""
    return array.flags.c_contiguous and not any(part.any() for (part,) in chunks(_bits(array)))


def chunks(*arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Arrays of the same dims, flat, a part at a time."""
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, max(flat[0].size, 1), CHUNK):
        yield tuple(array[start : start + CHUNK] for array in flat)


def _bits(array: Any) -> Any:
    """The elements as integers, so that a NaN equals itself and -0 is not 0."""
    return array.view(f"u{array.itemsize}") if array.itemsize in (1, 2, 4, 8) else array
