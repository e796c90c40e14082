"""Rings of trainers: collective operations, the machines that carry them out, and the ops that ask for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pstranspile.cluster.machines.message import COLLECTIVE, COMPLETE, PIECE, REPLY, STATEMENT, TOTAL, Message
from pstranspile.cluster.machines.network import Machine, Network, WaitReason
from pstranspile.cluster.machines.script import AVERAGE, Action, Exchange, Join, Replies, is_collective
from pstranspile.cluster.machines.trainer import Trainer, TrainerRole
from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op, visible
from pstranspile.ir.model import EMPTY, FrozenMap, Op, Program, Role, Var
from pstranspile.ir.types import OpRole, VarKind
from pstranspile.ops.facts import AllReduce
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.kernels.rows import concat_rows
from pstranspile.runtime.run.feeds import describe
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.run.step_feeds import union_of
from pstranspile.runtime.values import NUMPY_TYPES, LoDTensor, SelectedRows

# Parts of collective operations, their results, and how a large value is cut into segments.
#
# A segment is summed by one trainer, which adds the parts in the order of the trainers. So a sum depends on
# no schedule, and is the same wherever a value is cut.

LEAST_SEGMENT = 1 << 14
"""The least bytes of a segment. A value of fewer bytes for each trainer is not cut: one trainer sums the whole."""

Key: TypeAlias = "tuple[int, int]"
"""Identifies an operation of a ring: a step, and the number of the ring's operations before it in that step."""

NEVER: Key = (-(1 << 62), 0)
"""The key before those of all operations."""


class RingContribution(NamedTuple):
    """A trainer's part in an operation: the operation, and the trainer's value, or a segment of it.

    `root` is the trainer whose value a broadcast hands on. `averages`: whether a sum is one of gradients or of updates,
    which the program divides by the number of trainers. `form` describes the whole value.
    """

    kind: str
    root: int
    averages: bool
    form: str
    value: Value


class Piece(NamedTuple):
    """A part for the trainer that sums `segment`. `last_key`: the key of the last sum of
    this segment that the sender has received.
    """

    segment: int
    key: Key
    variable: str
    last_key: Key
    part: RingContribution


class Total(NamedTuple):
    """The result for a segment, made from the parts of the trainers `trainers`. `floor`: the last sum that all of them
    have.
    """

    segment: int
    key: Key
    variable: str
    floor: Key
    trainers: tuple[int, ...]
    value: Value


class Statement(NamedTuple):
    """The state of a trainer, sent to the trainer that sums `segment` from now on: the key of the last sum, and the
    sums that others may lack.
    """

    segment: int
    last_key: Key
    retained_sums: tuple[Total, ...]


def split_segments(part: RingContribution, key: Key, trainers: Sequence[int]) -> Iterator[tuple[int, RingContribution]]:
    """Cuts a part into segments; yields each with the number of the trainer that sums it unless that is gone.

    A value that is small, or is not an array summed element by element, is one segment: the trainers take turns.
    """
    value, count = part.value, len(trainers)
    if part.kind in _WHOLE or value.__class__ is not np.ndarray or value.nbytes < LEAST_SEGMENT * count:
        yield trainers[key[1] % count], part
        return
    flat, ends = value.reshape(-1), [value.size * (place + 1) // count for place in range(count)]
    for trainer, begin, end in zip(trainers, [0, *ends], ends, strict=False):
        yield trainer, part._replace(value=flat[begin:end])


class RingOperations(NamedTuple):
    """The operations of a ring on one variable, according to the programs: its declaration, and kinds with roots.

    `fixed`: whether it always has the dims that are declared, as parameters and their gradients have. Other variables
    have the dims of the feed, whatever was declared for one size of batch.
    """

    declared: Var | None
    kinds: frozenset[tuple[str, int]]
    fixed: bool

    def allows(self, segment: int, trainers: Sequence[int], value: Value, part: RingContribution | None = None) -> bool:
        """Whether a segment of a value, or of a sum, can be one of this variable. Where its dims are not known, every
        segment can.
        """
        if part is not None and (part.kind, part.root) not in self.kinds:
            return False
        if value is None:
            return part is not None and part.kind == "c_broadcast"
        declared = self.declared
        array = value.value if isinstance(value, SelectedRows) else value
        if not isinstance(array, np.ndarray) or declared is None or declared.dtype is None:
            return isinstance(array, np.ndarray)
        if array.dtype.name != NUMPY_TYPES[declared.dtype]:
            return False
        if isinstance(value, SelectedRows) or declared.kind is not VarKind.LOD_TENSOR:
            return isinstance(value, SelectedRows) and len(array) == len(value.rows)
        if not self.fixed or any(kind in _WHOLE for kind, _ in self.kinds) or min(declared.shape, default=0) < 0:
            return True
        if part is not None and part.form != describe(np.broadcast_to(array.dtype.type(0), declared.shape)):
            return False
        count, size = len(trainers), prod(declared.shape)
        if size * array.itemsize < LEAST_SEGMENT * count:
            return array.shape == declared.shape
        place = trainers.index(segment)
        return array.shape == (size * (place + 1) // count - size * place // count,)


def without_value(part: RingContribution, trainer: int) -> RingContribution:
    """A part without the value, unless the operation needs it: in a broadcast only the root sends its value."""
    return part if part.kind != "c_broadcast" or part.root == trainer else part._replace(value=None)


def fits(part: RingContribution, own: RingContribution) -> bool:
    """Whether another trainer's part of an operation can be combined with this one, as `combine` requires."""
    if (part.kind, part.root, part.averages) != (own.kind, own.root, own.averages):
        return False
    if part.form != own.form and part.kind != "c_allgather" and not isinstance(own.value, SelectedRows):
        return False
    return (part.kind == "c_broadcast" and part.value is None) or _has_same_form(part.value, own)


def contradicts(part: RingContribution, own: RingContribution) -> bool:
    """Whether another trainer's part can't belong to this operation, whatever the trainers are fed."""
    if (part.kind, part.root, part.averages) != (own.kind, own.root, own.averages):
        return True
    rows = isinstance(part.value, SelectedRows) or isinstance(own.value, SelectedRows)
    return (rows or part.form == own.form) and not fits(part, own)


def _has_same_form(value: Value, own: RingContribution) -> bool:
    """Whether a value has the kind, element type and dims of a part. The number of rows may differ where the trainers
    may have different numbers of them.
    """
    mine = own.value
    if isinstance(value, SelectedRows) or isinstance(mine, SelectedRows):
        if not (isinstance(value, SelectedRows) and isinstance(mine, SelectedRows)) or value.height != mine.height:
            return False
        return _row(value.value) == _row(mine.value)
    if not (isinstance(value, np.ndarray) and isinstance(mine, np.ndarray)):
        return False
    if own.kind == "c_allgather":
        return value.ndim > 0 and _row(value) == _row(mine)
    return bool(value.dtype == mine.dtype and value.shape == mine.shape)


def is_result(total: Total, own: RingContribution, trainer: int) -> bool:
    """Whether a total can be the result for a trainer with this part."""
    if not _has_same_form(total.value, own):
        return False
    return own.kind != "c_reducescatter" or (trainer in total.trainers and len(total.value) % len(total.trainers) == 0)


def join_totals(part: RingContribution, totals: Mapping[int, Total], trainer: int) -> Value:
    """The result for a trainer with this part, from the totals of its segments; if it was cut, a new array of the
    trainer's own.
    """
    first = next(iter(totals.values()))
    if part.kind == "c_reducescatter":
        return np.split(first.value, len(first.trainers))[first.trainers.index(trainer)]
    if len(totals) == 1:
        return first.value
    return np.concatenate([totals[segment].value for segment in sorted(totals)]).reshape(part.value.shape)


def combine(ring: str, parts: Mapping[int, RingContribution], count: int, op: Op) -> Value:
    """The result of an operation from the parts of trainers. `count`: the original number of trainers in the ring.
    Raises DiagnosticError, at the op.

    Sums that make an average stay averages over the trainers that have given a part.
    """
    first = next(iter(parts.values()))
    kinds = {part.kind for part in parts.values()}
    forms = {part.form for part in parts.values()}
    if len(kinds) > 1 or (
        len(forms) > 1 and (first.kind != "c_allgather" and not isinstance(first.value, SelectedRows))
    ):
        lines = [f"trainer {index}: {part.kind} of {visible(part.form)}" for index, part in parts.items()]
        message = f"the trainers of {ring} do not do the same"
        raise DiagnosticError([at_op("cluster-collective", message, op, notes=[Note(line) for line in lines])])
    values = [part.value for part in parts.values()]
    if first.kind == "c_broadcast":
        if first.root not in parts:
            message = f"trainer {first.root}, whose value all others are to get, takes no part in {ring}"
            raise DiagnosticError([at_op("cluster-collective", message, op)])
        return _read_only_view(parts[first.root].value)
    rows = {_row(value) for value in values} if first.kind in ("c_allgather", "c_reducescatter") else {""}
    if len(rows) > 1 or None in rows:
        lines = [f"trainer {index}: {visible(part.form)}" for index, part in parts.items()]
        message = f"the values of {ring} have no rows that are alike"
        raise DiagnosticError([at_op("cluster-collective", message, op, notes=[Note(line) for line in lines])])
    total = np.concatenate(values) if first.kind == "c_allgather" else _REDUCE[first.kind](values)
    if first.kind == AVERAGE:
        total = _times(total, 1.0 / len(values))
    elif first.kind in ("c_allreduce_sum", "c_reducescatter") and len(values) < count and first.averages:
        total = _times(total, count / len(values))
    if first.kind == "c_reducescatter" and len(total) % len(values):
        message = f"{len(total)} rows cannot be divided among {len(values)} trainers"
        raise DiagnosticError([at_op("cluster-collective", message, op)])
    return _read_only_view(total)


def _row(value: Value) -> str | None:
    """A description of one row of a value; None if there are no rows."""
    return f"{value.dtype} {value.shape[1:]}" if value.ndim else None


def _read_only_view(value: Value) -> Value:
    """The value in a form that several trainers may share: arrays are made read-only."""
    if value.__class__ is np.ndarray:
        value = value.view()
        value.setflags(write=False)
    return value


def _sum(values: Sequence[Value]) -> Value:
    if isinstance(values[0], SelectedRows):
        return concat_rows(values)
    if len(values) == 1:
        return values[0].copy()
    total = np.add(values[0], values[1], out=np.empty_like(values[0]))
    for value in values[2:]:
        total += value
    return total


def _times(value: Value, factor: float) -> Value:
    if isinstance(value, SelectedRows):
        return value._replace(value=value.value * value.value.dtype.type(factor))
    return value * value.dtype.type(factor)


_REDUCE: dict[str, Callable[[Sequence[Value]], Value]] = {
    "c_allreduce_sum": _sum,
    "c_reducescatter": _sum,
    AVERAGE: _sum,
    "c_allreduce_max": lambda values: np.maximum.reduce(values),
    "c_allreduce_min": lambda values: np.minimum.reduce(values),
    "c_allreduce_prod": lambda values: np.multiply.reduce(values),
}

_WHOLE = ("c_allgather", "c_reducescatter")
"""Kinds whose result has other dims than their parts: they are not cut."""


# A segment of a value, at the trainer that sums it.


class Segment:
    """The state of a segment. `number` is the trainer that sums it as long as that one runs.

    A trainer that sums it in place of another first waits for the reports of all running trainers: some may have sums
    that others lack, and nobody else knows which operation is next.
    """

    def __init__(self, number: int, trainers: Iterable[int], *, taking: bool):
        self.number = number
        self.queues: dict[int, deque[Piece]] = {trainer: deque() for trainer in trainers}
        self.taking = taking
        """Whether the segment waits for statements."""
        self.awaited_trainers: set[int] | None = None
        """Trainers whose statements are awaited; None: this trainer does not know yet that it sums the segment."""
        self.statements: dict[int, Statement] = {}
        self._last_key = NEVER
        """The last operation that was summed, by this trainer or its predecessor."""

    def add(self, trainer: int, piece: Piece) -> None:
        """Adds a piece that has arrived. A piece that has been summed already was sent again, and is ignored."""
        if piece.key > self._last_key:
            self.queues[trainer].append(piece)

    def next_step(self) -> int:
        """The step of the next operation."""
        return min((queue[0].key[0] for queue in self.queues.values() if queue), default=0)

    def participants(self, live: Collection[int], since: Mapping[int, int]) -> set[int]:
        """The trainers that take part in the next operation. `since`: for trainers that came back, their first
        steps.
        """
        if not since:
            return set(live)
        step = self.next_step()
        return {index for index in live if since.get(index, step) <= step}

    def missing(self, live: Collection[int], since: Mapping[int, int]) -> list[int]:
        """The trainers whose pieces, or statements, are missing."""
        if self.taking:
            return sorted((self.awaited_trainers or set()) - set(self.statements))
        return sorted(index for index in self.participants(live, since) if not self.queues[index])

    def ready(self, live: Collection[int], since: Mapping[int, int]) -> bool:
        """Whether all parts of the next operation have come."""
        return not self.taking and bool(needed := self.participants(live, since)) and all(map(self.queues.get, needed))

    def take_parts(self, since: Mapping[int, int]) -> dict[int, Piece]:
        """Removes and returns the pieces of the next operation, in the order of the trainers."""
        step = self.next_step() if since else 0
        pieces = {
            index: queue.popleft()
            for index, queue in self.queues.items()
            if queue and (not since or queue[0].key[0] <= step)
        }
        self._last_key = max(piece.key for piece in pieces.values())
        return pieces

    def take_over(self, trainers: Iterable[int], own: int, statement: Statement) -> None:
        """Makes the trainer `own` sum the segment from now on, once the statements of `trainers` have come. `statement`
        is its own.
        """
        self.awaited_trainers = set(trainers)
        self.statements[own] = statement

    def resolve_missing_sums(self) -> dict[int, list[Total]] | None:
        """The sums that each trainer lacks, once all statements have come; the operation after these sums is then the
        next one. None: a statement is missing.
        """
        if not self.taking or self.awaited_trainers is None or self.awaited_trainers - set(self.statements):
            return None
        statements, self.taking = self.statements, False
        self.statements = {}
        known = {total.key: total for statement in statements.values() for total in statement.retained_sums}
        last = self._last_key = max((statement.last_key for statement in statements.values()), default=NEVER)
        for queue in self.queues.values():
            while queue and queue[0].key <= last:
                queue.popleft()
        return {
            trainer: [known[key] for key in sorted(known) if statement.last_key < key <= last]
            for trainer, statement in statements.items()
        }


# A trainer's side of a ring: the machine that exchanges its parts of collective operations with the other trainers.
#
# A trainer hands its values to the machine in its own process. A large one is cut into as many segments as there are
# trainers: each sums one of them, of what all others send it, and sends all others the sum. So no machine sends or
# takes more than twice the value, however many trainers there are, and nothing is handed on more than twice. Small
# values are not cut; the trainers take turns in summing them.
#
# Unlike in Fluid, a trainer that has left is not waited for, and sums that make an average (of gradients, or of what
# local SGD has learnt) stay averages over the trainers that are left. One that has left sums on for the others. If its
# process is gone, the next trainer sums in its place. All remaining trainers report to it which sums they have. Sums
# that a trainer lacks are sent again, and so are the parts that were not summed.

GONE = True
"""The payload of COMPLETE if the trainer's process has ended, so that it does not sum for the others any more."""


_OF_OTHERS = {PIECE: Piece, TOTAL: Total, STATEMENT: Statement}
"""The type of the payload from another side, by kind of message."""


class _Operation:
    """An operation, some of whose sums have not come yet."""

    def __init__(self, message: Message, parts: Mapping[int, RingContribution]):
        self.message = message
        self.parts = parts
        """The parts of this trainer, by segment."""
        self.totals: dict[int, Total] = {}


class RingListener:
    """Notified of the sums at a trainer's side of a ring; every method may be overridden."""

    refuses = False
    """Whether `wrong` refuses trainers. If no listener does, a part of another operation is an error."""

    def sum_done(self, step: int, trainers: Sequence[int]) -> None:
        """Called after a sum was made here, in this step, from the parts of these trainers."""

    def wrong(self, trainer: int, reason: str) -> None:
        """Called when a trainer is refused because it has sent a part of another operation."""


class Ring(Machine):
    """The side of trainer `index` in the collective operations of one `ring_id`, which is called `ring`."""

    def __init__(
        self,
        ring: str,
        network: Network,
        index: int,
        trainers: Mapping[int, Machine],
        ops: Mapping[str, Op],
        operations: Mapping[str, RingOperations],
    ):
        super().__init__(f"{trainers[index].name}/{ring}", network)
        self.ring = ring
        self.index = index
        self.other_sides: dict[int, Ring] = {}
        """The sides of the other trainers, once they are made."""
        self._listeners: list[RingListener] = []
        self.operations = operations
        """The declarations and operations of each variable of the ring, from the programs."""
        self._trainers = dict(trainers)
        self._members = sorted(trainers)
        self._ops = ops
        """For each variable of the ring, an op that uses it, for messages."""
        self.live = set(self._members)
        """The trainers that take part."""
        self._announced_trainers: list[tuple[int, int]] = []
        self._first_steps: dict[int, int] = {}
        """The trainers that came back, with the first step in which each takes part."""
        self._begin()

    def listen(self, listener: RingListener) -> None:
        """Adds a listener for the sums made here."""
        self._listeners.append(listener)

    def meet(self, others: Mapping[int, Ring]) -> None:
        """Sets the sides of the other trainers."""
        self.other_sides = dict(others)

    def _begin(self) -> None:
        members = self._members
        self._present = set(members)
        """The trainers whose processes run."""
        self._lives = dict.fromkeys(members, 0)
        """How often each trainer has come back."""
        self._sums = {segment: segment for segment in members}
        """The number of the trainer that sums each segment, by segment."""
        self._segments = {self.index: Segment(self.index, members, taking=False)}
        self._last_key = NEVER
        """The key of the trainer's last operation."""
        self._open_operations: dict[Key, _Operation] = {}
        self._last_keys = dict.fromkeys(members, NEVER)
        """The key of the last sum of each segment that this trainer has received."""
        self._pending_pieces: dict[int, deque[Piece]] = {segment: deque() for segment in members}
        """The trainer's pieces, by segment, whose sums have not come yet."""
        self._retained_sums: dict[int, deque[Total]] = {segment: deque() for segment in members}
        """The sums, by segment, that others may lack."""

    # messages

    def accepts(self, message: Message) -> bool:
        """Whether a message of another process is one that another side of the ring may send."""
        payload, form = message.payload, _OF_OTHERS.get(message.kind)
        if form is None or message.trainer not in self.other_sides:
            return message.kind == COMPLETE and message.trainer in self.other_sides
        if payload.__class__ is not form or payload.segment not in self._pending_pieces:
            return False
        if isinstance(payload, Total) and not self._awaits(payload, message.trainer):
            return False
        if isinstance(payload, Statement) and not self._may_state(payload):
            return False
        totals = payload.retained_sums if isinstance(payload, Statement) else (payload,)
        return all(self._may_be(each) for each in totals)

    def _awaits(self, total: Total, trainer: int) -> bool:
        """Whether a sum comes from the trainer that makes it, and is either awaited here or an old one."""
        if self._sums.get(total.segment) != trainer:
            return False
        return total.key <= self._last_keys[total.segment] or (
            total.key in self._open_operations and self._is_own(total)
        )

    def _may_state(self, statement: Statement) -> bool:
        """Whether a trainer can have the sums that it states: this trainer must have given its part of each."""
        return statement.last_key <= self._last_key and all(
            total.segment == statement.segment and total.key <= statement.last_key and self._is_own(total)
            for total in statement.retained_sums
        )

    def _is_own(self, total: Total) -> bool:
        """Whether a sum fits this trainer's part, as far as that is still known."""
        operation = self._open_operations.get(total.key)
        own = None if operation is None else operation.parts.get(total.segment)
        return operation is None or (own is not None and is_result(total, own, self.index))

    def _may_be(self, each: Piece | Total) -> bool:
        """Whether a part or a sum can be one of this ring's operations, according to the programs."""
        known = self.operations.get(each.variable)
        if each.variable not in self._ops or each.segment not in self._pending_pieces or each.key <= NEVER:
            return False
        if isinstance(each, Total) and not (set(each.trainers) <= set(self._members) and each.floor < each.key):
            return False
        if isinstance(each, Piece) and not each.last_key < each.key:
            return False
        part = each.part if isinstance(each, Piece) else None
        value = each.part.value if isinstance(each, Piece) else each.value
        return known is None or known.allows(each.segment, self._members, value, part)

    def _in_step(self, pieces: dict[int, Piece]) -> dict[int, Piece]:
        """The pieces that belong to the same operation as this trainer's own; the others are refused if a listener does
        that.

        If the pieces that agree with the dims of the own part are not the majority, it is not known which trainers are
        wrong, and no piece is refused for its dims.
        """
        own_piece, refusing = pieces.get(self.index), [one for one in self._listeners if one.refuses]
        if own_piece is None or not refusing:
            return pieces
        operation = self._open_operations.get(own_piece.key)
        mine = own_piece.part if operation is None else operation.parts.get(own_piece.segment, own_piece.part)
        candidates = {
            n: p
            for n, p in pieces.items()
            if (p.key, p.variable) == (own_piece.key, own_piece.variable) and not contradicts(p.part, mine)
        }
        alike = {n: p for n, p in candidates.items() if fits(p.part, mine)}
        if 2 * len(alike) > len(candidates):
            candidates = alike
        for trainer, piece in pieces.items():
            if trainer not in candidates:
                given = f"{visible(piece.part.form)} of {visible(piece.variable)}"
                for listener in refusing:
                    listener.wrong(
                        trainer, f"it gives a part of {given} where {mine.form} of {own_piece.variable} is summed"
                    )
        return candidates

    def receive(self, message: Message) -> None:
        """Takes the trainer's part of an operation, or a message of another member."""
        payload = message.payload
        if message.kind == COLLECTIVE:
            self._begin_operation(message)
        elif message.kind == PIECE:
            self._take_piece(message.trainer, payload)
        elif message.kind == TOTAL:
            self._take_total(payload)
        elif message.kind == STATEMENT:
            segment = self._segment(payload.segment)
            if segment.taking:
                segment.statements[message.trainer] = payload
                self._take_over(segment)
        elif message.kind == COMPLETE:
            self._remove_trainer(message.trainer, gone=payload is GONE)
            if message.source == self._trainers[self.index].name:
                self.send_complete(message.step)

    def send_complete(self, step: int, payload: bool | None = None) -> None:
        """Notifies the others that the trainer takes no part any more; with `GONE`, that its process has ended, too."""
        for other in self.other_sides.values():
            self.network.link(self, other, self.index).post(COMPLETE, step, "", payload)

    def _send(self, kind: str, to: int, payload: Piece | Total) -> None:
        self.network.link(self, self.other_sides[to], self.index).post(kind, payload.key[0], payload.variable, payload)

    # the trainer's own part

    def _begin_operation(self, message: Message) -> None:
        step = message.step
        key = self._last_key = (step, self._last_key[1] + 1 if self._last_key[0] == step else 0)
        parts = dict(split_segments(message.payload, key, self._members))
        self._open_operations[key] = _Operation(message, parts)
        for segment, part in parts.items():
            piece = Piece(segment, key, message.variable, self._last_keys[segment], without_value(part, self.index))
            self._pending_pieces[segment].append(piece)
            self._give(piece)

    def _give(self, piece: Piece) -> None:
        """Sends a piece to the trainer that sums it."""
        to = self._sums[piece.segment]
        if to == self.index:
            self._take_piece(to, piece)
        elif to in self._present:
            self._send(PIECE, to, piece)

    def _take_total(self, total: Total) -> None:
        segment, key = total.segment, total.key
        if key <= self._last_keys[segment]:
            return
        self._last_keys[segment] = key
        pending, kept = self._pending_pieces[segment], self._retained_sums[segment]
        while pending and pending[0].key <= key:
            pending.popleft()
        kept.append(total)
        while kept[0].key <= total.floor:
            kept.popleft()
        operation = self._open_operations.get(key)
        if operation is None:
            return
        operation.totals[segment] = total
        if len(operation.totals) == len(operation.parts):
            del self._open_operations[key]
            message = operation.message
            result = join_totals(message.payload, operation.totals, self.index)
            trainer = self._trainers[self.index]
            self.network.link(self, trainer, self.index).post(
                REPLY, message.step, message.variable, result, message.slot
            )

    # sums

    def _segment(self, number: int) -> Segment:
        """The segment with this number, which this trainer sums, or will sum when it learns that another trainer is
        gone.
        """
        known = self._segments.get(number)
        if known is None:
            known = self._segments[number] = Segment(number, self._members, taking=True)
        return known

    def _take_piece(self, trainer: int, piece: Piece) -> None:
        segment = self._segment(piece.segment)
        segment.add(trainer, piece)
        self._go_on(segment)

    def _go_on(self, segment: Segment) -> None:
        while segment.ready(self.live, self._first_steps):
            self._sum(segment)

    def _sum(self, segment: Segment) -> None:
        pieces = self._in_step(segment.take_parts(self._first_steps))
        first = next(iter(pieces.values()))
        parts = {index: piece.part for index, piece in pieces.items()}
        value = combine(self.ring, parts, len(self._members), self._ops[first.variable])
        floor = min(piece.last_key for piece in pieces.values())
        total = Total(segment.number, first.key, first.variable, floor, tuple(parts), value)
        for listener in self._listeners:
            listener.sum_done(first.key[0], total.trainers)
        for index in parts:
            self._hand_out(index, total)

    def _hand_out(self, to: int, total: Total) -> None:
        if to == self.index:
            self._take_total(total)
        elif to in self._present:
            self._send(TOTAL, to, total)

    # trainers that leave or rejoin

    def _remove_trainer(self, trainer: int, *, gone: bool) -> None:
        """Removes a trainer from the ring's operations. `gone`: its process has ended, too."""
        self.live.discard(trainer)
        if gone and trainer in self._present and trainer != self.index:
            self._present.discard(trainer)
            for segment in self._segments.values():
                if segment.awaited_trainers is not None:
                    segment.awaited_trainers.discard(trainer)
            for number in [number for number, sums in self._sums.items() if sums == trainer]:
                self._move(number)
        self._admit()
        for segment in list(self._segments.values()):
            self._take_over(segment)

    def _move(self, number: int) -> None:
        """Appoints another trainer to sum a segment: the next one running, if possible one that was never away."""
        order = self._members.index(number)
        places = {index: (place - order) % len(self._members) for place, index in enumerate(self._members)}
        to = self._sums[number] = min(self._present, key=lambda index: (self._lives[index], places[index]))
        statement = Statement(number, self._last_keys[number], tuple(self._retained_sums[number]))
        if to == self.index:
            segment = self._segment(number)
            segment.take_over(self._present, to, statement)
            segment.queues[to].extend(self._pending_pieces[number])
            return
        self.network.link(self, self.other_sides[to], self.index).post(STATEMENT, self._last_key[0], "", statement)
        for piece in self._pending_pieces[number]:
            self._give(piece)

    def _take_over(self, segment: Segment) -> None:
        """Begins to sum a segment in another trainer's place, once all statements have come."""
        for trainer, lacking in (segment.resolve_missing_sums() or {}).items():
            for total in lacking:
                self._hand_out(trainer, total)
        self._go_on(segment)

    def announce(self, trainer: int, step: int) -> None:
        """Lets a trainer that was here before take part again from this step."""
        self._announced_trainers.append((trainer, step))
        self._admit()

    def _admit(self) -> None:
        for entry in [entry for entry in self._announced_trainers if entry[0] not in self.live]:
            self._announced_trainers.remove(entry)
            index, self._first_steps[entry[0]] = entry
            self.live.add(index)
            if index not in self._present:
                self._present.add(index)
                self._lives[index] += 1

    def come_back(self) -> None:
        """Restarts this side after a crash: it takes over the state of the others, and sums nothing at first."""
        self.down = False
        up = {index: side for index, side in self.other_sides.items() if not side.down}
        self._begin()
        self._present = {*up} or {self.index}
        other = next(iter(up.values()), self)
        self.live, self._first_steps, self._lives = set(other.live), dict(other._first_steps), dict(other._lives)
        self.live.discard(self.index)
        self._sums = dict(other._sums)
        self._segments = {}
        for segment, sums in other._sums.items():
            if sums not in self._present:
                self._move(segment)

    # reports

    def missing(self) -> tuple[str, ...]:
        """The trainers for which this one waits."""
        awaited: set[int] = set()
        for number, pending in self._pending_pieces.items():
            if pending and (sums := self._sums[number]) != self.index:
                awaited.add(sums)
            elif pending:
                awaited.update(self._segment(number).missing(self.live, self._first_steps))
        return tuple(self._trainers[index].name for index in sorted(awaited))

    def waiting(self) -> WaitReason | None:
        """The wait for trainers whose parts are missing in a sum that has begun here; None if no part is missing."""
        for segment in self._segments.values():
            come = next((queue[0] for queue in segment.queues.values() if queue), None)
            missing = segment.missing(self.live, self._first_steps)
            if come is not None and self.live and missing and self._sums[segment.number] == self.index:
                op = self._ops[come.variable]
                what = f"the parts of all trainers in {come.part.kind}"
                if segment.taking:
                    what = "what all trainers have, to sum in another one's place"
                return WaitReason(self.name, op, what, tuple(self._trainers[index].name for index in missing))
        return None


def make_rings(
    ring: str,
    network: Network,
    trainers: Mapping[int, Machine],
    ops: Mapping[str, Op],
    operations: Mapping[str, RingOperations] = EMPTY,
) -> list[Ring]:
    """The sides of all trainers of a ring, connected with each other. `operations`: the declarations and operations of
    its variables, from the programs.
    """
    rings = {index: Ring(ring, network, index, trainers, ops, operations) for index in sorted(trainers)}
    for side in rings.values():
        side.meet({index: other for index, other in rings.items() if other is not side})
    return list(rings.values())


class RingReplies(Replies):
    """Replies of a trainer's own sides of rings."""

    __slots__ = ("_rings",)

    def __init__(self, step: int, count: int, join: Join, rings: Iterable[Ring]):
        super().__init__(step, count, join)
        self._rings = tuple(dict.fromkeys(rings))

    def silent(self) -> tuple[str, ...]:
        """The trainers whose parts, or sums, have not come."""
        return tuple(dict.fromkeys(name for side in self._rings for name in side.missing()))


# Collective ops of trainers: sums, averages and broadcasts over the trainers of a ring, and the ops that Fluid's
# executor adds to a program. The machines that carry them out stand above.

REDUCE_TYPES: tuple[AllReduce, ...] = ("sum", "prod", "max", "min")
"""The operations for the numbers of the older op's `reduce_type`."""


_OF_ROWS = ("c_allreduce_sum", AVERAGE, "c_broadcast")
"""Operations that take sparse rows."""


def kind_of(op: Op) -> str:
    """The kind of a collective op, under the name of the newer op."""
    if op.type == "allreduce":
        number: Any = op.attrs.get("reduce_type", 0)
        return f"c_allreduce_{REDUCE_TYPES[int(number)]}"
    return "c_broadcast" if op.type == "broadcast" else op.type


def ring_of(op: Op) -> str:
    """The name of the ring that an op works on."""
    number: Any = op.attrs.get("ring_id", 0)
    return f"ring_{int(number)}"


def known_operations(programs: Iterable[Program]) -> dict[str, dict[str, RingOperations]]:
    """The operations on the variables of each ring, from the programs, by the ring's name."""
    kinds: dict[str, dict[str, set[tuple[str, int]]]] = {}
    declared: dict[str, Var] = {}
    fixed: set[str] = set()
    for program in programs:
        variables = program.main_block.vars
        for op in program.main_block.ops:
            for parameter, gradient in op.role_pairs:
                of, by = variables.get(parameter), variables.get(gradient)
                if of is not None and by is not None and of.persistable and of.shape == by.shape:
                    fixed.add(gradient)
            if not is_collective(op.type):
                continue
            root: Any = op.attrs.get("root", 0)
            for name in op.inputs.get("X", ()):
                kinds.setdefault(ring_of(op), {}).setdefault(name, set()).add((kind_of(op), int(root)))
                if (var := variables.get(name)) is not None:
                    declared.setdefault(name, var)
                    if var.persistable:
                        fixed.add(name)
    return {
        ring: {
            name: RingOperations(declared.get(name), frozenset(found), name in fixed) for name, found in by_name.items()
        }
        for ring, by_name in kinds.items()
    }


def make_collective(trainer: Trainer, exchange: Exchange, rings: Mapping[str, Ring]) -> Action:
    """The action of collective ops that begin at the same time."""
    sides = [rings[f"{trainer.name}/{ring_of(op)}"] for op in exchange.ops]
    links = [trainer.network.link(trainer, side, trainer.index) for side in sides]
    forms: list[tuple[str, int, bool]] = []
    for op in exchange.ops:
        root: Any = op.attrs.get("root", 0)
        averages = bool((op.role or OpRole.FORWARD) & (OpRole.BACKWARD | OpRole.OPTIMIZE))
        forms.append((kind_of(op), int(root), averages))
    owned = [output in trainer.role.changed_variables for output in exchange.outputs]

    def join(answers: list[Value]) -> list[Value]:
        return [_writable_value(value) if own else value for value, own in zip(answers, owned, strict=True)]

    def run(values: tuple[Value, ...]) -> Replies:
        step = trainer.step
        replies = RingReplies(step, len(links), join, sides)
        for slot, (link, name, form, value) in enumerate(zip(links, exchange.inputs, forms, values, strict=True)):
            numbers = value if value.__class__ is np.ndarray else numbers_of(exchange.ops[slot], form[0], value)
            link.post(COLLECTIVE, step, name, RingContribution(*form, describe(numbers), numbers), slot)
        return replies

    return run


def numbers_of(op: Op, kind: str, value: Value) -> Value:
    """The array that trainers exchange for a value; for a ragged tensor its numbers. Raises DiagnosticError."""
    if isinstance(value, LoDTensor):
        return value.data
    if isinstance(value, SelectedRows) and kind in _OF_ROWS:
        return value
    message = f"%{op.input('X')} is {describe(value)}, which {op.type} does not take"
    raise DiagnosticError([at_op("cluster-collective", message, op)])


def _writable_value(value: Value) -> Value:
    """A value that may be changed in place: a copy of a read-only array, else the value itself. (No other machine
    shares an array that is writable.)
    """
    return value if value.__class__ is np.ndarray and value.flags.writeable else own_copy(value)


def plays_executor(startup: Program) -> bool:
    """Whether a trainer relies on Fluid's multi-process executor to average gradients (mode nccl2)."""
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
                ops.append(Op(AVERAGE, *slots, role=OpRole.BACKWARD, origin=op.origin))
    return main._replace(blocks=(main.main_block._replace(ops=tuple(ops)), *main.blocks[1:]))


def with_broadcasts(startup: Program, main: Program) -> Program:
    """The start-up program, followed by broadcasts of trainer 0's parameters, as that executor starts."""
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
