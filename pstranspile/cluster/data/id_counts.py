"""Counts of the ids in data: how often each row of a table would be looked up, without running the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pstranspile.compiler.cost.counts import IdCounts, counts_of
from pstranspile.ir.model import Op, Program
from pstranspile.ops import facts_of
from pstranspile.runtime.run.batch import rows_of
from pstranspile.runtime.values import LoDTensor


class Counted(NamedTuple):
    """The counts of the tables whose ids are fed, and those whose ids an op makes: table -> that op's lookup."""

    counts: IdCounts
    made: Mapping[str, Op]


def count_ids(program: Program, step: Callable[[int], Mapping[str, Any]], steps: int) -> Counted:
    """Counts the ids that a program is fed in so many steps, for each table that it looks rows up in.

    Negative ids, which look nothing up, are left out.
    """
    looked_up: dict[str, list[Op]] = {}
    for op in program.main_block.ops:
        slot = facts_of(op.type).looks_up
        for table in op.inputs.get(slot, ()):
            looked_up.setdefault(table, []).append(op)
    made: dict[str, Op] = {}
    numbers: dict[str, Counter[int]] = {table: Counter() for table in looked_up}
    rows = 0
    for number in range(steps):
        values = step(number)
        rows += max(map(rows_of, values.values()), default=0)
        for table, ops in looked_up.items():
            for op in ops:
                for name in op.inputs.get("Ids", ()):
                    if name in values:
                        numbers[table].update(_ids(values[name]))
                    else:
                        made.setdefault(table, op)
    numbers = {table: counter for table, counter in numbers.items() if table not in made}
    tables = {table: counts_of(counter) for table, counter in numbers.items()}
    return Counted(IdCounts(rows, tables), made)


def _ids(value: Any) -> dict[int, int]:
    """How often each id is in a value."""
    array = value.data if isinstance(value, LoDTensor) else np.asarray(value)
    ids, counts = np.unique(array, return_counts=True)
    first = int(np.searchsorted(ids, 0))
    return dict(zip(ids[first:].tolist(), counts[first:].tolist(), strict=True))
