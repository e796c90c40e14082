"""Updates of large tables: an optimizer's kernel applied only to the rows of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.runtime.kernels.kernel import Run
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.values import Array, SelectedRows

_AT_ONCE = 1 << 14
"""Rows that are updated at once."""


def is_update(op: Op) -> bool:
    """Whether an op updates a parameter by its gradient, as optimizers do."""
    return "ParamOut" in op.outputs and "Param" in op.inputs and "Grad" in op.inputs


def for_tables(run: Run, param: int, grad: int, written: Sequence[int | None]) -> Run:
    """A kernel of an optimizer that also takes a LargeTable as Param, and TableStates for the optimizer's state.

    `param` and `grad` are the positions of these arguments; `written` has, for each result, the position of the
    argument that is the same variable. The kernel gets the gradient's rows as a small dense table, so it computes for
    each row what it computes for a row of any table. Other rows stay unchanged.
    """

    def updated(*values: Any) -> Any:
        if values[param].__class__ is not LargeTable:
            return run(*values)
        if not isinstance(values[grad], SelectedRows):
            raise ValueError("Param is a large table, whose gradient must be sparse rows")
        return _update(run, values, param, grad, written)

    return updated


def _update(run: Run, values: Sequence[Any], param: int, grad: int, written: Sequence[int | None]) -> Any:
    """Updates the rows in pieces, since a kernel takes several times the memory of the rows that it updates."""
    table: LargeTable = values[param]
    ids, back, given = _each_once(values[grad])
    places, kept = table.enter(ids)
    if len(places) < len(ids):
        taken = kept[back]
        given, back = given[taken], (np.cumsum(kept) - 1)[back[taken]]
    given = given.reshape(len(back), table.width)
    numbers = {at: value.number for at, value in enumerate(values) if value.__class__ is TableState}
    numbers[param] = 0
    parts: list[Any] = []
    for start in range(0, max(len(places), 1), _AT_ONCE):
        piece = places[start : start + _AT_ONCE]
        here = slice(*back.searchsorted((start, start + len(piece))))
        rows = table.take(piece)
        compact = [np.ascontiguousarray(rows[:, numbers[at]]) if at in numbers else v for at, v in enumerate(values)]
        compact[grad] = SelectedRows(back[here] - start, given[here], len(piece))
        made = run(*compact)
        parts = [made] if len(written) == 1 else list(made)
        for place, at in enumerate(written):
            if at in numbers:
                rows[:, numbers[at]] = parts[place]
                parts[place] = values[at]
        table.put(piece, rows)
    table.end_update()
    return parts[0] if len(parts) == 1 else tuple(parts)


def _each_once(part: SelectedRows) -> tuple[Array, Array, Array]:
    """A gradient's distinct ids in ascending order, the index of each row's id among them, and the rows' values.

    The rows are in the order of their ids. Rows with the same id stay in their order.
    """
    given = part.value[: len(part.rows)]
    if (part.rows[1:] > part.rows[:-1]).all():
        return part.rows, np.arange(len(part.rows)), given
    ids, back = np.unique(part.rows, return_inverse=True)
    order = back.argsort(kind="stable")
    return ids, back[order], given[order]
