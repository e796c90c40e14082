"""The uses of each value that lead to the loss: the terms that its gradient must have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from pstranspile.ir.model import Block, FrozenMap, Op, Program
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ops.attributes import strings_attr
from pstranspile.ops.gradient import SUFFIX, variable_of_gradient
from pstranspile.ops.gradients.versions import (
    ExpectedGradientOp,
    Forward,
    History,
    Use,
    end_of,
    expected_of,
    inner_block,
    is_backward,
    keeps_value,
    outside_names,
)

# Gradients of loop variables that the backward pass does not add up.
#
# The gradient of a loop variable has one name before and after the loop's gradient op. So Fluid's backward pass does
# not count that op among those that add to the gradient. If the variable is also used before the loop, the gradient of
# that use overwrites the gradient from the loop. This pass adds the two.

KEPT = "@OF@LOOP"
"""Suffix of the gradient of a loop before other terms are added."""


def with_loop_terms(program: Program) -> Program:
    """The program in which the gradients of loop variables are added up; the same object if there are none."""
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
    """Gradients from a loop that no op has read yet, with the version of the variable that the loop read."""
    of_terms: dict[str, int | None] = {}
    ops: list[Op] = []
    declared = dict(block.vars)
    for op in block.ops:
        if not is_backward(op):
            ops.append(op)
            continue
        versions = {f"{name}{SUFFIX}": version.writes for name, version in history.read_by(op).items()}
        input_names = set(op.input_names)
        first = next(iter(op.input_names), "") if op.type == "sum" else ""
        added: list[str] = []
        for name in dict.fromkeys(op.output_names):
            of_terms[name] = of_terms.get(first, versions.get(name.partition(SUFFIX)[0] + SUFFIX))
            if name in waiting and name not in input_names:
                version = waiting.pop(name)
                if None in (version, of_terms[name]) or version == of_terms[name]:
                    added.append(name)  # otherwise it belongs to a value that was overwritten
        for name in input_names & waiting.keys():
            del waiting[name]
        ops += [*(_op("assign", (name,), name + KEPT) for name in added), op]
        ops += [_op("sum", (name + KEPT, name), name) for name in added]
        declared.update((n + KEPT, declared[n]._replace(name=n + KEPT)) for n in added if n in declared)
        if op.type == "while_grad":
            waiting.update((name, versions.get(name)) for name in op.outputs.get("X@GRAD", ()) if name in input_names)
    return block._replace(vars=type(block.vars)(declared), ops=tuple(ops)) if len(ops) > len(block.ops) else block


def _op(kind: str, given: tuple[str, ...], output: str) -> Op:
    return Op(kind, FrozenMap({"X": given}), FrozenMap({"Out": (output,)}), role=OpRole.BACKWARD)


Terms = dict[tuple[str, int], set[Use]]
"""A mapping from a version of a variable (name, number of writes) to its uses that lead to the loss."""


class RequiredTerms:
    """The terms that the gradients of a program must have.

    `is_stopped` is true of variables that have no gradient. Arrays are followed by name, because their elements have no
    versions.
    """

    def __init__(self, program: Program, loss: str, stopped: Callable[[str], bool]):
        self.program = program
        self.loss = loss
        self.is_stopped = stopped
        self.arrays: set[str] = set()
        self._forward: dict[int, Forward] = {}
        self._expected: dict[int, list[list[ExpectedGradientOp]]] = {}
        self._inner: dict[tuple[int, frozenset[str]], Terms] = {}
        while True:  # a loop may read an array that it wrote in an earlier iteration
            known = len(self.arrays)
            self._inner.clear()
            self.terms = self._of(self.forward(0), ())
            if len(self.arrays) == known:
                break

    def forward(self, block: int) -> Forward:
        """The forward ops of a block."""
        if block not in self._forward:
            self._forward[block] = Forward(self.program, block)
        return self._forward[block]

    def expected_ops(self, block: int) -> list[list[ExpectedGradientOp]]:
        """The gradient ops of each forward op of a block."""
        if block not in self._expected:
            ops = self.forward(block).ops
            self._expected[block] = [expected_of(op, index) for index, op in enumerate(ops)]
        return self._expected[block]

    def active(self, forward: Forward, terms: Terms, index: int) -> list[str]:
        """The outputs of an op that lead to the loss."""
        return [
            name
            for name, version in forward.written_versions[index].items()
            if terms.get((name, version))
            or name in self.arrays
            or (name == self.loss and self._is_loss(forward, index))
        ]

    def _is_loss(self, forward: Forward, index: int) -> bool:
        return forward.number == 0 and forward.written_versions[index][self.loss] == forward.last_versions[self.loss]

    def _of(self, forward: Forward, ends: Iterable[str]) -> Terms:
        terms: Terms = {}
        for name in ends:
            terms[name, forward.last_versions.get(name, 0)] = {end_of(name)}
        for index in range(len(forward.ops) - 1, -1, -1):
            op = forward.ops[index]
            active = self.active(forward, terms, index)
            if not active:
                continue
            if inner_block(self.program, op):
                uses = self._of_inner(forward, index, op, active)
            else:
                uses = self._of_plain(forward, index, set(active))
            for use, name in uses:
                if forward.kind(name) is VarKind.LOD_TENSOR_ARRAY:
                    self.arrays.add(name)
                elif forward.is_float(name) and not self.is_stopped(name):
                    terms.setdefault((name, forward.read_versions[index].get(name, 0)), set()).add(use)
        return terms

    def _of_plain(self, forward: Forward, index: int, active: set[str]) -> list[tuple[Use, str]]:
        op = forward.ops[index]
        if keeps_value(op):
            return []
        result: list[tuple[Use, str]] = []
        for expected in self.expected_ops(forward.number)[index]:
            if any(SUFFIX in name and variable_of_gradient(name) in active for name in expected.op.input_names):
                result += expected.uses()
        return result

    def _of_inner(self, forward: Forward, index: int, op: Op, active: list[str]) -> list[tuple[Use, str]]:
        block = inner_block(self.program, op)
        terms, _ = self.inner(op, active)
        declared = self.program.blocks[block].vars
        entries = [name for (name, version), uses in terms.items() if not version and uses]
        if op.type == "recurrent":
            before = strings_attr(op, "ex_states")
            by_slot = {"inputs": op.inputs.get("inputs", ()), "parameters": op.inputs.get("parameters", ())}
            result = [
                (Use(index, 0, slot, place), name)
                for slot, names in by_slot.items()
                for place, name in enumerate(names)
                if name in entries
            ]
            states = zip(before, op.inputs.get("initial_states", ()), strict=False)
            result += [
                (Use(index, 0, "initial_states", place), start)
                for place, (name, start) in enumerate(states)
                if name in entries
            ]
            return result
        _, written = outside_names(self.program, op)
        outside = dict.fromkeys([name for name in entries if name not in declared])
        outside.update(
            (name, None) for name in active if name in written
        )  # the branch may not run, which leaves them unchanged
        return [(Use(index, 0, name, 0), name) for name in outside]

    def inner(self, op: Op, active: Iterable[str]) -> tuple[Terms, frozenset[str]]:
        """The terms within a sub-block, and the variables whose last values lead to the loss."""
        block = inner_block(self.program, op)
        forward = self.forward(block)
        ends = {name for name in active if name in forward.last_versions}
        while True:
            if (block, frozenset(ends)) not in self._inner:
                self._inner[block, frozenset(ends)] = self._of(forward, sorted(ends))
            terms = self._inner[block, frozenset(ends)]
            more = {name for name in self._carried_variables(op, forward, terms) if name not in ends}
            if not more:
                return terms, frozenset(ends)
            ends |= more

    def _carried_variables(self, op: Op, forward: Forward, terms: Terms) -> AbstractSet[str]:
        """The variables that a step passes to the next one and that lead to the loss."""
        entries = {name for (name, version), uses in terms.items() if not version and uses}
        if op.type == "while":
            return {name for name in entries if name in forward.last_versions and name not in forward.block.vars}
        if op.type == "recurrent":
            pairs = zip(strings_attr(op, "ex_states"), strings_attr(op, "states"), strict=False)
            return {state for before, state in pairs if before in entries}
        return frozenset()
