"""Files of text: lines in blocks, numbers found in them, and the formats CSV, JSON lines and Fluid's MultiSlot."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import isinf
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.cluster.data.columns import Chunk, Column, ColumnMapping, Input, map_columns
from pstranspile.cluster.data.files import ReadRequest, Unit, data_file_error, open_file, require_pyarrow
from pstranspile.cluster.data.tables import chunk_of, reading, require_widths, type_of
from pstranspile.ir.diagnostics import DiagnosticError, Note, error, shell_word
from pstranspile.ir.json_text import json_fault
from pstranspile.ir.model import Location
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import kind_of
from pstranspile.runtime.run.step_feeds import LeftOut
from pstranspile.runtime.values import Array

# Files with a row on each line, read in blocks of whole lines. Blank lines are not rows.

BLOCK = 1 << 22
"""The bytes of a block, to which the rest of its last line is added."""

LONGEST = 1 << 28
"""The most bytes of a line. A file without line ends, such as one that is nothing but a hole, is not a file of rows."""

_NEWLINE, _RETURN = 10, 13


class Lines(NamedTuple):
    """The rows of a block: the positions where their text starts and stops, and the number of each one's line, counted
    from 0.
    """

    data: bytes
    starts: Array
    stops: Array
    numbers: Array

    def __len__(self) -> int:
        return len(self.starts)

    def text(self, row: int) -> bytes:
        """The text of a row, without its line end."""
        return self.data[int(self.starts[row]) : int(self.stops[row])]

    def text_without(self, rows: Iterable[int]) -> bytes:
        """The text of all other rows, each with its line end."""
        left = set(rows)
        return b"".join(self.text(row) + b"\n" for row in range(len(self)) if row not in left)


def lines_of(data: bytes) -> Lines:
    """Finds the rows of a block."""
    array = np.frombuffer(data, "uint8")
    ends = np.flatnonzero(array == _NEWLINE)
    if len(array) and array[-1] != _NEWLINE:
        ends = np.append(ends, len(array))
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    stops = ends - ((ends > starts) & (array[np.maximum(ends - 1, 0)] == _RETURN)) if len(ends) else ends
    full = stops > starts
    return Lines(data, starts[full], stops[full], np.flatnonzero(full))


class _CarriageReturnFile:
    """A file whose lines end in carriage returns alone (CR), as text of old Macs does, with line feeds in place of
    them: each byte stays where it is.
    """

    def __init__(self, stream: Any):
        self._stream = stream

    def __enter__(self) -> _CarriageReturnFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, size: int) -> bytes:
        """The next bytes, `size` at most."""
        return self._stream.read(size).replace(b"\r", b"\n")

    def seek(self, place: int) -> None:
        """Goes on reading from a byte."""
        self._stream.seek(place)

    def readline(self, most: int) -> bytes:
        """The next line, with its end; `most` bytes of it at most."""
        parts: list[bytes] = []
        start, length = self._stream.tell(), 0
        while length < most and (data := self.read(min(_PIECE, most - length))):
            end = data.find(b"\n") + 1
            parts.append(data[:end] if end else data)
            length += len(parts[-1])
            if end:
                break
        self.seek(start + length)
        return b"".join(parts)


_PIECE = 1 << 16
"""The bytes that are read together in search of a line end."""


def _has_returns(file: str) -> bool:
    """Whether the first line of a file ends in a carriage return alone; so do all then. Raises DiagnosticError."""
    looked, last = 0, b""
    with open_file(file) as stream:
        while looked < BLOCK and (data := stream.read(_PIECE)):
            end = _LINE_END.search(last + data)
            if end is not None and (end.group() == b"\n" or end.end() < len(last) + len(data)):
                return end.group() == b"\r"
            last = b"\r" if data.endswith(b"\r") else b""
            looked += len(data)
    return bool(last)


_LINE_END = Pattern(rb"\r(?!\n)|\n")
"""Matches a line feed, and a carriage return without one."""


def _open_lines(file: str, *, returns: bool) -> Any:
    """Opens a file of lines; where they end in carriage returns alone (`returns`), these are read as line feeds."""
    stream = open_file(file)
    return _CarriageReturnFile(stream) if returns else stream


def blocks(file: str, *, returns: bool = False) -> Generator[tuple[int, bytes]]:
    """Yields the blocks of a file, each with the offset of its first byte. `returns`: its lines end in carriage returns
    alone. Raises DiagnosticError.
    """
    with _open_lines(file, returns=returns) as stream:
        at, left, rest = 0, 0, list[bytes]()
        while data := stream.read(BLOCK):
            end = data.rfind(b"\n") + 1
            if end:
                yield at, b"".join([*rest, data[:end]])
                at += left + end
                left, rest = len(data) - end, [data[end:]]
            else:
                left += len(data)
                rest.append(data)
            if left > LONGEST:
                raise too_long(file)
        if left:
            yield at, b"".join(rest)


def first_line(file: str, *, blank: bool = True) -> bytes:
    """The first line of a file, with its line end; with `blank=False` the first that is not blank. Raises
    DiagnosticError.
    """
    with _open_lines(file, returns=_has_returns(file)) as stream:
        while line := stream.readline(LONGEST + 1):
            if len(line) > LONGEST:
                raise too_long(file)
            if blank or line.strip():
                return line
    return b""


def too_long(file: str) -> DiagnosticError:
    """The error for a file with a line that is too long for a row."""
    return data_file_error(file, f"it has a line of more than {LONGEST >> 20} MiB, which no row has")


def read_block(unit: Unit) -> bytes:
    """The bytes of a unit. Raises DiagnosticError."""
    with _open_lines(unit.file, returns=unit.returns) as stream:
        stream.seek(unit.place)
        return stream.read(unit.size)


def units_of(file: str, header: int = 0) -> list[Unit]:
    """The units of a file, which are its blocks; `header` is the number of bytes of the line with the names."""
    result: list[Unit] = []
    first = line = 0
    returns = _has_returns(file)
    for place, data in blocks(file, returns=returns):
        start = min(max(header - place, 0), len(data))
        rows = len(lines_of(data[start:]))
        if rows:
            before = line + data.count(b"\n", 0, start)
            result.append(Unit(file, rows, first, place + start, len(data) - start, before, returns))
            first += rows
        line += data.count(b"\n")
    return result


# Conversion of many numbers in text at once: their positions in a block, and their values.

_SPACE, _DOT, _MINUS, _PLUS, _ZERO = 32, 46, 45, 43, 48

_LONGEST = 21
"""The most characters of a word that may be a number of 19 digits: the digits, a sign and a dot."""

_BYTES = 1 << 17
"""Bytes that are processed together, so that intermediate values stay in the processor's cache."""

_WORDS = 1 << 15
"""Words that are processed together."""


class Words(NamedTuple):
    """The words of a text, separated by white space: the positions where each starts and stops."""

    data: Array
    starts: Array
    stops: Array

    def text(self, word: int) -> str:
        """The text of a word."""
        return self.data[int(self.starts[word]) : int(self.stops[word])].tobytes().decode("ascii", "replace")


class Numbers(NamedTuple):
    """The numbers that words stand for: `digits` divided by ten to the power of `scale`, negative where `negative`.

    `odd` marks words that are not such a number, or that have more digits than 64 bits hold.
    """

    digits: Array
    scale: Array
    negative: Array
    odd: Array


def words_of(data: bytes) -> Words:
    """Finds the words of a text."""
    array = np.frombuffer(data, "uint8")
    found: list[Array] = []
    for at in range(0, len(array), _BYTES):
        inside = np.empty(min(_BYTES, len(array) - at) + 1, bool)
        inside[0] = at > 0 and array[at - 1] > _SPACE
        np.greater(array[at : at + _BYTES], _SPACE, out=inside[1:])
        edges = np.flatnonzero(inside[1:] != inside[:-1])
        edges += at
        found.append(edges)
    if len(array) and array[-1] > _SPACE:
        found.append(np.array([len(array)]))
    edges = np.concatenate([np.empty(0, "int64"), *found])
    return Words(array, edges[::2], edges[1::2])


def numbers_of(words: Words) -> Numbers:
    """Converts words to numbers."""
    made = [
        _numbers(Words(words.data, words.starts[at : at + _WORDS], words.stops[at : at + _WORDS]))
        for at in range(0, max(len(words.starts), 1), _WORDS)
    ]
    return made[0] if len(made) == 1 else Numbers(*map(np.concatenate, zip(*made, strict=True)))


def _numbers(words: Words) -> Numbers:
    sizes = words.stops - words.starts
    count, longest = len(sizes), min(int(sizes.max(initial=0)), _LONGEST)
    # words are sorted by length, so that those with a further character are the last ones
    order = np.minimum(sizes, _LONGEST + 1).astype("uint16").argsort(kind="stable")
    starts, sizes = words.starts[order], sizes[order]
    begins = sizes.searchsorted(np.arange(longest), side="right").tolist()
    digits, scale = np.zeros(count, "uint64"), np.zeros(count, "int8")
    odd, dotted = np.zeros(count, bool), np.zeros(count, bool)
    first = words.data[starts] if count else np.zeros(0, "uint8")
    negative = first == _MINUS
    signed = negative | (first == _PLUS)
    for column, begin in enumerate(begins):
        here = words.data[starts[begin:] + column]
        digit = here - np.uint8(_ZERO)
        plain = digit < 10
        total, after = digits[begin:], dotted[begin:]
        if plain.all():
            total *= np.uint64(10)
            total += digit
            scale[begin:] += after
            continue
        dot = (here == _DOT) & ~after
        odd[begin:] |= ~(plain | dot | signed[begin:] if column == 0 else plain | dot)
        scale[begin:] += after & plain
        np.multiply(total, np.uint64(10), out=total, where=plain)
        np.add(total, digit, out=total, where=plain)
        after |= dot
    odd |= dotted & (scale == 0)  # the dot comes last: a float
    odd |= (sizes - signed - dotted < 1) | (sizes - signed - dotted > 19) | (sizes > _LONGEST)
    back = np.empty(count, "int64")
    back[order] = np.arange(count)
    return Numbers(digits[back], scale[back], negative[back], odd[back])


def integers(words: Words, numbers: Numbers, chosen: Array) -> tuple[Array, Array]:
    """The chosen words as int64, and a mask of those that are no whole numbers. Ids of 64 bits keep their bits."""
    values = numbers.digits[chosen]
    wrong = numbers.odd[chosen] | numbers.scale[chosen].astype(bool)
    result = values.view("int64").copy()
    minus = numbers.negative[chosen]
    wrong |= (minus & (values > 1 << 63)) | (~minus & False)
    result[minus] = -result[minus]
    for index in np.flatnonzero(numbers.odd[chosen]).tolist():  # no number, or one that may be too long for 64 bits
        number = whole_number(words.text(int(chosen[index])))
        if number is not None:
            result[index] = number - (1 << 64) * (number >= 1 << 63)
            wrong[index] = False
    return result, wrong


def whole_number(text: str) -> int | None:
    """The whole number that a word stands for; None if it stands for none, or for one that 64 bits can't hold."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text.removeprefix("+"))
    short = digits.lstrip("0") or digits[:1]  # Python refuses to convert thousands of digits
    if not (digits.isascii() and digits.isdecimal()) or len(short) > 20:
        return None
    number = int(sign + short)
    return number if -(1 << 63) <= number < 1 << 64 else None


def floats(words: Words, numbers: Numbers, chosen: Array) -> tuple[Array, Array]:
    """The chosen words as float64, correctly rounded, and a mask of those that are no numbers."""
    digits, scale = numbers.digits[chosen], numbers.scale[chosen]
    result = digits.astype("float64") / _POWERS[np.minimum(scale, len(_POWERS) - 1)]
    result[numbers.negative[chosen]] *= -1
    hard = numbers.odd[chosen] | (digits > 1 << 53) | (scale >= len(_POWERS))
    wrong = np.zeros(len(chosen), bool)
    for index in np.flatnonzero(hard).tolist():
        try:
            result[index] = float(words.text(int(chosen[index])).replace("_", "x"))
        except ValueError:
            wrong[index] = True
    return result, wrong


_POWERS = 10.0 ** np.arange(23)
"""The powers of ten that a float64 holds exactly."""


# Fluid's MultiSlot text: on each line, for every slot in turn, how many values it has, and these values.

_VISIBLE = bytes(63 if byte < 32 and byte not in b"\t\n\v\f\r" else byte for byte in range(256))
"""A translation of bytes that makes control characters question marks: they are neither white space nor part of a
number.
"""


class _Slot(NamedTuple):
    """The values of a slot in the lines: the index of each line's first value among the words, and the number of
    values.
    """

    first_words: Array
    count: Array


class MultiSlotReader:
    """Reads a file of MultiSlot text. The slots have the given names, or else those of the inputs in the order of their
    declaration; slots that no input takes are left out.
    """

    def __init__(self, file: str, wanted: ReadRequest):
        self.file = file
        self._slots = list(wanted.names) or [one.name for one in wanted.inputs]
        self._inputs: dict[str, list[Input]] = {}
        for one, columns in map_columns(wanted.inputs, wanted.columns, self._slots, file, on_left=wanted.on_left):
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
    """A block that is being read."""

    def __init__(self, slots: list[str], inputs: dict[str, list[Input]], unit: Unit, data: bytes):
        self.slots, self.inputs, self.unit = slots, inputs, unit
        self.lines: Lines = lines_of(data)
        self.words: Words = words_of(data.translate(_VISIBLE))
        self.numbers: Numbers = numbers_of(self.words)
        self.reasons: dict[int, str] = {}

    def chunk(self) -> Chunk:
        """The rows of the block."""
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
            number, line = self.unit.first_row + row + 1, self.unit.line + int(self.lines.numbers[row]) + 1
            bad[row] = LeftOut(self.unit.file, number, self.reasons[row], line)
        return Chunk(len(self.lines), columns, bad)

    def _structure(self) -> tuple[Array, dict[str, _Slot]]:
        """The rows that have all slots and nothing else, and the positions of the slots in them."""
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
            slots[name] = _Slot(slot.first_words[good], slot.count[good])
        return rows[good], at[good], ends[good]

    def _fitting(self, rows: Array, slots: dict[str, _Slot]) -> Array:
        """The rows among `rows` that have as many values as the inputs take; `slots` are restricted to them."""
        for name, wanted in self.inputs.items():
            for one in wanted:
                count = slots[name].count
                good = count % one.width == 0 if one.levels else count == one.width
                times = "a multiple of " if one.levels else ""
                message = f"the number of values in the slot {name} is not {times}{one.width}, which {one.name} takes"
                rows, _, _ = self._keep(rows, good, message, slots, rows, rows)
        return rows

    def _column(self, one: Input, slot: _Slot, name: str, rows: Array) -> Column:
        """The column of an input; the values of rows with words that are no such numbers are arbitrary."""
        ends = np.cumsum(slot.count)
        total = int(ends[-1]) if len(ends) else 0
        chosen = np.arange(total) + np.repeat(slot.first_words - ends + slot.count, slot.count)
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


# CSV and JSON lines: blocks of lines that Arrow parses; bad lines are found by bisection.

_HEXADECIMAL = Pattern(r"0[xX][0-9a-fA-F]{1,16}")
"""Matches a hexadecimal number of 64 bits, which Arrow reads too."""

_LARGE = Pattern(rb"\d{19}")
"""Matches nineteen digits in a row: the least length of an id that may be too large for int64."""


_NUMBERED = Pattern(r"In CSV column #([0-9]+): ")
"""Matches the beginning of Arrow's message about a column with a value that it can't convert; the number is counted
from 0.
"""


class RowDefect(NamedTuple):
    """The reason why a row can't be fed, and the column of the text that is concerned, counted from 1; 0 for the whole
    row.
    """

    reason: str
    column: int = 0


_OF_CELLS = Pattern(r"Expected ([0-9]+) columns, got ([0-9]+)")
"""Matches Arrow's message about a row of CSV with too many or too few cells."""

_OF_A_CELL = Pattern(
    r"(?P<name>.*?): (?:CSV conversion error to (?P<kind>\S+): invalid value '(?P<value>.*)'"
    r"|Failed to parse string: '(?P<word>.*)' as a scalar of type (?P<type>\S+))",
    re.DOTALL,
)
"""Matches Arrow's message about a cell of CSV, or about a word in one."""


def _describe_valid_numbers(kind: str) -> str:
    """A description of the valid numbers for a type of Arrow: `int64`, `float`."""
    if kind.startswith("bool"):
        return "truth value (true or false)"
    bits = re.search("int([0-9]+)", kind)
    return f"whole number of {bits[1]} bits" if bits else "number"


def _why_of_cells(text: bytes, said: str) -> RowDefect:
    """The reason why a row of CSV can't be fed, from Arrow's message about it."""
    shape = _OF_CELLS.match(said)
    if shape:
        cells = f"{shape[2]} cell{'' if shape[2] == '1' else 's'}"
        quote = "; a quote in it is not closed" if text.count(b'"') % 2 else ""
        return RowDefect(f"it has {cells}, and the file has {shape[1]} columns{quote}")
    cell = _OF_A_CELL.match(said)
    if cell is None:
        return RowDefect(said)
    value = cell["value"] if cell["word"] is None else cell["word"]
    return RowDefect(
        f"{cell['name']}: {_short(value)} is no {_describe_valid_numbers(cell['kind'] or cell['type'])}",
        _column(text, value),
    )


def _column(text: bytes, value: str) -> int:
    """The position of a value in the text of a row, in characters counted from 1; 0 if it isn't found."""
    return text.decode("utf-8", errors="replace").find(value) + 1 if value else 0


def _short(value: object) -> str:
    shown = repr(value) if isinstance(value, str) else json_of(value)
    return shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."


LONGEST_SHOWN = 40
"""The most characters of a value that a reason quotes."""


def json_of(value: object) -> str:
    """A value in the notation of JSON."""
    import json

    return json.dumps(value)


_SURROGATE = Pattern("[\ud800-\udfff]")
"""Half of a character: JSON writes those of many scripts as two halves."""


def _why_of_objects(text: bytes, said: str, wanted: Mapping[str, bool], truths: Collection[str] = ()) -> RowDefect:
    """The reason why a line of JSON can't be fed, from Arrow's message about it.

    `wanted` has the names of columns, and whether their values are whole numbers; those of `truths` are true or false.
    """
    import json

    twice: list[str] = []
    large: list[str] = []

    def real(literal: str) -> float:
        if isinf(float(literal)):
            large.append(literal)
        return float(literal)

    def pairs(given: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(given)
        twice.extend(name for name in result if [key for key, _ in given].count(name) > 1)
        return result

    try:
        document: Any = json.loads(text.decode("utf-8"), object_pairs_hook=pairs, parse_float=real)
    except (ValueError, RecursionError) as problem:
        fault = json_fault(problem)
        return RowDefect(f"it is no JSON: {fault.reason}", fault.column)
    if not isinstance(document, dict):
        return RowDefect(f"a JSON object is expected, {_short(document)} is there")
    row = cast("dict[str, Any]", document)
    for name in twice:
        return RowDefect(f"{name} stands twice", text.decode("utf-8").rfind(json_of(name)) + 1)
    for name, whole in wanted.items():
        for value in _numbers_in(row.get(name)):
            if name in truths:
                if not isinstance(value, bool):
                    reason = f"{name}: {_short(value)} is not true or false, which the first line has there"
                    return RowDefect(reason, _column(text, json_of(name)))
                continue
            fits = isinstance(value, int | float) and not isinstance(value, bool)
            if not fits or (whole and not isinstance(value, int)):
                kind = "whole number" if whole else "number"
                shown = json_of(value)
                return RowDefect(
                    f"{name}: {_short(value)} is no {kind}", _column(text, shown) or _column(text, json_of(name))
                )
            if whole and not -(1 << 63) <= value < 1 << 64:
                return RowDefect(f"{name}: {value} is no id of 64 bits", _column(text, str(value)))
    for name in wanted:
        if "changed from" in said and f"(/{name}" in said:
            lists = "in lists as deep as in the first line"
            return RowDefect(
                f"{name}: numbers are expected {lists}, {_short(row.get(name))} is there", _column(text, json_of(name))
            )
    for literal in large:
        return RowDefect(f"{literal[:LONGEST_SHOWN]} is larger than a number of 64 bits can be", _column(text, literal))
    half = _SURROGATE.search(json.dumps(document, ensure_ascii=False))
    if half is not None:
        escape = f"\\u{ord(half[0]):04x}"
        at = text.decode("utf-8").lower().find(escape) + 1
        return RowDefect(f"{escape} is half of a character, and stands without the other half", at)
    return RowDefect(said)


def _numbers_in(value: Any) -> Generator[Any]:
    """Yields the values in nested lists, without None."""
    if isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from _numbers_in(one)
    elif value is not None:
        yield value


class LineReader:
    """Reads a file of lines that `parse` converts to a table; it raises Arrow's exceptions for lines that it can't
    convert. `objects`: the lines are JSON.
    """

    def __init__(
        self,
        file: str,
        mapped: Sequence[ColumnMapping],
        header: int,
        parse: Callable[[bytes], Any],
        *,
        objects: bool = False,
        why: Callable[[bytes, str], RowDefect],
    ):
        self.file = file
        self._objects = objects
        self._column_map = mapped
        self._header = header
        self._parse = parse
        self._rejection_reason = why
        """Returns the reason why a row can't be fed, from the row's text and Arrow's message about it."""

    def units(self) -> list[Unit]:
        """A unit for each block of lines."""
        return units_of(self.file, self._header)

    def read(self, unit: Unit) -> Chunk:
        """The rows of a block."""
        import pyarrow

        data = read_block(unit)
        reasons = _unfit(data, unit.place == 0, self._objects)
        if not reasons:
            with suppress(pyarrow.ArrowException):
                table = self._parse(data)
                if table.num_rows == unit.rows:
                    return self._chunk(table, unit, data, {})
        lines = lines_of(data)
        self._search(lines, [row for row in range(len(lines)) if row not in reasons], reasons)
        left = lines.text_without(reasons)
        with reading(self.file):
            table = self._parse(left)
        return self._chunk(table, unit, data, reasons)

    def _chunk(self, table: Any, unit: Unit, data: bytes, reasons: dict[int, RowDefect]) -> Chunk:
        kept = np.array([row for row in range(unit.rows) if row not in reasons]) if reasons else np.arange(unit.rows)
        chunk = chunk_of(table, self._column_map, unit)
        if not reasons and not chunk.bad:
            return chunk
        reasons = {**reasons, **{int(kept[row]): RowDefect(bad.reason) for row, bad in chunk.bad.items()}}
        lines = lines_of(data)
        bad = {
            row: LeftOut(
                self.file,
                unit.first_row + row + 1,
                reasons[row].reason,
                unit.line + int(lines.numbers[row]) + 1,
                reasons[row].column,
            )
            for row in sorted(reasons)
        }
        return Chunk(unit.rows, chunk.columns, bad, chunk.names)

    def _search(self, lines: Lines, rows: Sequence[int], reasons: dict[int, RowDefect]) -> None:
        """Records the rows among `rows` that can't be parsed, with the reasons."""
        import pyarrow

        if not rows:
            return
        reason = "it is more than one row"
        try:
            text = b"".join(lines.text(row) + b"\n" for row in rows)
            if self._parse(text).num_rows == len(rows):
                return
        except pyarrow.ArrowException as problem:
            reason = str(problem).strip().splitlines()[0]
        if len(rows) == 1:
            returns = b"\r" in lines.text(rows[0]) and reason == "it is more than one row"
            reason += ": a carriage return stands in it" if returns else ""
            reasons[rows[0]] = self._rejection_reason(lines.text(rows[0]), _plain(reason))
            return
        middle = len(rows) // 2
        self._search(lines, rows[:middle], reasons)
        self._search(lines, rows[middle:], reasons)


_MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8, with which a text may begin."""

_NULL = Pattern(rb"(?:^|[}\n\xbf])[ \t\r]*null")
"""Matches a null that may be a JSON value of its own: on a line, or after an object."""


def _unfit(data: bytes, first: bool, objects: bool) -> dict[int, RowDefect]:
    """The rows of a block that must not be given to Arrow, with the reasons. `first`: the block begins the file;
    `objects`: its lines are JSON.

    Arrow ignores a byte order mark at the beginning of any block, and fails at a JSON null in place of an object.
    """
    marked = data.find(_MARK, len(_MARK) if first else 0) >= 0
    null = objects and b"null" in data and _NULL.search(data) is not None
    if not (marked or null):
        return {}
    result: dict[int, RowDefect] = {}
    lines = lines_of(data)
    for row in range(len(lines)):
        text = lines.text(row)
        if text.startswith(_MARK) and not (first and not row):
            result[row] = RowDefect("it begins with a byte order mark")
        elif null and _NULL.search(text) is not None and not _is_object(text):
            result[row] = RowDefect("it is no JSON object")
    return result


def _is_object(text: bytes) -> bool:
    """Whether a line is one JSON object."""
    import json

    try:
        return isinstance(json.loads(text.removeprefix(_MARK)), dict)
    except (ValueError, RecursionError):
        return False


def _plain(reason: str) -> str:
    """Arrow's message about a single line, without the line's position in the parsed text."""
    for mark in ("Row #1: ", "in row 0: ", "JSON parse error: ", "CSV parse error: "):
        reason = reason.replace(mark, "")
    return reason.removesuffix(" in row 0")


def _first_line_of(file: str) -> str:
    """A command that prints the first line of a file."""
    return f"head -n 1 {shell_word(file)}"


def _about_names(names: Sequence[str]) -> list[Note]:
    """Notes about the first line of a file, which was taken for the names of its columns."""
    if any(map(_is_number, names)):
        letters = ",".join([*_LETTERS[: len(names)], *(["..."] if len(names) > len(_LETTERS) else [])])
        how = f"name the {len(names):,} columns with --names {letters} (in Python: names=)"
        return [Note(f"the first line of the file, which holds numbers, is taken for names; if it is a row, {how}")]
    taken = "the first line of the file is taken for the names of its columns"
    return [Note(f"{taken}; if it is a row, --names names them")]


class _UnexpectedSeparator(NamedTuple):
    """A separator other than the expected one, and what to say about it."""

    sign: bytes
    note: str


def _about_separator(line: bytes, delimiter: str) -> _UnexpectedSeparator | None:
    """The separator of a line that lacks the delimiter; None if there is none, or if the line has the delimiter."""
    if delimiter.encode() in line:
        return None
    times = {sign: line.count(sign) for sign in (b";", b"\t", b"|", b",") if sign in line}
    if not times:
        return None
    sign = max(times, key=lambda known: times[known])
    shown = "tab" if sign == b"\t" else f"'{sign.decode()}'"
    python = repr(sign.decode())
    note = (
        f"the fields of its first line stand between {'tabs' if shown == 'tab' else shown}, which --separator {shown}"
    )
    return _UnexpectedSeparator(sign, f"{note} says (in Python: separator={python})")


_LETTERS = "abc"
"""Names of columns in an example."""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _stream(data: bytes) -> Any:
    """A text as a stream in Arrow's own memory.

    Arrow reads ahead in a thread of its own, also after an error has ended the reading. If that thread takes hold of an
    object of Python while the process ends, the process is aborted.
    """
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    sink.write(data)
    return pyarrow.BufferReader(sink.getvalue())


def csv_reader(file: str, wanted: ReadRequest, delimiter: str = ",") -> LineReader:
    """A reader of comma-separated values. The first line of the file has the names of the columns, unless they are
    given.

    The numbers of a ragged input are in one cell, separated by white space; an empty cell is an empty list. Raises
    DiagnosticError.
    """
    require_pyarrow(file)
    import pyarrow
    from pyarrow import csv

    names, header = list(wanted.names), 0
    delimiter = wanted.separator or delimiter
    first = first_line(file)
    separated = _about_separator(first, delimiter)
    if names and separated and first.count(separated.sign) == len(names) - 1:
        raise data_file_error(file, f"its rows have one field each, not {len(names)}: {separated.note}")
    if not names:
        header = len(first)
        names = _names_in(first, delimiter, file)
    notes = [] if wanted.names else [Note(separated.note)] if separated else _about_names(names)
    mapped = map_columns(
        wanted.inputs, wanted.columns, names, file, shown_by=_first_line_of(file), notes=notes, on_left=wanted.on_left
    )
    require_widths(mapped, lambda _: 1, file, names)
    ragged = {name: one for one, columns in mapped if one.levels for name in columns}

    def parse(data: bytes, ids: Any) -> Any:
        kinds = {name: _kind(one, ids) for one, columns in mapped for name in columns}
        singly = {name for one, columns in mapped for name in columns if ids is None and one.dtype == "int64"}
        types = {name: pyarrow.string() if name in {*ragged, *singly} else kind for name, kind in kinds.items()}
        if not data:
            listed = {name: pyarrow.list_(kind) if name in ragged else kind for name, kind in kinds.items()}
            return pyarrow.table({name: pyarrow.array([], kind) for name, kind in listed.items()})
        try:
            table = csv.read_csv(
                _stream(data),
                csv.ReadOptions(column_names=names, block_size=max(len(data), 1)),
                csv.ParseOptions(delimiter=delimiter, ignore_empty_lines=False),
                csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=[""]),
            )
        except pyarrow.ArrowInvalid as problem:
            raise pyarrow.ArrowInvalid(_NUMBERED.sub(lambda at: f"{names[int(at[1])]}: ", str(problem))) from None
        for name in types:
            column, kind = table.column(name), kinds[name]
            if name in ragged:
                kind, column = pyarrow.list_(kind), _words(column)
            try:
                if name in singly:
                    column = pyarrow.array(_signed_ids(_numbers_of_column(column.to_pylist())), kind)
                elif name in ragged:
                    column = column.cast(kind)
            except pyarrow.ArrowException as problem:
                raise pyarrow.ArrowInvalid(f"{name}: {problem}") from None
            table = table.set_column(table.column_names.index(name), name, column)
        return table

    return LineReader(file, mapped, header, _with_large_ids(mapped, parse), why=_why_of_cells)


def _names_in(line: bytes, delimiter: str, file: str) -> list[str]:
    """The names in the first line of a file of CSV. Raises DiagnosticError.

    Arrow would keep what it has to convert each column, ten thousand bytes of it, for as many columns as there are.
    """
    import csv

    try:
        text = line.removeprefix(_MARK).decode("utf-8").rstrip("\r\n")
        limit = csv.field_size_limit(len(text) + 1)
        try:
            names = next(csv.reader([text], delimiter=delimiter), list[str]())
        finally:
            csv.field_size_limit(limit)
    except UnicodeDecodeError:
        kind = kind_of(line)
        told = "its first line, with the names of its columns, is not UTF-8" if kind is None else str(kind)
        raise data_file_error(file, told) from None
    except csv.Error:
        names = []
    if not names:
        raise data_file_error(file, "it has no first line with the names of its columns")
    return names


def _words(cells: Any) -> Any:
    """The words of each cell of a column; an empty cell has none."""
    import pyarrow
    from pyarrow import compute

    cells = compute.utf8_trim_whitespace(pyarrow.chunked_array(cells).combine_chunks())
    words = compute.utf8_split_whitespace(cells)
    empty = compute.equal(cells, "").to_numpy(zero_copy_only=False)
    if not empty.any():
        return words
    sizes = compute.list_value_length(words).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(np.where(empty, 0, sizes))])
    kept = words.flatten().filter(compute.not_equal(words.flatten(), ""))
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets, "int32"), kept)


def json_reader(file: str, wanted: ReadRequest) -> LineReader:
    """A reader of a file with a JSON object on each line. Raises DiagnosticError."""
    require_pyarrow(file)
    import pyarrow
    from pyarrow import json

    example = _first_object(file)
    mapped = (
        map_columns(
            wanted.inputs, wanted.columns, list(example), file, shown_by=_first_line_of(file), on_left=wanted.on_left
        )
        if example is not None
        else []
    )
    if example is not None:
        held = example
        require_widths(mapped, lambda name: None if isinstance(held[name], list | None) else 1, file, list(held))
    truths = frozenset(name for _, names in mapped for name in names if _is_truth((example or {})[name]))
    ids_in = {name for one, names in mapped if one.dtype == "int64" for name in names if name not in truths}

    def parse(data: bytes, ids: Any) -> Any:
        fields = {
            name: _json_type(pyarrow.bool_() if name in truths else _kind(one, ids), (example or {})[name])
            for one, names in mapped
            for name in names
        }
        if not data:
            return pyarrow.table({name: pyarrow.array([], kind) for name, kind in fields.items()})
        singly = {name: fields.pop(name) for name in sorted(ids_in)} if ids is None else {}
        columns = {name: pyarrow.array(_ids_of(data, name), kind) for name, kind in singly.items()}
        if fields:
            options = json.ParseOptions(
                explicit_schema=pyarrow.schema(list(fields.items())), unexpected_field_behavior="ignore"
            )
            table = json.read_json(_stream(data), json.ReadOptions(block_size=len(data) + 1), options)
            columns = {**{name: table.column(name) for name in fields}, **columns}
        return pyarrow.table(columns)

    whole = {name: "int" in one.dtype for one, names in mapped for name in names}
    why = partial(_why_of_objects, wanted=whole, truths=truths)
    return LineReader(file, mapped, 0, _with_large_ids(mapped, parse), objects=True, why=why)


def _ids_of(data: bytes, name: str) -> list[Any]:
    """The ids in a column of JSON lines: ints, None, or nested lists of them. Raises pyarrow.ArrowInvalid for a line
    that is not a JSON object.
    """
    import json

    import pyarrow

    try:
        return [_signed_ids(json.loads(line).get(name)) for line in data.split(b"\n") if line.strip()]
    except (ValueError, AttributeError, RecursionError):
        raise pyarrow.ArrowInvalid("a line is no JSON object") from None


def _with_large_ids(mapped: Sequence[ColumnMapping], parse: Callable[[bytes, Any], Any]) -> Callable[[bytes], Any]:
    """A function that parses lines to a table, also lines with ids of 64 bits that int64 can't hold.

    `parse` is called with lines and the type for ids; in the last attempt the type is None, and ids are converted one
    by one. The function raises Arrow's exceptions.
    """
    import pyarrow

    has_ids = any(one.dtype == "int64" for one, _ in mapped)

    def read(data: bytes) -> Any:
        try:
            return parse(data, pyarrow.int64())
        except pyarrow.ArrowException as problem:
            if has_ids and _LARGE.search(data):
                with suppress(pyarrow.ArrowException):
                    return parse(data, pyarrow.uint64())
                with suppress(pyarrow.ArrowException):
                    return parse(data, None)
            raise problem from None

    return read


def _kind(one: Input, ids: Any) -> Any:
    """The type of Arrow as which the numbers of an input are read; `ids` is used for int64, and None stands for int64
    itself.
    """
    return ids if ids is not None and one.dtype == "int64" else type_of(one)


def _signed_ids(value: Any) -> Any:
    """Ids as signed numbers with the same bits, in nested lists; None is unchanged. Raises Arrow's exceptions."""
    import pyarrow

    if isinstance(value, list):
        return [_signed_ids(one) for one in cast("list[Any]", value)]
    if value is None:
        return None
    if type(value) is not int or not -(1 << 63) <= value < 1 << 64:
        raise pyarrow.ArrowInvalid(f"{value!r} is no id of 64 bits")
    return value - (1 << 64) if value >= 1 << 63 else value


def _numbers_of_column(value: Any) -> Any:
    """The whole numbers in nested lists of words. A word that is none is unchanged, and an empty one becomes None."""
    if isinstance(value, list):
        return [_numbers_of_column(one) for one in cast("list[Any]", value)]
    text = value.strip(" \t") if value else ""  # Arrow accepts no sign but -
    if _HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    number = whole_number(text) if not text.startswith("+") else None
    return number if number is not None else value or None


def _first_object(file: str) -> dict[str, Any] | None:
    """The object on the first line, whose names are those of the columns; None for a file without rows.

    Raises DiagnosticError.
    """
    import json

    first = first_line(file, blank=False)
    if not first:
        return None
    try:
        result = json.loads(first.removeprefix(_MARK))
    except (ValueError, RecursionError) as problem:
        kind = kind_of(first) if isinstance(problem, UnicodeDecodeError) else None
        if kind is not None:
            raise data_file_error(file, str(kind)) from None
        fault = json_fault(problem)
        where = Location(file, _first_row(file), max(fault.column, 1))
        raise DiagnosticError([error("data-source", f"its first line is no JSON: {fault.reason}", where)]) from None
    if not isinstance(result, dict):
        raise data_file_error(file, f"its first line is no JSON object, but {_short(result)}")
    return cast("dict[str, Any]", result)


def _first_row(file: str) -> int:
    """The number of the first line that is not blank. Raises DiagnosticError."""
    number = 1
    with _open_lines(file, returns=_has_returns(file)) as stream:
        while (line := stream.readline(LONGEST + 1)) and not line.strip():
            number += 1
    return number


def _is_truth(example: Any) -> bool:
    """Whether the first value in nested lists is true or false."""
    while isinstance(example, list) and example:
        example = cast("list[Any]", example)[0]
    return isinstance(example, bool)


def _json_type(kind: Any, example: Any) -> Any:
    """The type of Arrow for numbers of a type in lists nested as deeply as those of an example."""
    import pyarrow

    while isinstance(example, list) and example:
        kind, example = pyarrow.list_(kind), cast("list[Any]", example)[0]
    return pyarrow.list_(kind) if example == [] else kind
