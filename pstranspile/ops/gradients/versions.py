"""The versions of variables in programs that overwrite them: which ops of a forward block read and write which version,
the gradient ops that are expected of these ops, and copies of old values for gradient ops.

A gradient op reads values of its forward op. A later op of the forward pass may write the same variable: the body of a
loop its loop variables, the loop itself an earlier value. The gradient op would then read the later value.
`with_old_values` copies such values before they are overwritten, and the gradient op reads the copy. A variable that is
overwritten only after its gradient op (a parameter that a trainer receives at the end of a step) needs no copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from pstranspile.ir.attributes import KINDS, BlockRef
from pstranspile.ir.model import Block, FrozenMap, Op, Program
from pstranspile.ir.types import DType, OpRole, VarKind
from pstranspile.ops import schema_of, with_defaults
from pstranspile.ops.gradient import (
    EMPTY_NAME,
    SUFFIX,
    WantedGradients,
    gradient_name,
    gradient_rule,
    variable_of_gradient,
)

# Copies of values that gradient ops read but later ops overwrite.


_PAIRS = {"write_to_array": "read_from_array", "read_from_array": "write_to_array"}
"""Op types that are each other's gradient."""


OLD = "@OLD@"
"""The part of the names of copies that follows the variable's name."""


def is_copy(op: Op) -> bool:
    """Whether an op copies a value that another op overwrites."""
    return op.type == "assign" and any(OLD in name for name in op.output_names)


class Version(NamedTuple):
    """A variable after a number of writes by a block's forward ops (0: its value at the start of the block)."""

    name: str
    writes: int

    @property
    def copy(self) -> str:
        """The name of the version's copy."""
        return f"{self.name}{OLD}{self.writes}"


def with_old_values(program: Program) -> Program:
    """The program with copies of overwritten values that gradient ops read; the same object if there are none."""
    blocks = list(program.blocks)
    for number in range(len(blocks)):
        forward = blocks[number].forward_block if number and blocks[number].forward_block > 0 else number
        if forward < len(blocks):
            _keep(program, blocks, forward, number)
    changed = any(one is not other for one, other in zip(blocks, program.blocks, strict=True))
    return program._replace(blocks=tuple(blocks)) if changed else program


def _keep(program: Program, blocks: list[Block], forward: int, number: int) -> None:
    """Copies the values of the forward ops in the block `forward` that the gradient ops in the block `number` (possibly
    the same one) read.
    """
    steps = [op for op in blocks[forward].ops if not is_backward(op)]
    written = _overwritten(program, blocks[forward], forward, steps)
    if not written:
        return
    history = History(steps)
    writes: dict[str, int] = {}
    wanted: dict[Version, None] = {}
    replaced: dict[int, Op] = {}
    for op in blocks[number].ops:
        if not is_backward(op):
            writes.update((name, writes.get(name, 0) + 1) for name in dict.fromkeys(op.output_names))
            continue
        if not any(name in written for name in op.input_names):
            continue
        read = history.read_by(op)
        # in a loop, the next iteration overwrites every version
        lost = {name for name, version in read.items() if forward or writes.get(name, 0) > version.writes}
        renamed = {name: version for name, version in read.items() if name in written & lost}
        names = {name: version.copy for name, version in renamed.items()}
        inner = op.attrs.get("sub_block")
        if isinstance(inner, BlockRef):  # which handles the variables that its own forward block overwrites
            names = {name: copy for name, copy in names.items() if name not in op.inputs.get("Out", ())}
            used = _rename_inside(blocks, int(inner), names)
            wanted.update((version, None) for name, version in renamed.items() if name in used)
        elif names:
            wanted.update(dict.fromkeys(renamed.values()))
            replaced[id(op)] = _reading(op, names)
    if not wanted:
        return
    blocks[number] = blocks[number]._replace(ops=tuple(replaced.get(id(op), op) for op in blocks[number].ops))
    blocks[forward] = _copying(program, blocks[forward], forward, wanted)


def is_backward(op: Op) -> bool:
    """Whether an op does not belong to the forward pass."""
    return op.role is not None and bool(op.role & (OpRole.BACKWARD | OpRole.OPTIMIZE))


def _overwritten(program: Program, block: Block, number: int, steps: Sequence[Op]) -> set[str]:
    """Tensors that forward ops write twice, or write after reading them, or that other blocks declare."""
    names: set[str] = set()
    known: set[str] = set()
    for op in steps:
        for name in op.output_names:
            var = program.find_var(name, number)
            if var is not None and var.kind is VarKind.LOD_TENSOR and (name in known or name not in block.vars):
                names.add(name)
        known.update(op.input_names)
        known.update(op.output_names)
    return names


class History:
    """The forward ops of a block, and the version of each variable that they read and write."""

    def __init__(self, steps: Sequence[Op]):
        self._op_versions: list[tuple[Op, dict[str, int], dict[str, int]]] = []
        self._last_versions: dict[str, int] = {}
        for op in steps:
            before = {name: self._last_versions.get(name, 0) for name in op.input_names}
            for name in dict.fromkeys(op.output_names):
                self._last_versions[name] = self._last_versions.get(name, 0) + 1
            self._op_versions.append((op, before, {name: self._last_versions[name] for name in op.output_names}))
        self._unmatched_ops: dict[str, list[int]] = {}
        """The indices of the forward ops that no gradient op has been matched with yet, by type."""
        for place, op in enumerate(steps):
            self._unmatched_ops.setdefault(op.type, []).append(place)

    def read_by(self, gradient: Op) -> dict[str, Version]:
        """The versions of variables that a gradient op reads of its forward op, which is the last matching op that has
        no gradient op yet. Empty if there is none.
        """
        plain = gradient.type.removesuffix("_grad")
        left = self._unmatched_ops.get(_PAIRS.get(gradient.type, plain if plain != gradient.type else ""), [])
        for at in range(len(left) - 1, -1, -1):
            op, before, after = self._op_versions[left[at]]
            if _is_gradient_of(gradient, op):
                del left[at]
                read: dict[str, Version] = {}
                for held, result in (
                    (op.outputs, after),
                    (op.inputs, before),
                ):  # if a variable is both, its value before the op is meant
                    names = [name for slot, names in gradient.inputs.items() if slot in held for name in names]
                    read.update((name, Version(name, result[name])) for name in names if name in result)
                return read
        return {}


def _is_gradient_of(gradient: Op, op: Op) -> bool:
    if gradient.type == f"{op.type}_grad":
        return all(
            names == (op.inputs.get(slot) or op.outputs.get(slot))
            for slot, names in gradient.inputs.items()
            if slot in op.inputs or slot in op.outputs
        )
    return _PAIRS.get(op.type) == gradient.type and gradient.inputs.get("I") == op.inputs.get("I")


def _rename_inside(blocks: list[Block], number: int, names: dict[str, str]) -> set[str]:
    """Renames variables that the ops of a gradient block and its inner blocks read. Returns the renamed ones."""
    used: set[str] = set()
    ops: list[Op] = []
    for op in blocks[number].ops if names else ():
        inner = op.attrs.get("sub_block")
        if isinstance(inner, BlockRef):
            used |= _rename_inside(blocks, int(inner), names)
            ops.append(op)
        else:
            result = names.keys() & set(op.input_names)
            used |= result
            ops.append(_reading(op, names) if result else op)
    if used:
        blocks[number] = blocks[number]._replace(ops=tuple(ops))
    return used


def _reading(op: Op, names: dict[str, str]) -> Op:
    inputs = {slot: tuple(names.get(name, name) for name in given) for slot, given in op.inputs.items()}
    return op._replace(inputs=FrozenMap(inputs))


def _copying(program: Program, block: Block, number: int, wanted: dict[Version, None]) -> Block:
    """The block with a copy of each wanted version, made right after the write."""
    ops: list[Op] = []
    writes: dict[str, int] = {}
    ops += [_copy(version) for version in wanted if not version.writes]
    for op in block.ops:
        ops.append(op)
        if not is_backward(op):
            for name in dict.fromkeys(op.output_names):
                writes[name] = writes.get(name, 0) + 1
                ops += [_copy(version) for version in wanted if version == (name, writes[name])]
    declared = dict(block.vars)
    for version in wanted:
        var = program.find_var(version.name, number)
        if var is not None:
            declared[version.copy] = var._replace(name=version.copy, persistable=False, parameter=None)
    return block._replace(vars=type(block.vars)(declared), ops=tuple(ops))


def _copy(version: Version) -> Op:
    return Op(
        "assign",
        FrozenMap({"X": (version.name,)}),
        FrozenMap({"Out": (version.copy,)}),
        role=OpRole.FORWARD,
    )


# The check that the blocks of a program refer to each other correctly, before gradients are followed through them.


def can_be_followed(program: Program) -> bool:
    """Whether every referenced block exists and no block contains itself. (A run reports the mistake otherwise.)"""
    count = len(program.blocks)
    inner = {
        index: {int(ref) for op in block.ops if isinstance(ref := op.attrs.get("sub_block"), BlockRef)}
        for index, block in enumerate(program.blocks)
    }
    named = {number for numbers in inner.values() for number in numbers}
    named.update(number for block in program.blocks for number in (block.parent, block.forward_block) if number >= 0)
    if not all(0 <= number < count for number in named):
        return False
    try:
        TopologicalSorter(inner).prepare()
    except CycleError:
        return False
    return True


WITH_BLOCKS = ("while", "conditional_block", "recurrent")
"""Ops with a sub-block that have a gradient."""

FLOATS = (DType.FP16, DType.FP32, DType.FP64)
"""Element types that can have gradients."""


class Use(NamedTuple):
    """A path from a value to the loss: an op (by index), one of its gradient ops (`part`), and the slot and the index
    in the slot at which this gradient op writes the gradient.

    Op -1 is the end of the block; its `slot` is the name of the variable.
    """

    op: int
    part: int
    slot: str
    place: int


END = -1


def end_of(name: str) -> Use:
    """The use of a variable's last value after its block."""
    return Use(END, 0, name, 0)


def inner_block(program: Program, op: Op) -> int:
    """The sub-block of an op, 0 if it has none."""
    block = op.attrs.get("sub_block")
    return int(block) if isinstance(block, BlockRef) and 0 < block < len(program.blocks) else 0


def outside_names(program: Program, op: Op) -> tuple[list[str], list[str]]:
    """(variables of enclosing blocks that an op with a sub-block reads, variables of enclosing blocks
    that it changes).
    """
    reads, writes = dict.fromkeys(op.input_names), dict.fromkeys(op.output_names)
    inner = inner_block(program, op)
    if inner:
        block, given = program.blocks[inner], dict[str, None]()
        for inner_op in block.ops:
            read, written = outside_names(program, inner_op) if inner_block(program, inner_op) else _names(inner_op)
            reads.update((name, None) for name in read if name not in block.vars)
            if not keeps_value(inner_op):
                given.update((name, None) for name in written if name not in block.vars)
        kept = {name for inner_op in block.ops for name in inner_op.output_names}.difference(given, block.vars)
        writes = {name: None for name in (*writes, *given) if name not in kept}
    return list(reads), list(writes)


def _names(op: Op) -> tuple[list[str], list[str]]:
    return list(op.input_names), list(op.output_names)


def keeps_value(op: Op) -> bool:
    """Whether an op assigns a variable to itself."""
    return op.type == "assign" and op.inputs.get("X") == op.outputs.get("Out")


class Forward:
    """The forward ops of a block. `read_versions` and `written_versions` are the versions that each op reads and
    writes.

    A version counts the writes to a variable; 0 is its value at the start of the block. An op that assigns a variable
    to itself makes no version.
    """

    def __init__(self, program: Program, number: int):
        self.program = program
        self.number = number
        self.block = program.blocks[number]
        self.ops = [op for op in self.block.ops if is_forward(op)]
        self.last_versions: dict[str, int] = {}
        self._version_after_writes: dict[tuple[str, int], int] = {}
        writes: dict[str, int] = {}
        self.read_versions: list[Mapping[str, int]] = []
        self.written_versions: list[Mapping[str, int]] = []
        for op in self.ops:
            read, written = outside_names(program, op) if inner_block(program, op) else _names(op)
            self.read_versions.append(
                {name: self.last_versions.get(name, 0) for name in dict.fromkeys([*read, *written])}
            )
            new = set[str]() if keeps_value(op) else set(written)
            for name in dict.fromkeys([*op.output_names, *written]):
                writes[name] = writes.get(name, 0) + 1
                if name in new:
                    self.last_versions[name] = self.last_versions.get(name, 0) + 1
                self._version_after_writes[name, writes[name]] = self.last_versions.get(name, 0)
            self.written_versions.append({name: self.last_versions.get(name, 0) for name in written})

    def version(self, name: str, writes: int) -> int:
        """The version of a variable after `writes` ops have written it."""
        return self._version_after_writes.get((name, writes), 0)

    def updated_in_place(self) -> set[str]:
        """Variables that one op both reads and writes. A loop does not keep their values."""
        return {name for op in self.ops for name in op.input_names if name in [*op.output_names]}

    def kind(self, name: str) -> VarKind | None:
        """The kind of the variable that a name refers to."""
        var = self.program.find_var(name, self.number)
        return var.kind if var else None

    def is_float(self, name: str) -> bool:
        """Whether a name is a tensor that can have a gradient."""
        var = self.program.find_var(name, self.number)
        return var is not None and var.kind is VarKind.LOD_TENSOR and var.dtype in FLOATS


def is_forward(op: Op) -> bool:
    """Whether an op belongs to the forward pass. Ops that copy values for gradients do not."""
    return not is_backward(op) and not is_copy(op) and not (op.role or 0) & (OpRole.RPC | OpRole.DIST)


class ExpectedGradientOp(NamedTuple):
    """A gradient op of a forward op; `number` is the index of that op, `part` counts its gradient ops."""

    number: int
    part: int
    op: Op

    def uses(self) -> Iterator[tuple[Use, str]]:
        """Every gradient that the op computes: (use of a value, name of the variable)."""
        for slot, names in self.op.outputs.items():
            for place, name in enumerate(names):
                if SUFFIX in name:
                    yield Use(self.number, self.part, slot, place), variable_of_gradient(name)


def expected_of(op: Op, index: int) -> list[ExpectedGradientOp]:
    """The gradient ops of an op without a sub-block; none if the op does not match its schema."""
    rule = gradient_rule(op.type)
    if rule is None or inner_in(op) or _unsound(op := with_defaults(op)):
        return []
    return [ExpectedGradientOp(index, part, made) for part, made in enumerate(rule(op, WantedGradients()))]


def _unsound(op: Op) -> bool:
    """Whether an op lacks a slot or an attribute, has an attribute of another kind, or a list for a single variable."""
    schema = schema_of(op.type)
    sides = ((schema.inputs, op.inputs), (schema.outputs, op.outputs)) if schema is not None else ()
    single = ((slot, names) for slots, names in sides for slot in slots.values() if not slot.duplicable)
    attrs = schema.attrs.items() if schema is not None else ()
    given = ((spec, op.attrs.get(name)) for name, spec in attrs if name in op.attrs or not spec.optional)
    counts = ((len(names.get(slot.name, ())), slot.dispensable) for slot, names in single)
    return any(count > 1 or (count == 0 and not dispensable) for count, dispensable in counts) or any(
        KINDS.get(type(value)) is not spec.kind for spec, value in given
    )


def inner_in(op: Op) -> bool:
    """Whether an op has a sub-block."""
    return isinstance(op.attrs.get("sub_block"), BlockRef)


def plain(name: str) -> str:
    """A name without the suffixes of copies and of terms of gradients."""
    if OLD in name:
        return name.partition(OLD)[0]
    return gradient_name(variable_of_gradient(name)) if SUFFIX in name else name


def signature(op: Op) -> tuple[object, ...]:
    """The identity of a gradient op: its type and inputs."""
    read = tuple((slot, tuple(map(plain, names))) for slot, names in sorted(op.inputs.items()) if names)
    return op.type, read


def fits(expected: ExpectedGradientOp, op: Op) -> bool:
    """Whether all outputs of an op are expected."""
    if inner_in(expected.op):
        return True
    wanted = {(slot, plain(name)) for slot, names in expected.op.outputs.items() for name in names}
    return all((slot, plain(n)) in wanted for slot, names in op.outputs.items() for n in names if n != EMPTY_NAME)


def match_gradients(expected: ExpectedGradientOp, op: Op) -> Iterator[tuple[Use, str]]:
    """The expected gradients that an op computes, under the names that it gives them."""
    for slot, names in op.outputs.items():
        wanted = expected.op.outputs.get(slot, ())
        place = 0
        for name in names:
            while place < len(wanted) and name != EMPTY_NAME and plain(wanted[place]) != plain(name):
                place += 1
            if place >= len(wanted):
                break
            if name != EMPTY_NAME:
                yield Use(expected.number, expected.part, slot, place), name
            place += 1
