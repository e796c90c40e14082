"""The rows of gradients that large tables take, whose rules say when a row enters."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from pstranspile.runtime.large.table import LargeTable
from pstranspile.runtime.values import SelectedRows


def chooses_rows(value: Any) -> TypeGuard[LargeTable]:
    """Whether a value is a large table that does not take every row of a gradient."""
    return isinstance(value, LargeTable) and (value.rules.enter_after > 1 or value.rules.enter_chance < 1)


def taken_rows(table: LargeTable, gradient: SelectedRows, start: int = 0) -> SelectedRows:
    """The gradient without the rows that the table, which holds the ids from `start` on, drops in an update.

    The table counts the update; its rows keep their values. Rows of other ids stay in the gradient.
    """
    ids = gradient.rows - start
    inside = (ids >= 0) & (ids < table.height)
    distinct = np.unique(ids[inside])
    _, kept = table.enter(distinct)
    table.end_update()
    stay = ~inside | np.isin(ids, distinct[kept])
    return gradient._replace(rows=gradient.rows[stay], value=gradient.value[: len(ids)][stay])
