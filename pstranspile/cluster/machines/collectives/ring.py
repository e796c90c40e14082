"""A trainer's side of a ring: the machine that exchanges its parts of collective operations with the other trainers.

A trainer hands its values to the machine in its own process. A large one is cut into as many segments as there are
trainers: each sums one of them, of what all others send it, and sends all others the sum. So no machine sends or takes
more than twice the value, however many trainers there are, and nothing is handed on more than twice. Small values are
not cut; the trainers take turns in summing them.

Other than in Fluid a trainer that has left is not waited for, and sums that make an average (of gradients, or of what
Other than in Fluid a trainer that has left is not waited for, and sums that make an average (of gradients, or of what
local SGD has learnt) stay averages over the trainers that are left. One that has left sums on for the others. If its
process is gone, the next trainer sums in its place. All remaining trainers report to it which sums they have. Sums that
a trainer lacks are sent again, and so are the parts that were not summed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from pstranspile.cluster.machines.collectives.parts import (
    NEVER,
    Key,
    Known,
    Piece,
    Statement,
    Total,
    combine,
    cut,
    joined,
    without_value,
)
from pstranspile.cluster.machines.collectives.segment import Segment
from pstranspile.cluster.machines.message import COLLECTIVE, COMPLETE, PIECE, REPLY, STATEMENT, TOTAL, Message
from pstranspile.cluster.machines.network import Machine, Network, Waiting
from pstranspile.cluster.machines.waits import Join, Replies
from pstranspile.ir.model import Op
from pstranspile.ir.visible import visible

GONE = True
"""What the message COMPLETE carries if the trainer's process is gone, and does not sum on."""


_OF_OTHERS = {PIECE: Piece, TOTAL: Total, STATEMENT: Statement}
"""What another side sends, by kind of message."""


class _Operation:
    """An operation whose sums have not all come."""

    def __init__(self, message: Message, segments: int):
        self.message = message
        self.segments = segments
        self.totals: dict[int, Total] = {}


class Ring(Machine):
    """The side of trainer `index` in the collective operations of one `ring_id`, which is called `ring`."""

    def __init__(self, ring: str, network: Network, index: int, trainers: Mapping[int, Machine], ops: Mapping[str, Op]):
        super().__init__(f"{trainers[index].name}/{ring}", network)
        self.ring = ring
        self.index = index
        self.others: dict[int, Ring] = {}
        """The sides of the other trainers, once they are made."""
        self.on_sum: Callable[[int, Sequence[int]], object] | None = None
        """Told of every sum made here: the step, and the trainers whose parts it is of."""
        self.on_wrong: Callable[[int, str], object] | None = None
        """Refuses a trainer whose part is of another operation; without it, that is an error."""
        self.known: Mapping[str, Known] = {}
        """What the programs say about each variable of the ring."""
        self._trainers = dict(trainers)
        self._members = sorted(trainers)
        self._ops = ops
        """An op of the ring for each variable that it works on, for messages."""
        self.live = set(self._members)
        """The trainers that take part."""
        self._announced: list[tuple[int, int]] = []
        self._from: dict[int, int] = {}
        """The trainers that came back, and the first step in which each takes part."""
        self._begin()

    def _begin(self) -> None:
        members = self._members
        self._present = set(members)
        """The trainers whose processes run."""
        self._lives = dict.fromkeys(members, 0)
        """How often each has come back."""
        self._sums = {segment: segment for segment in members}
        """Who sums a segment."""
        self._segments = {self.index: Segment(self.index, members, taking=False)}
        self._last = NEVER
        """The trainer's last operation."""
        self._open: dict[Key, _Operation] = {}
        self._had = dict.fromkeys(members, NEVER)
        """The last sum of each segment that has come."""
        self._pending: dict[int, deque[Piece]] = {segment: deque() for segment in members}
        """The trainer's pieces that no sum has come of."""
        self._kept: dict[int, deque[Total]] = {segment: deque() for segment in members}
        """The sums that others may lack."""

    # messages

    def accepts(self, message: Message) -> bool:
        """Whether a message, of another process, is one that another side may send."""
        payload, form = message.payload, _OF_OTHERS.get(message.kind)
        if form is None or message.trainer not in self.others:
            return message.kind == COMPLETE and message.trainer in self.others
        if payload.__class__ is not form or payload.segment not in self._pending:
            return False
        if isinstance(payload, Total) and payload.key > self._last:  # of which this trainer has given no part
            return False
        totals = payload.kept if isinstance(payload, Statement) else (payload,)
        return all(self._may_be(each) for each in totals)

    def _may_be(self, each: Piece | Total) -> bool:
        """Whether a part or a sum is one of this ring's operations, as far as the programs say."""
        known = self.known.get(each.variable)
        if each.variable not in self._ops or each.segment not in self._pending or each.key <= NEVER:
            return False
        if isinstance(each, Total) and not (set(each.of) <= set(self._members) and each.floor < each.key):
            return False
        if isinstance(each, Piece) and not each.had < each.key:
            return False
        part = each.part if isinstance(each, Piece) else None
        value = each.part.value if isinstance(each, Piece) else each.value
        return known is None or known.allows(each.segment, self._members, value, part)

    def _in_step(self, pieces: dict[int, Piece]) -> dict[int, Piece]:
        """The parts that are of the operation of this trainer's own; the others are refused, where somebody does."""
        own, refuse = pieces.get(self.index), self.on_wrong
        if own is None or refuse is None:
            return pieces
        kept = {
            n: p
            for n, p in pieces.items()
            if (p.key, p.variable, p.part.kind) == (own.key, own.variable, own.part.kind)
        }
        for trainer, piece in pieces.items():
            if trainer not in kept:
                refuse(trainer, f"it gives a part of {visible(piece.variable)} where {own.variable} is summed")
        return kept

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
            self._without(message.trainer, gone=payload is GONE)
            if message.source == self._trainers[self.index].name:
                self.send_complete(message.step)

    def send_complete(self, step: int, payload: bool | None = None) -> None:
        """Tells the others that the trainer takes no part any more; `GONE`: that its process is gone, too."""
        for other in self.others.values():
            self.network.link(self, other, self.index).post(COMPLETE, step, "", payload)

    def _send(self, kind: str, to: int, payload: Piece | Total) -> None:
        self.network.link(self, self.others[to], self.index).post(kind, payload.key[0], payload.variable, payload)

    # the trainer's own part

    def _begin_operation(self, message: Message) -> None:
        step = message.step
        key = self._last = (step, self._last[1] + 1 if self._last[0] == step else 0)
        segments = list(cut(message.payload, key, self._members))
        self._open[key] = _Operation(message, len(segments))
        for segment, part in segments:
            piece = Piece(segment, key, message.variable, self._had[segment], without_value(part, self.index))
            self._pending[segment].append(piece)
            self._give(piece)

    def _give(self, piece: Piece) -> None:
        """Hands a piece to the trainer that sums it."""
        to = self._sums[piece.segment]
        if to == self.index:
            self._take_piece(to, piece)
        elif to in self._present:
            self._send(PIECE, to, piece)

    def _take_total(self, total: Total) -> None:
        segment, key = total.segment, total.key
        if key <= self._had[segment]:
            return
        self._had[segment] = key
        pending, kept = self._pending[segment], self._kept[segment]
        while pending and pending[0].key <= key:
            pending.popleft()
        kept.append(total)
        while kept[0].key <= total.floor:
            kept.popleft()
        operation = self._open.get(key)
        if operation is None:
            return
        operation.totals[segment] = total
        if len(operation.totals) == operation.segments:
            del self._open[key]
            message = operation.message
            result = joined(message.payload, operation.totals, self.index)
            trainer = self._trainers[self.index]
            self.network.link(self, trainer, self.index).post(
                REPLY, message.step, message.variable, result, message.slot
            )

    # sums

    def _segment(self, number: int) -> Segment:
        """A segment that this trainer sums, or is to sum by the word of others."""
        known = self._segments.get(number)
        if known is None:
            known = self._segments[number] = Segment(number, self._members, taking=True)
        return known

    def _take_piece(self, trainer: int, piece: Piece) -> None:
        segment = self._segment(piece.segment)
        segment.add(trainer, piece)
        self._go_on(segment)

    def _go_on(self, segment: Segment) -> None:
        while segment.ready(self.live, self._from):
            self._sum(segment)

    def _sum(self, segment: Segment) -> None:
        pieces = self._in_step(segment.take_parts(self._from))
        first = next(iter(pieces.values()))
        parts = {index: piece.part for index, piece in pieces.items()}
        value = combine(self.ring, parts, len(self._members), self._ops[first.variable])
        floor = min(piece.had for piece in pieces.values())
        total = Total(segment.number, first.key, first.variable, floor, tuple(parts), value)
        if self.on_sum is not None:
            self.on_sum(first.key[0], total.of)
        for index in parts:
            self._hand_out(index, total)

    def _hand_out(self, to: int, total: Total) -> None:
        if to == self.index:
            self._take_total(total)
        elif to in self._present:
            self._send(TOTAL, to, total)

    # trainers that leave and come back

    def _without(self, trainer: int, *, gone: bool) -> None:
        """A trainer takes no part any more."""
        self.live.discard(trainer)
        if gone and trainer in self._present and trainer != self.index:
            self._present.discard(trainer)
            for segment in self._segments.values():
                if segment.wanted is not None:
                    segment.wanted.discard(trainer)
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
        statement = Statement(number, self._had[number], tuple(self._kept[number]))
        if to == self.index:
            segment = self._segment(number)
            segment.wanted = set(self._present)
            segment.statements[to] = statement
            segment.queues[to].extend(self._pending[number])
            return
        self.network.link(self, self.others[to], self.index).post(STATEMENT, self._last[0], "", statement)
        for piece in self._pending[number]:
            self._give(piece)

    def _take_over(self, segment: Segment) -> None:
        """Begins to sum a segment in another trainer's place, once all have stated their sums."""
        for trainer, lacking in (segment.agreed() or {}).items():
            for total in lacking:
                self._hand_out(trainer, total)
        self._go_on(segment)

    def announce(self, trainer: int, step: int) -> None:
        """A trainer that was here comes back, and takes part from this step."""
        self._announced.append((trainer, step))
        self._admit()

    def _admit(self) -> None:
        for entry in [entry for entry in self._announced if entry[0] not in self.live]:
            self._announced.remove(entry)
            index, self._from[entry[0]] = entry
            self.live.add(index)
            if index not in self._present:
                self._present.add(index)
                self._lives[index] += 1

    def come_back(self) -> None:
        """The process runs again after a crash. It knows what the others know, and sums nothing at first."""
        self.down = False
        up = {index: side for index, side in self.others.items() if not side.down}
        self._begin()
        self._present = {*up} or {self.index}
        other = next(iter(up.values()), self)
        self.live, self._from, self._lives = set(other.live), dict(other._from), dict(other._lives)
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
        for number, pending in self._pending.items():
            if pending and (sums := self._sums[number]) != self.index:
                awaited.add(sums)
            elif pending:
                awaited.update(self._segment(number).missing(self.live, self._from))
        return tuple(self._trainers[index].name for index in sorted(awaited))

    def waiting(self) -> Waiting | None:
        """Which trainers have not come to a sum that is made here, if some have."""
        for segment in self._segments.values():
            come = next((queue[0] for queue in segment.queues.values() if queue), None)
            missing = segment.missing(self.live, self._from)
            if come is not None and self.live and missing and self._sums[segment.number] == self.index:
                op = self._ops[come.variable]
                what = f"the parts of all trainers in {come.part.kind}"
                if segment.taking:
                    what = "what all trainers have, to sum in another one's place"
                return Waiting(self.name, op, what, tuple(self._trainers[index].name for index in missing))
        return None


def make_rings(ring: str, network: Network, trainers: Mapping[int, Machine], ops: Mapping[str, Op]) -> list[Ring]:
    """The sides of all trainers of a ring, each of which knows the others."""
    rings = {index: Ring(ring, network, index, trainers, ops) for index in sorted(trainers)}
    for side in rings.values():
        side.others = {index: other for index, other in rings.items() if other is not side}
    return list(rings.values())


class RingReplies(Replies):
    """Replies of a trainer's own sides of rings."""

    __slots__ = ("_rings",)

    def __init__(self, step: int, count: int, join: Join, rings: Iterable[Ring]):
        super().__init__(step, count, join)
        self._rings = tuple(dict.fromkeys(rings))

    def silent(self) -> tuple[str, ...]:
        """The trainers that have not come, or whose sums have not."""
        return tuple(dict.fromkeys(name for side in self._rings for name in side.missing()))
