"""The updates of a synchronous server, made ready to run: by program of the trainers, and by what did not come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pstranspile.ir.frozen import FrozenMap
from pstranspile.ir.model import Op, Program
from pstranspile.kernels.context import Value
from pstranspile.run.cluster.blocks import Block, Parts, block_program, part_of, read_first, with_temporaries
from pstranspile.run.cluster.counters import count_rounds, shared_counters
from pstranspile.run.cluster.server import Server, pairs


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
        self._parts = Parts(server.main, numbers, shared_counters(source, server.scope) if int(rates) >= 0 else ())
        program = count_rounds(source, int(rates), server.scope)
        declared = server.main.main_block.vars
        listed = set(server.op.inputs.get("X", ()))
        self._wanted = [
            name
            for name in read_first(program.main_block.ops)
            if name in listed
            or (name in declared and (not declared[name].persistable or server.scope.get(name) is None))
        ]
        """What the update needs of the trainers, in the order in which it is read."""
        self.program: Program = with_temporaries(program, pairs(server.op, "grad_to_block_id"))
        everything = frozenset[str]().union(*server.sent_by_program.values())
        self._idle = {name: everything - sent for name, sent in server.sent_by_program.items()}
        """By program of the trainers, what just other programs send."""
        self._wanted_by_program: dict[str, frozenset[str]] = {}
        self._made: dict[tuple[str, frozenset[str]], Update] = {}

    @property
    def prepared(self) -> Iterable[Block]:
        """The blocks made ready so far."""
        return (update.block for update in self._made.values())

    def wanted(self, program: str) -> frozenset[str]:
        """What the update of one program of the trainers needs of them."""
        names = self._wanted_by_program.get(program)
        if names is None:
            names = self._wanted_by_program[program] = frozenset(self._wanted) - self._idle.get(
                program, frozenset[str]()
            )
        return names

    def absent(self, program: str, received: Iterable[str]) -> frozenset[str]:
        """What of that did not come."""
        return self.wanted(program).difference(received)

    def update(self, program: str, absent: frozenset[str]) -> Update:
        """The update of one program without what did not come."""
        made = self._made.get((program, absent))
        if made is None:
            made = self._made[program, absent] = self._make(program, absent)
        return made

    def _make(self, name: str, absent: frozenset[str]) -> Update:
        idle = self._idle.get(name, frozenset[str]())
        program = self._parts.of(self.program, idle, frozenset(self._wanted))
        if idle:
            program = without(program, idle.intersection(self._wanted, read_first(program.main_block.ops)))
        if absent:
            program = without(program, absent)
        read = set(read_first(program.main_block.ops))
        wanted = self.wanted(name) - absent
        names = [name for name in self._wanted if name in read and name in wanted]
        return Update(Block(program, self._scope, names, (), seed=self._seed), names)


def without(program: Program, absent: frozenset[str]) -> Program:
    """The update without gradients that did not come: averages are over those that came.

    A `sum` leaves the absent ones out; the `scale` that makes its average is adapted. Ops that are left without any
    gradient are left out, and so are those that read what they would have made.
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
