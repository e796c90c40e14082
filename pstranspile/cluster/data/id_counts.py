"""Counts of the ids in data: how often each row of a table would be looked up, without running the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pstranspile.compiler.cost.counts import IdCounts, counts_of
from pstranspile.ir.model import Op, Program
from pstranspile.ir.table_rules import takes_any_id
from pstranspile.ops import facts_of
from pstranspile.runtime.run.batch import part_of, rows_of
from pstranspile.runtime.run.feeds import row_of
from pstranspile.runtime.values import Array, LoDTensor


class UncountedIds(NamedTuple):
    """Ids that a table has no row for: how many there are, and of the first the id, the input, the step and the row of
    its batch, both counted from 0.
    """

    ids: int
    first_id: int
    input: str
    step: int
    row: int


class CountedIds(NamedTuple):
    """The counts of the tables whose ids are fed, those whose ids an op makes (table -> that op's lookup), and the ids
    that were not counted, by table.
    """

    counts: IdCounts
    lookups_of_computed_ids: Mapping[str, Op]
    uncounted_ids: Mapping[str, UncountedIds]


def count_ids(program: Program, step: Callable[[int], Mapping[str, Any]], steps: int) -> CountedIds:
    """Counts the ids that a program is fed in so many steps, for each table that it looks rows up in.

    Ids that a table has no row for are not counted. Of a table with a row for every id, ids below 0 are not: there the
    counts have no place for them.
    """
    looked_up: dict[str, list[Op]] = {}
    for op in program.main_block.ops:
        slot = facts_of(op.type).looks_up
        for table in op.inputs.get(slot, ()):
            looked_up.setdefault(table, []).append(op)
    computed_lookups: dict[str, Op] = {}
    most = {table: _rows_of(program, table) for table in looked_up}
    numbers: dict[str, Counter[int]] = {table: Counter() for table in looked_up}
    outside: dict[str, UncountedIds] = {}
    rows = 0
    for number in range(steps):
        values = step(number)
        rows += max(map(rows_of, values.values()), default=0)
        for table, ops in looked_up.items():
            for op in ops:
                for name in op.inputs.get("Ids", ()):
                    if name in values:
                        ids, wrong = _ids(values[name], most[table])
                        numbers[table].update(ids)
                        if wrong is not None:
                            known = outside.setdefault(table, _first_uncounted(values, name, number, wrong))
                            outside[table] = known._replace(ids=known.ids + int(wrong.sum()))
                    else:
                        computed_lookups.setdefault(table, op)
    numbers = {table: counter for table, counter in numbers.items() if table not in computed_lookups}
    tables = {table: counts_of(counter) for table, counter in numbers.items()}
    return CountedIds(
        IdCounts(rows, tables),
        computed_lookups,
        {name: outside[name] for name in outside if name not in computed_lookups},
    )


def _rows_of(program: Program, table: str) -> int | None:
    """The rows of a table; None if it has one for every id, or if they are not known."""
    var = program.main_block.vars.get(table)
    return None if var is None or not var.shape or var.shape[0] <= 0 or takes_any_id(var.shape) else var.shape[0]


def _array(value: Any) -> Array:
    return value.data if isinstance(value, LoDTensor) else np.asarray(value)


def _ids(value: Any, rows: int | None) -> tuple[dict[int, int], Array | None]:
    """How often each id of a table with so many rows is in a value, and a mask of all others (None: there are none)."""
    array = _array(value)
    ids, counts = np.unique(array, return_counts=True)
    first, last = int(np.searchsorted(ids, 0)), len(ids) if rows is None else int(np.searchsorted(ids, rows))
    wrong = None
    if first > 0 or last < len(ids):
        wrong = (array < 0) if rows is None else (array < 0) | (array >= rows)
    return dict(zip(ids[first:last].tolist(), counts[first:last].tolist(), strict=True)), wrong


def _first_uncounted(values: Mapping[str, Any], name: str, step: int, wrong: Array) -> UncountedIds:
    """The first of the ids that `wrong` marks, with 0 as their number."""
    place = np.argwhere(wrong)[0]
    row = row_of(values[name], int(place[0]))
    part = part_of(values, name)
    row = row if part is None else int(part.places[row])
    return UncountedIds(0, int(_array(values[name])[tuple(place)]), name, step, row)
