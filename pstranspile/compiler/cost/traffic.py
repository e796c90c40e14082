"""Bytes that each parameter of a job moves between one trainer and the servers in a step, row by row.

A dense parameter is sent to a trainer once a step, and its gradient comes back: every row costs the same. The gradient
of a sparse parameter has a row for each lookup, with its id, and so have the answers if the servers look rows up; a
trainer that looks rows up itself gets all rows. So rows that are looked up more often cost more, according to the
counts of a job's ids.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from pstranspile.compiler.cost.counts import IdCounts, RowCounts
from pstranspile.ir.model import Program, TensorType
from pstranspile.ops import facts_of

ID = 8
"""The size of an id in a message, in bytes."""


class Moved(NamedTuple):
    """The bytes that a parameter of `rows` rows moves in a step.

    `each` is the number for every row. `looked_up` is the number for all lookups of a step, which are spread over the
    rows as `counts` says, evenly if it counts nothing.
    """

    rows: int
    each: float
    looked_up: float = 0.0
    counts: RowCounts = RowCounts(())

    def below(self, row: int) -> float:
        """The bytes of the rows before `row`."""
        return self.each * row + self._of_lookups(row)

    def _of_lookups(self, row: int) -> float:
        if not self.looked_up or not self.counts.total:
            return self.looked_up * row / self.rows if self.rows else 0.0
        return self.looked_up * self.counts.below(row) / self.counts.total

    @property
    def total(self) -> float:
        """The bytes of all rows."""
        return self.below(self.rows)

    def reached(self, start: int, most: float) -> int:
        """The largest row up to which the rows from `start` on move at most `most` bytes."""
        base = self.below(start)
        if self.below(self.rows) - base <= most:
            return self.rows
        low, high = start, self.rows
        while high - low > 1:
            middle = (low + high) // 2
            if self.below(middle) - base <= most:
                low = middle
            else:
                high = middle
        return low


def lookups_of(program: Program, table: str, batch_rows: int) -> float:
    """The number of lookups in a table in a step of a trainer with `batch_rows` rows, from the dims of ids.

    An unknown dim counts as the rows of the batch, whatever the lengths of sequences.
    """
    result = 0
    for op in program.main_block.ops:
        slot = facts_of(op.type).looks_up
        if slot and op.inputs.get(slot) == (table,):
            for name in op.inputs.get("Ids", ()):
                var = program.main_block.vars.get(name)
                dims = var.shape if var is not None and var.shape else (-1,)
                result += prod(batch_rows if dim < 0 else dim for dim in dims)
    return float(result or batch_rows)


def moved_by(
    program: Program,
    table: str,
    tensor: TensorType,
    *,
    sparse: bool,
    prefetched: bool,
    batch_rows: int,
    counts: IdCounts | None,
) -> Moved:
    """The bytes that a parameter moves in a step of a trainer whose batch has `batch_rows` rows.

    `sparse`: its gradient has a row for each lookup. `prefetched`: the servers look its rows up. `counts` says how
    often its rows are looked up; without it all rows are assumed to be equally frequent.
    """
    rows = tensor.shape[0] if tensor.shape else 1
    row = prod(tensor.shape[1:]) * tensor.dtype.size
    if not sparse:
        return Moved(rows, 2.0 * row)
    own = counts.tables.get(table) if counts is not None else None
    if own is None or not own.total or counts is None:
        lookups, own = lookups_of(program, table, batch_rows), RowCounts(())
    else:
        lookups = own.total * batch_rows / counts.batch_rows
    once = lookups * (row + ID)
    return Moved(rows, 0.0, 2 * once, own) if prefetched else Moved(rows, float(row), once, own)
