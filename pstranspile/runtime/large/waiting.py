"""Ids that come with gradients but have no row yet: how often each has come."""

from __future__ import annotations

import numpy as np

from pstranspile.runtime.large.index import IdIndex, grown
from pstranspile.runtime.values import Array


class Waiting:
    """Ids that wait to enter a table, each with how often it has come and in which update it came last."""

    def __init__(self) -> None:
        self.index = IdIndex()
        self._counts = np.empty((0, 2), np.uint32)

    def __len__(self) -> int:
        return self.index.count

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.index.nbytes + int(self._counts.nbytes)

    def came(self, ids: Array, update: int, enough: int) -> Array:
        """Counts these ids, int64 [n], each once; gives which have come often enough (bool [n])."""
        places = self.index.find(ids)
        new = (places < 0).nonzero()[0]
        first = self.index.count
        self.add(ids[new], np.zeros((len(new), 2), np.uint32))
        places[new] = np.arange(first, first + len(new))
        self._counts[places, 0] += 1
        self._counts[places, 1] = update
        return self._counts[places, 0] >= enough

    def add(self, ids: Array, counts: Array) -> None:
        """Adds ids that are not there yet, with their counts and updates, [n, 2]."""
        count = self.index.count
        self.index.add(ids)
        self._counts = grown(self._counts, self.index.count)
        self._counts[count : self.index.count] = counts

    def leave(self, ids: Array) -> None:
        """Forgets these ids, which are there."""
        if len(ids):
            stay = np.ones(len(self), bool)
            stay[self.index.find(ids)] = False
            self._keep(stay)

    def drop_before(self, update: int) -> None:
        """Forgets the ids that came last before an update."""
        if len(self):
            self._keep(self._counts[: len(self), 1].astype(np.int64) >= update)

    def _keep(self, stay: Array) -> None:
        self._counts = np.array(self._counts[: len(self)][stay])
        self.index.keep(stay.nonzero()[0])

    def rows(self) -> tuple[Array, Array]:
        """The ids in their order, and what is counted of each, [n, 2]."""
        order = self.index.held.argsort(kind="stable")
        return self.index.ids[order], self._counts[order]
