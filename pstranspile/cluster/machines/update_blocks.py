"""The updates of a synchronous server, ready to run, by program of the trainers and by absent gradients."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from pstranspile.cluster.machines.blocks import Block, block_program, part_of, read_first, with_temporaries
from pstranspile.cluster.machines.counters import count_rounds, shared_counters
from pstranspile.cluster.machines.server import Server, pairs
from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program
from pstranspile.runtime.kernels.context import Value


class Update(NamedTuple):
    """An update: its block, and the names of what it is made of."""

    block: Block
    names: list[str]

    def apply(self, received: dict[str, Value]) -> None:
        """Makes the update. Raises DiagnosticError."""
        self.block.apply([received[name] for name in self.names])


class UpdateBlocks:
    """Makes the updates of a server whose start-up program has run."""

    def __init__(self, server: Server):
        blocks: Any = server.op.attrs["optimize_blocks"]
        rates: Any = server.op.attrs.get("lr_decay_block_id", -1)
        numbers = [int(number) for number in blocks]
        source = block_program(server.main, numbers)
        self._scope, self._seed = server.scope, server.seed
        counters = shared_counters(source, server.scope) if int(rates) >= 0 else ()
        self._counters = {counter.place: frozenset(counter.own) for counter in counters}
        """By place among the ops: what a sum of step counters adds up."""
        self._spans = list(pairwise(accumulate((len(server.main.blocks[n].ops) for n in numbers), initial=0)))
        """Where each block of the update begins and ends among the ops."""
        program = count_rounds(source, int(rates), server.scope)
        declared = server.main.main_block.vars
        listed = set(server.op.inputs.get("X", ()))
        self._wanted = [
            name
            for name in read_first(program.main_block.ops)
            if name in listed
            or (name in declared and (not declared[name].persistable or server.scope.get(name) is None))
        ]
        """The variables that the update needs from the trainers, in the order in which it reads them."""
        self.program: Program = with_temporaries(program, pairs(server.op, "grad_to_block_id"))
        all_names = frozenset[str]().union(*server.sent_by_program.values())
        self._idle = {name: all_names - sent for name, sent in server.sent_by_program.items()}
        """For each program of the trainers, the variables that only other programs send."""
        self._wanted_by_program: dict[str, frozenset[str]] = {}
        self._made: dict[tuple[str, frozenset[str]], Update] = {}

    @property
    def names(self) -> Iterable[str]:
        """The variables that the update needs from the trainers."""
        return self._wanted

    @property
    def prepared(self) -> Iterable[Block]:
        """The blocks made ready so far."""
        return (update.block for update in self._made.values())

    def wanted(self, program: str) -> frozenset[str]:
        """The variables that the update of one program needs from the trainers."""
        names = self._wanted_by_program.get(program)
        if names is None:
            names = self._wanted_by_program[program] = frozenset(self._wanted) - self._idle.get(
                program, frozenset[str]()
            )
        return names

    def absent(self, program: str, received: Iterable[str]) -> frozenset[str]:
        """The variables of these that did not come."""
        return self.wanted(program).difference(received)

    def update(self, program: str, absent: frozenset[str]) -> Update:
        """The update of one program without what did not come."""
        made = self._made.get((program, absent))
        if made is None:
            made = self._made[program, absent] = self._make(program, absent)
        return made

    def _make(self, name: str, absent: frozenset[str]) -> Update:
        idle = self._idle.get(name, frozenset[str]())
        program = self.program
        if idle:
            program = self._without_blocks(idle)
            program = without(program, idle.intersection(self._wanted, read_first(program.main_block.ops)))
        if absent:
            program = without(program, absent)
        read = set(read_first(program.main_block.ops))
        wanted = self.wanted(name) - absent
        names = [name for name in self._wanted if name in read and name in wanted]
        return Update(Block(program, self._scope, names, (), seed=self._seed), names)

    def _without_blocks(self, idle: frozenset[str]) -> Program:
        """The update without the blocks whose gradients are all `idle`, and without the sums of idle step counters.
        Blocks that read no gradient (of learning rates) stay.
        """
        ops, kept = self.program.main_block.ops, list[Op]()
        for start, stop in self._spans:
            read = {*self._wanted}.intersection(read_first(ops[start:stop]))
            if not read or not read <= idle:
                counters = self._counters
                kept += (ops[at] for at in range(start, stop) if at not in counters or not counters[at] <= idle)
        return part_of(self.program, kept)


def without(program: Program, absent: frozenset[str]) -> Program:
    """The update without the absent gradients: averages are over those that came.

    A `sum` omits absent gradients, and the `scale` that makes its average is adapted. Ops without any gradient are
    removed, and so are the ops that read their outputs.
    """
    ops: list[Op] = []
    missing = set(absent)
    short: dict[str, float] = {}
    for op in program.main_block.ops:
        inputs = op.inputs.get("X", ())
        if op.type == "sum" and missing.intersection(inputs) and not missing.issuperset(inputs):
            kept = tuple(name for name in inputs if name not in missing)
            short.update(dict.fromkeys(op.output_names, len(inputs) / len(kept)))
            op = op._replace(inputs=FrozenMap({**op.inputs, "X": kept}))
        elif missing.intersection(op.input_names):
            missing.update(op.output_names)
            continue
        elif op.type == "scale" and inputs and inputs[0] in short:
            factor: Any = op.attrs["scale"]
            op = op._replace(attrs=FrozenMap({**op.attrs, "scale": factor * short.pop(inputs[0])}))
        missing.difference_update(op.output_names)
        ops.append(op)
    return part_of(program, ops)
