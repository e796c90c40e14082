"""Arithmetic on rows of a matrix given by their numbers: SelectedRows, and scattering into dense arrays."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.lazy import lazy_import
from pstranspile.ops.values import Array, SelectedRows

np = lazy_import("numpy")


def concat_rows(parts: Sequence[SelectedRows]) -> SelectedRows:
    """All rows of the parts in order, repeats kept. The height is that of the first."""
    rows = np.concatenate([part.rows for part in parts])
    value = np.concatenate([part.value[: len(part.rows)] for part in parts])
    return SelectedRows(rows, value, parts[0].height)


def merge_rows(parts: Sequence[SelectedRows]) -> SelectedRows:
    """The sum of the parts with every row once.

    As in Fluid, rows keep their order if none occurs twice in all parts; otherwise they are sorted.
    """
    whole = concat_rows(parts)
    order = np.argsort(whole.rows, kind="stable")
    rows = whole.rows[order]
    new = np.ones(len(rows), dtype=bool)
    np.not_equal(rows[1:], rows[:-1], out=new[1:])
    if new.all():
        return whole
    starts = np.flatnonzero(new)
    return SelectedRows(rows[starts], np.add.reduceat(whole.value[order], starts, axis=0), whole.height)


def add_rows(target: Array, rows: Array, value: Array) -> None:
    """Adds each `value[i]` to `target[rows[i]]`, in place; rows may repeat."""
    if len(rows):
        merged = merge_rows([SelectedRows(rows, value, len(target))])
        target[merged.rows] += merged.value
