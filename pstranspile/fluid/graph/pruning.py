"""Cuts parts out of programs: the ops that compute some targets, and the variables that the remaining ops use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pstranspile.fluid.missing import unsupported_error
from pstranspile.frontends.autodiff.backward import flush, ops_to, rename_variables, unwanted_gradients
from pstranspile.frontends.layers.draft import Draft
from pstranspile.ir.attributes import BlockRef, BlockRefs, renumber_blocks
from pstranspile.ir.model import Block, FrozenMap, Op, Program, TensorType, Var
from pstranspile.ir.types import DType, OpRole
from pstranspile.ops.build import typed_slots
from pstranspile.ops.gradient import SUFFIX, variable_of_gradient

# Values of the forward part that are computed again for the backward part, instead of being kept for it.
#
# Checkpoints cut the ops that lead to a loss into segments. What is written and read within a segment only is let go
# after it; before the gradients of the segment its ops run once more and write copies (`x.subprog_0`, the last segment
# first), which the gradient ops read. Copies of dropout draw what the first ones drew, by a seed that both read.
#
# Two blocks that nothing refers to stay in the program, as in Fluid: the first has the gradient ops outside of
# segments and the ops of segments as they were, the second the copies.


class Segment(NamedTuple):
    """A segment of a path: the ops with indices `start` up to `end`."""

    start: int
    end: int


class RecomputationPath:
    """The path to the loss of a program without gradients, cut into segments at checkpoints.

    The constructor gives every dropout on the path a seed of its own. Raises NotHere where an op has a sub-block.
    """

    def __init__(self, draft: Draft, loss: str, checkpoints: Iterable[str], no_grad: Iterable[str]):
        flush(draft)
        self.draft = draft
        unwanted = unwanted_gradients(draft, floats=False)[draft.current]
        stopped = {variable_of_gradient(name) for name in unwanted}.union(no_grad)
        _give_seeds(draft, ops_to(draft.block.ops, {loss}, stopped))
        self.path = ops_to(draft.block.ops, {loss}, stopped, differentiable=False)
        for op in self.path:
            if isinstance(op.attrs.get("sub_block"), BlockRef):
                raise unsupported_error(
                    f"recomputing {op.type}", "take checkpoints only of nets without loops and branches"
                )
        self._forward = len(draft.block.ops)
        self.writers: dict[str, list[int]] = {}
        self.readers: dict[str, list[int]] = {}
        for index, op in enumerate(self.path):
            for name in op.input_names:
                self.readers.setdefault(name, []).append(index)
            for name in op.output_names:
                self.writers.setdefault(name, []).append(index)
        self.checkpoints = self._in_order(checkpoints)
        self.segments = self._find_segments()
        self.kept_variables = self._kept_variables()

    def _in_order(self, names: Iterable[str]) -> list[str]:
        """The checkpoints that are on the path, in the order in which they are written."""
        used = [name for name in dict.fromkeys(names) if name in self.writers or name in self.readers]
        return sorted(used, key=lambda name: max(self.writers.get(name, [-1])))

    def _find_segments(self) -> list[Segment]:
        cut: list[Segment] = []
        if len(self.checkpoints) == 1:
            last = max(self.writers.get(self.checkpoints[0], [-1]))
            cut = [Segment(0, last + 1)] if last > 0 else []
        for begin, end in zip(self.checkpoints, self.checkpoints[1:], strict=False):
            first, last = min(self.readers.get(begin, [len(self.path)])), max(self.writers.get(end, [-1]))
            if first < last:
                cut.append(Segment(first, last + 1))
        return [Segment(0, cut[0].start), *cut] if cut and cut[0].start else cut

    def _kept_variables(self) -> set[str]:
        """The variables that are not computed again: checkpoints, persistable and fed ones, seeds, and those that ops
        outside of their segment use.
        """
        kept_names = {var.name for block in self.draft.blocks for var in block.vars.values() if var.persistable}
        kept_names.update(self.checkpoints, (name for name in self.readers if name not in self.writers))
        for op in self.path:
            if op.type in ("seed", "read"):
                kept_names.update(op.output_names)
        for start, end in self.segments:
            for op in self.path[start:end]:
                kept_names.update(name for name in op.output_names if max(self.readers.get(name, [-1])) >= end)
                kept_names.update(name for name in op.input_names if min(self.writers.get(name, [start])) < start)
        return kept_names

    def insert(self) -> None:
        """Inserts the copies of the segments' ops among the gradient ops, which come after the forward ones."""
        ops, draft = self.draft.block.ops, self.draft
        drafted = draft.blocks[draft.new_block()]
        with draft.enter_block(len(draft.blocks) - 1):
            copied = draft.blocks[draft.new_block()]
        backward, copies = ops[self._forward :], dict[str, str]()
        done = 1  # the gradient of the loss itself
        for number, segment in enumerate(reversed(self.segments)):
            own = self.path[segment.start : segment.end]
            names = (name for op in own for name in (*op.input_names, *op.output_names))
            recomputed = (name for name in names if name not in self.kept_variables)
            copies |= {name: f"{name}.subprog_{number}" for name in recomputed if name not in copies}
            again = [self._copy(op, copies) for op in own if not self.kept_variables.issuperset(op.output_names)]
            at = self._first_gradient(backward, segment.end)
            drafted.ops += map(_without_pairs, backward[done:at])
            drafted.ops += [op._replace(role=OpRole.BACKWARD) for op in own]
            copied.ops += again
            backward[at:at] = again
            done = self._first_gradient(backward, segment.start)
        if not self.segments:
            drafted.ops += map(_without_pairs, backward[done:])
        ops[self._forward :] = [
            op if op.type == "fill_zeros_like" else op._replace(inputs=rename_variables(op.inputs, copies))
            for op in backward
        ]

    def _copy(self, op: Op, copies: dict[str, str]) -> Op:
        inputs, outputs = rename_variables(op.inputs, copies), rename_variables(op.outputs, copies)
        for slot, names in op.outputs.items():
            for name in names:
                var = self.draft.find(name)
                if name in copies and var is not None and var.tensor is not None:
                    made = var.tensor._replace(dtype=self._dtype(op, slot, inputs))
                    self.draft.declare(var._replace(name=copies[name], tensor=made))
        return op._replace(inputs=inputs, outputs=outputs, role=OpRole.BACKWARD)

    def _dtype(self, op: Op, slot: str, inputs: Mapping[str, tuple[str, ...]]) -> DType:
        """The element type that Fluid declares for a copy: that of the input if the op infers it, otherwise BOOL, which
        stands for no type.
        """
        source, result = typed_slots(op.type)
        type_ = self.draft.type_of(inputs[source][0]) if slot == result else None
        return DType.BOOL if type_ is None else type_.dtype

    def _first_gradient(self, backward: Sequence[Op], end: int) -> int:
        """The index in `backward` at which the gradients of the ops before op `end` of the path begin."""
        for at, op in enumerate(backward):
            read = [variable_of_gradient(name) for name in op.input_names if SUFFIX in name]
            written = [max(self.writers[name]) for name in read if name in self.writers]
            if written and max(written) < end:
                while backward[at - 1].type == "fill_zeros_like":
                    at -= 1
                return at
        return len(backward)


def _without_pairs(op: Op) -> Op:
    """A gradient op without role variables, as it is before its parameter is known."""
    return op._replace(role_vars=() if "op_device" in op.attrs else None)


def _give_seeds(draft: Draft, path: Iterable[Op]) -> None:
    """Puts an op `seed` in front of each dropout, which draws the seed that the dropout then reads."""
    ops = draft.block.ops
    for op in [op for op in path if op.type == "dropout"]:
        at = next(index for index, other in enumerate(ops) if other is op)
        name = draft.names.mint(draft.names.mint("seed") + ".tmp")
        draft.declare(Var(name, tensor=TensorType(DType.INT32, ())))
        fixed = op.attrs.get("fix_seed")
        seed = draft.make("seed", {}, {"Out": name}, {"seed": op.attrs.get("seed", 0) if fixed else 0})
        attrs = FrozenMap({key: value for key, value in op.attrs.items() if key not in ("fix_seed", "seed")})
        ops[at : at + 1] = [seed, op._replace(inputs=FrozenMap({**op.inputs, "Seed": (name,)}), attrs=attrs)]
        draft.type_outputs(seed)


def blocks_of(op: Op) -> list[int]:
    """The indices of the blocks that an op runs."""
    result: list[int] = []
    for value in op.attrs.values():
        if isinstance(value, BlockRef):
            result.append(int(value))
        elif isinstance(value, BlockRefs):
            result.extend(int(index) for index in value)
    return result


def deep(program: Program, op: Op) -> tuple[set[str], set[str]]:
    """The variables that an op reads and those that it writes, including the ops of its blocks."""
    reads, writes = set(op.input_names), set(op.output_names)
    for index in blocks_of(op):
        if 0 <= index < len(program.blocks):
            for inner in program.blocks[index].ops:
                more = deep(program, inner)
                reads |= more[0]
                writes |= more[1]
    return reads, writes


_HANDED: dict[str, tuple[str, str]] = {"conditional_block": ("Input", "Out"), "while": ("X", "Out")}
"""For each op type with a block, the input slot of the variables that its block reads and the output slot of those that
it writes.
"""


def without_roles(program: Program, roles: OpRole) -> Program:
    """The program without the ops of these roles, in block 0 and all blocks inside it.

    An op whose block has lost ops keeps only the inputs and outputs that the block still uses. Returns the program
    itself if no op is removed.
    """
    blocks, changed = list(program.blocks), set[int]()
    for index in range(len(blocks) - 1, -1, -1):  # a block comes before the blocks inside it
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
    """The op without the inputs and outputs that its blocks no longer read or write."""
    if op.type not in _HANDED:
        return op
    (given, taken), bare = _HANDED[op.type], op._replace(inputs=FrozenMap(), outputs=FrozenMap())
    reads, writes = deep(program, bare)
    inputs = {**op.inputs, given: tuple(name for name in op.inputs.get(given, ()) if name in reads)}
    outputs = {**op.outputs, taken: tuple(name for name in op.outputs.get(taken, ()) if name in writes)}
    return op._replace(inputs=FrozenMap(inputs), outputs=FrozenMap(outputs))


def prune_to_targets(program: Program, targets: Collection[int], feeds: Collection[str] = ()) -> Program:
    """The program with the ops at the indices `targets` of block 0, those that they need beside the feeds, and the
    variables used.

    An op that updates parameters is kept only if it is a target, because other ops read the parameters before they are
    updated.
    """
    block = program.main_block
    needed = set[str]()
    kept_ops: list[Op] = []
    for place in range(len(block.ops) - 1, -1, -1):
        op = block.ops[place]
        reads, writes = deep(program, op)
        updates = bool((op.role or OpRole.FORWARD) & OpRole.OPTIMIZE)
        if place in targets or op.is_target or (not updates and needed.intersection(writes)):
            kept_ops.append(op)
            needed |= reads.difference(feeds)
    left = block._replace(ops=tuple(reversed(kept_ops)))
    return with_used_variables(program._replace(blocks=(left, *program.blocks[1:])))


def places_of(block: Any, targets: Iterable[Any], feeds: Collection[str]) -> set[int]:
    """The indices in a block of the ops that compute the targets, which are variables, their names, or ops.

    A target that is fed needs no op. Raises ValueError for other targets, and for a variable that no op writes.
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
    """The program without the variables and inner blocks that no op uses; variables in `others` are kept."""
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
    """A block with the used variables only, and with references to blocks renumbered."""
    return block._replace(
        vars=FrozenMap({name: var for name, var in block.vars.items() if name in used}),
        ops=tuple(_at_numbers(op, numbers) for op in block.ops),
        parent=numbers.get(block.parent, min(block.parent, 0)),
        forward_block=numbers.get(block.forward_block, -1),
    )


def _at_numbers(op: Op, numbers: Mapping[int, int]) -> Op:
    if not blocks_of(op):
        return op
    return op._replace(attrs=FrozenMap({name: renumber_blocks(value, numbers) for name, value in op.attrs.items()}))
