"""Fluid's MultiSlot text: on each line, for every slot in turn, how many values it has, and these values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pstranspile.cluster.data.columns import Chunk, Column, Input
from pstranspile.cluster.data.lines import Lines, lines_of, read_block, units_of
from pstranspile.cluster.data.mapping import map_columns
from pstranspile.cluster.data.reader import Unit, Wanted
from pstranspile.cluster.data.words import Numbers, Words, floats, integers, numbers_of, words_of
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.runtime.run.row_source import LeftOut
from pstranspile.runtime.values import Array

_VISIBLE = bytes(63 if byte < 32 and byte not in b"\t\n\v\f\r" else byte for byte in range(256))
"""Each byte as it is, control characters as question marks: they are no white space, and no part of a number."""


class _Slot(NamedTuple):
    """What the lines have of a slot: the word that its values begin with, and how many there are."""

    first: Array
    count: Array


class MultiSlotReader:
    """A file of MultiSlot text. Slots are the names that are given, else the inputs in the order of their declaration;
    those that no input takes are left out.
    """

    def __init__(self, file: str, wanted: Wanted):
        self.file = file
        self._slots = list(wanted.names) or [one.name for one in wanted.inputs]
        self._inputs: dict[str, list[Input]] = {}
        for one, columns in map_columns(wanted.inputs, wanted.columns, self._slots, file):
            if len(columns) > 1 or one.levels > 1:
                message = f"{one.name} can't be fed from MultiSlot text: it takes one slot, of one LoD level at most"
                raise DiagnosticError([error("data-column", message, Location(file))])
            self._inputs.setdefault(columns[0], []).append(one)

    def units(self) -> list[Unit]:
        """A unit for each block of lines."""
        return units_of(self.file)

    def read(self, unit: Unit) -> Chunk:
        """The rows of a block."""
        data = read_block(unit)
        return _Block(self._slots, self._inputs, unit, data).chunk()


class _Block:
    """A block being read."""

    def __init__(self, slots: list[str], inputs: dict[str, list[Input]], unit: Unit, data: bytes):
        self.slots, self.inputs, self.unit = slots, inputs, unit
        self.lines: Lines = lines_of(data)
        self.words: Words = words_of(data.translate(_VISIBLE))
        self.numbers: Numbers = numbers_of(self.words)
        self.reasons: dict[int, str] = {}

    def chunk(self) -> Chunk:
        """The rows."""
        rows, slots = self._structure()
        rows = self._fitting(rows, slots)
        columns: dict[str, Column] = {}
        for name, wanted in self.inputs.items():
            for one in wanted:
                columns[one.name] = self._column(one, slots[name], name, rows)
        if len(self.reasons) > len(self.lines) - len(rows):
            kept = np.flatnonzero([row not in self.reasons for row in rows.tolist()])
            columns = {name: column.take(kept) for name, column in columns.items()}
        bad: dict[int, LeftOut] = {}
        for row in sorted(self.reasons):
            number, line = self.unit.first + row + 1, self.unit.line + int(self.lines.numbers[row]) + 1
            bad[row] = LeftOut(self.unit.file, number, self.reasons[row], line)
        return Chunk(len(self.lines), columns, bad)

    def _structure(self) -> tuple[Array, dict[str, _Slot]]:
        """The rows that have all slots and nothing else, and where the slots are in these."""
        rows = np.arange(len(self.lines))
        at = np.searchsorted(self.words.starts, self.lines.starts)
        ends = np.searchsorted(self.words.starts, self.lines.stops)
        slots: dict[str, _Slot] = {}
        for name in self.slots:
            inside = at < ends
            rows, at, ends = self._keep(rows, inside, f"the slot {name} is missing", slots, at, ends)
            count, wrong = integers(self.words, self.numbers, at)
            good = ~wrong & (count > 0) & (count < ends - at)
            if not good.all():
                message = f"the slot {name} has no number of values, or not so many"
                count = count[good]
                rows, at, ends = self._keep(rows, good, message, slots, at, ends)
            slots[name] = _Slot(at + 1, count)
            at = at + 1 + count
        rows, at, ends = self._keep(rows, at == ends, "there is more than its slots", slots, at, ends)
        return rows, slots

    def _keep(
        self, rows: Array, good: Array, reason: str, slots: dict[str, _Slot], at: Array, ends: Array
    ) -> tuple[Array, Array, Array]:
        if good.all():
            return rows, at, ends
        self.reasons.update(dict.fromkeys(rows[~good].tolist(), reason))
        for name, slot in slots.items():
            slots[name] = _Slot(slot.first[good], slot.count[good])
        return rows[good], at[good], ends[good]

    def _fitting(self, rows: Array, slots: dict[str, _Slot]) -> Array:
        """Those of the rows that have as many values as the inputs take; `slots` then are of these."""
        for name, wanted in self.inputs.items():
            for one in wanted:
                count = slots[name].count
                good = count % one.width == 0 if one.levels else count == one.width
                times = "a multiple of " if one.levels else ""
                message = f"the number of values in the slot {name} is not {times}{one.width}, which {one.name} takes"
                rows, _, _ = self._keep(rows, good, message, slots, rows, rows)
        return rows

    def _column(self, one: Input, slot: _Slot, name: str, rows: Array) -> Column:
        """What an input takes; rows with words that are no such numbers have any values."""
        ends = np.cumsum(slot.count)
        total = int(ends[-1]) if len(ends) else 0
        chosen = np.arange(total) + np.repeat(slot.first - ends + slot.count, slot.count)
        make = floats if one.dtype.startswith("float") else integers
        values, wrong = make(self.words, self.numbers, chosen)
        for place in np.flatnonzero(wrong).tolist():
            row = int(rows[np.searchsorted(ends, place, side="right")])
            text = self.words.text(int(chosen[place]))
            shown = repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
            message = f"the slot {name} holds {shown}, {one.name} is {one.dtype}"
            self.reasons.setdefault(row, message)
        values = values.astype(one.dtype).reshape(-1, *one.dims)
        return Column(values, (np.concatenate([[0], ends // one.width]),)) if one.levels else Column(values)
