"""Updates of large tables: an optimizer's own kernel, on the rows alone that a gradient has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.kernels.kernel import Run
from pstranspile.large.table import LargeTable, TableState
from pstranspile.values import Array, SelectedRows


def is_update(op: Op) -> bool:
    """Whether an op updates a parameter by its gradient, as optimizers do."""
    return "ParamOut" in op.outputs and "Param" in op.inputs and "Grad" in op.inputs


def for_tables(run: Run, param: int, grad: int, written: Sequence[int | None]) -> Run:
    """The kernel of an optimizer, which also takes a LargeTable as Param and TableStates for what it keeps of it.

    `param` and `grad` are the places of these among the arguments; `written` has, for each result, the place of the
    argument that is the same variable. The kernel sees the rows of the gradient as a table of their own, so it does to
    each what it does to a row of any table. Other rows stay as they are.
    """

    def updated(*values: Any) -> Any:
        if values[param].__class__ is not LargeTable:
            return run(*values)
        if not isinstance(values[grad], SelectedRows):
            raise ValueError("Param is a large table, whose gradient must be sparse rows")
        return _update(run, values, param, grad, written)

    return updated


def _update(run: Run, values: Sequence[Any], param: int, grad: int, written: Sequence[int | None]) -> Any:
    table: LargeTable = values[param]
    ids, back, given = _each_once(values[grad])
    places, kept = table.enter(ids)
    rows, count = table.take(places), len(places)
    if count < len(ids):
        taken = kept[back]
        given, back = given[taken], (np.cumsum(kept) - 1)[back[taken]]
    numbers = {at: value.number for at, value in enumerate(values) if value.__class__ is TableState}
    numbers[param] = 0
    compact = [np.ascontiguousarray(rows[:, numbers[at]]) if at in numbers else v for at, v in enumerate(values)]
    compact[grad] = SelectedRows(back, given.reshape(len(back), table.width), count)
    made = run(*compact)
    parts = [made] if len(written) == 1 else list(made)
    for place, at in enumerate(written):
        if at in numbers:
            rows[:, numbers[at]] = parts[place]
            parts[place] = values[at]
    table.put(places, rows)
    return parts[0] if len(parts) == 1 else tuple(parts)


def _each_once(part: SelectedRows) -> tuple[Array, Array, Array]:
    """The ids of a gradient in ascending order, each once; which of them each of its rows has; and the rows' values."""
    given = part.value[: len(part.rows)]
    if (part.rows[1:] > part.rows[:-1]).all():
        return part.rows, np.arange(len(part.rows)), given
    ids, back = np.unique(part.rows, return_inverse=True)
    return ids, back, given
