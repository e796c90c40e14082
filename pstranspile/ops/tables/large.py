"""Large tables: their creation in startup programs, in place of the initialisers of a table and its states."""

from __future__ import annotations

from pstranspile.ops.schema import declare, longs
from pstranspile.ops.shapes import shape_rule
from pstranspile.ops.tensors.fill import made

INITIALISERS = ("uniform_random", "gaussian_random", "truncated_gaussian_random", "fill_constant")
"""The op types that can initialise a row of a large table."""

declare(
    "large_table",
    "-> Out",
    {
        "shape": longs(),
        "initializer": "uniform_random",
        "min": -1.0,
        "max": 1.0,
        "mean": 0.0,
        "std": 1.0,
        "value": 0.0,
        "seed": 0,
        "dtype": 5,
        "enter_after": 1,
        "enter_chance": 1.0,
        "shrink_every": 0,
        "drop_unseen": 0,
        "drop_below": 0.0,
        "score_decay": 0.98,
        "any_id": False,
    },
    doc="Out = a table of `shape` without rows; one begins, once it is trained, as `initializer` would have made it; "
    "with `any_id`, for any id of 64 bits",
)
declare(
    "large_table_state",
    "Table -> Out",
    {"shape": longs(), "value": 0.0, "dtype": 5},
    doc="Out = what an optimizer keeps for each row of a large table, which begins with `value`",
)

shape_rule("large_table", "large_table_state")(made)
