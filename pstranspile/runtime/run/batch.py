"""The feeds of a step, the rows of the whole batch that they hold, and where these rows lie in each variable of a
program.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.argument_checks import check_arguments, expect, expect_number
from pstranspile.ir.attributes import BlockRef, BlockRefs, Strings
from pstranspile.ir.model import Op, Program
from pstranspile.ops import facts_of
from pstranspile.ops.attributes import ints_attr
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.kernels.random import Rows
from pstranspile.runtime.kernels.sequences.arrays import RankTable
from pstranspile.runtime.values import Array, LoDTensor


class Part(NamedTuple):
    """The part of an input of the whole batch that a machine is fed: rows, or, of a ragged input, sequences.

    `places` are the numbers of these rows in the whole batch, `total` is the number of rows there. `starts` are the
    first rows of the sequences in the whole batch, `sizes` the numbers of rows of the sequences.
    """

    places: Array
    total: int
    starts: Array | None = None
    sizes: Array | None = None


@check_arguments
class Batch(dict[str, Any]):
    """The feeds of a step, by name. `parts` maps an input to its part of the whole batch (default: all rows; None:
    unknown). `rows` is the number of rows that the loss is a mean of (None: unknown), `weight` the factor, 0 or
    above, by which these rows count.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        parts: Mapping[str, Part | None],
        *,
        rows: int | None = None,
        weight: float = 1.0,
    ):
        if rows is not None:
            expect_number(rows, "Batch", "a number of rows", least=0)
        if weight < 0:
            raise ValueError(f"Batch takes a weight of 0 or above, not {weight}")
        for part in parts.values():
            if part.__class__ is not Part and part is not None:
                expect(part, Part, "Batch", "a Part or None for each input as parts")
        self._fill(values, parts, rows, weight)

    def _fill(
        self, values: Mapping[str, Any], parts: Mapping[str, Part | None], rows: int | None, weight: float
    ) -> None:
        self.update(values)
        self.parts = parts
        self.rows = rows
        self.weight = weight


def unchecked_batch(
    values: Mapping[str, Any], parts: Mapping[str, Part | None], *, rows: int | None = None, weight: float = 1.0
) -> Batch:
    """The batch of arguments that are known to be right: every step makes one, and their checks take longer."""
    batch = Batch.__new__(Batch)
    batch._fill(values, parts, rows, weight)  # pyright: ignore[reportPrivateUsage]
    return batch


class Dealt(dict[str, Any]):
    """The feeds of a step, by name, whose rows are dealt to machines as they say: of an input in `rows`, so many to
    each machine, in order; None for a machine that has no batch in the step.
    """

    def __init__(self, values: Mapping[str, Any], rows: Mapping[str, Sequence[int | None]]):
        super().__init__(values)
        self.rows = {name: tuple(counts) for name, counts in rows.items()}

    def is_without(self, machine: int, machines: int) -> bool:
        """Whether a machine, of so many, has no batch in the step."""
        return any(len(counts) == machines and counts[machine] is None for counts in self.rows.values())

    def share(self, name: str, size: int, machine: int, machines: int) -> tuple[int, int] | None:
        """The first row of an input for a machine and that after its last one; None where so many rows, or for so many
        machines, are not what is dealt.
        """
        counts = [count or 0 for count in self.rows.get(name, ())]
        if len(counts) != machines or sum(counts) != size:
            return None
        first = sum(counts[:machine])
        return first, first + counts[machine]


def rows_of(value: Value) -> int:
    """The number of rows of a fed value; of a ragged value, the number of sequences."""
    if value.__class__ is np.ndarray and value.ndim:  # the usual case
        return len(value)
    if isinstance(value, LoDTensor) and value.lod:
        return len(value.lod[0]) - 1
    data = value.data if isinstance(value, LoDTensor) else np.asarray(value)
    return data.shape[0] if data.ndim else 0


def has_rows(value: Any) -> bool:
    """Whether a fed value has a dim of rows: no number, no text, and no list of rows of different lengths has."""
    if value.__class__ is np.ndarray:  # the usual case
        return value.ndim > 0
    if isinstance(value, LoDTensor):
        return True
    try:
        return np.ndim(value) > 0
    except ValueError:
        return False


def sequence_starts(lod: Sequence[Sequence[int]]) -> Array:
    """The first row of each sequence of level 0, followed by the total number of rows."""
    starts = np.asarray(lod[0], "int64")
    for level in lod[1:]:
        starts = np.asarray(level, "int64")[starts]
    return starts


def part_of(feed: Mapping[str, Any], name: str) -> Part | None:
    """The part of the whole batch that the value of an input holds; all rows, unless the feed is a part of a batch."""
    if isinstance(feed, Batch) and name in feed.parts:
        return feed.parts[name]
    return _whole(feed[name])


def _whole(value: Value) -> Part:
    count = rows_of(value)
    if not isinstance(value, LoDTensor) or not value.lod:
        return Part(np.arange(count), count)
    starts = sequence_starts(value.lod)
    return Part(np.arange(count), count, starts[:-1], np.diff(starts))


def select_rows(value: Value, order: Sequence[int] | Array, part: Part | None = None) -> tuple[Value, Part]:
    """(rows of an array, or sequences of a LoDTensor, with the numbers `order`, in this order; the part of the whole
    batch that they are).

    `part` is the part of the whole batch that the value holds (default: all).
    """
    numbers = np.asarray(order, "int64")
    array = value.data if isinstance(value, LoDTensor) else np.asarray(value)
    if not isinstance(value, LoDTensor) or not value.lod:
        old = part or Part(np.arange(len(array)), len(array))
        return array[_as_slice(numbers)], old._replace(places=old.places[numbers])
    old = part or _whole(value)
    lod: list[list[int]] = []
    inner = numbers
    for level in value.lod:
        offsets = np.asarray(level, "int64")
        sizes = offsets[inner + 1] - offsets[inner]
        lod.append([0, *np.cumsum(sizes).tolist()])
        inner = np.repeat(offsets[inner], sizes) + _counts(sizes)
    assert old.starts is not None
    assert old.sizes is not None
    made = Part(old.places[numbers], old.total, old.starts[numbers], old.sizes[numbers])
    return LoDTensor(array[_as_slice(inner)], lod), made


def select_range(value: LoDTensor, start: int, stop: int) -> tuple[LoDTensor, Part]:
    """What `select_rows` gives for the sequences from `start` up to `stop` of a value with sequences."""
    if not value.lod:
        return LoDTensor(value.data[start:stop], []), Part(np.arange(start, stop), len(value.data))
    lod: list[list[int]] = []
    first, last = start, stop
    for level in value.lod:
        offsets = level[first : last + 1]
        if offsets.__class__ is not list:
            offsets = np.asarray(offsets, "int64").tolist()
        first, last = offsets[0], offsets[-1]
        lod.append([offset - first for offset in offsets])
    rows = np.asarray(lod[-1], "int64") + first
    for level in reversed(lod[:-1]):
        rows = rows[level]
    part = Part(np.arange(start, stop), len(value.lod[0]) - 1, rows[:-1], np.diff(rows))
    return LoDTensor(value.data[first:last], lod), part


def concat_shares(shares: Sequence[Mapping[str, Any]], names: Container[str]) -> Batch:
    """The concatenated shares of one batch: the rows of the inputs `names` one after another; for other inputs, the
    value of the first share.
    """
    values, parts = dict(shares[0]), dict[str, Part | None]()
    for name in values:
        if name in names:
            values[name] = _concat_values([share[name] for share in shares])
            parts[name] = _parts_together([part_of(share, name) for share in shares])
    return unchecked_batch(values, parts)


def _concat_values(values: Sequence[Value]) -> Value:
    if not isinstance(values[0], LoDTensor):
        return np.concatenate([np.asarray(value) for value in values])
    lod: list[list[int]] = []
    for levels in zip(*(value.lod for value in values), strict=True):
        offsets = [0]
        for level in levels:
            end = offsets[-1]
            offsets += [end + offset for offset in level[1:]]
        lod.append(offsets)
    return LoDTensor(np.concatenate([value.data for value in values]), lod)


def _parts_together(parts: Sequence[Part | None]) -> Part | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    starts = [part.starts for part in known if part.starts is not None]
    sizes = [part.sizes for part in known if part.sizes is not None]
    return Part(
        np.concatenate([part.places for part in known]),
        known[0].total,
        np.concatenate(starts) if len(starts) == len(known) else None,
        np.concatenate(sizes) if len(sizes) == len(known) else None,
    )


def _counts(sizes: Array) -> Array:
    return np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _as_slice(numbers: Array) -> Any:
    """Consecutive ascending numbers as a slice, with which indexing copies nothing; other numbers unchanged."""
    if not len(numbers):
        return slice(0, 0)
    if int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1 and (np.diff(numbers) == 1).all():
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


# The place of the batch's rows in each variable of a program, from its declarations.
#
# Random numbers of an op go by the rows of the whole batch (`pstranspile.runtime.kernels.random`), so it must be known
# which axis counts these rows, also behind transpositions and reshapes, and in the steps of a loop. Element order shows
# it: a tensor is some blocks (`before`), each holding a part of every row in order. A reshape doesn't change this.


class Axis(NamedTuple):
    """The axis of a variable that counts rows of the batch.

    `feed` is the input to which the rows belong ("": any), `before` are the dims before the axis. `table` is the rank
    table by which the rows are sorted, the longest sequence first ("": the rows are in order).
    """

    feed: str = ""
    before: tuple[int, ...] = ()
    table: str = ""

    def outer(self, dims: tuple[int, ...]) -> int:
        """The number of blocks in which the rows of a value of these dims lie; `dims` replace unknown dims (-1) of
        `before`.
        """
        real = zip(self.before, (*dims, *self.before[len(dims) :]), strict=False)
        return prod(there if dim < 0 else dim for dim, there in real)


UNKNOWN = Axis("", (-2,))
"""The place of the rows is unknown, because an op has selected them by their content."""

Places = dict[tuple[int, str], "Axis | None"]
"""A mapping from (block that declares a variable, its name) to the axis of the batch's rows in it, None if it has no
rows of the batch.
"""


class BatchAxes:
    """The axes of all variables of a program, determined in one pass over its ops."""

    def __init__(self, program: Program):
        self._program = program
        self._axes: Places = {}
        self._visited_blocks: set[int] = set()
        self._block(0)

    def of(self, name: str, block: int = 0) -> Axis | None:
        """The axis of the batch's rows in a variable as an op of a block sees it, None if the variable has no rows of
        the batch.
        """
        home = self._home(name, block)
        if (home, name) in self._axes:
            return self._axes[home, name]
        var = self._program.find_var(name, block)
        if var is None or var.persistable or not var.shape or var.shape[0] >= 0:
            return None  # every machine is fed all of an input with fixed dims
        return Axis(name)

    def _home(self, name: str, block: int) -> int:
        """The block that declares the variable `name` as a block sees it; 0 if none does."""
        blocks, seen = self._program.blocks, set[int]()
        while 0 <= block < len(blocks) and block not in seen:
            if name in blocks[block].vars:
                return block
            seen.add(block)
            block = blocks[block].parent
        return 0

    def _set(self, name: str, block: int, axis: Axis | None) -> None:
        self._axes[self._home(name, block), name] = axis

    def _block(self, index: int) -> None:
        self._visited_blocks.add(index)
        for op in self._program.blocks[index].ops:
            inner = [block for block in _sub_blocks(op) if 0 < block < len(self._program.blocks)]
            for block in inner:
                if block not in self._visited_blocks:
                    self._enter(op, index, block)
                    self._block(block)
            if op.type == "recurrent":
                self._set_stacked_axes(op, index, inner[0] if inner else index)
            elif not inner:
                self._op(op, index)

    def _enter(self, op: Op, outside: int, block: int) -> None:
        """Sets the axes of the variables that the steps of a recurrence start with: slices of inputs without their
        first dim, and states.
        """
        if op.type != "recurrent":
            return
        for name in op.inputs.get("inputs", ()):
            axis = self.of(name, outside)
            if axis is not None and axis is not UNKNOWN:
                axis = axis._replace(before=axis.before[1:]) if axis.before else UNKNOWN
            self._axes[block, name] = axis
        before = op.attrs.get("ex_states")
        pairs = zip(before if isinstance(before, Strings) else (), op.inputs.get("initial_states", ()), strict=False)
        for name, start in pairs:
            self._axes[block, name] = self.of(start, outside)

    def _set_stacked_axes(self, op: Op, outside: int, block: int) -> None:
        """Sets the axes of a recurrence's outputs: the stacked outputs of its steps."""
        for name in op.outputs.get("outputs", ()):
            axis = self.of(name, block)
            if axis is not None and axis is not UNKNOWN:
                axis = axis._replace(before=(-1, *axis.before))
            self._set(name, outside, axis)

    def _op(self, op: Op, block: int) -> None:
        given = [(name, axis) for name in op.input_names if (axis := self.of(name, block)) is not None]
        for name in op.output_names:
            var = self._program.find_var(name, block)
            if op.type == "read" or var is None or var.persistable:
                continue
            self._set(name, block, self._output_axis(op, block, name, given))

    def _output_axis(self, op: Op, block: int, name: str, given: list[tuple[str, Axis]]) -> Axis | None:
        shape = self._shape(name, block)
        facts = facts_of(op.type)
        if facts.row_order == "by_values":
            return self._selected_axis(op, block, shape, given) if given else None
        if facts.row_order in ("handed_on", "ranked"):
            first = next((axis for _, axis in given), None)
            ranked = facts.row_order == "ranked"
            table = op.input("RankTable") or "" if ranked else ""
            sorted_ = first is not None and first is not UNKNOWN and (ranked or op.type == "array_to_lod_tensor")
            return first._replace(table=table) if first is not None and sorted_ else first
        if not given:
            return Axis() if shape and shape[0] == -1 else None
        if UNKNOWN in [axis for _, axis in given]:
            return UNKNOWN
        if facts.numbers == "in_order":
            axis = given[0][1]
            return None if -1 not in shape else UNKNOWN if -1 in axis.before else axis
        if op.type in ("transpose", "transpose2"):
            return self._transposed_axis(op, block, *given[0])
        return self._like(shape, block, given)

    def _shape(self, name: str, block: int) -> tuple[int, ...]:
        var = self._program.find_var(name, block)
        return var.shape if var is not None else ()

    def _selected_axis(self, op: Op, block: int, shape: tuple[int, ...], given: list[tuple[str, Axis]]) -> Axis:
        """The axis of the rows in what an op selects by their content, or by the same places on every machine."""
        source, axis = given[0]
        known, place = self._shape(source, block), len(axis.before)
        alone = len(given) == 1 and source == op.input("X") and bool(op.input("Index"))
        if alone and known[:place] == axis.before and len(shape) == len(known) and shape[place : place + 1] == (-1,):
            return axis._replace(before=shape[:place])  # of each row, such as columns
        return UNKNOWN

    def _transposed_axis(self, op: Op, block: int, name: str, axis: Axis) -> Axis:
        shape, order = self._shape(name, block), ints_attr(op, "axis")
        place = len(axis.before)
        if shape[:place] != axis.before or place >= len(shape) or sorted(order) != list(range(len(shape))):
            return UNKNOWN
        return axis._replace(before=tuple(shape[other] for other in order[: order.index(place)]))

    def _like(self, shape: tuple[int, ...], block: int, given: Iterable[tuple[str, Axis]]) -> Axis | None:
        """The axis of the rows in the result of most ops: that of an input of the same dims, else the unknown dim."""
        candidates = list(given)
        if -1 not in shape:
            return None
        for name, axis in candidates:
            if self._shape(name, block) == shape:
                return axis
        axis = candidates[0][1]
        if shape.count(-1) == 1 and not (axis.before == () and shape[0] == -1):
            return axis._replace(before=shape[: shape.index(-1)])
        return axis if shape[: len(axis.before)] == axis.before else UNKNOWN


def _sub_blocks(op: Op) -> list[int]:
    result: list[int] = []
    for value in op.attrs.values():
        result += [int(value)] if type(value) is BlockRef else list(map(int, value)) if type(value) is BlockRefs else []
    return result


# Which rows of the whole batch a value holds, from where they lie and what was fed.


def find_rows(
    axis: Axis | None,
    dims: tuple[int, ...],
    lod: list[list[int]] | None,
    feed: Mapping[str, Any],
    find: Callable[[str], Value | None],
) -> Rows | None:
    """The rows of the whole batch that a value of these dims holds. `axis` is their axis, `lod` the value's LoD, if it
    has one.

    A value without an axis is a single row, the same on every machine. None if the rows are not known.
    """
    count = prod(dims)
    if axis is None:
        return Rows.single_row(count)
    if axis == UNKNOWN:
        return None
    if not count:
        return Rows(np.zeros(0, "int64"), 0)
    part = _part(axis.feed, feed)
    if part is None:
        return None
    if axis.table:
        return _ranked_rows(part, find(axis.table), dims)
    if lod:
        return _ragged_rows(part, lod, count)
    outer, present = axis.outer(dims), len(part.places)
    if not present or count % (outer * present) or (not axis.before and dims[0] % present):
        return None
    return Rows(part.places, count // present, outer, part.total)


def _part(name: str, feed: Mapping[str, Any]) -> Part | None:
    """The part of the whole batch that was fed to an input (without a name: to any input, if all have
    the same part).
    """
    if name:
        return part_of(feed, name) if name in feed else None
    parts_of: Mapping[str, Part | None] = feed.parts if isinstance(feed, Batch) else {}
    whole = [fed for fed in feed if fed not in parts_of]
    if len({rows_of(feed[fed]) for fed in whole}) > 1:
        return None
    parts = [part_of(feed, fed) for fed in feed if fed in parts_of or fed == whole[0]]  # one stands for all equal ones
    first = parts[0] if parts else None
    alike = all(p is not None and first is not None and np.array_equal(p.places, first.places) for p in parts)
    return first if alike else None


def _ranked_rows(part: Part, table: Value | None, dims: tuple[int, ...]) -> Rows | None:
    """The rows of a step of ragged sequences, the longest sequence first, without the sequences that have ended; None
    if they are not known.
    """
    if not isinstance(table, RankTable) or len(table.order) != len(part.places) or dims[0] > len(table.order):
        return None
    return Rows(part.places[table.order[: dims[0]]], prod(dims[1:]))


def _ragged_rows(part: Part, lod: list[list[int]], count: int) -> Rows | None:
    """The rows of a ragged value, each of which is a sequence; None if they are not known."""
    starts = sequence_starts(lod)
    if len(starts) != len(part.places) + 1 or count % max(int(starts[-1]), 1):
        return None
    inner = count // int(starts[-1]) if starts[-1] else 0
    sizes = np.diff(starts)
    return Rows(part.places, sizes * inner, 1, _starts(part, sizes, inner))


def _starts(part: Part, sizes: Array, inner: int) -> Array | None:
    """The first element of each sequence in the whole batch, if the sequences are as long as those that were fed; None
    otherwise.
    """
    if part.starts is None or part.sizes is None or not np.array_equal(part.sizes, sizes):
        return None
    return part.starts * inner
