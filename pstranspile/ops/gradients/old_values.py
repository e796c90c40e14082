"""Copies of values that gradient ops read but later ops overwrite.

A gradient op reads values of its forward op. A later op of the forward pass may write the same variable: the body of a
loop its loop variables, the loop itself an earlier value. The gradient op would then read the later value. This pass
copies such values before they are overwritten, and the gradient op reads the copy. A variable that is overwritten only
after its gradient op (a parameter that a trainer receives at the end of a step) needs no copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pstranspile.ir.attributes import BlockRef
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Op, Program
from pstranspile.ir.types import OpRole, VarKind

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
        self._reads: list[tuple[Op, dict[str, int], dict[str, int]]] = []
        self._last: dict[str, int] = {}
        for op in steps:
            before = {name: self._last.get(name, 0) for name in op.input_names}
            for name in dict.fromkeys(op.output_names):
                self._last[name] = self._last.get(name, 0) + 1
            self._reads.append((op, before, {name: self._last[name] for name in op.output_names}))
        self._left: dict[str, list[int]] = {}
        """The indices of the forward ops that no gradient op has been matched with yet, by type."""
        for place, op in enumerate(steps):
            self._left.setdefault(op.type, []).append(place)

    def read_by(self, gradient: Op) -> dict[str, Version]:
        """The versions of variables that a gradient op reads of its forward op, which is the last matching op that has
        no gradient op yet. Empty if there is none.
        """
        plain = gradient.type.removesuffix("_grad")
        left = self._left.get(_PAIRS.get(gradient.type, plain if plain != gradient.type else ""), [])
        for at in range(len(left) - 1, -1, -1):
            op, before, after = self._reads[left[at]]
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
