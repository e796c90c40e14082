"""The place of the batch's rows in each variable of a program, from its declarations.

Random numbers of an op go by the rows of the whole batch (`pstranspile.runtime.kernels.random.row_numbers`), so it must
be known which axis counts these rows, also behind transpositions and reshapes, and in the steps of a loop. Element
order shows it: a tensor is some blocks (`before`), each holding a part of every row in order. A reshape doesn't change
this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.attributes import BlockRef, BlockRefs, Strings
from pstranspile.ir.model import Op, Program
from pstranspile.ops import facts_of
from pstranspile.ops.attributes import ints_attr
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.kernels.random.row_numbers import Rows
from pstranspile.runtime.kernels.sequences.arrays import RankTable
from pstranspile.runtime.run.batch import Batch, Part, part_of, rows_of, sequence_starts
from pstranspile.runtime.values import Array


class Axis(NamedTuple):
    """The axis of a variable that counts rows of the batch.

    `feed` is the input whose rows they are ("": any), `before` the dims that come before the axis. `table` names the
    rank table by which rows are sorted, the longest sequence first ("": they come in order).
    """

    feed: str = ""
    before: tuple[int, ...] = ()
    table: str = ""

    def outer(self, dims: tuple[int, ...]) -> int:
        """In how many blocks the rows of a value of these dims lie; open dims are taken from there."""
        real = zip(self.before, (*dims, *self.before[len(dims) :]), strict=False)
        return prod(there if dim < 0 else dim for dim, there in real)


UNKNOWN = Axis("", (-2,))
"""The place of the rows is unknown: an op has picked them by their content."""

Places = dict[tuple[int, str], "Axis | None"]
"""(Block that holds a variable, its name) -> where its rows lie, None if it has none of the batch."""


class BatchAxes:
    """The axes of all variables of a program; worked out in one pass over its ops."""

    def __init__(self, program: Program):
        self._program = program
        self._found: Places = {}
        self._seen: set[int] = set()
        self._block(0)

    def of(self, name: str, block: int = 0) -> Axis | None:
        """The axis of the rows of a variable that an op of a block means, None if it has none of the batch."""
        home = self._home(name, block)
        if (home, name) in self._found:
            return self._found[home, name]
        var = self._program.find_var(name, block)
        if var is None or var.persistable or not var.shape or var.shape[0] >= 0:
            return None  # an input with fixed dims is given whole to everyone
        return Axis(name)

    def _home(self, name: str, block: int) -> int:
        """The block that declares a variable."""
        blocks, seen = self._program.blocks, set[int]()
        while 0 <= block < len(blocks) and block not in seen:
            if name in blocks[block].vars:
                return block
            seen.add(block)
            block = blocks[block].parent
        return 0

    def _set(self, name: str, block: int, axis: Axis | None) -> None:
        self._found[self._home(name, block), name] = axis

    def _block(self, index: int) -> None:
        self._seen.add(index)
        for op in self._program.blocks[index].ops:
            inner = [block for block in _sub_blocks(op) if 0 < block < len(self._program.blocks)]
            for block in inner:
                if block not in self._seen:
                    self._enter(op, index, block)
                    self._block(block)
            if op.type == "recurrent":
                self._stacked(op, index, inner[0] if inner else index)
            elif not inner:
                self._op(op, index)

    def _enter(self, op: Op, outside: int, block: int) -> None:
        """The variables that a block's steps get: parts of inputs without their first dim, and states."""
        if op.type != "recurrent":
            return
        for name in op.inputs.get("inputs", ()):
            axis = self.of(name, outside)
            if axis is not None and axis is not UNKNOWN:
                axis = axis._replace(before=axis.before[1:]) if axis.before else UNKNOWN
            self._found[block, name] = axis
        before = op.attrs.get("ex_states")
        pairs = zip(before if isinstance(before, Strings) else (), op.inputs.get("initial_states", ()), strict=False)
        for name, start in pairs:
            self._found[block, name] = self.of(start, outside)

    def _stacked(self, op: Op, outside: int, block: int) -> None:
        """The outputs of a recurrence are those of its steps, one after the other."""
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
            self._set(name, block, self._made(op, block, name, given))

    def _made(self, op: Op, block: int, name: str, given: list[tuple[str, Axis]]) -> Axis | None:
        shape = self._shape(name, block)
        facts = facts_of(op.type)
        if facts.row_order == "by_values":
            return UNKNOWN if given else None
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
            return self._transposed(op, block, *given[0])
        return self._like(shape, block, given)

    def _shape(self, name: str, block: int) -> tuple[int, ...]:
        var = self._program.find_var(name, block)
        return var.shape if var is not None else ()

    def _transposed(self, op: Op, block: int, name: str, axis: Axis) -> Axis:
        shape, order = self._shape(name, block), ints_attr(op, "axis")
        place = len(axis.before)
        if shape[:place] != axis.before or place >= len(shape) or sorted(order) != list(range(len(shape))):
            return UNKNOWN
        return axis._replace(before=tuple(shape[other] for other in order[: order.index(place)]))

    def _like(self, shape: tuple[int, ...], block: int, given: Iterable[tuple[str, Axis]]) -> Axis | None:
        """The axis of the rows in what most ops make: that of an input of the same dims, else the open dim."""
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
    """The rows of a value of these dims. `axis` is where they lie, `lod` its LoD, if it has one.

    What has no axis is one row, the same on every machine. None if the rows are not known.
    """
    count = prod(dims)
    if axis is None:
        return Rows.one(count)
    if axis == UNKNOWN:
        return None
    if not count:
        return Rows(np.zeros(0, "int64"), 0)
    part = _part(axis.feed, feed)
    if part is None:
        return None
    if axis.table:
        return _sorted(part, find(axis.table), dims)
    if lod:
        return _ragged(part, lod, count)
    outer, present = axis.outer(dims), len(part.places)
    if not present or count % (outer * present) or (not axis.before and dims[0] % present):
        return None
    return Rows(part.places, count // present, outer, part.total)


def _part(name: str, feed: Mapping[str, Any]) -> Part | None:
    """The rows of the batch that were fed to an input (to any, if it has no name: all then have the same)."""
    if name:
        return part_of(feed, name) if name in feed else None
    parts_of: Mapping[str, Part | None] = feed.parts if isinstance(feed, Batch) else {}
    whole = [fed for fed in feed if fed not in parts_of]
    if len({rows_of(feed[fed]) for fed in whole}) > 1:
        return None
    parts = [part_of(feed, fed) for fed in feed if fed in parts_of or fed == whole[0]]  # one stands for those alike
    first = parts[0] if parts else None
    alike = all(p is not None and first is not None and np.array_equal(p.places, first.places) for p in parts)
    return first if alike else None


def _sorted(part: Part, table: Value | None, dims: tuple[int, ...]) -> Rows | None:
    """The rows of a step of ragged sequences, the longest first; shorter ones have ended."""
    if not isinstance(table, RankTable) or len(table.order) != len(part.places) or dims[0] > len(table.order):
        return None
    return Rows(part.places[table.order[: dims[0]]], prod(dims[1:]))


def _ragged(part: Part, lod: list[list[int]], count: int) -> Rows | None:
    """The sequences of a ragged value."""
    starts = sequence_starts(lod)
    if len(starts) != len(part.places) + 1 or count % max(int(starts[-1]), 1):
        return None
    inner = count // int(starts[-1]) if starts[-1] else 0
    sizes = np.diff(starts)
    return Rows(part.places, sizes * inner, 1, _starts(part, sizes, inner))


def _starts(part: Part, sizes: Array, inner: int) -> Array | None:
    """The elements that sequences begin with in the whole batch, if they are as long as those that were fed."""
    if part.starts is None or part.sizes is None or not np.array_equal(part.sizes, sizes):
        return None
    return part.starts * inner
