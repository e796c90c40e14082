"""Kernels. Creation of large tables, whose rows are drawn on first use as the whole table would draw them."""

from __future__ import annotations

import numpy as np

from pstranspile.ir.model import Op
from pstranspile.ir.table_rules import Rules, takes_any_id
from pstranspile.ops import with_defaults
from pstranspile.ops.attributes import flag, int_attr, ints_attr, real, text
from pstranspile.ops.tables.large import INITIALISERS
from pstranspile.runtime.kernels.context import Surroundings
from pstranspile.runtime.kernels.kernel import Run, kernel
from pstranspile.runtime.kernels.numeric import numpy_dtype
from pstranspile.runtime.kernels.random.scattered import ScatteredRows, chances
from pstranspile.runtime.kernels.tensors.random import Draw, drawer
from pstranspile.runtime.large.table import LargeTable, TableState
from pstranspile.runtime.values import Array

_MOST = 1 << 63
"""The largest number of elements of a table."""

_AT_ONCE = 1 << 12
"""Rows whose first values are drawn at once: a draw takes many times the memory of its result."""


def _drawer(op: Op) -> Draw | None:
    """A function that draws the elements of rows; None if all start with one value. Raises ValueError."""
    kind = text(op, "initializer")
    if kind not in INITIALISERS:
        raise ValueError(f"initializer is {kind!r}; it takes {', '.join(INITIALISERS)}")
    return None if kind == "fill_constant" else drawer(with_defaults(op._replace(type=kind)), kind)


def _rules(op: Op) -> Rules:
    return Rules(
        int_attr(op, "enter_after", 1),
        real(op, "enter_chance"),
        int_attr(op, "shrink_every"),
        int_attr(op, "drop_unseen"),
        real(op, "drop_below"),
        real(op, "score_decay"),
    )


@kernel("large_table", lod="none")
def _large_table(op: Op) -> Run:
    dims, kind, draw, rules = ints_attr(op, "shape"), numpy_dtype(int_attr(op, "dtype", 5)), _drawer(op), _rules(op)
    if len(dims) != 2 or min(dims) < 1 or dims[0] * dims[1] >= _MOST:
        raise ValueError(f"shape is {list(dims)}, not the dims of a table")
    if rules.mistake():
        raise ValueError(rules.mistake())
    (height, width), name = dims, op.outputs["Out"][0]
    any_id = flag(op, "any_id") or takes_any_id(dims)

    def run(surroundings: Surroundings) -> LargeTable:
        key, first = surroundings.stream(name, int_attr(op, "seed"))
        assert isinstance(key, int)  # the stream of a value that does not belong to a batch
        first = 0 if any_id else first  # ids count from the start of the whole table

        def initial(ids: Array) -> Array:
            out = np.full((len(ids), width), real(op, "value"), kind)
            if draw is None:
                return out
            for start in range(0, len(ids), _AT_ONCE):
                rows = ScatteredRows(key, first, ids[start : start + _AT_ONCE], width)
                out[start : start + _AT_ONCE].flat = draw(rows, 0, len(rows.ids) * width)
            return out

        def enters(ids: Array, update: int) -> Array:
            return chances(key, ids + first // width, update)

        return LargeTable(height, width, initial, chances=enters, rules=rules, dtype=kind, any_id=any_id)

    return run


@kernel("large_table_state", lod="none")
def _large_table_state(op: Op) -> Run:
    dims, value, table = ints_attr(op, "shape"), real(op, "value"), op.inputs["Table"][0]

    def run(Table: LargeTable) -> TableState:
        if not isinstance(Table, LargeTable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("Table is no large table")
        if dims != (Table.height, Table.width):
            raise ValueError(f"shape is {list(dims)}, Table is {[Table.height, Table.width]}")
        return TableState(table, Table.add_state(value), value)

    return run
