"""Trainers among themselves: sums, averages and broadcasts over the trainers of a ring.

A ring is a machine of its own to which every trainer sends its value and which answers all of them when the last one
has come. Values are added in the order of the trainers, so a result depends on no schedule.

Other than in Fluid a trainer that has left is not waited for; sums that make an average (of gradients, or of what
local SGD has learnt) stay averages over the trainers that are left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op
from pstranspile.ir.frozen import EMPTY, FrozenMap
from pstranspile.ir.model import Op, Program, Role
from pstranspile.ir.roles import OpRole
from pstranspile.kernels.context import Value
from pstranspile.kernels.rows import concat_rows
from pstranspile.run.cluster.exchanges import Exchange
from pstranspile.run.cluster.message import COLLECTIVE, COMPLETE, REPLY, Message
from pstranspile.run.cluster.network import Machine, Network, Waiting
from pstranspile.run.cluster.trainer import Trainer
from pstranspile.run.cluster.trainer_role import TrainerRole
from pstranspile.run.cluster.waits import Action, Replies
from pstranspile.run.describe import describe
from pstranspile.run.scope import own_copy
from pstranspile.run.turns import union_of
from pstranspile.values import SelectedRows

COLLECTIVES = frozenset(
    {
        "c_allreduce_sum", "c_allreduce_max", "c_allreduce_min", "c_allreduce_prod", "c_broadcast", "c_allgather",
        "c_reducescatter", "allreduce", "broadcast", "average",
    }
)  # fmt: skip
"""Op types in which all trainers of a ring take part."""

REDUCE_TYPES = ("c_allreduce_sum", "c_allreduce_prod", "c_allreduce_max", "c_allreduce_min")
"""What the numbers of the older op's `reduce_type` mean."""


class Part(NamedTuple):
    """A trainer's part in an operation: what to do, and its value.

    `root` is the trainer whose value a broadcast hands on. `averages`: whether a sum is one of gradients or of updates,
    which the program divides by the number of trainers.
    """

    kind: str
    root: int
    averages: bool
    value: Value


class Ring(Machine):
    """The trainers that take part in the collective operations of one `ring_id`."""

    def __init__(self, name: str, network: Network, trainers: Mapping[int, Machine], ops: Mapping[str, Op]):
        super().__init__(name, network)
        self._trainers = dict(trainers)
        self._ops = ops
        """An op of the ring for each variable that it works on, for messages."""
        self._count = len(self._trainers)
        self._queues: dict[int, deque[Message]] = {index: deque() for index in sorted(self._trainers)}
        self.live = set(self._trainers)
        self._announced: list[tuple[int, int]] = []
        self._from: dict[int, int] = {}
        """The trainers that came back, and the first step in which each takes part."""

    def announce(self, trainer: int, step: int) -> None:
        """A trainer that was here comes back, and takes part from this step."""
        self._announced.append((trainer, step))
        self._admit()

    def _admit(self) -> None:
        for entry in [entry for entry in self._announced if entry[0] not in self.live]:
            self._announced.remove(entry)
            self.live.add(entry[0])
            self._from[entry[0]] = entry[1]

    def _needed(self) -> set[int]:
        """The trainers that take part in the operation that is next."""
        if not self._from:
            return self.live
        step = self._next_step()
        return {index for index in self.live if self._from.get(index, step) <= step}

    def _next_step(self) -> int:
        return min((queue[0].step for queue in self._queues.values() if queue), default=0)

    def _take_parts(self) -> dict[int, Message]:
        """The parts of the operation that is next."""
        step = self._next_step() if self._from else 0
        return {
            index: queue.popleft()
            for index, queue in self._queues.items()
            if queue and (not self._from or queue[0].step <= step)
        }

    def receive(self, message: Message) -> None:
        """Takes a trainer's part, or hears that it has left; the last part that was missing makes the answer."""
        if message.kind == COMPLETE:
            self.live.discard(message.trainer)
            self._admit()
        else:
            self._queues[message.trainer].append(message)
        while (needed := self._needed()) and all(self._queues[index] for index in needed):
            self._answer(self._take_parts())

    def _answer(self, messages: Mapping[int, Message]) -> None:
        parts = {index: message.payload for index, message in messages.items()}
        op = self._ops[next(iter(messages.values())).variable]
        results = combine(self.name, parts, self._count, op)
        for index, message in messages.items():
            link = self.network.link(self, self._trainers[index], index)
            link.post(REPLY, message.step, message.variable, results[index], message.slot)

    def waiting(self) -> Waiting | None:
        """Which trainers have not come, if some have."""
        come = [index for index, queue in self._queues.items() if queue]
        if not come or not self.live:
            return None
        message = self._queues[come[0]][0]
        part: Part = message.payload
        missing = tuple(self._trainers[index].name for index in sorted(self._needed()) if not self._queues[index])
        op = self._ops[message.variable]
        return Waiting(self.name, op, f"the parts of all trainers in {part.kind}", missing)


def combine(ring: str, parts: Mapping[int, Part], count: int, op: Op) -> dict[int, Value]:
    """What each trainer gets. `count`: how many trainers the ring had at first. Raises DiagnosticError, at the op."""
    first = next(iter(parts.values()))
    kinds = {part.kind for part in parts.values()}
    forms = {describe(part.value) for part in parts.values()}
    if len(kinds) > 1 or (len(forms) > 1 and _must_agree(first)):
        told = [f"trainer {index}: {part.kind} of {describe(part.value)}" for index, part in parts.items()]
        message = f"the trainers of {ring} do not do the same"
        raise DiagnosticError([at_op("cluster-collective", message, op, notes=[Note(line) for line in told])])
    values = [part.value for part in parts.values()]
    if first.kind == "c_broadcast":
        if first.root not in parts:
            message = f"trainer {first.root}, whose value all others are to get, takes no part in {ring}"
            raise DiagnosticError([at_op("cluster-collective", message, op)])
        return dict.fromkeys(parts, parts[first.root].value)
    if first.kind == "c_allgather":
        return dict.fromkeys(parts, np.concatenate(values))
    total = _REDUCE[first.kind](values)
    if first.kind == "average":
        total = _times(total, 1.0 / len(values))
    elif first.kind in ("c_allreduce_sum", "c_reducescatter") and len(values) < count and first.averages:
        total = _times(total, count / len(values))
    if first.kind == "c_reducescatter":
        if len(total) % len(values):
            message = f"{len(total)} rows cannot be divided among {len(values)} trainers"
            raise DiagnosticError([at_op("cluster-collective", message, op)])
        return dict(zip(parts, np.split(total, len(values)), strict=True))
    if total.__class__ is np.ndarray:
        total.flags.writeable = False  # all trainers get the same array
    return dict.fromkeys(parts, total)


def _must_agree(part: Part) -> bool:
    return part.kind != "c_allgather" and not isinstance(part.value, SelectedRows)


def _sum(values: Sequence[Value]) -> Value:
    if isinstance(values[0], SelectedRows):
        return concat_rows(values)
    total = values[0].copy()
    for value in values[1:]:
        total += value
    return total


def _times(value: Value, factor: float) -> Value:
    if isinstance(value, SelectedRows):
        return value._replace(value=value.value * value.value.dtype.type(factor))
    return value * value.dtype.type(factor)


_REDUCE: dict[str, Callable[[Sequence[Value]], Value]] = {
    "c_allreduce_sum": _sum,
    "c_reducescatter": _sum,
    "average": _sum,
    "c_allreduce_max": lambda values: np.maximum.reduce(values),
    "c_allreduce_min": lambda values: np.minimum.reduce(values),
    "c_allreduce_prod": lambda values: np.multiply.reduce(values),
}


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


def make_collective(trainer: Trainer, exchange: Exchange, rings: Mapping[str, Ring]) -> Action:
    """The action of a collective op."""
    op, kind = exchange.op, kind_of(exchange.op)
    link = trainer.network.link(trainer, rings[ring_of(op)], trainer.index)
    (name,), (output,) = exchange.inputs, exchange.outputs
    owned = output in trainer.role.changed
    root: Any = op.attrs.get("root", 0)
    averages = bool((op.role or OpRole.FORWARD) & (OpRole.BACKWARD | OpRole.OPTIMIZE))

    def join(answers: list[Value]) -> list[Value]:
        return [own_copy(answers[0])] if owned else answers

    def run(values: tuple[Value, ...]) -> Replies:
        link.post(COLLECTIVE, trainer.step, name, Part(kind, int(root), averages, values[0]), 0)
        return Replies(trainer.step, 1, join)

    return run


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
    """The programs of a trainer, with what Fluid's executor would do beside them."""
    startup, main = role.startup, role.main
    others: Mapping[str, Program] = getattr(role, "others", EMPTY)  # roles of other origin may have none
    if plays_executor(startup):
        startup, main = with_broadcasts(startup, union_of((main, *others.values()))), with_averages(main)
        others = {other: with_averages(program) for other, program in others.items()}
    return TrainerRole(startup, main, others)
