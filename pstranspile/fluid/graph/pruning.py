"""Parts of programs: what computes some targets, and the variables that the ops left use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Op, Program


def blocks_of(op: Op) -> list[int]:
    """The blocks that an op runs."""
    result: list[int] = []
    for value in op.attrs.values():
        if isinstance(value, BlockRef):
            result.append(int(value))
        elif isinstance(value, BlockRefs):
            result.extend(int(index) for index in value)
    return result


def _deep(program: Program, op: Op) -> tuple[set[str], set[str]]:
    """What an op reads and writes, with its blocks."""
    reads, writes = set(op.input_names), set(op.output_names)
    for index in blocks_of(op):
        if 0 <= index < len(program.blocks):
            for inner in program.blocks[index].ops:
                more = _deep(program, inner)
                reads |= more[0]
                writes |= more[1]
    return reads, writes


def pruned(program: Program, targets: Iterable[str], feeds: Sequence[str] = ()) -> Program:
    """The ops of block 0 that the targets need, given the feeds, and the variables that they use."""
    block = program.main_block
    needed = set(targets)
    kept: list[Op] = []
    for op in reversed(block.ops):
        reads, writes = _deep(program, op)
        if op.is_target or needed.intersection(writes):
            kept.append(op)
            needed |= reads - set(feeds)
    left = block._replace(ops=tuple(reversed(kept)))
    return with_used_variables(program._replace(blocks=(left, *program.blocks[1:])), [*targets, *feeds])


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
    left = [_with(block, used) for block in program.blocks]
    while len(left) > 1 and len(left) - 1 not in blocks:
        left.pop()
    return program._replace(blocks=tuple(left))


def _with(block: Block, used: set[str]) -> Block:
    return block._replace(vars=FrozenMap({name: var for name, var in block.vars.items() if name in used}))
