"""Rows whose ids are not those of a table in which the program looks them up: they can't be fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pstranspile.cluster.data.columns import Chunk, Column
from pstranspile.cluster.data.files import Unit
from pstranspile.cluster.data.text_files import lines_of, read_block
from pstranspile.runtime.run.fed_ids import Table
from pstranspile.runtime.run.step_feeds import LeftOut
from pstranspile.runtime.values import Array


def without_unknown_ids(chunk: Chunk, unit: Unit, tables: Mapping[str, Sequence[Table]]) -> Chunk:
    """The rows of a unit, of which those are bad that hold an id for which a table has no row."""
    reasons: dict[int, str] = {}
    for name, known in tables.items():
        column = chunk.columns.get(name)
        if column is None or column.values.dtype.kind != "i":
            continue
        for table in known:
            wrong = table.outside(column.values)
            if wrong is None:
                continue
            good = chunk.good
            places = np.argwhere(wrong)
            for row, place in zip(_rows_of(column, places[:, 0]).tolist(), places.tolist(), strict=True):
                reasons.setdefault(int(good[row]), table.describe(name, int(column.values[tuple(place)])))
    if not reasons:
        return chunk
    lines = lines_of(read_block(unit)).numbers if unit.size else None
    bad: dict[int, LeftOut] = {}
    for row, reason in sorted(reasons.items()):
        line = 0 if lines is None else unit.line + int(lines[row]) + 1
        bad[row] = LeftOut(unit.file, unit.first + row + 1, reason, line)
    return chunk.without(bad)


def _rows_of(column: Column, elements: Array) -> Array:
    """The rows to which elements of a column's first dim belong."""
    for level in reversed(column.offsets):
        elements = np.searchsorted(level, elements, side="right") - 1
    return elements
