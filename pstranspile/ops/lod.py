"""What kernels of ragged sequences share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from pstranspile.ir.model import TensorType
from pstranspile.lazy import lazy_import
from pstranspile.ops.shapes import ShapeError, Types, describe, one
from pstranspile.ops.values import LoDTensor

np = lazy_import("numpy")

Array: TypeAlias = Any
"""A numpy array."""


def sequences(x: object, slot: str) -> tuple[Array, list[list[int]]]:
    """The rows and the LoD of a ragged value. Raises ValueError if it has none."""
    if not isinstance(x, LoDTensor):
        raise ValueError(f"{slot} has no LoD, a ragged sequence is needed")
    return x.data, x.lod


def plain(x: Any) -> Array:
    """The rows of a value, ragged or not."""
    return x.data if isinstance(x, LoDTensor) else x


def upper(value: Array, lod: list[list[int]]) -> object:
    """One row per sequence: the value under the levels above the last."""
    return LoDTensor(value, lod[:-1]) if len(lod) > 1 else value


def row_counts(offsets: Sequence[int]) -> Array:
    """The number of rows of every sequence."""
    found = np.asarray(offsets)
    return found[1:] - found[:-1]


def ragged(types: Types, slot: str) -> TensorType:
    """The type of an input that must be ragged. Raises ShapeError if it is declared without LoD."""
    x = one(types, slot)
    if x.lod_level < 1:
        raise ShapeError(f"{slot} is {describe(x)} without LoD, a ragged sequence is needed", slot)
    return x
