"""Runs similar optimizer ops as one: their small parameters lie side by side in one array, which one call of the kernel
updates.

An optimizer op treats every element alike, which is why a parameter may be cut into slices. So its kernel gives bitwise
the same for concatenated parameters as for separate ones. A step of many small ones then costs as much as one. The
variables stay what they are: each is a view of its part. Whenever a condition fails (a variable of the scope was set
anew, a gradient is sparse or missing), `step` does nothing and returns False, and the ops run one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import prod
from operator import is_
from typing import Any, NamedTuple, Protocol

import numpy as np

from pstranspile.ir.model import FrozenMap, Program
from pstranspile.ir.types import VarKind
from pstranspile.ops import schema_of
from pstranspile.ops.schema import Slicing
from pstranspile.runtime.arithmetic import loops, same_everywhere
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.kernels.rows import AS_ROWS
from pstranspile.runtime.run.bound_ops import BoundOp

LARGEST = 1 << 15
"""The most elements of a parameter that is grouped; for larger ones, the arithmetic costs more than the calls."""

_FEWEST = 2

_APART = 16
"""Parts begin at multiples of this many elements, with the alignment that arrays of their own would have."""

_STEPS_PER_MOVE = 16
"""The number of steps after which moving the variables together pays off."""


class Slots(NamedTuple):
    """How the arguments of similar ops are combined, by slot.

    `updated_slots` are slots of variables that the ops update, Param first; `gradient_slots` are slots that each op
    reads for its parameter (gradients); `shared_slots` are slots whose variables all ops have in common. `numbers` maps
    the slots of `updated_slots` whose variables have one element, which must be equal for all ops (powers of beta), to
    the indices of their results.
    """

    updated_slots: tuple[str, ...]
    gradient_slots: tuple[str, ...]
    shared_slots: tuple[str, ...]
    numbers: FrozenMap[str, int]


class Writable(Protocol):
    """A mapping in which variables can be set by name."""

    def __setitem__(self, name: str, value: Value, /) -> None: ...


class Group:
    """Optimizer ops that run together, and the arrays that hold the variables that they update."""

    def __init__(self, ops: Sequence[BoundOp], slots: Slots):
        self.ops = tuple(ops)
        self.slots = slots
        self.updated_variables = _variables(ops, slots.updated_slots)
        """The updated variables that lie side by side, slot by slot."""
        self.gradient_variables = _variables(ops, slots.gradient_slots)
        self.shared_variables = _variables(ops[:1], slots.shared_slots)
        self.loose = True
        """Whether some variables do not lie in the group's arrays."""
        self._views: tuple[Any, ...] = ()
        self._all: dict[str, Any] = {}
        self._parts: tuple[Any, ...] = ()
        """The parts of arrays to which the gradients of the ops are copied."""
        self._arguments: list[Any] = []
        """The arguments of the kernel; the shared ones are set in every step."""
        places = {argument.slot: place for place, argument in enumerate(ops[0].arguments)}
        self._shared_places = [places[slot] for slot in slots.shared_slots]
        self._steps = self._moves = 0

    def step(self, kept: tuple[Value, ...], given: tuple[Value, ...], shared: tuple[Value, ...]) -> bool:
        """Updates the variables in place. Returns False without any change if a condition is not met."""
        self._steps += 1
        if self.loose or not all(map(is_, kept, self._views)):
            self.loose = True
            return False
        if not same_everywhere() or not self._numbers_agree() or not self._copy_gradients(given):
            return False
        for place, value in zip(self._shared_places, shared, strict=True):
            self._arguments[place] = value
        made = self.ops[0].run(*self._arguments)
        for slot, place in self.slots.numbers.items():
            self._all[slot][:] = made[place]
        return True

    def _copy_gradients(self, given: tuple[Value, ...]) -> bool:
        """Copies the gradients to their parts. Returns False without any change if one is of another kind."""
        if loops.copy_each(given, self._parts):
            return True
        for part, value in zip(self._parts, given, strict=True):
            if value.__class__ is not np.ndarray or value.shape != part.shape or value.dtype != part.dtype:
                return False
        for part, value in zip(self._parts, given, strict=True):
            part[...] = value
        return True

    def _numbers_agree(self) -> bool:
        count = len(self.ops)
        for slot in self.slots.numbers:
            held = self._all[slot].tobytes()
            if held != held[: len(held) // count] * count:
                return False
        return True

    def move(self, find: Callable[[str], Value], held: Writable) -> None:
        """Moves the variables into arrays of the group, if possible, and not more often than it pays off."""
        if self._moves * _STEPS_PER_MOVE >= self._steps + 3 * _STEPS_PER_MOVE:
            return
        self._moves += 1
        self._views, self._all = (), {}
        values = [find(name) for name in self.updated_variables]
        count = len(self.ops)
        params = values[:count]
        if not all(value.__class__ is np.ndarray for value in values):
            return
        for number, slot in enumerate(self.slots.updated_slots):
            mine = values[number * count : (number + 1) * count]
            alike = [value.size == 1 for value in mine] if slot in self.slots.numbers else [
                value.shape == param.shape for value, param in zip(mine, params, strict=True)
            ]  # fmt: skip
            if not all(alike) or len({value.dtype for value in mine}) > 1:
                return
        views: list[Any] = []
        for number, slot in enumerate(self.slots.updated_slots):
            mine = values[number * count : (number + 1) * count]
            self._all[slot], parts = _side_by_side(mine, 1 if slot in self.slots.numbers else _APART)
            for part, value in zip(parts, mine, strict=True):
                part[...] = value
            views += parts
        gradient_parts: list[Any] = []
        for slot in self.slots.gradient_slots:
            self._all[slot], parts = _side_by_side(params, _APART)
            gradient_parts += parts
        self._parts = tuple(gradient_parts)
        whole = {slot: array[:1] if slot in self.slots.numbers else array for slot, array in self._all.items()}
        self._arguments = [whole.get(argument.slot) for argument in self.ops[0].arguments]
        for name, view in zip(self.updated_variables, views, strict=True):
            held[name] = view
        self._views, self.loose = tuple(views), False


def _variables(ops: Sequence[BoundOp], slots: Sequence[str]) -> list[str]:
    return [bound.op.inputs[slot][0] for slot in slots for bound in ops]


def _side_by_side(likes: Sequence[Any], apart: int) -> tuple[Any, list[Any]]:
    """(an array with room for all these arrays; views of it with the dims of each array)."""
    starts = [0]
    for like in likes:
        starts.append(starts[-1] + -(-like.size // apart) * apart)
    whole = np.zeros(starts[-1], likes[0].dtype)
    parts = [whole[at : at + like.size].reshape(like.shape) for at, like in zip(starts, likes, strict=False)]
    return whole, parts


class _SimilarOps:
    """Indices of similar ops. `ended`: a later op accesses the same variables, so that the ops can't wait for further
    ones.
    """

    def __init__(self) -> None:
        self.members: list[int] = []
        self.ended = False

    def end(self) -> None:
        """Records that a later op accesses the variables of these ops."""
        self.ended = True


def find_groups(program: Program, ops: Sequence[BoundOp]) -> Iterator[tuple[list[int], Group]]:
    """Yields groups of similar optimizer ops, with their indices. A group may run at the place of its last op: no op in
    between writes variables that its ops read or write, or reads variables that they write.
    """
    runs: list[_SimilarOps] = []
    latest: dict[object, _SimilarOps] = {}
    readers: defaultdict[str, set[_SimilarOps]] = defaultdict(set)
    writers: defaultdict[str, set[_SimilarOps]] = defaultdict(set)
    for index, bound in enumerate(ops):
        reads, writes = list(bound.op.input_names), list(bound.op.output_names)
        for names, users in ((reads, writers), (writes, readers), (writes, writers)):
            for name in names:
                for run in users.get(name, ()):
                    run.end()
        if bound.looks:
            latest.clear()
        kind = _kind(program, bound)
        if kind is None:
            continue
        run = latest.get(kind)
        if run is None or run.ended:
            run = latest[kind] = _SimilarOps()
            runs.append(run)
        run.members.append(index)
        for names, users in ((reads, readers), (writes, writers)):
            for name in names:
                users[name].add(run)
    for run in runs:
        slots = _slots(program, ops[run.members[0]])
        if len(run.members) >= _FEWEST and slots is not None:
            yield run.members, Group([ops[index] for index in run.members], slots)


def _kind(program: Program, bound: BoundOp) -> object:
    """A key that is equal for optimizer ops that may run together; None for any other op."""
    slots, schema, op = _slots(program, bound), schema_of(bound.op.type), bound.op
    if slots is None or schema is None or AS_ROWS in op.attrs or not _is_small(program, op.inputs["Param"][0]):
        return None
    attrs = tuple(op.attrs.get(name, schema.defaults.get(name)) for name in schema.attrs)
    return op.type, attrs, slots, tuple(_variables([bound], slots.shared_slots))


def _is_small(program: Program, name: str) -> bool:
    var = program.main_block.vars[name]
    return (
        var.tensor is not None and 0 <= prod(max(dim, LARGEST + 1) if dim < 0 else dim for dim in var.shape) <= LARGEST
    )


def _slots(program: Program, bound: BoundOp) -> Slots | None:
    """How an op can be run with others; None if it can't, because it is no optimizer that treats every
    element alike.
    """
    schema = schema_of(bound.op.type)
    if schema is None or not schema.is_optimizer or schema.whole_norm:
        return None
    updated = {result.names[0]: place for place, result in enumerate(bound.results) if result.names}
    variables = program.main_block.vars
    updated_slots: list[str] = []
    gradient_slots: list[str] = []
    shared_slots: list[str] = []
    numbers: dict[str, int] = {}
    for argument in bound.arguments:
        slot, names, duplicable, may_lack = argument
        if duplicable or may_lack or argument.is_frame:
            return None
        if not names:
            continue
        var = variables.get(names[0])
        if var is None or var.kind is not VarKind.LOD_TENSOR:
            return None
        follows = schema.slicing[slot] is Slicing.FOLLOWS
        if names[0] in updated and var.persistable:
            updated_slots.append(slot)
            if not follows:
                numbers[slot] = updated[names[0]]
            del updated[names[0]]
        else:
            (gradient_slots if follows else shared_slots).append(slot)
    if updated or updated_slots[:1] != ["Param"]:
        return None
    return Slots(tuple(updated_slots), tuple(gradient_slots), tuple(shared_slots), FrozenMap(numbers))
