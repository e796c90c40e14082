"""Parts of programs: what computes some targets, and the variables that the ops left use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pstranspile.ir.attributes import BlockRef, BlockRefs, renumbered
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Op, Program
from pstranspile.ir.roles import OpRole


def blocks_of(op: Op) -> list[int]:
    """The blocks that an op runs."""
    result: list[int] = []
    for value in op.attrs.values():
        if isinstance(value, BlockRef):
            result.append(int(value))
        elif isinstance(value, BlockRefs):
            result.extend(int(index) for index in value)
    return result


def deep(program: Program, op: Op) -> tuple[set[str], set[str]]:
    """What an op reads and writes, with its blocks."""
    reads, writes = set(op.input_names), set(op.output_names)
    for index in blocks_of(op):
        if 0 <= index < len(program.blocks):
            for inner in program.blocks[index].ops:
                more = deep(program, inner)
                reads |= more[0]
                writes |= more[1]
    return reads, writes


_HANDED: dict[str, tuple[str, str]] = {"conditional_block": ("Input", "Out"), "while": ("X", "Out")}
"""The slots of what an op hands to its block, and of what it takes from it."""


def without_roles(program: Program, roles: OpRole) -> Program:
    """The program without the ops of these roles, in all blocks that block 0 leads to.

    Ops with a block that has lost some hand it only what it still uses. Gives the program itself if no op goes.
    """
    blocks, changed = list(program.blocks), set[int]()
    for index in range(len(blocks) - 1, -1, -1):  # a block stands before those in it
        ops = tuple(op for op in blocks[index].ops if not (op.role or OpRole.FORWARD) & roles)
        if len(ops) < len(blocks[index].ops):
            changed.add(index)
        if any(changed.intersection(blocks_of(op)) for op in ops):
            changed.add(index)
            left = program._replace(blocks=tuple(blocks))
            ops = tuple(_less_handed(left, op) if changed.intersection(blocks_of(op)) else op for op in ops)
        blocks[index] = blocks[index]._replace(ops=ops)
    return program._replace(blocks=tuple(blocks)) if 0 in changed else program


def _less_handed(program: Program, op: Op) -> Op:
    """The op without what its blocks neither read nor write any more."""
    if op.type not in _HANDED:
        return op
    (given, taken), bare = _HANDED[op.type], op._replace(inputs=FrozenMap(), outputs=FrozenMap())
    reads, writes = deep(program, bare)
    inputs = {**op.inputs, given: tuple(name for name in op.inputs.get(given, ()) if name in reads)}
    outputs = {**op.outputs, taken: tuple(name for name in op.outputs.get(taken, ()) if name in writes)}
    return op._replace(inputs=FrozenMap(inputs), outputs=FrozenMap(outputs))


def pruned(program: Program, targets: Collection[int], feeds: Collection[str] = ()) -> Program:
    """The ops at the places `targets` of block 0, those that they need, given the feeds, and the variables used.

    An op that updates parameters is kept only if it is a target: what it writes is what other ops read before.
    """
    block = program.main_block
    needed = set[str]()
    kept: list[Op] = []
    for place in range(len(block.ops) - 1, -1, -1):
        op = block.ops[place]
        reads, writes = deep(program, op)
        updates = bool((op.role or OpRole.FORWARD) & OpRole.OPTIMIZE)
        if place in targets or op.is_target or (not updates and needed.intersection(writes)):
            kept.append(op)
            needed |= reads.difference(feeds)
    left = block._replace(ops=tuple(reversed(kept)))
    return with_used_variables(program._replace(blocks=(left, *program.blocks[1:])))


def places_of(block: Any, targets: Iterable[Any], feeds: Collection[str]) -> set[int]:
    """The places in a block of Fluid's interface of the ops that give the targets: variables, their names, or ops.

    What is fed needs no op. Raises ValueError for other targets, and for a variable that no op writes.
    """
    ops, found = list(block.ops), set[int]()
    chosen = [target for target in targets if hasattr(target, "frozen")]
    for target in targets:
        if hasattr(target, "frozen"):
            found.add(next(place for place, op in enumerate(ops) if op is target))
            continue
        name = getattr(target, "name", target)
        if not isinstance(name, str):
            raise ValueError(
                "All targets of Program._prune_with_input() can only be Variable or Operator or str, "
                f"not {type(name).__name__}"
            )
        if name in feeds:
            continue
        writers = (
            place
            for place, op in enumerate(ops)
            if name in op.output_arg_names and (op in chosen or not int(op.frozen.role or 0) & OpRole.OPTIMIZE)
        )
        place = next(writers, None)
        if place is None:
            raise ValueError(f"no op gives {name}, to which the program shall be pruned")
        found.add(place)
    return found


def with_used_variables(program: Program, others: Iterable[str] = ()) -> Program:
    """The program without variables and inner blocks that no op uses; those in `others` stay."""
    used, waiting, blocks = set(others), list(program.main_block.ops), {0}
    while waiting:
        op = waiting.pop()
        used.update(op.input_names, op.output_names)
        for index in blocks_of(op):
            if index not in blocks and 0 <= index < len(program.blocks):
                blocks.add(index)
                waiting.extend(program.blocks[index].ops)
    numbers = {number: at for at, number in enumerate(sorted(blocks))}
    return program._replace(blocks=tuple(_with(program.blocks[number], used, numbers) for number in numbers))


def _with(block: Block, used: set[str], numbers: Mapping[int, int]) -> Block:
    """A block with the variables used, and blocks under other numbers."""
    return block._replace(
        vars=FrozenMap({name: var for name, var in block.vars.items() if name in used}),
        ops=tuple(_at_numbers(op, numbers) for op in block.ops),
        parent=numbers.get(block.parent, min(block.parent, 0)),
        forward_block=numbers.get(block.forward_block, -1),
    )


def _at_numbers(op: Op, numbers: Mapping[int, int]) -> Op:
    if not blocks_of(op):
        return op
    return op._replace(attrs=FrozenMap({name: renumbered(value, numbers) for name, value in op.attrs.items()}))
