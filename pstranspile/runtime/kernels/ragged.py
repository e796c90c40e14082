"""What kernels of ragged tensors share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pstranspile.runtime.values import Array, LoDTensor


def sequences(x: object, slot: str) -> tuple[Array, list[list[int]]]:
    """The rows and the LoD of a ragged value. Raises ValueError if it has no LoD."""
    if not isinstance(x, LoDTensor):
        raise ValueError(f"{slot} has no LoD, a ragged sequence is needed")
    return x.data, x.lod


def plain(x: Any) -> Array:
    """The rows of a value, ragged or not."""
    return x.data if isinstance(x, LoDTensor) else x


def upper(value: Array, lod: list[list[int]]) -> object:
    """One row per sequence: a value with the levels above the last one."""
    return LoDTensor(value, lod[:-1]) if len(lod) > 1 else value


class Runs(NamedTuple):
    """The sequences between offsets. Values with the same LoD share one of these, so it must not be changed."""

    starts: Array
    lengths: Array
    filled: bool
    """Whether every sequence has a row."""
    even: int
    """The number of rows of every sequence; 0 if they differ."""


@lru_cache(64)
def runs_between(offsets: tuple[int, ...]) -> Runs:
    """The sequences between offsets."""
    ends = np.array(offsets, np.int64)
    starts, lengths = ends[:-1].copy(), ends[1:] - ends[:-1]
    for array in (starts, lengths):
        array.setflags(write=False)
    least = lengths.item(lengths.argmin()) if len(lengths) else 0  # places take less time than reductions
    return Runs(starts, lengths, least > 0, least if least > 0 and least == lengths.item(lengths.argmax()) else 0)


_SPARE = 4
"""Sequences are padded to one length unless that takes more than this many times their rows."""


@lru_cache(64)
def _padded_places(offsets: tuple[int, ...]) -> tuple[Array, Array] | None:
    """For every place of sequences side by side [sequences, longest] the row there (of those that end before, the last
    one), and which places are behind an end; None if most are.
    """
    starts, lengths, _, _ = runs_between(offsets)
    longest = int(lengths.max())
    if len(starts) * longest > _SPARE * offsets[-1]:
        return None
    within = np.arange(longest)
    return starts[:, None] + np.minimum(within, lengths[:, None] - 1), within >= lengths[:, None]


def side_by_side(x: Array, offsets: Sequence[int]) -> tuple[Array, Array | None] | None:
    """The rows of sequences, none of them empty, padded to [sequences, longest, ...] with each sequence's last row; and
    a mask of the padding, None if there is none.

    None if the lengths differ so much that padding would take much more memory.
    """
    key = tuple(offsets)
    even = runs_between(key).even
    if even:
        return x.reshape(-1, even, *x.shape[1:]), None
    result = _padded_places(key)
    return None if result is None else (x.take(result[0], axis=0), result[1])


def row_counts(offsets: Sequence[int]) -> Array:
    """The number of rows of every sequence."""
    result = np.asarray(offsets)
    return result[1:] - result[:-1]


def with_lod(x: Any, data: Array) -> Any:
    """The data with the LoD of x, if it has one."""
    return LoDTensor(data, x.lod) if isinstance(x, LoDTensor) else data
