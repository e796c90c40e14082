"""Collective ops of trainers: sums, averages and broadcasts over the trainers of a ring, and the ops that Fluid's
executor adds to a program. The machines that carry them out are in `collectives`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pstranspile.cluster.machines.collectives.parts import Known, Part
from pstranspile.cluster.machines.collectives.ring import Ring, RingReplies
from pstranspile.cluster.machines.exchanges import COLLECTIVES, Exchange
from pstranspile.cluster.machines.message import COLLECTIVE
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.machines.trainer_role import TrainerRole
from pstranspile.cluster.machines.waits import Action, Replies
from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import Op, Program, Role, Var
from pstranspile.ir.roles import OpRole
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.describe import describe
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.run.turns import union_of
from pstranspile.runtime.values import LoDTensor, SelectedRows

REDUCE_TYPES = ("c_allreduce_sum", "c_allreduce_prod", "c_allreduce_max", "c_allreduce_min")
"""What the numbers of the older op's `reduce_type` mean."""


_OF_ROWS = ("c_allreduce_sum", "average", "c_broadcast")
"""Operations that take sparse rows."""


def kind_of(op: Op) -> str:
    """What a collective op does, under the name of the newer op."""
    if op.type == "allreduce":
        number: Any = op.attrs.get("reduce_type", 0)
        return REDUCE_TYPES[int(number)]
    return "c_broadcast" if op.type == "broadcast" else op.type


def ring_of(op: Op) -> str:
    """The name of the ring that an op works on."""
    number: Any = op.attrs.get("ring_id", 0)
    return f"ring_{int(number)}"


def known_operations(programs: Iterable[Program]) -> dict[str, dict[str, Known]]:
    """What programs say about the variables of each ring, by the ring's name."""
    kinds: dict[str, dict[str, set[tuple[str, int]]]] = {}
    declared: dict[str, Var] = {}
    for program in programs:
        for op in program.main_block.ops:
            if op.type not in COLLECTIVES:
                continue
            root: Any = op.attrs.get("root", 0)
            for name in op.inputs.get("X", ()):
                kinds.setdefault(ring_of(op), {}).setdefault(name, set()).add((kind_of(op), int(root)))
                if (var := program.main_block.vars.get(name)) is not None:
                    declared.setdefault(name, var)
    return {
        ring: {name: Known(declared.get(name), frozenset(found)) for name, found in by_name.items()}
        for ring, by_name in kinds.items()
    }


def make_collective(trainer: Trainer, exchange: Exchange, rings: Mapping[str, Ring]) -> Action:
    """The action of collective ops that begin together."""
    sides = [rings[f"{trainer.name}/{ring_of(op)}"] for op in exchange.ops]
    links = [trainer.network.link(trainer, side, trainer.index) for side in sides]
    forms: list[tuple[str, int, bool]] = []
    for op in exchange.ops:
        root: Any = op.attrs.get("root", 0)
        averages = bool((op.role or OpRole.FORWARD) & (OpRole.BACKWARD | OpRole.OPTIMIZE))
        forms.append((kind_of(op), int(root), averages))
    owned = [output in trainer.role.changed for output in exchange.outputs]

    def join(answers: list[Value]) -> list[Value]:
        return [_owned(value) if own else value for value, own in zip(answers, owned, strict=True)]

    def run(values: tuple[Value, ...]) -> Replies:
        step = trainer.step
        replies = RingReplies(step, len(links), join, sides)
        for slot, (link, name, form, value) in enumerate(zip(links, exchange.inputs, forms, values, strict=True)):
            numbers = value if value.__class__ is np.ndarray else numbers_of(exchange.ops[slot], form[0], value)
            link.post(COLLECTIVE, step, name, Part(*form, describe(numbers), numbers), slot)
        return replies

    return run


def numbers_of(op: Op, kind: str, value: Value) -> Value:
    """What trainers exchange of a value that is no array: of a ragged tensor its numbers. Raises DiagnosticError."""
    if isinstance(value, LoDTensor):
        return value.data
    if isinstance(value, SelectedRows) and kind in _OF_ROWS:
        return value
    message = f"%{op.input('X')} is {describe(value)}, which {op.type} does not take"
    raise DiagnosticError([at_op("cluster-collective", message, op)])


def _owned(value: Value) -> Value:
    """A value that may be changed in place. (An array that can be written to is nobody else's.)"""
    return value if value.__class__ is np.ndarray and value.flags.writeable else own_copy(value)


def plays_executor(startup: Program) -> bool:
    """Whether a trainer leaves it to Fluid's multi-process executor to average gradients (mode nccl2)."""
    return any(op.type == "gen_nccl_id" for op in startup.main_block.ops)


def with_averages(main: Program) -> Program:
    """The program with every gradient averaged over the trainers right after the op that makes it.

    That is what Fluid's ParallelExecutor does for ops that name parameter and gradient in their role variables.
    """
    ops: list[Op] = []
    for op in main.main_block.ops:
        ops.append(op)
        if not (op.role or OpRole.FORWARD) & OpRole.BACKWARD:
            continue
        written = set(op.output_names)
        for _, gradient in op.role_pairs:
            if gradient in written:
                slots = FrozenMap({"X": (gradient,)}), FrozenMap({"Out": (gradient,)})
                ops.append(Op("average", *slots, role=OpRole.BACKWARD, origin=op.origin))
    return main._replace(blocks=(main.main_block._replace(ops=tuple(ops)), *main.blocks[1:]))


def with_broadcasts(startup: Program, main: Program) -> Program:
    """The start-up program that ends with the parameters of trainer 0 for all, as that executor starts."""
    made = {name for op in startup.main_block.ops for name in op.output_names}
    names = dict.fromkeys(p for op in main.main_block.ops for p, _ in op.role_pairs if p in made)
    ops = [
        Op("c_broadcast", FrozenMap({"X": (name,)}), FrozenMap({"Out": (name,)}), FrozenMap({"root": 0}))
        for name in names
    ]
    block = startup.main_block
    return startup._replace(blocks=(block._replace(ops=(*block.ops, *ops)), *startup.blocks[1:]))


def trainer_role(role: Role) -> TrainerRole:
    """The programs of a trainer, with the operations that Fluid's executor would add."""
    startup, main = role.startup, role.main
    others: Mapping[str, Program] = getattr(role, "others", EMPTY)  # roles of other origin may have none
    if plays_executor(startup):
        startup, main = with_broadcasts(startup, union_of((main, *others.values()))), with_averages(main)
        others = {other: with_averages(program) for other, program in others.items()}
    return TrainerRole(startup, main, others)
