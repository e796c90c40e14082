"""Gradients of loop variables that the backward pass does not add up.

The gradient of a loop variable has one name before and after the loop's gradient op. So Fluid's backward pass does not
count that op among those that add to the gradient. If the variable is also used before the loop, the gradient of that
use overwrites the loop's. This pass adds them.
"""

from __future__ import annotations

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Block, Op, Program
from pstranspile.ir.roles import OpRole
from pstranspile.ops.gradient import SUFFIX
from pstranspile.ops.gradients.old_values import History, is_backward

KEPT = "@OF@LOOP"
"""Suffix of the gradient of a loop before other terms are added."""


def with_loop_terms(program: Program) -> Program:
    """The program with these gradients added up; the same object if there are none."""
    blocks = list(program.blocks)
    for number, block in enumerate(blocks):
        if any(op.type == "while_grad" for op in block.ops):
            forward = block.forward_block if number and block.forward_block > 0 else number
            blocks[number] = _added_up(block, blocks[forward] if forward < len(blocks) else block)
    changed = any(one is not other for one, other in zip(blocks, program.blocks, strict=True))
    return program._replace(blocks=tuple(blocks)) if changed else program


def _added_up(block: Block, forward: Block) -> Block:
    history = History([op for op in forward.ops if not is_backward(op)])
    waiting: dict[str, int | None] = {}
    """Gradients from a loop that nothing has read yet, with the version of the variable that the loop read."""
    of_terms: dict[str, int | None] = {}
    ops: list[Op] = []
    declared = dict(block.vars)
    for op in block.ops:
        if not is_backward(op):
            ops.append(op)
            continue
        versions = {f"{name}{SUFFIX}": version.writes for name, version in history.read_by(op).items()}
        given = set(op.input_names)
        first = next(iter(op.input_names), "") if op.type == "sum" else ""
        added: list[str] = []
        for name in dict.fromkeys(op.output_names):
            of_terms[name] = of_terms.get(first, versions.get(name.partition(SUFFIX)[0] + SUFFIX))
            if name in waiting and name not in given:
                version = waiting.pop(name)
                if None in (version, of_terms[name]) or version == of_terms[name]:
                    added.append(name)  # otherwise it belongs to a value that was overwritten
        for name in given & waiting.keys():
            del waiting[name]
        ops += [*(_op("assign", (name,), name + KEPT) for name in added), op]
        ops += [_op("sum", (name + KEPT, name), name) for name in added]
        declared.update((n + KEPT, declared[n]._replace(name=n + KEPT)) for n in added if n in declared)
        if op.type == "while_grad":
            waiting.update((name, versions.get(name)) for name in op.outputs.get("X@GRAD", ()) if name in given)
    return block._replace(vars=type(block.vars)(declared), ops=tuple(ops)) if len(ops) > len(block.ops) else block


def _op(kind: str, given: tuple[str, ...], made: str) -> Op:
    return Op(kind, FrozenMap({"X": given}), FrozenMap({"Out": (made,)}), role=OpRole.BACKWARD)
