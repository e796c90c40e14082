"""In which order the rows of an epoch come: that of the files, or one that a seed shuffles, anew in every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.cluster.data.deal import Span
from pstranspile.runtime.values import Array


class Order:
    """The order of units, and of the rows in each. `sizes` are the rows of the units, `seed` None for that of files."""

    def __init__(self, sizes: Sequence[int], seed: int | None):
        self.sizes = tuple(sizes)
        self.seed = seed
        self.rows = sum(sizes)

    def line(self, epoch: int) -> list[Span]:
        """The units of an epoch, one after another."""
        count = len(self.sizes)
        units = range(count) if self.seed is None else self._random(epoch).permutation(count).tolist()
        return [Span(unit, 0, self.sizes[unit]) for unit in units if self.sizes[unit]]

    def within(self, epoch: int, unit: int) -> Array | None:
        """The numbers of a unit's rows in their order in an epoch; None for the order of the file."""
        return None if self.seed is None else self._random(epoch, unit).permutation(self.sizes[unit])

    def _random(self, *place: int) -> Any:
        """Random numbers of a place, the same on every machine."""
        assert self.seed is not None
        return np.random.Generator(np.random.Philox(np.random.SeedSequence((self.seed & (1 << 63) - 1, *place))))
