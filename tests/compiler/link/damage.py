"""Small damages to emitted programs: each takes the programs of one machine and gives them changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pstranspile.ir.attributes import Strings
from pstranspile.ir.model import Block, FrozenMap, Op, Program, Role, TensorType
from pstranspile.ir.types import DType, VarKind

Change = Callable[[Op], Op | None]
Damage = Callable[[Role], Role]


def strings(*names: str) -> Strings:
    """A list attribute."""
    return Strings(names)


def mentions(op: Op, name: str) -> bool:
    """Whether an op reads or writes a variable, or names it in an attribute."""
    listed = [item for value in op.attrs.values() if isinstance(value, tuple) for item in value]
    return name in (*op.input_names, *op.output_names, *listed)


def on(kind: str, change: Change, *, about: str = "", startup: bool = False, block: int = 0) -> Damage:
    """Changes the ops of a type (that mention the variable `about`) in one block. There must be one."""

    def damage(role: Role) -> Role:
        program = role.startup if startup else role.main
        met = [op for op in program.blocks[block].ops if op.type == kind and (not about or mentions(op, about))]
        assert met, f"{role.name} has no {kind} about {about!r}"
        ops = [change(op) if any(op is it for it in met) else op for op in program.blocks[block].ops]
        return _with(role, program.blocks[block]._replace(ops=tuple(op for op in ops if op)), startup, block)

    return damage


def _with(role: Role, block: Block, startup: bool, index: int = 0) -> Role:
    program = role.startup if startup else role.main
    blocks = list(program.blocks)
    blocks[index] = block
    changed: Program = program._replace(blocks=tuple(blocks))
    return role._replace(startup=changed) if startup else role._replace(main=changed)


def dropped(op: Op) -> None:
    """The op is left out."""
    del op


def attrs(**values: Any) -> Change:
    """The op with other attributes."""
    return lambda op: op._replace(attrs=FrozenMap({**op.attrs, **values}))


def inputs(**slots: Sequence[str]) -> Change:
    """The op with other inputs."""
    return lambda op: op._replace(inputs=FrozenMap({**op.inputs, **{k: tuple(v) for k, v in slots.items()}}))


def outputs(**slots: Sequence[str]) -> Change:
    """The op with other outputs."""
    return lambda op: op._replace(outputs=FrozenMap({**op.outputs, **{k: tuple(v) for k, v in slots.items()}}))


def reversed_attr(name: str) -> Change:
    """The op with a list attribute in the opposite order."""

    def change(op: Op) -> Op:
        value: Any = op.attrs[name]
        return op._replace(attrs=FrozenMap({**op.attrs, name: type(value)(value[::-1])}))

    return change


def reversed_slot(name: str) -> Change:
    """The op with the variables of an input or output slot in the opposite order."""

    def change(op: Op) -> Op:
        sides = [FrozenMap({k: v[::-1] if k == name else v for k, v in s.items()}) for s in (op.inputs, op.outputs)]
        return op._replace(inputs=sides[0], outputs=sides[1])

    return change


def moved(kind: str, *, about: str = "", to: int, startup: bool = False) -> Damage:
    """The first op of a type (that mentions `about`) at another position of block 0; -1 is the end."""

    def damage(role: Role) -> Role:
        block = (role.startup if startup else role.main).main_block
        op = next(op for op in block.ops if op.type == kind and (not about or mentions(op, about)))
        ops = [other for other in block.ops if other is not op]
        ops.insert(len(ops) if to == -1 else to, op)
        return _with(role, block._replace(ops=tuple(ops)), startup)

    return damage


def repeated(kind: str, *, about: str = "", startup: bool = False, block: int = 0) -> Damage:
    """The first op of a type (that mentions `about`) twice, one after the other."""

    def damage(role: Role) -> Role:
        found = (role.startup if startup else role.main).blocks[block]
        op = next(op for op in found.ops if op.type == kind and (not about or mentions(op, about)))
        ops = [item for other in found.ops for item in ((other, other) if other is op else (other,))]
        return _with(role, found._replace(ops=tuple(ops)), startup, block)

    return damage


def swapped(kind: str, first: str, second: str) -> Damage:
    """Two ops of a type (that mention one variable each) in each other's place."""

    def damage(role: Role) -> Role:
        block = role.main.main_block
        at = [
            next(i for i, op in enumerate(block.ops) if op.type == kind and mentions(op, name))
            for name in (first, second)
        ]
        ops = list(block.ops)
        ops[at[0]], ops[at[1]] = ops[at[1]], ops[at[0]]
        return _with(role, block._replace(ops=tuple(ops)), False)

    return damage


def declared(
    name: str,
    *,
    dtype: DType | None = None,
    shape: Sequence[int] | None = None,
    kind: VarKind | None = None,
    startup: bool = False,
) -> Damage:
    """A variable of block 0 declared with another type."""

    def damage(role: Role) -> Role:
        block = (role.startup if startup else role.main).main_block
        var = block.vars[name]
        tensor = TensorType(dtype or var.dtype or DType.FP32, var.shape if shape is None else tuple(shape))
        var = var._replace(tensor=tensor, kind=kind or var.kind)
        return _with(role, block._replace(vars=FrozenMap({**block.vars, name: var})), startup)

    return damage


def undeclared(name: str, *, startup: bool = False) -> Damage:
    """A variable of block 0 that is not declared."""

    def damage(role: Role) -> Role:
        block = (role.startup if startup else role.main).main_block
        kept = {key: var for key, var in block.vars.items() if key != name}
        assert len(kept) < len(block.vars), f"{role.name} has no {name}"
        return _with(role, block._replace(vars=FrozenMap(kept)), startup)

    return damage


def in_program(name: str, damage: Damage) -> Damage:
    """A damage to another program of the machine than the main one."""

    def changed(role: Role) -> Role:
        main = damage(role._replace(main=role.others[name])).main
        return role._replace(others=FrozenMap({**role.others, name: main}))

    return changed


def both(*damages: Damage) -> Damage:
    """Several damages."""

    def damage(role: Role) -> Role:
        for each in damages:
            role = each(role)
        return role

    return damage
