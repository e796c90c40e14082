"""A distributed lookup table: rows on the servers by id modulo their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pstranspile.checkpoint import codes
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.lazy import lazy_import
from pstranspile.ops.values import SelectedRows

np = lazy_import("numpy")


def trimmed(part: SelectedRows) -> SelectedRows:
    """A copy without the room that a growing table keeps for rows to come."""
    rows = np.array(part.rows, "int64")
    return SelectedRows(rows, np.array(part.value[: len(rows)]), int(part.height))


def merged(name: str, parts: Sequence[SelectedRows]) -> SelectedRows:
    """All rows of a table, in the order of ids; the height is that of the parts together.

    Raises DiagnosticError (`checkpoint-table`) if an id is on two servers, or on one that it does not belong to.
    """
    for number, part in enumerate(parts):
        strange = part.rows[part.rows % len(parts) != number]
        if len(strange):
            message = f"{name}: id {int(strange[0])} is in part {number} of {len(parts)}, where it does not belong"
            raise DiagnosticError([error(codes.TABLE, message)])
    rows = np.concatenate([part.rows for part in parts])
    values = np.concatenate([part.value for part in parts])
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    twice = rows[1:][rows[1:] == rows[:-1]]
    if len(twice):
        raise DiagnosticError([error(codes.TABLE, f"{name}: id {int(twice[0])} is there twice")])
    return SelectedRows(rows, values[order], sum(part.height for part in parts))


def shared_out(table: SelectedRows, servers: int) -> Iterator[SelectedRows]:
    """The part of each server; heights are shared out as evenly as they can be, the first servers taking more."""
    for number in range(servers):
        mine = table.rows % servers == number
        height = table.height // servers + (number < table.height % servers)
        yield SelectedRows(table.rows[mine], table.value[mine], height)
