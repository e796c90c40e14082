"""What large tables hold, as arrays, and what stands for a part of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from pstranspile.runtime.values import Array

Initial: TypeAlias = Callable[[Array], Array]
"""From ids int64 [n] to what their rows begin with, [n, width]."""

Chances: TypeAlias = Callable[[Array, int], Array]
"""From ids int64 [n] and the number of an update to a number in (0, 1) for each id."""


class TableState(NamedTuple):
    """What stands in a variable that an optimizer keeps for each row: `table`, a variable, has its numbers as `number`.

    `value` is what those of a row begin with.
    """

    table: str
    number: int
    value: float


class TableRows(NamedTuple):
    """All that a table holds, as arrays in the order of ids, or of a part of it.

    `ids` int64 [n]; `numbers` [n, 1 + states, width]; `seen` uint32 [n], the update that changed a row last; `scores`
    float32 [n], or [0] where the rules ask for none; `waiting` int64 [m], ids that have not entered, and `counts`
    uint32 [m, 2], their gradients so far and the update of the last one; `updates`, how many there were; `saved`, how
    many when changed rows were saved last; `dropped` int64 [k], ids that have left since.
    """

    ids: Array
    numbers: Array
    seen: Array
    scores: Array
    waiting: Array
    counts: Array
    dropped: Array
    updates: int
    saved: int

    @property
    def dims(self) -> tuple[int, ...]:
        """The numbers of a row: 1 + states, width."""
        return self.numbers.shape[1:]
