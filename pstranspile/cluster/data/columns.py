"""The values that an input has in the rows of a unit: numbers of one shape, or ragged ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.step_feeds import LeftOut
from pstranspile.runtime.values import Array, LoDTensor

Taken: TypeAlias = "range | Array"
"""Numbers of the rows to take: an array, or a range with step 1."""


class Input(NamedTuple):
    """An input of a program that rows are fed to: the dims of one row, numpy's name of its numbers, LoD levels."""

    name: str
    dims: tuple[int, ...]
    dtype: str
    levels: int

    @property
    def width(self) -> int:
        """How many numbers a row has; of a ragged one, an element of its innermost sequences."""
        return int(np.prod(self.dims, dtype="int64"))


class Column(NamedTuple):
    """`values` [rows, ...], or of ragged rows all elements one after another, with the `offsets` of each LoD level.

    `offsets[0]` has an entry more than there are rows.
    """

    values: Array
    offsets: tuple[Array, ...] = ()

    def take(self, rows: Taken) -> Column:
        """Some of the rows, in this order; those of a range are not copied."""
        if isinstance(rows, range):
            return self._part(rows.start, rows.stop)
        if not self.offsets:
            return Column(self.values[rows])
        made: list[Array] = []
        for offsets in self.offsets:
            starts = offsets[rows]
            sizes = offsets[rows + 1] - starts
            ends = np.cumsum(sizes)
            made.append(np.concatenate([[0], ends]))
            total = int(ends[-1]) if len(ends) else 0
            rows = np.arange(total) + np.repeat(starts - ends + sizes, sizes)
        return Column(self.values[rows], tuple(made))

    def _part(self, start: int, stop: int) -> Column:
        """The rows from one to before another."""
        made: list[Array] = []
        for offsets in self.offsets:
            level = offsets[start : stop + 1]
            start, stop = int(level[0]), int(level[-1])
            made.append(level - start)
        return Column(self.values[start:stop], tuple(made))

    def value(self) -> Value:
        """What is fed."""
        return LoDTensor(self.values, [level.tolist() for level in self.offsets]) if self.offsets else self.values


def joined(columns: Sequence[Column]) -> Column:
    """The rows of several columns, one after another's."""
    if len(columns) == 1:
        return columns[0]
    levels: list[Array] = []
    for offsets in zip(*(column.offsets for column in columns), strict=True):
        ends = np.cumsum([level[-1] for level in offsets])
        later = [level[1:] + end for level, end in zip(offsets[1:], ends, strict=False)]
        levels.append(np.concatenate([offsets[0], *later]))
    return Column(np.concatenate([column.values for column in columns]), tuple(levels))


class Chunk:
    """The rows of a unit: the columns of the good ones by input, and the bad ones by their number in the unit."""

    def __init__(self, rows: int, columns: dict[str, Column], bad: dict[int, LeftOut]):
        self.rows = rows
        self.columns = columns
        self.bad = bad
        self._places: Array | None = None
        if bad:
            good = np.ones(rows, bool)
            good[list(bad)] = False
            self._places = np.where(good, np.cumsum(good) - 1, -1)

    def take(self, rows: Taken) -> tuple[dict[str, Column], list[LeftOut], Array | None]:
        """Some of the rows: the columns of the good ones, the bad ones, and which of `rows` are good (None: all)."""
        bad: list[LeftOut] = []
        kept: Array = None
        if self._places is not None:
            numbers = np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
            places = self._places[numbers]
            kept = places >= 0
            bad = [self.bad[int(number)] for number in numbers[~kept]]
            rows = places[kept]
        return {name: column.take(rows) for name, column in self.columns.items()}, bad, kept
