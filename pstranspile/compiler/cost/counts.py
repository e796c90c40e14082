"""How often each row of a table is looked up: counts by ranges of rows, in a JSON file.

    {
      "version": 1,
      "batch_rows": 4096,
      "tables": [
        {"table": "words", "ranges": [[0, 1, 812], [1, 2, 340], [2, 100000, 2944]]}
      ]
    }

A range `[start, stop, count]` says that the ids from `start` up to `stop`, without it, were looked up `count` times in
data of `batch_rows` rows. Ranges are in order and don't overlap; ids in none of them were never looked up.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from math import expm1, log1p
from typing import Any, NamedTuple, cast

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.json_text import describe_json_error, json_text
from pstranspile.ir.model import Location
from pstranspile.ir.reading import read_named

MOST_BYTES = 1 << 28
"""The largest size of a file of counts, in bytes."""

RANGES = 4096
"""The most ranges of a table's counts."""

VERSION = 1
"""The version of the format."""


class Range(NamedTuple):
    """The rows from `start` up to `stop`, without it, and how often one of them was looked up."""

    start: int
    stop: int
    lookups: float


class RowCounts:
    """How often the rows of one table were looked up. A frozen value.

    `ranges` are in order and don't overlap; within a range all rows are taken to be as frequent.
    """

    def __init__(self, ranges: Iterable[Range]):
        self.ranges = tuple(ranges)

    def __eq__(self, other: object) -> bool:
        """Whether both have the same ranges."""
        return isinstance(other, RowCounts) and self.ranges == other.ranges

    def __hash__(self) -> int:
        """A hash of the ranges."""
        return hash(self.ranges)

    @cached_property
    def _cumulative_lookups(self) -> list[float]:
        """The lookups of rows before each range, cumulated; the last number is the total."""
        return [0.0, *accumulate(each.lookups for each in self.ranges)]

    @cached_property
    def _starts(self) -> list[int]:
        return [each.start for each in self.ranges]

    @property
    def total(self) -> float:
        """The number of lookups of all rows."""
        return self._cumulative_lookups[-1]

    def below(self, row: int) -> float:
        """The number of lookups of rows before `row`."""
        place = bisect_right(self._starts, row) - 1
        if place < 0:
            return 0.0
        start, stop, count = self.ranges[place]
        return self._cumulative_lookups[place] + count * (min(row, stop) - start) / (stop - start)

    def distinct(self, lookups: float) -> RowCounts:
        """How many different rows so many lookups are expected to have, by ranges: a row with the share p of all
        lookups is among n of them with the probability 1 - (1 - p)^n.
        """
        found: list[Range] = []
        for start, stop, count in self.ranges:
            share = count / (stop - start) / self.total if self.total else 0.0
            each = -expm1(lookups * log1p(-share)) if share < 1.0 else min(lookups, 1.0)
            found.append(Range(start, stop, (stop - start) * each))
        return RowCounts(found)


class IdCounts(NamedTuple):
    """Counts of several tables, from data of `batch_rows` rows."""

    batch_rows: int
    tables: Mapping[str, RowCounts]


def counts_of(numbers: Mapping[int, int]) -> RowCounts:
    """The counts from the number of occurrences of each id, in at most `RANGES` ranges.

    The most frequent rows have ranges of their own; the others are joined to ranges with about as many lookups each.
    """
    total = sum(numbers.values())
    own = sorted(numbers, key=lambda row: (-numbers[row], row))[: RANGES // 2]
    alone = {row for row in own if numbers[row] * RANGES >= total}
    ranges: list[Range] = []
    start, last, count = -1, -1, 0
    for row in sorted(numbers):
        if row in alone or (start >= 0 and (count + numbers[row]) * RANGES > 2 * total):
            if start >= 0:
                ranges.append(Range(start, last + 1, count))
            start, count = -1, 0
        if row in alone:
            ranges.append(Range(row, row + 1, numbers[row]))
            continue
        if start < 0:
            start = row
        last, count = row, count + numbers[row]
    if start >= 0:
        ranges.append(Range(start, last + 1, count))
    return RowCounts(ranges)


# Reading and writing the file.


def counts_text(counts: IdCounts) -> str:
    """The counts as JSON."""
    tables = [{"table": name, "ranges": [[*each] for each in of.ranges]} for name, of in sorted(counts.tables.items())]
    return json_text({"version": VERSION, "batch_rows": counts.batch_rows, "tables": tables})


def read_counts(path: str) -> IdCounts:
    """The counts in a file. Raises DiagnosticError (`id-counts`, `input-unreadable`) with what is wrong, and where."""
    try:
        data = read_named(path, MOST_BYTES)
    except OSError as problem:
        raise DiagnosticError([error("input-unreadable", problem.strerror or str(problem), Location(path))]) from None
    try:
        held: object = json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise DiagnosticError([error("id-counts", describe_json_error(problem), Location(path))]) from None
    try:
        return _counts(held)
    except _Wrong as problem:
        raise DiagnosticError([error("id-counts", str(problem), Location(path))]) from None


class _Wrong(ValueError):
    """A file of counts is wrong, for the reason in the message."""


def _counts(held: object) -> IdCounts:
    if not isinstance(held, dict):
        raise _Wrong("it holds no counts of ids; `pstranspile rows --histogram` writes them")
    fields = cast("dict[str, Any]", held)
    if fields.get("version") != VERSION:
        raise _Wrong(f"its version is {fields.get('version')!r}; {VERSION} is read")
    rows, tables = fields.get("batch_rows"), fields.get("tables")
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1 or not isinstance(tables, list):
        raise _Wrong("`batch_rows` must be a whole number above 0, and `tables` a list")
    result: dict[str, RowCounts] = {}
    for table in cast("list[object]", tables):
        of_table = cast("dict[str, Any]", table) if isinstance(table, dict) else {}
        name, ranges = of_table.get("table"), of_table.get("ranges")
        if not isinstance(name, str) or not isinstance(ranges, list):
            raise _Wrong(f"table {len(result)} has no name, or no ranges")
        if name in result:
            raise _Wrong(f"table {name} is there twice")
        result[name] = RowCounts(_ranges(name, cast("list[Any]", ranges)))
    return IdCounts(rows, result)


def _ranges(name: str, held: Sequence[Any]) -> list[Range]:
    result: list[Range] = []
    before = 0
    for each in held:
        numbers = cast("list[Any]", each) if isinstance(each, list) else []
        if len(numbers) != 3 or not _is_range(numbers) or not before <= numbers[0] < numbers[1]:
            raise _Wrong(f"a range of {name} is {json.dumps(each)[:60]}; it must be [start, stop, count], in order")
        result.append(Range(*numbers))
        before = numbers[1]
    return result


def _is_range(numbers: Sequence[object]) -> bool:
    """Whether these are two ids, which are whole numbers, and a count, which may be a mean."""
    return all(map(_number, numbers)) and all(isinstance(each, int) for each in numbers[:2])


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 64
