"""Ids of tables that have a row for every id of 64 bits, which are numbers of their own on every server.

Such a table has as many rows as there can be (`most_rows`), which is fewer than there are ids. Its ids, int64 with the
bits of uint64, are spread over these rows to find the server that has each; there they keep their number. Two ids that
come to lie beside the same row are on the same server, where each has a row of its own.
"""

from __future__ import annotations

import numpy as np

from pstranspile.ir.table_rules import most_rows
from pstranspile.runtime.values import Array

_SPREAD = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


def beside(ids: Array, width: int) -> Array:
    """For each id, int64 of any shape, the row of the table beside which it lies; ids near each other lie apart."""
    mixed = ids.astype(np.int64, copy=False).view(np.uint64) * _SPREAD
    mixed ^= mixed >> _HALF
    mixed *= _SPREAD
    mixed >>= _ONE
    mixed //= np.uint64(width)
    return np.minimum(mixed.view(np.int64), most_rows(width) - 1)


def lie_within(ids: Array, width: int, start: int, rows: int) -> Array:
    """A mask of the ids that lie beside one of so many rows from `start` on (bool)."""
    row = beside(ids, width)
    return (row >= start) & (row < start + rows)
