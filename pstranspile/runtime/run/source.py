"""A program's block 0 as the source of one Python function, with a local variable for every variable.

The function gives bitwise the same results as running the ops one by one. It is faster because slots, variables,
attributes and kernels are resolved once. Short kernels become expressions (`Kernel.inline`). LoD is read only where it
may exist: it has a local of its own (`lv2` for `v2`, None if there is none), and a LoDTensor is made where an op needs
one.

    def step(frame, find, held, feeds):
        v0, v1 = feeds
        v2 = find('fc_0.w_0')
        if not (ndarray is v2.__class__): raise GuardFailed
        v3 = k0(v0, v2)
        ...
"""

from __future__ import annotations

import operator
import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from math import prod
from types import FunctionType, TracebackType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.model import FrozenMap, Op, Program
from pstranspile.ir.types import VarKind
from pstranspile.ops import facts_of, with_defaults
from pstranspile.ops.attributes import flag, real
from pstranspile.runtime.arithmetic import FUNCTIONS, NUMBERS, either
from pstranspile.runtime.kernels.kernel import OVER, Value, kernel_of
from pstranspile.runtime.kernels.math.elementwise import OVER_TERM
from pstranspile.runtime.kernels.programs.io import FEEDING
from pstranspile.runtime.kernels.rows import AS_ROWS, FEWEST_ELEMENTS, LARGE_TABLE
from pstranspile.runtime.kernels.tables.embedding import LOOKUP_GRADIENTS
from pstranspile.runtime.run.bound_ops import EMPTY_NAME, BoundOp, bind, lod_sources, present
from pstranspile.runtime.run.fused_updates import Group, find_groups
from pstranspile.runtime.values import LoDTensor

# The local variables of generated code, with the knowledge about their values and the place of a value's LoD.
#
# A value that may have LoD is split for an op that takes none: one local then holds the data, another one (`lv2` for
# `v2`) the LoD, or None if there is none. A LoDTensor is made for an op that needs one.


class ValueKind(IntEnum):
    """The knowledge about a variable's value at some place: none, that it has no LoD, or that it is a plain array."""

    ANYTHING = 0
    NO_LOD = 1
    ARRAY = 2


class LocalValues(ABC):
    """Lines of generated code, and the knowledge about the local variables at the last line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._indent = "    "
        self.owners: dict[int, int] = {}
        """A mapping from a line of the source to the index of the op that it belongs to."""
        self.locals: dict[str, str] = {}
        self.kinds: dict[str, ValueKind] = {}
        self.split_names: set[str] = set()
        """The variables whose local holds only the data (see `kinds`); another local holds the LoD."""
        self.optional_names: set[str] = set()
        """The variables whose local may be None, because an op need not have written them."""

    @abstractmethod
    def _persistable(self, name: str) -> bool:
        """Whether a variable is kept from step to step."""

    def _local(self, name: str) -> str:
        return self.locals.setdefault(name, f"v{len(self.locals)}")

    def _add(self, line: str, op: int = -1) -> None:
        self.lines.append(self._indent + line)
        self.owners[len(self.lines)] = op

    def _least(self, bound: BoundOp) -> ValueKind:
        """The least knowledge about any input of an op."""
        return min(
            (ValueKind.ANYTHING if name in self.split_names else self.kinds[name] for name in bound.reads),
            default=ValueKind.ARRAY,
        )

    def _whole(self, name: str) -> str:
        """An expression for the value of a variable, including its LoD."""
        v = self._local(name)
        return f"({v} if l{v} is None else new(LoDTensor, ({v}, l{v})))" if name in self.split_names else v

    def _join(self, index: int, name: str) -> None:
        """Adds a line after which the local of a variable holds its value including its LoD."""
        if name in self.split_names:
            v = self._local(name)
            self._add(f"if l{v} is not None: {v}, l{v} = new(LoDTensor, ({v}, l{v})), None", index)
            self.split_names.discard(name)
            self.kinds[name] = ValueKind.ANYTHING

    def _takes_apart(self, index: int, bound: BoundOp) -> bool:
        """Adds lines after which the locals of all inputs of an op hold no LoD, if its kernel takes none; returns False
        if that is not possible.
        """
        result_names = [name for name in bound.makes if name != EMPTY_NAME]
        if (
            bound.sees_lod
            or self._least(bound) is not ValueKind.ANYTHING
            or any(result.duplicable for result in bound.results)
        ):
            return False
        ragged = [
            name for name in bound.reads if name not in self.split_names and self.kinds[name] is ValueKind.ANYTHING
        ]
        if any(map(self._persistable, (*result_names, *ragged))) or not self.kinds.keys().isdisjoint(result_names):
            return False
        for name in ragged:
            v = self._local(name)
            self._add(f"{v}, l{v} = {v} if {v}.__class__ is LoDTensor else ({v}, None)", index)
            self.kinds[name] = ValueKind.NO_LOD
        self.split_names.update(ragged)
        return True

    def _give_lods(self, index: int, bound: BoundOp) -> None:
        """Adds lines that give the results of an op, which the locals hold, the LoD of its inputs (see
        `bound.with_lod`).
        """
        sources = lod_sources(bound.arguments, bound.results, bound.lod)
        for result, places in zip(bound.results, sources, strict=True):
            mine = dict.fromkeys(name for place in places for name in bound.arguments[place].names)
            given = [name for name in mine if name in self.split_names]
            for name in result.names[:1] if given else ():
                if name != EMPTY_NAME:
                    v = self._local(name)
                    self._add(f"l{v} = {' or '.join(f'l{self._local(each)}' for each in given)}", index)
                    array = "" if self.kinds[name] is ValueKind.ARRAY else f"{v}.__class__ is ndarray and "
                    fits = f"l{v} and {array}{v}.ndim and len({v}) == l{v}[-1][-1]"
                    self._add(f"if not ({fits}): l{v} = None", index)
                    self.split_names.add(name)

    def _arguments(self, bound: BoundOp, *, whole: bool = False) -> str:
        def argument_text(name: str) -> str:
            return "None" if name == EMPTY_NAME else self._whole(name) if whole else self._local(name)

        parts: list[str] = []
        for argument in bound.arguments:
            _, names, duplicable, _ = argument
            if argument.is_frame:
                parts.append("frame")
            elif duplicable:
                parts.append(f"[{', '.join(map(argument_text, names))}]")
            else:
                parts.append(argument_text(names[0]) if names else "None")
        return ", ".join(parts)

    def _written(self, name: str, kind: ValueKind, *, sure: bool) -> None:
        self.kinds[name] = kind
        if sure:
            self.optional_names.discard(name)
        else:
            self.optional_names.add(name)


# Short ops as expressions over the local variables of generated code (`Kernel.inline`).


def expression_of(bound: BoundOp, local: Callable[[str], str], *, over: bool, call: str = "") -> str | None:
    """The expression of an op, None if its kernel has none for it. `over`: the expression may overwrite the memory of
    X. `call` is a call of the kernel.
    """
    kernel = bound.kernel
    names = bound.results[0].names if bound.results else ()
    others = any(result.names for result in bound.results[1:])
    if kernel is None or others or len(names) != 1 or EMPTY_NAME in (*names, *bound.op.input_names):
        return None
    if any(argument.may_lack for argument in bound.arguments):
        return None
    texts = (
        text(with_defaults(bound.op)) if callable(text) else text for text in (kernel.over, kernel.inline)[not over :]
    )
    text = next((text for text in texts if text is not None), None)
    if text is None:
        return None
    values: Mapping[str, str | list[str]] = {
        slot.replace("@", "_"): [local(name) for name in given] if _is_list(bound, slot) else local(given[0])
        for slot, given in bound.op.inputs.items()
        if given
    }
    return text.format(**values, call=call)


def makes_new(bound: BoundOp, name: str) -> bool:
    """Whether an op always gives a variable a new array to which nothing else refers."""
    kernel = bound.kernel
    return kernel is not None and kernel.new and bound.op.output(kernel.outputs[0]) == name


def _reads_dims_only(bound: BoundOp, name: str) -> bool:
    """Whether an op uses nothing of a variable but its dims."""
    slots = {slot for slot, names in bound.op.inputs.items() if name in names}
    return bool(slots) and slots.issubset(facts_of(bound.op.type).dims_only.split())


def is_private(name: str, reader: int, ops: Sequence[BoundOp], users: Iterable[int], makers: Sequence[int]) -> bool:
    """Whether one op creates the value of a variable in new memory, the later op `reader` reads it, and all other ops
    use only its dims.

    `makers` are those of the `users` of a variable that write it.
    """
    if len(makers) != 1 or makers[0] >= reader or not makes_new(ops[makers[0]], name):
        return False
    return all(_reads_dims_only(ops[at], name) for at in users if at not in (*makers, reader))


def over_first(bound: BoundOp, is_spare: Callable[[str | None], bool]) -> BoundOp:
    """An op that may write its result into the memory of X, if `is_spare` is true of X and the kernel supports it;
    otherwise the op unchanged.
    """
    kernel = bound.kernel
    if kernel is None or not kernel.reuses or not is_spare(bound.op.input("X")):
        return bound
    return bind(bound.op._replace(attrs=FrozenMap({**bound.op.attrs, OVER: True})))


def over_a_term(bound: BoundOp, is_spare: Callable[[str], bool]) -> BoundOp:
    """A sum that may be computed in the memory of one of its terms, if `is_spare` is true of the term; any other op
    unchanged.
    """
    sums = bound.op.type == "sum" and AS_ROWS not in bound.op.attrs
    terms = bound.op.inputs.get("X", ()) if sums else ()
    times = Counter(terms)
    spare = [place for place, name in enumerate(terms) if times[name] == 1 and is_spare(name)]
    return bind(bound.op._replace(attrs=FrozenMap({**bound.op.attrs, OVER_TERM: spare[0]}))) if spare else bound


def _is_list(bound: BoundOp, slot: str) -> bool:
    return any(argument.slot == slot and argument.duplicable for argument in bound.arguments)


# Gradients of tables that remain sparse rows, if no op depends on the zeros of all other rows.
#
# An optimizer that changes nothing where the gradient is 0 gives bitwise the same results from the rows, and a step
# then costs as much as the rows that it looked up. Other optimizers may take the rows, too, which saves making and
# reading the zeros.


def gradients_as_rows(program: Program, fetches: Collection[str], uses: _Uses) -> frozenset[str]:
    """The gradients that may be sparse rows: results of lookups' gradient ops, or sums of such results, for the update
    of a large table, which nothing else reads.
    """
    written, read = uses
    result: set[str] = set()
    for op in program.main_block.ops:
        least = _rows_above(op)
        if least is None or not _is_larger(program, op.inputs["Param"][0], least):
            continue
        names = list(_made_from(op.inputs["Grad"][0], written))
        single_use = all(len(written[name]) == len(read[name]) == 1 and name not in fetches for name in names)
        if single_use and all(_is_temporary(program, name) for name in names):
            result.update(names)
    return frozenset(result)


def gradients_merged_by_readers(program: Program, fetches: Collection[str], uses: _Uses) -> frozenset[str]:
    """The gradients of lookups with `merge_rows` whose only reader, an optimizer, merges repeated rows in the same way,
    so that the lookup's gradient op need not.
    """
    written, read = uses
    return frozenset(
        name
        for op in program.main_block.ops
        if facts_of(op.type).merges_repeats
        for name in op.inputs["Grad"]
        if len(written[name]) == len(read[name]) == 1
        and written[name][0].type in LOOKUP_GRADIENTS
        and flag(written[name][0], "merge_rows")
        and name not in fetches
        and (var := program.main_block.vars.get(name)) is not None
        and not var.persistable
    )


class _Uses(NamedTuple):
    """The ops of all blocks that write, and that read, a variable."""

    written: Mapping[str, list[Op]]
    read: Mapping[str, list[Op]]


def _uses_of(program: Program) -> _Uses:
    written: dict[str, list[Op]] = defaultdict(list)
    read: dict[str, list[Op]] = defaultdict(list)
    for block in program.blocks:
        for op in block.ops:
            for name in op.output_names:
                written[name].append(op)
            for name in op.input_names:
                read[name].append(op)
    return _Uses(written, read)


def bind_as_rows(op: Op) -> BoundOp:
    """A lookup's gradient op that gives rows, or the sum or optimizer that takes them. In Fluid's arithmetic optimizers
    take dense gradients, because the result for an element depends on its position.
    """
    rows, dense = bind(op._replace(attrs=FrozenMap({**op.attrs, AS_ROWS: True}))), bind(op)
    return rows._replace(run=either(rows.run, dense.run), run_any=either(rows.run_any, dense.run_any))


def _rows_above(op: Op) -> int | None:
    """The number of elements above which the gradient of an optimizer op's parameter may be rows; None if it may not.

    Adam changes all elements of its moments in any case, so that rows pay off in large tables only.
    """
    if op.type == "adam":
        return LARGE_TABLE
    takes_rows = op.type == "sgd" or (op.type == "adagrad" and real(with_defaults(op), "epsilon") > 0)
    return FEWEST_ELEMENTS if takes_rows else None


def _made_from(gradient: str, written: Mapping[str, list[Op]]) -> Iterator[str]:
    """The gradient and, if it is a sum, its terms; "", which no op writes, in place of one that no lookup makes."""
    makers = written[gradient]
    yield gradient
    for maker in makers:
        if maker.type == "sum":
            for term in maker.inputs["X"]:
                yield term if _is_lookup(written[term]) else ""
        elif not _is_lookup(makers):
            yield ""


def _is_lookup(makers: list[Op]) -> bool:
    return len(makers) == 1 and makers[0].type in LOOKUP_GRADIENTS and not flag(makers[0], "is_sparse")


def _is_larger(program: Program, name: str, least: int) -> bool:
    var = program.main_block.vars.get(name)
    return var is not None and var.kind is VarKind.LOD_TENSOR and var.tensor is not None and prod(var.shape) > least


def _is_temporary(program: Program, name: str) -> bool:
    var = program.main_block.vars.get(name)
    return var is not None and not var.persistable and var.kind is VarKind.LOD_TENSOR


class GuardFailed(Exception):
    """Raised before the first op if a variable of the scope does not hold a plain array, as the code requires."""


class MissingValue(Exception):
    """Raised by generated code at an op that reads a variable without a value."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


def deep_ops(program: Program, op: Op) -> Iterator[Op]:
    """Yields the op and the ops of its sub-blocks, recursively."""
    todo, seen = [op], set[int]()
    while todo:
        inner = todo.pop()
        yield inner
        for value in inner.attrs.values():
            refs = (int(value),) if type(value) is BlockRef else value if type(value) is BlockRefs else ()
            for block in refs:
                if block not in seen and 0 <= block < len(program.blocks):
                    seen.add(block)
                    todo.extend(program.blocks[block].ops)


def reads_of(program: Program) -> frozenset[str]:
    """The variables that ops of any block read."""
    return frozenset(name for block in program.blocks for op in block.ops for name in op.input_names)


class Source(LocalValues):
    """Generates the function of block 0. `not_plain` are the variables of the scope whose value is no plain array.

    `reads` are the variables that the program reads, where these are known already (`reads_of`).
    """

    PARAMETERS: ClassVar = "frame, find, held, feeds"

    def __init__(
        self,
        program: Program,
        feeds: Sequence[str],
        fetches: Sequence[str],
        not_plain: frozenset[str],
        groups: dict[tuple[str, ...], Group] | None = None,
        block: int = 0,
        reads: frozenset[str] | None = None,
    ):
        super().__init__()
        self.program = program
        self.number, self.block = block, program.blocks[block]
        self.feeds = feeds
        self.fetches = fetches
        self.not_plain = not_plain
        known = reads_of(program) if reads is None else reads
        self._read_names = known.union(fetches) if fetches else known
        self.as_rows = self.unmerged = frozenset[str]()
        if not block:
            uses = _uses_of(program)
            self.as_rows = gradients_as_rows(program, fetches, uses)
            self.unmerged = gradients_merged_by_readers(program, fetches, uses)
        self.bound = list(self._sure(map(self.bind, self.block.ops)))
        self.variables_by_op = [self._touched_variables(op) for op in self.block.ops]
        self.users: defaultdict[str, list[int]] = defaultdict(list)
        """The numbers of the ops that mention a variable, in order."""
        self.makers: defaultdict[str, list[int]] = defaultdict(list)
        """The numbers of the ops that write a variable, in order."""
        for index, bound in enumerate(self.bound):
            for name in dict.fromkeys(bound.op.output_names):
                self.makers[name].append(index)
        for index, touched in enumerate(self.variables_by_op):
            for name in touched:
                self.users[name].append(index)
        self.groups: dict[int, tuple[list[int], Group]] = {}
        """A mapping from the index of the last op of a group to (the indices of all its ops, the group)."""
        self.grouped: set[int] = set()
        if groups is not None:
            for indexes, group in find_groups(program, self.bound):
                self.groups[indexes[-1]] = indexes, groups.setdefault(tuple(group.updated_variables), group)
                self.grouped.update(indexes)
        self.names: dict[str, Any] = {
            "ndarray": np.ndarray,
            "GuardFailed": GuardFailed,
            "MissingValue": MissingValue,
            **FUNCTIONS,
            **NUMBERS,
        }
        self.names |= {"LoDTensor": LoDTensor, "new": vars(tuple)["__new__"], "imul": vars(operator)["imul"]}
        """The globals of the function."""
        self.loaded_names: list[str] = []
        """The variables that the function reads from the scope."""
        self.last_ops: dict[str, int] = {}
        for index, touched in enumerate(self.variables_by_op):
            self.last_ops.update(dict.fromkeys(touched, index))
        for index, (members, _) in self.groups.items():
            for name in {name for member in members for name in self.variables_by_op[member]}:
                self.last_ops[name] = max(self.last_ops[name], index)
        self._write()

    def bind(self, op: Op) -> BoundOp:
        """The op bound to its kernel, without outputs that nothing reads if the kernel allows it."""
        kernel = kernel_of(op.type)
        for slot in kernel.spares if kernel else ():
            if not any(name in self._read_names or self._persistable(name) for name in op.outputs.get(slot, ())):
                op = op._replace(outputs=FrozenMap({**op.outputs, slot: ()}))
        if op.type in LOOKUP_GRADIENTS and not self.unmerged.isdisjoint(op.output_names):
            op = op._replace(attrs=FrozenMap({**op.attrs, "merge_rows": False}))
        if not self.as_rows.isdisjoint((*op.input_names, *op.output_names)):
            return bind_as_rows(present(op, self.program, self.number))
        return bind(present(op, self.program, self.number))

    def _sure(self, ops: Iterable[BoundOp]) -> Iterator[BoundOp]:
        """Yields the ops. If earlier ops surely write all inputs of an op that may lack some, these inputs are marked
        as required.
        """
        written = {EMPTY_NAME, *self.feeds}
        for bound in ops:
            if any(argument.may_lack and argument.duplicable for argument in bound.arguments) and all(
                name in written or self._persistable(name) for name in bound.reads
            ):
                bound = bound._replace(
                    arguments=tuple([argument._replace(may_lack=False) for argument in bound.arguments])
                )
            written.update(bound.op.output_names)
            yield bound

    def _touched_variables(self, op: Op) -> list[str]:
        """The variables that the op and its sub-blocks read or write."""
        names = (name for inner in deep_ops(self.program, op) for name in (*inner.input_names, *inner.output_names))
        return list(dict.fromkeys(name for name in names if name != EMPTY_NAME))

    def _persistable(self, name: str) -> bool:
        var = self.block.vars.get(name)
        return var is not None and var.persistable

    def _write(self) -> None:
        self.lines.append(f"def step({self.PARAMETERS}):")
        if self.feeds:
            self._add(f"{', '.join(map(self._local, self.feeds))}, = feeds")
        for name in self.feeds:
            var = self.block.vars[name]
            plain = var.kind is VarKind.LOD_TENSOR and var.tensor is not None and not var.tensor.lod_level
            rows = var.kind is VarKind.SELECTED_ROWS
            self.kinds[name] = ValueKind.ARRAY if plain else ValueKind.NO_LOD if rows else ValueKind.ANYTHING
            if self._persistable(name):
                self._add(f"held[{name!r}] = {self._local(name)}")
        self._load_from_scope()
        for index, bound in enumerate(self.bound):
            if index in self.groups:
                self._add_group(*self.groups[index])
            elif index not in self.grouped:
                self._op(index, bound)
                self._free(index, self.variables_by_op[index])
        for number in range(len(self.groups)):
            self._add(f"if u{number}.loose: u{number}.move(find, held)")
        self._add(f"return ({', '.join(map(self._fetch_expression, self.fetches))}{',' if self.fetches else ''})")

    def _add_group(self, indexes: list[int], group: Group) -> None:
        """Adds code that runs optimizer ops of a group as one if possible, otherwise one by one."""
        local = f"u{list(self.groups).index(indexes[-1])}"
        self.names[local] = group
        values = [
            "".join(f"{self._whole(name)}, " for name in names)
            for names in (group.updated_variables, group.gradient_variables, group.shared_variables)
        ]
        self._add(f"if not {local}.step({', '.join(f'({value})' for value in values)}):", indexes[0])
        self._indent += "    "
        for index in indexes:
            self._op(index, self.bound[index])
        self._indent = self._indent[4:]
        self._free(indexes[-1], [name for index in indexes for name in self.variables_by_op[index]])

    def _fetch_expression(self, name: str) -> str:
        return self._whole(name) if name in self.kinds else f"find({name!r})"

    def _load_from_scope(self) -> None:
        """Adds code that loads every variable that is read before it is written, and checks the type of its value."""
        written = set(self.feeds)
        plain: list[str] = []
        for bound, touched in zip(self.bound, self.variables_by_op, strict=True):
            looks = bound.looks
            for name in touched if looks else bound.reads:
                if name in written or name in self.kinds:
                    continue
                self._add(f"{self._local(name)} = find({name!r})")
                self.loaded_names.append(name)
                if looks or name in self.not_plain or name not in bound.needs:  # the op may do without a value
                    self.kinds[name] = ValueKind.ANYTHING
                    self.optional_names.add(name)
                else:
                    self.kinds[name] = ValueKind.ARRAY
                    plain.append(name)
            written.update(bound.op.output_names if looks else bound.makes)
        if plain:
            classes = " is ".join(f"{self._local(name)}.__class__" for name in plain)
            self._add(f"if not (ndarray is {classes}): raise GuardFailed")

    def _op(self, index: int, bound: BoundOp) -> None:
        if bound.op.type in FEEDING and all(name in self.feeds for name in bound.op.output_names):
            return
        looks = bound.looks
        for name in () if looks else bound.needs:
            if name in self.optional_names:
                self._add(f"if {self._local(name)} is None: raise MissingValue({name!r})", index)
                self.optional_names.discard(name)
        bound = over_a_term(bound, lambda name: self._is_spare(index, name))
        bound = self.bound[index] = over_first(bound, lambda name: self._is_spare(index, name))
        if self._expression(index, bound, plain_only=looks):
            return
        if looks:
            self._call_in_frame(index, bound)
        else:
            self._call(index, bound)

    def _call(self, index: int, bound: BoundOp) -> None:
        """Adds a call of the kernel; if values may have LoD and the kernel does not handle it, of its `run_any`."""
        self.names[f"k{index}"] = bound.run
        if self._takes_apart(index, bound):
            self._unpack(index, bound, f"k{index}({self._arguments(bound)})", ValueKind.NO_LOD)
            self._give_lods(index, bound)
            return
        kind = ValueKind.ANYTHING if bound.lod == "new" else min(ValueKind.NO_LOD, self._least(bound))
        made = f"k{index}({self._arguments(bound, whole=bound.sees_lod)})"
        if not bound.sees_lod and kind is ValueKind.ANYTHING:
            made = self._if_arrays(index, bound, made)
        self._unpack(index, bound, made, kind)

    def _if_arrays(self, index: int, bound: BoundOp, expression: str) -> str:
        """A Python expression: `expression` if all inputs are arrays, and a call of `run_any` otherwise."""
        doubtful = [f"{self._local(name)}.__class__" for name in bound.reads if self.kinds[name] < ValueKind.ARRAY]
        tests = [f"l{self._local(name)} is None" for name in bound.reads if name in self.split_names]
        tests += [f"ndarray is {' is '.join(doubtful)}"] if doubtful else []
        self.names[f"g{index}"] = bound.run_any
        return f"{expression} if {' and '.join(tests)} else g{index}({self._arguments(bound, whole=True)})"

    def _unpack(self, index: int, bound: BoundOp, expression: str, kind: ValueKind) -> None:
        targets = [f"t{place}" for place in range(len(bound.results))]
        whole = [
            (place, name)
            for place, (_, names, duplicable, _) in enumerate(bound.results)
            if not duplicable
            for name in names[:1]
            if name != EMPTY_NAME
        ]
        direct = {name for _, name in whole if name not in self.kinds and not self._persistable(name)}
        for place, name in whole:
            if name in direct:
                targets[place] = self._local(name)
        self._add(f"{', '.join(targets)} = {expression}" if targets else expression, index)
        for place, name in whole:
            if name in direct:
                self._written(name, kind, sure=False)
            else:
                self._store(index, name, targets[place], kind)
        for place, (_, names, duplicable, _) in enumerate(bound.results):
            if duplicable and any(name != EMPTY_NAME for name in names):
                self._add(f"if t{place} is None: t{place} = {[None] * len(names)}", index)
                for item, name in enumerate(names):
                    if name != EMPTY_NAME:
                        self._store(index, name, f"t{place}[{item}]", kind)

    def _store(self, index: int, name: str, value: str, kind: ValueKind) -> None:
        """Adds code that sets a variable, which may have a value already, to its new value unless this is None."""
        self._join(index, name)
        known = name in self.kinds and name not in self.optional_names
        if not known and not self._persistable(name):
            self._add(f"{self._local(name)} = {value}", index)
            self._written(name, kind, sure=False)
            return
        if name not in self.kinds:
            self._add(f"{self._local(name)} = None", index)
        self._add(f"if {value} is not None: {self._target(name)} = {value}", index)
        self._written(name, min(kind, self.kinds.get(name, kind)), sure=known)

    def _target(self, name: str) -> str:
        local = self._local(name)
        return f"{local} = held[{name!r}]" if self._persistable(name) else local

    def _expression(self, index: int, bound: BoundOp, *, plain_only: bool) -> bool:
        """Adds the op as an expression. Returns False if its kernel has none (or, with `plain_only`, unless all inputs
        are surely arrays).
        """
        call = f"k{index}({self._arguments(bound)})"
        text = expression_of(bound, self._local, over=self._is_spare(index, bound.op.input("X")), call=call)
        if text is None or (plain_only and self._least(bound) is not ValueKind.ARRAY):
            return False
        name = bound.results[0].names[0]
        var = self.block.vars.get(name)
        if var is not None and var.kind is not VarKind.LOD_TENSOR:
            return False
        expression = re.sub(r"\bnp\.(\w+)", self._numpy_name, text)
        if call in expression:
            self.names[f"k{index}"] = bound.run
        if apart := self._takes_apart(index, bound):
            kind = min(self.kinds[read] for read in bound.reads)
            doubtful = [f"{self._local(read)}.__class__" for read in bound.reads if self.kinds[read] < ValueKind.ARRAY]
            if doubtful:
                self.names[f"k{index}"] = bound.run
                expression = f"({expression}) if ndarray is {' is '.join(doubtful)} else {call}"
        else:
            kind = self._least(bound)
            if kind < ValueKind.ARRAY:
                expression = self._if_arrays(index, bound, f"({expression})")
            self._join(index, name)
        self._add(f"{self._target(name)} = {expression}", index)
        self._written(name, kind, sure=True)
        if apart:
            self._give_lods(index, bound)
        return True

    def _is_spare(self, index: int, name: str | None) -> bool:
        """Whether an input of an op has memory of its own that nothing reads after this op."""
        if name is None:
            return False
        seen_elsewhere = self.number or self._persistable(name) or name in self.fetches or name in self.feeds
        if not seen_elsewhere and is_private(name, index, self.bound, self.users[name], self.makers[name]):
            return True
        if index == 0 or self.kinds.get(name) is not ValueKind.ARRAY or not makes_new(self.bound[index - 1], name):
            return False
        dies = self.last_ops[name] == index and not self._persistable(name) and name not in self.fetches
        return dies or self.bound[index].op.output("Out") == name

    def _numpy_name(self, match: re.Match[str]) -> str:
        self.names[f"np_{match[1]}"] = getattr(np, match[1])
        return f"np_{match[1]}"

    def _call_in_frame(self, index: int, bound: BoundOp) -> None:
        """Adds a call of a kernel that may access variables itself: all variables that it may access are written to the
        frame before, and read from it after.
        """
        touched = self.variables_by_op[index]
        self._add("local = frame.local", index)
        for name in touched:
            self._join(index, name)
            if name in self.kinds and not self._persistable(name):
                self._add(f"if {self._local(name)} is not None: local[{name!r}] = {self._local(name)}", index)
        self.names[f"c{index}"] = in_frame(bound)
        self._add(f"c{index}(frame)", index)
        for name in touched:
            self._add(f"{self._local(name)} = frame.find({name!r})", index)
            self._written(name, ValueKind.ANYTHING, sure=False)
        self._add("local.clear()", index)

    def compile_function(self, file: str) -> FunctionType:
        """The compiled function. Tracebacks show `file` as its file."""
        names: dict[str, Any] = {**self.names, "__source__": self}
        exec(compile("\n".join(self.lines) + "\n", file, "exec"), names)
        return names.pop("step")  # a function that its own globals refer to would live until the next search for cycles

    def locate_failure(self, function: FunctionType, problem: Exception) -> tuple[int, dict[str, Value]]:
        """(index of the op in which the function failed, -1 if it failed in none; the values of variables at that
        time).
        """
        trace: TracebackType | None = problem.__traceback__
        while trace is not None and trace.tb_frame.f_code is not function.__code__:
            trace = trace.tb_next
        if trace is None:
            return -1, {}
        here = trace.tb_frame.f_locals
        values: dict[str, Value] = {name: here.get(local) for name, local in self.locals.items()}
        for name, local in self.locals.items():
            lod = here.get(f"l{local}")
            if lod is not None:
                values[name] = LoDTensor(values[name], lod)
        return self.owners.get(trace.tb_lineno, -1), values

    def _free(self, index: int, touched: Iterable[str]) -> None:
        """Adds code that deletes values after their last use, so that later values can use their memory."""
        done = [
            name
            for name in dict.fromkeys(touched)
            if self.last_ops[name] == index
            and name in self.kinds
            and name not in self.fetches
            and not self._persistable(name)
        ]
        if done:
            lods = [f"l{self._local(name)}" for name in done if name in self.split_names]
            self._add(f"del {', '.join([*map(self._local, done), *lods])}", index)


def in_frame(bound: BoundOp) -> Any:
    """A function that runs the op on the frame that holds its variables."""
    from pstranspile.runtime.run.frame import Frame

    def run(frame: Frame) -> None:
        for name, value in frame.run_op(bound):
            frame.write(name, value)

    return run
