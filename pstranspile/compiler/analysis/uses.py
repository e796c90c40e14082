"""The def-use information of one block, computed once and shared by every pass.

The op graph presents it as a networkx DiGraph over op indices: an edge leads from an op to an op that uses its result.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pstranspile.ir.argument_checks import check_arguments, expect_program
from pstranspile.ir.attributes import BlockRef, BlockRefs
from pstranspile.ir.model import Block, Op, Program, Slots


class ReadersAndWriters(NamedTuple):
    """The readers and writers of each followed variable, as far as sends, drops and checks need them.

    `kept_writer` and `kept_reader` give the last writer and the first reader among the ops that stay on the trainer.
    `moved_writer` gives the last of the other ops that writes the variable after an op that stays has written it.
    """

    kept_writer: Mapping[str, int]
    kept_reader: Mapping[str, int]
    moved_writer: Mapping[str, int]

    def last_writer(self, name: str) -> int:
        """The last op that writes a variable, if an op that stays writes it. Raises KeyError for any other variable."""
        return self.moved_writer.get(name, self.kept_writer[name])


def names_in(block: Block, indices: Iterable[int]) -> set[str]:
    """Every variable that these ops read, write or name in their role variables."""
    result: list[str] = []
    for op in map(block.ops.__getitem__, indices):
        for names in op.inputs.values():
            result += names
        for names in op.outputs.values():
            result += names
        result += op.role_vars or ()
    return set(result)


def names_in_slots(slots: Iterable[Slots]) -> list[str]:
    """Every variable in these slots, as often as it occurs there."""
    return [name for given in slots for names in given.values() for name in names]


def uses_of(block: Block, moved: Container[int], followed: Container[str] | None = None) -> ReadersAndWriters:
    """The def-use index of a block of which the ops in `moved` leave the trainer (sub-blocks are not looked into).

    `followed` are the variables that will be queried; None: all. Each op is read once, as memory access dominates the
    time for a large program.
    """
    if followed is None:
        followed = names_in(block, range(len(block.ops)))
    kept_writer: dict[str, int] = {}
    kept_reader: dict[str, int] = {}
    rewritten: dict[str, int] = {}
    for index, op in enumerate(block.ops):
        if index in moved:
            for names in op.outputs.values():
                for name in names:
                    if name in kept_writer:
                        rewritten[name] = index
            continue
        for names in op.inputs.values():
            for name in names:
                if name in followed and name not in kept_reader:
                    kept_reader[name] = index
        for names in op.outputs.values():
            for name in names:
                if name in followed:
                    kept_writer[name] = index
    moved_writer = {name: index for name, index in rewritten.items() if index > kept_writer[name]}
    return ReadersAndWriters(kept_writer, kept_reader, moved_writer)


def sub_blocks(op: Op) -> tuple[int, ...]:
    """Indices of the blocks an op refers to, in the order of its attributes."""
    indices: list[int] = []
    for value in op.attrs.values():
        if type(value) is BlockRef:
            indices.append(int(value))
        elif type(value) is BlockRefs:
            indices.extend(value)
    return tuple(indices)


def deep_blocks(program: Program, op: Op) -> tuple[int, ...]:
    """Indices of all blocks below an op: its sub-blocks, their ops' sub-blocks and so on, each once."""
    indices: list[int] = []
    todo = list(sub_blocks(op))
    while todo:
        index = todo.pop(0)
        if index in indices or not 0 <= index < len(program.blocks):
            continue
        indices.append(index)
        for inner in program.blocks[index].ops:
            todo.extend(sub_blocks(inner))
    return tuple(indices)


class Effects(NamedTuple):
    """The variables of the enclosing blocks that an op reads and writes, including those of its sub-blocks."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def effects_of(program: Program, op: Op) -> Effects:
    """The variables outside its own sub-blocks that an op reads and writes, in order of first mention."""
    reads = dict.fromkeys(op.input_names)
    writes = dict.fromkeys(op.output_names)
    blocks = deep_blocks(program, op)
    inner_vars = {name for index in blocks for name in program.blocks[index].vars}
    for index in blocks:
        for inner in program.blocks[index].ops:
            reads.update((name, None) for name in inner.input_names if name not in inner_vars)
            writes.update((name, None) for name in inner.output_names if name not in inner_vars)
    return Effects(tuple(reads), tuple(writes))


if TYPE_CHECKING:
    import networkx

    OpGraph = networkx.DiGraph[int]
else:
    OpGraph = Any


@check_arguments
def op_graph(program: Program, indices: Iterable[int]) -> OpGraph:
    """The graph of these ops of block 0 (indices ascending), sub-blocks included in the op that owns them.

    An edge a -> b with attribute `var` means that b reads the value of `var` that a wrote, or overwrites it
    (`overwrites=True`). Only the latest writer before b counts, so in-place updates order correctly.
    Nodes have the attributes `op`, the Op, `type`, its type, and `inputs`, the variables that the op reads and no
    earlier op of the graph wrote. Raises ValueError for numbers that do not ascend, and those of no op.
    """
    import networkx

    expect_program(program, "op_graph")
    chosen = tuple(indices)
    count = len(program.main_block.ops)
    if any(not 0 <= index < count for index in chosen) or any(a >= b for a, b in pairwise(chosen)):
        raise ValueError(f"op_graph takes numbers of ops in ascending order, from 0 to {count - 1}, not {chosen}")
    graph: OpGraph = networkx.DiGraph()
    writer: dict[str, int] = {}
    for index in chosen:
        op = program.main_block.ops[index]
        effects = effects_of(program, op)
        graph.add_node(index, op=op, type=op.type, inputs=tuple(name for name in effects.reads if name not in writer))
        for name in effects.reads:
            if name in writer:
                graph.add_edge(writer[name], index, var=name, overwrites=False)
        for name in effects.writes:
            if name in writer and not graph.has_edge(writer[name], index):
                graph.add_edge(writer[name], index, var=name, overwrites=True)
            writer[name] = index
    return graph
