"""What kernels of optimizers share: updates in place, and dense or sparse gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.runtime.arithmetic import same_everywhere
from pstranspile.runtime.kernels.kernel import Run, in_place
from pstranspile.runtime.kernels.numeric import check_ids
from pstranspile.runtime.kernels.rows import add_rows, in_use, merge_rows, scatter
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.values import Array, SelectedRows


def owned(op: Op, slots: str) -> Callable[..., tuple[Array, ...]]:
    """A function from the values of these input slots to the arrays to update.

    An array is the value itself if the op writes the same variable and the value is writable, otherwise a copy. The
    output slot of `Moment` is `MomentOut`; `SquaredAccumulator:SquaredAccumOut` names another one.
    """
    pairs = [(slot, out or f"{slot}Out") for slot, _, out in (word.partition(":") for word in slots.split())]
    same = [in_place(op, slot, out) for slot, out in pairs]

    def own(*values: Array) -> tuple[Array, ...]:
        return tuple([v if kept and v.flags.writeable else v.copy() for v, kept in zip(values, same, strict=True)])

    return own


REPLACING = frozenset({"sgd", "momentum", "adam"})
"""Optimizer ops that write a read-only parameter, which others share, to new memory without copying it first."""


def replaced(op: Op) -> Callable[[Array, Array | SelectedRows], tuple[Array, Array]]:
    """A function from the parameter and the gradient to the array to read and the array to write.

    They are the same if the op writes the same variable and it is writable. Otherwise a dense update writes new memory,
    and a sparse update changes a copy.
    """
    kept = in_place(op, "Param", "ParamOut")

    def choose(param: Array, gradient: Array | SelectedRows) -> tuple[Array, Array]:
        if kept and param.flags.writeable:
            return param, param
        if gradient.__class__ is SelectedRows:
            param = param.copy()
            return param, param
        return param, np.empty_like(param)

    return choose


PIECE = 1 << 16
"""Elements updated at a time, so that arrays that are read and written several times stay in the processor's cache."""


def whole(gradient: Array | SelectedRows, *arrays: Array) -> tuple[tuple[Array, ...], ...]:
    """The dense gradient and the arrays that an update changes in place, as a tuple of one item.

    Sparse rows count as a gradient that is zero in all other rows. Without any rows there is no gradient and no item.
    """
    if isinstance(gradient, SelectedRows):
        if not len(gradient.rows):
            return ()
        gradient = scatter(gradient, arrays[0].shape)
    dense: Array = gradient
    for array in arrays:
        if array.size != dense.size:
            raise ValueError("the gradient, the parameter and what is kept of it differ in size")
    return ((dense, *arrays),)


def is_large(array: Array) -> bool:
    """Whether an array is updated in pieces; never where the result of an element depends on its position."""
    return array.size > PIECE and same_everywhere()


def pieces(gradient: Array | SelectedRows, *arrays: Array) -> Iterable[tuple[Array, ...]]:
    """The arrays that `whole` gives, for elementwise updates: large arrays come in pieces."""
    size = arrays[0].size
    if not is_large(arrays[0]) or not all(_in_one_row(array, size) for array in arrays):
        return whole(gradient, *arrays)
    if isinstance(gradient, SelectedRows):
        return _pieces_of_rows(gradient, arrays) if len(gradient.rows) else ()
    if not _in_one_row(gradient, size):
        return whole(gradient, *arrays)
    return _cut(gradient, *arrays)


def update_all(gradient: SelectedRows, step: Callable[..., None], *tables: Array) -> None:
    """Updates the rows as `update_rows` does, and calls `step(None, *pieces of the tables)` for all other rows.

    For elementwise updates, whose result does not depend on the position of an element.
    """
    merged = merge_rows([gradient])
    check_ids(merged.rows, len(tables[0]), "row")
    taken = [table.take(merged.rows, axis=0) for table in tables]
    in_pieces = all(_in_one_row(table, tables[0].size) for table in tables)
    for piece in _cut(*tables) if in_pieces else (tables,):
        step(None, *piece)
    step(in_use(merged).reshape(taken[0].shape), *taken)
    for table, changed in zip(tables, taken, strict=True):
        table[merged.rows] = changed


def _cut(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    flat = [array.reshape(-1) for array in arrays]
    for at in range(0, flat[0].size, PIECE):
        yield tuple([array[at : at + PIECE] for array in flat])


def _in_one_row(array: Array, size: int) -> bool:
    return array.size == size and array.flags.c_contiguous


def _pieces_of_rows(gradient: SelectedRows, arrays: Sequence[Array]) -> Iterator[tuple[Array, ...]]:
    height = len(arrays[0])
    tables = [array.reshape(height, -1) for array in arrays]
    width = tables[0].shape[1]
    value, order = in_use(gradient).reshape(-1, width), gradient.rows.argsort(kind="stable")
    rows, count = gradient.rows[order], max(PIECE // width, 1)
    check_ids(rows, height, "row")
    ends = rows.searchsorted(np.arange(0, height + count, count)).tolist()
    dense = np.zeros((count, width), value.dtype)
    for at, (start, stop) in zip(range(0, height, count), pairwise(ends), strict=True):
        part, places = dense[: height - at], rows[start:stop] - at
        if start < stop:
            add_rows(part, places, value[order[start:stop]])
        yield part, *[table[at : at + count] for table in tables]
        part[places] = 0


# Updates of large tables: an optimizer's kernel applied only to the rows of the gradient.

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
