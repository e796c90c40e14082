"""Edits of valid modules, as a careless hand or a broken generator makes them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from pstranspile.ir.attributes import BlockRef, BlockRefs, Bools, Floats, Ints, Long, Longs, Strings, float32
from pstranspile.ir.model import Block, FrozenMap, Module, Op, ParameterInfo, Program, TensorType, Var
from pstranspile.ir.types import DType, OpRole, VarKind

ROLES = (*(OpRole(v) for v in (0, 1, 2, 4, 8, 16, 256, 257, 18, 77)), None)
DIMS = (-2, -1, 0, 1, 2, 3, 7, 1 << 20, 1 << 40)
NUMBERS = (0, 1, -1, 2, 3, 7, 100, (1 << 31) - 1, -(1 << 31), 1 << 40)
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, float32(1e-30), float32(1e30), float("inf"), float("-inf"), float("nan"))
TYPES = ("sgd", "adam", "momentum", "sum", "scale", "mean", "relu", "concat", "split", "while", "conditional_block")
TYPES += ("send", "recv", "listen_and_serv", "c_allreduce_sum", "fill_constant", "increment", "cast", "no_such_op")

Edit = Callable[[Program, random.Random], Program | None]
"""Gives the edited program, or None where there is nothing to edit."""


def edited(module: Module, rng: random.Random) -> tuple[Module, list[str]]:
    """The module with one to three edits, and their names."""
    done: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        for _ in range(20):
            name = rng.choice([*module.programs, "main"])
            edit = rng.choice(EDITS)
            made = edit(module[name], rng)
            if made is not None and made != module[name]:
                module = Module(FrozenMap({**module.programs, name: made}))
                done.append(f"{edit.__name__} in @{name}")
                break
    return module, done


def _with_block(program: Program, index: int, **changes: Any) -> Program:
    blocks = list(program.blocks)
    blocks[index] = blocks[index]._replace(**changes)
    return program._replace(blocks=tuple(blocks))


def _some_block(program: Program, rng: random.Random, fits: Callable[[Block], object]) -> int | None:
    indices = [index for index, block in enumerate(program.blocks) if fits(block)]
    return rng.choice(indices) if indices else None


def _on_ops(change: Callable[[list[Op], random.Random], object]) -> Edit:
    def edit(program: Program, rng: random.Random) -> Program | None:
        index = _some_block(program, rng, lambda block: block.ops)
        if index is None:
            return None
        ops = list(program.blocks[index].ops)
        change(ops, rng)
        return _with_block(program, index, ops=tuple(ops))

    edit.__name__ = change.__name__
    return edit


def _on_op(change: Callable[[Op, Program, random.Random], Op | None]) -> Edit:
    def edit(program: Program, rng: random.Random) -> Program | None:
        index = _some_block(program, rng, lambda block: block.ops)
        if index is None:
            return None
        ops = list(program.blocks[index].ops)
        at = rng.randrange(len(ops))
        made = change(ops[at], program, rng)
        if made is None:
            return None
        ops[at] = made
        return _with_block(program, index, ops=tuple(ops))

    edit.__name__ = change.__name__
    return edit


def _on_var(change: Callable[[Var, random.Random], Var | None]) -> Edit:
    def edit(program: Program, rng: random.Random) -> Program | None:
        index = _some_block(program, rng, lambda block: block.vars)
        if index is None:
            return None
        variables = dict(program.blocks[index].vars)
        name = rng.choice(list(variables))
        made = change(variables[name], rng)
        if made is None:
            return None
        variables[name] = made
        return _with_block(program, index, vars=FrozenMap(variables))

    edit.__name__ = change.__name__
    return edit


# Ops of a block


def drop_op(ops: list[Op], rng: random.Random) -> None:
    del ops[rng.randrange(len(ops))]


def duplicate_op(ops: list[Op], rng: random.Random) -> None:
    ops.insert(rng.randrange(len(ops) + 1), rng.choice(ops))


def move_op(ops: list[Op], rng: random.Random) -> None:
    ops.insert(rng.randrange(len(ops)), ops.pop(rng.randrange(len(ops))))


def swap_ops(ops: list[Op], rng: random.Random) -> None:
    at = rng.randrange(max(len(ops) - 1, 1))
    ops[at : at + 2] = reversed(ops[at : at + 2])


def truncate_ops(ops: list[Op], rng: random.Random) -> None:
    del ops[rng.randrange(len(ops)) :]


# One op


def other_type(op: Op, program: Program, rng: random.Random) -> Op:
    known = [other.type for block in program.blocks for other in block.ops]
    return op._replace(type=rng.choice([*known, *TYPES]))


def other_role(op: Op, _program: Program, rng: random.Random) -> Op:
    return op._replace(role=rng.choice(ROLES))


def other_role_vars(op: Op, program: Program, rng: random.Random) -> Op:
    names = [*(op.role_vars or ())]
    way = rng.randrange(4)
    if way == 0:
        return op._replace(role_vars=rng.choice(((), None)))
    if way == 1 and names:
        names[rng.randrange(len(names))] = _name(program, rng)
    elif way == 2 and names:
        names.reverse()
    else:
        names += [_name(program, rng), _name(program, rng)][: rng.randrange(1, 3)]
    return op._replace(role_vars=tuple(names))


def _name(program: Program, rng: random.Random) -> str:
    names = [name for block in program.blocks for name in block.vars]
    return rng.choice([*names, "nobody", "@EMPTY@", ""]) if rng.random() < 0.1 or not names else rng.choice(names)


def _side(op: Op, rng: random.Random) -> str:
    return rng.choice([side for side in ("inputs", "outputs") if getattr(op, side)] or ["inputs"])


def other_name(op: Op, program: Program, rng: random.Random) -> Op | None:
    side = _side(op, rng)
    slots = {slot: list(names) for slot, names in getattr(op, side).items() if names}
    if not slots:
        return None
    names = slots[rng.choice(list(slots))]
    names[rng.randrange(len(names))] = _name(program, rng)
    return _with_slots(op, side, {**getattr(op, side), **slots})


def swap_slots(op: Op, _program: Program, rng: random.Random) -> Op | None:
    side = _side(op, rng)
    slots = dict(getattr(op, side))
    if len(slots) < 2:
        return None
    a, b = rng.sample(list(slots), 2)
    slots[a], slots[b] = slots[b], slots[a]
    return _with_slots(op, side, slots)


def swap_sides(op: Op, _program: Program, rng: random.Random) -> Op | None:
    if not op.inputs or not op.outputs:
        return None
    a, b = rng.choice(list(op.inputs)), rng.choice(list(op.outputs))
    inputs, outputs = {**op.inputs, a: op.outputs[b]}, {**op.outputs, b: op.inputs[a]}
    return _with_slots(_with_slots(op, "inputs", inputs), "outputs", outputs)


def drop_slot(op: Op, _program: Program, rng: random.Random) -> Op | None:
    side = _side(op, rng)
    slots = dict(getattr(op, side))
    if not slots:
        return None
    slot = rng.choice(list(slots))
    if rng.random() < 0.5:
        del slots[slot]
    else:
        slots[slot] = ()
    return _with_slots(op, side, slots)


def longer_slot(op: Op, program: Program, rng: random.Random) -> Op:
    side = _side(op, rng)
    slots = dict(getattr(op, side))
    slot = rng.choice([*slots, "X", "Nothing"])
    slots[slot] = (*slots.get(slot, ()), _name(program, rng))
    return _with_slots(op, side, slots)


def _with_slots(op: Op, side: str, slots: dict[str, Iterable[str]]) -> Op:
    return op._replace(**{side: FrozenMap({slot: tuple(names) for slot, names in slots.items()})})


def drop_attribute(op: Op, _program: Program, rng: random.Random) -> Op | None:
    attrs = dict(op.attrs)
    if not attrs:
        return None
    del attrs[rng.choice(list(attrs))]
    return op._replace(attrs=FrozenMap(attrs))


def other_attribute(op: Op, program: Program, rng: random.Random) -> Op | None:
    attrs = dict(op.attrs)
    if not attrs:
        return None
    name = rng.choice(list(attrs))
    attrs[name] = other_value(attrs[name], program, rng)
    return op._replace(attrs=FrozenMap(attrs))


def _element(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((*NUMBERS, value + 1, value - 1, -value))
    if isinstance(value, float):
        return rng.choice((*REALS, value / 2, -value))
    return rng.choice(("", "x", str(value) + "0", str(value)[1:], "@GRAD", "a:1"))


def other_value(value: Any, program: Program, rng: random.Random) -> Any:
    """Another value of the same kind; now and then one of another kind."""
    if rng.random() < 0.1:
        return rng.choice((True, 1, Long(3), 0.5, "text", Ints((1, 2)), Strings(("a",)), BlockRef(1)))
    if isinstance(value, BlockRef):
        return BlockRef(rng.randrange(-1, len(program.blocks) + 1))
    if isinstance(value, Long):
        return Long(_element(int(value), rng))
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(1 << 31), min(_element(value, rng), (1 << 31) - 1))
    if isinstance(value, (Ints, Longs, Floats, Bools, Strings, BlockRefs)):
        return type(value)(_other_elements(list(value), isinstance(value, Ints | BlockRefs), rng))
    return _element(value, rng)


def _other_elements(items: list[Any], small: bool, rng: random.Random) -> list[Any]:
    way = rng.randrange(4)
    if way == 0 and items:
        del items[rng.randrange(len(items))]
    elif way == 1 and items:
        items.append(rng.choice(items))
    elif way == 2:
        items.clear()
    elif items:
        at = rng.randrange(len(items))
        items[at] = _element(items[at], rng)
        if small:
            items[at] = max(-(1 << 31), min(items[at], (1 << 31) - 1))
    return items


# One variable


def other_shape(var: Var, rng: random.Random) -> Var | None:
    if var.tensor is None:
        return None
    return var._replace(tensor=var.tensor._replace(shape=tuple(_other_dims(list(var.shape), rng))))


def _other_dims(dims: list[int], rng: random.Random) -> list[int]:
    way = rng.randrange(5)
    if way == 0:
        dims.insert(rng.randrange(len(dims) + 1), rng.choice(DIMS))
    elif way == 1:
        dims = dims[::-1]
    elif dims and way == 2:
        del dims[rng.randrange(len(dims))]
    elif dims:
        dims[rng.randrange(len(dims))] = rng.choice(DIMS)
    return dims


def other_dtype(var: Var, rng: random.Random) -> Var | None:
    return var._replace(tensor=var.tensor._replace(dtype=rng.choice(list(DType)))) if var.tensor else None


def other_lod(var: Var, rng: random.Random) -> Var | None:
    return var._replace(tensor=var.tensor._replace(lod_level=rng.randrange(3))) if var.tensor else None


def other_kind(var: Var, rng: random.Random) -> Var:
    kind = rng.choice(list(VarKind))
    described = kind in (VarKind.LOD_TENSOR, VarKind.SELECTED_ROWS, VarKind.LOD_TENSOR_ARRAY)
    tensor = (var.tensor or TensorType(DType.FP32, (1,))) if described else None
    return Var(var.name, kind, tensor, var.persistable, var.need_check_feed)


def no_description(var: Var, _rng: random.Random) -> Var:
    return var._replace(tensor=None)


def other_persistable(var: Var, _rng: random.Random) -> Var:
    return var._replace(persistable=not var.persistable)


def other_parameter(var: Var, rng: random.Random) -> Var:
    if var.parameter is None or rng.random() < 0.2:
        return var._replace(parameter=None if var.parameter else ParameterInfo())
    changes = ({"trainable": False}, {"is_distributed": True}, {"learning_rate": rng.choice(REALS)})
    return var._replace(parameter=var.parameter._replace(**rng.choice(changes)))


def other_check(var: Var, _rng: random.Random) -> Var:
    return var._replace(need_check_feed=not var.need_check_feed)


def drop_var(program: Program, rng: random.Random) -> Program | None:
    index = _some_block(program, rng, lambda block: block.vars)
    if index is None:
        return None
    variables = dict(program.blocks[index].vars)
    del variables[rng.choice(list(variables))]
    return _with_block(program, index, vars=FrozenMap(variables))


def rename_var(program: Program, rng: random.Random) -> Program | None:
    """One variable has another name everywhere, which may be that of another one."""
    index = _some_block(program, rng, lambda block: block.vars)
    if index is None:
        return None
    old = rng.choice(list(program.blocks[index].vars))
    near = (f"{old}.block0", f"{old}@GRAD", f"{old}.trainer_0", old[1:], "learning_rate_0", "@LR_DECAY_COUNTER@")
    new = rng.choice((*near, _name(program, rng)))
    blocks = [_renamed(block, old, new) for block in program.blocks]
    return program._replace(blocks=tuple(blocks))


def _renamed(block: Block, old: str, new: str) -> Block:
    def swap(names: Iterable[str]) -> tuple[str, ...]:
        return tuple([new if name == old else name for name in names])

    ops = [
        op._replace(
            inputs=FrozenMap({slot: swap(names) for slot, names in op.inputs.items()}),
            outputs=FrozenMap({slot: swap(names) for slot, names in op.outputs.items()}),
            role_vars=None if op.role_vars is None else swap(op.role_vars),
        )
        for op in block.ops
    ]
    variables = {new if n == old else n: var._replace(name=new) if n == old else var for n, var in block.vars.items()}
    return block._replace(vars=FrozenMap(variables), ops=tuple(ops))


# Blocks and programs


def other_parent(program: Program, rng: random.Random) -> Program | None:
    if not program.blocks:
        return None
    index = rng.randrange(len(program.blocks))
    number = rng.randrange(-1, len(program.blocks) + 1)
    return _with_block(program, index, **{rng.choice(("parent", "forward_block")): number})


def drop_block(program: Program, rng: random.Random) -> Program | None:
    return program._replace(blocks=program.blocks[:-1]) if len(program.blocks) > 1 or rng.random() < 0.1 else None


def duplicate_block(program: Program, rng: random.Random) -> Program | None:
    if not program.blocks:
        return None
    return program._replace(blocks=(*program.blocks, rng.choice(program.blocks)._replace(parent=0)))


def op_into_block(program: Program, rng: random.Random) -> Program | None:
    """An op stands in another block."""
    if len(program.blocks) < 2:
        return None
    a, b = rng.sample(range(len(program.blocks)), 2)
    ops, others = list(program.blocks[a].ops), list(program.blocks[b].ops)
    if not ops:
        return None
    others.insert(rng.randrange(len(others) + 1), ops.pop(rng.randrange(len(ops))))
    return _with_block(_with_block(program, a, ops=tuple(ops)), b, ops=tuple(others))


EDITS: tuple[Edit, ...] = (
    *map(_on_ops, (drop_op, duplicate_op, move_op, swap_ops, truncate_ops)),
    *map(_on_op, (other_type, other_role, other_role_vars, other_name, other_name, swap_slots, swap_sides, drop_slot)),
    *map(_on_op, (longer_slot, drop_attribute, other_attribute, other_attribute)),
    *map(_on_var, (other_shape, other_dtype, other_lod, other_kind, no_description, other_persistable)),
    *map(_on_var, (other_parameter, other_check)),
    *(drop_var, rename_var, other_parent, drop_block, duplicate_block, op_into_block),
)
