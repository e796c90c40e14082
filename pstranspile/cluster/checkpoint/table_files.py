"""A distributed lookup table: rows on the servers by id modulo their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.runtime.values import Array, SelectedRows


def merged(name: str, parts: Sequence[SelectedRows]) -> SelectedRows:
    """All rows of a table, in the order of ids; the height is that of the parts together.

    Raises DiagnosticError (`checkpoint-table`) if an id is on two servers, or on one that it does not belong to.
    """
    for number, part in enumerate(parts):
        strange = part.rows[part.rows % len(parts) != number]
        if len(strange):
            message = f"{name}: id {int(strange[0])} is in part {number} of {len(parts)}, where it does not belong"
            raise DiagnosticError([error("checkpoint-table", message)])
    rows = np.concatenate([part.rows for part in parts])
    values = np.concatenate([part.value[: len(part.rows)] for part in parts])
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    twice = rows[1:][rows[1:] == rows[:-1]]
    if len(twice):
        raise DiagnosticError([error("checkpoint-table", f"{name}: id {int(twice[0])} is there twice")])
    return SelectedRows(rows, values[order], sum(part.height for part in parts))


def shared_out(table: SelectedRows, servers: int) -> Iterator[SelectedRows]:
    """The part of each server; heights are shared out as evenly as they can be, the first servers taking more."""
    for number in range(servers):
        mine = table.rows % servers == number
        height = table.height // servers + (number < table.height % servers)
        yield SelectedRows(table.rows[mine], table.value[mine], height)


def with_room(part: SelectedRows, room: SelectedRows) -> SelectedRows:
    """The part with the height of `room`, room for as many rows, and the values that `room` has for rows to come.

    A table that grows takes the next values of its room for an id that it meets for the first time.
    """
    count = len(part.rows)
    return SelectedRows(part.rows, np.concatenate([part.value[:count], room.value[count:]]), int(room.height))


def dense(table: SelectedRows, height: int) -> Array:
    """All rows of a table from id 0 on; zeros for ids that were never looked up, as when testing."""
    whole = np.zeros((height, *table.value.shape[1:]), table.value.dtype)
    known = table.rows < height
    whole[table.rows[known]] = table.value[: len(table.rows)][known]
    return whole
