"""Mutants of emitted programs: one thing is changed in the programs of one machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pstranspile.compiler.compile import Compiled
from pstranspile.compiler.link import LinkError, link
from pstranspile.ir.attributes import Floats, Ints, Longs, Strings
from pstranspile.ir.model import Block, FrozenMap, Module, Op, Program, Role, Var
from pstranspile.ir.types import DType

Random: TypeAlias = random.Random


class Mutant(NamedTuple):
    """What was changed, in words, and the programs of all machines after it."""

    told: str
    roles: Mapping[str, Role]


class Place(NamedTuple):
    """An op of a role: the program (`main`, `startup`, or one of the others), the block, and the place in it."""

    role: str
    program: str
    block: int
    index: int


def programs_of(role: Role) -> dict[str, Program]:
    return {"main": role.main, "startup": role.startup, **{f"others.{n}": p for n, p in role.others.items()}}


def with_ops(role: Role, place: Place, ops: tuple[Op, ...]) -> Role:
    program = programs_of(role)[place.program]
    blocks = list(program.blocks)
    blocks[place.block] = blocks[place.block]._replace(ops=ops)
    changed = program._replace(blocks=tuple(blocks))
    if place.program in ("main", "startup"):
        return role._replace(**{place.program: changed})
    name = place.program.removeprefix("others.")
    return role._replace(others=FrozenMap({**role.others, name: changed}))


Change: TypeAlias = "Callable[[tuple[Op, ...], int, Block, Random], tuple[str, tuple[Op, ...]] | None]"
"""Gives what was done, and the ops of the block after it; None if it can't be done to the op at this place."""


def _put(ops: tuple[Op, ...], index: int, *new: Op) -> tuple[Op, ...]:
    return (*ops[:index], *new, *ops[index + 1 :])


def drop(ops: tuple[Op, ...], index: int, _block: Block, _random: Random) -> Any:
    return "dropped", _put(ops, index)


def twice(ops: tuple[Op, ...], index: int, _block: Block, _random: Random) -> Any:
    return "done twice", _put(ops, index, ops[index], ops[index])


def later(ops: tuple[Op, ...], index: int, _block: Block, _random: Random) -> Any:
    if index + 1 == len(ops):
        return None
    return "done after the next", (*ops[:index], ops[index + 1], ops[index], *ops[index + 2 :])


def number(ops: tuple[Op, ...], index: int, _block: Block, draw: Random) -> Any:
    """Another number in an attribute."""
    op = ops[index]
    found = [n for n, v in op.attrs.items() if isinstance(v, float | int | Floats | Ints | Longs) and n not in QUIET]
    if not found:
        return None
    name = draw.choice(sorted(found))
    value: Any = op.attrs[name]
    if isinstance(value, bool):
        new: Any = not value
    elif isinstance(value, float):
        new = float(np.float32(value * draw.choice((0.5, 1.01, 2.0)) if value else 0.25))
    elif isinstance(value, int):
        new = value + draw.choice((1, -1))
    elif len(value):
        items = list(value)
        at = draw.randrange(len(items))
        items[at] = items[at] * 2 + 1
        new = type(value)(items)
    else:
        return None
    return f"{name} {value} -> {new}", _put(ops, index, op._replace(attrs=FrozenMap({**op.attrs, name: new})))


QUIET = {"op_role", "op_device", "rpc_get_thread_num", "rpc_send_thread_num", "rpc_prefetch_thread_num", "op_namescope"}
"""Attributes that say nothing of what an op computes."""


def narrower(ops: tuple[Op, ...], index: int, _block: Block, _random: Random) -> Any:
    """Fewer bits: f16 in the place of f32, i32 in that of i64."""
    op = ops[index]
    bits = {DType.FP32.value: DType.FP16.value, DType.INT64.value: DType.INT32.value}.get(op.attrs.get("dtype"))  # pyright: ignore
    if bits is None:
        return None
    return f"dtype {bits}", _put(ops, index, op._replace(attrs=FrozenMap({**op.attrs, "dtype": bits})))


def swapped_texts(ops: tuple[Op, ...], index: int, _block: Block, draw: Random) -> Any:
    """Two endpoints, names of slices, or blocks of gradients change places."""
    op = ops[index]
    found = [n for n, v in op.attrs.items() if isinstance(v, Strings) and len(set(v)) > 1 and n != "op_role_var"]
    if not found:
        return None
    name = draw.choice(sorted(found))
    items = list(op.attrs[name])  # pyright: ignore
    a, b = draw.sample(range(len(items)), 2)
    if name == "grad_to_block_id":
        (x, _, i), (y, _, j) = items[a].rpartition(":"), items[b].rpartition(":")
        items[a], items[b] = f"{x}:{j}", f"{y}:{i}"
    else:
        items[a], items[b] = items[b], items[a]
    if items == list(op.attrs[name]):  # pyright: ignore
        return None
    told = f"{name}: {a} and {b} change places"
    return told, _put(ops, index, op._replace(attrs=FrozenMap({**op.attrs, name: Strings(items)})))


def another_text(ops: tuple[Op, ...], index: int, _block: Block, draw: Random) -> Any:
    """One endpoint in the place of another."""
    op = ops[index]
    names = ("epmap", "endpoints", "send_varnames", "recv_varnames", "table_names")
    found = [n for n in names if isinstance(v := op.attrs.get(n), Strings) and len(set(v)) > 1]
    if not found:
        return None
    name = draw.choice(found)
    items = list(op.attrs[name])  # pyright: ignore
    a, b = draw.sample(range(len(items)), 2)
    if items[a] == items[b]:
        return None
    items[a] = items[b]
    return f"{name}: {b} in place of {a}", _put(
        ops, index, op._replace(attrs=FrozenMap({**op.attrs, name: Strings(items)}))
    )


def swapped_names(ops: tuple[Op, ...], index: int, _block: Block, draw: Random) -> Any:
    """Two variables of one slot change places."""
    op = ops[index]
    sides = [
        (side, slot)
        for side in ("inputs", "outputs")
        for slot, names in getattr(op, side).items()
        if len(set(names)) > 1
    ]
    if not sides:
        return None
    side, slot = draw.choice(sorted(sides))
    slots = getattr(op, side)
    names = list(slots[slot])
    a, b = draw.sample(range(len(names)), 2)
    if names[a] == names[b]:
        return None
    names[a], names[b] = names[b], names[a]
    told = f"{slot}: {a} and {b} change places"
    return told, _put(ops, index, op._replace(**{side: FrozenMap({**slots, slot: tuple(names)})}))


def another_name(ops: tuple[Op, ...], index: int, block: Block, draw: Random) -> Any:
    """Another variable of the same dims is read or written."""
    op = ops[index]
    sides = [(side, slot) for side in ("inputs", "outputs") for slot, names in getattr(op, side).items() if any(names)]
    if not sides:
        return None
    side, slot = draw.choice(sorted(sides))
    slots = getattr(op, side)
    names = list(slots[slot])
    at = draw.randrange(len(names))
    var = block.vars.get(names[at])
    if var is None:
        return None
    others = sorted(name for name, other in block.vars.items() if name != names[at] and _alike(var, other))
    if not others:
        return None
    names[at] = draw.choice(others)
    told = f"{slot}: %{names[at]} in place of %{slots[slot][at]}"
    return told, _put(ops, index, op._replace(**{side: FrozenMap({**slots, slot: tuple(names)})}))


def _alike(one: Var, other: Var) -> bool:
    if one.tensor is None or other.tensor is None:
        return False
    return (one.kind, one.tensor.dtype, one.tensor.shape) == (other.kind, other.tensor.dtype, other.tensor.shape)


def halved(ops: tuple[Op, ...], index: int, _block: Block, draw: Random) -> Any:
    """What an op makes is scaled."""
    op = ops[index]
    found = [names[0] for slot, names in op.outputs.items() if names and slot not in ("Mask", "XShape")]
    if not found or op.type in ("send", "send_barrier", "fetch_barrier", "listen_and_serv"):
        return None
    name = draw.choice(sorted(found))
    scaled = Op(
        "scale",
        FrozenMap({"X": (name,)}),
        FrozenMap({"Out": (name,)}),
        FrozenMap({"scale": 0.5, "bias": 0.0, "bias_after_scale": True}),
        role=op.role,
        origin=op.origin,
    )
    return f"%{name} halved after it", _put(ops, index, op, scaled)


CHANGES: dict[str, Change] = {
    "drop": drop,
    "twice": twice,
    "later": later,
    "number": number,
    "narrow": narrower,
    "swap-texts": swapped_texts,
    "another-text": another_text,
    "swap-names": swapped_names,
    "another-name": another_name,
    "halve": halved,
}


def places_of(roles: Mapping[str, Role]) -> list[Place]:
    """Every op of every machine."""
    return [
        Place(name, which, number, index)
        for name, role in sorted(roles.items())
        for which, program in programs_of(role).items()
        for number, block in enumerate(program.blocks)
        for index in range(len(block.ops))
    ]


DISTRIBUTING = frozenset(
    {
        *("send", "recv", "send_barrier", "fetch_barrier", "listen_and_serv", "split", "split_byref", "concat", "sum"),
        *("split_selected_rows", "scale", "distributed_lookup_table", "c_allreduce_sum", "split_ids", "merge_ids"),
        *("prefetch", "ref_by_trainer_id", "c_broadcast", "elementwise_sub", "assign", "increment", "fill_constant"),
    }
)
"""Op types that a transpiler makes; every other mutant changes one of these."""


def mutants(made: Compiled, seed: int) -> Iterator[Mutant]:
    """Mutants of a job without end, always the same for a seed."""
    draw = random.Random(seed)
    roles = made.roles()
    everywhere = places_of(roles)
    distributing = [place for place in everywhere if _op(roles, place).type in DISTRIBUTING] or everywhere
    while True:
        place = draw.choice(draw.choice((everywhere, distributing)))
        name = draw.choice(sorted(CHANGES))
        block = programs_of(roles[place.role])[place.program].blocks[place.block]
        found = CHANGES[name](block.ops, place.index, block, draw)
        if found is None:
            continue
        told, ops = found
        op = block.ops[place.index]
        where = f"{place.role} @{place.program} ^{place.block} op {place.index} {op.type}"
        yield Mutant(f"{where}: {told}", {**roles, place.role: with_ops(roles[place.role], place, ops)})


def _op(roles: Mapping[str, Role], place: Place) -> Op:
    return programs_of(roles[place.role])[place.program].blocks[place.block].ops[place.index]


def as_compiled(made: Compiled, mutant: Mutant) -> Compiled:
    """A compile that gives the mutant's programs."""
    return made.with_roles(mutant.roles)


def refused(mutant: Mutant) -> bool:
    """Whether the link check finds that the programs do not fit together."""
    try:
        link(mutant.roles.values())
    except LinkError:
        return True
    return False


def sources(module: Module) -> Mapping[str, Var]:
    """The variables of the source."""
    return module.main.main_block.vars
