"""The communicator of asynchronous trainers: a queue for every gradient, emptied in rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from pstranspile.cluster.machines.addresses import Servers, number_list
from pstranspile.cluster.machines.communicators.companion import Companion, Settings
from pstranspile.cluster.machines.cutting import cut, merged
from pstranspile.cluster.machines.exchanges import Exchange
from pstranspile.cluster.machines.message import NOTIFY, SEND
from pstranspile.cluster.machines.network import Link
from pstranspile.cluster.machines.rpc import Request, checked, counts_steps, requests_of, send_targets
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.machines.waits import Action, Blocked, Replies
from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.ir.model import Op, Program
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.scope import own_copy


class _Queued(NamedTuple):
    """A `send` of the trainer's program: where its value goes, and the values that wait."""

    op: Op
    targets: list[tuple[Link, str]]
    sections: Sequence[int]
    counts: bool
    adds: bool
    values: deque[tuple[int, Value]]
    """Each with the trainer's step that made it."""


class AsyncCommunicator(Companion):
    """Sends and fetches in rounds while the trainer computes. The trainer waits only if a queue is full.

    It writes what it fetches into the trainer's scope; a step computes with the parameters that it began with.
    """

    def __init__(self, trainer: Trainer, servers: Servers, settings: Settings):
        super().__init__(trainer)
        self._servers = servers
        self.settings = settings
        self._queues: list[_Queued] = []
        self._full: tuple[Blocked, _Queued, Value] | None = None
        """What the trainer waits to put into a queue."""
        self._requests: list[Request] = []
        """What to ask for in a round."""
        self._stores: list[tuple[int, Callable[[list[Value]], object]]] = []
        """Of how many answers in a row to make which variables of the trainer."""
        self.step = 0
        """The last step that the round under way sends something of."""

    def action(self, exchange: Exchange, program: Program) -> Action | None:
        """What the trainer does at an exchange; None: what it would do without a communicator."""
        if self.trainer.role.name_of(program) is None:
            return None
        if exchange.kind == "send" and exchange.op.attrs.get("send_varnames"):
            return self._push(exchange)  # without these names it goes straight to the servers
        if exchange.kind == "recv":
            return self._pulled(exchange, program)
        return None

    def _push(self, exchange: Exchange) -> Action:
        op, trainer = exchange.op, self.trainer
        self.op = self.op or op
        targets = [(self.link(link.target), name) for link, name, _ in send_targets(trainer, op, self._servers)]
        counts = counts_steps(op)
        adds = counts or bool(op.attrs.get("merge_add", False))
        queue = _Queued(op, targets, number_list(op, "sections"), counts, adds, deque())
        self._queues.append(queue)

        def run(values: tuple[Value, ...]) -> Blocked | None:
            (value,) = values
            if counts:
                value = own_copy(value)
            if len(queue.values) < self.settings.send_queue_size or counts:
                self._put(queue, value)
                return None
            room = Blocked(trainer, "room in the queue of its communicator")
            self._full = room, queue, value
            return room

        return run

    def _put(self, queue: _Queued, value: Value) -> None:
        queue.values.append((self.trainer.step, value))
        self.network.scheduler.wake(self)

    def _pulled(self, exchange: Exchange, program: Program) -> Action:
        """The trainer does not fetch itself; it goes on with what was fetched last."""
        trainer, outputs = self.trainer, exchange.outputs
        requests, counts = requests_of(trainer, exchange.ops, self._servers)
        self._requests += [(self.link(link.target), kind, name) for link, kind, name in requests]
        join = checked(trainer, exchange, program, counts)

        def store(answers: list[Value]) -> None:
            for name, value in zip(outputs, join(answers), strict=True):
                trainer.scope.put(name, value)

        self._stores.append((len(requests), store))
        return lambda _values: [trainer.scope.get(name) for name in outputs]

    def advance(self) -> None:
        """Begins a new round if the last one is over, and there is something to send."""
        if not self.between_rounds:
            return
        if not self._send_round():
            if self.leaving:
                self.network.scheduler.wake(self.trainer)
            return
        if not self._requests:
            self.network.scheduler.wake(self)
            return
        stores = list(self._stores)  # another program of the trainer may ask for more in the next round

        def join(answers: list[Value]) -> Sequence[Value]:
            rest = iter(answers)
            for count, store in stores:
                store([*islice(rest, count)])
            return ()

        asked = [link for link, _, _ in self._requests]
        self.replies = Replies(self.step, len(asked), join, asked)
        for slot, (link, kind, name) in enumerate(self._requests):
            link.post(kind, self.step, name, None, slot)

    def _send_round(self) -> bool:
        """Sends what is in the queues, gradients before step counters; False if there is nothing."""
        most = self.settings.max_merge_var_num
        taken = [
            (queue, [queue.values.popleft() for _ in range(min(most, len(queue.values)))])
            for queue in sorted(self._queues, key=lambda queue: queue.counts)
            if queue.values
        ]
        sent = bool(taken)
        if sent:
            self.step = max(step for _, values in taken for step, _ in values)
        for queue, values in taken:
            try:
                self._send(queue, merged([value for _, value in values], adds=queue.adds or self.settings.merge_add))
            except ValueError as problem:
                raise DiagnosticError([at_op("cluster-op", str(problem), queue.op)]) from None
        if sent and self._full is not None:
            (room, queue, value), self._full = self._full, None
            self._put(queue, value)
            room.release()
        return sent

    def _send(self, queue: _Queued, value: Value) -> None:
        if queue.counts:
            for link, name in queue.targets:
                link.post(NOTIFY, self.step, name, value)
            return
        parts = cut(value, queue.sections) if queue.sections else [value]
        for (link, name), part in zip(queue.targets, parts, strict=True):
            link.post(SEND, self.step, name, part)

    def restart(self) -> None:
        """Begins anew, with nothing to send."""
        super().restart()
        for queue in self._queues:
            queue.values.clear()
        self._full = None

    @property
    def quiet(self) -> bool:
        """Whether no round is under way and nothing is in the queues."""
        return self.replies is None and not any(queue.values for queue in self._queues)

    def may_leave(self) -> bool:
        """The trainer leaves when all is sent."""
        if not self.quiet:
            self.leaving = True
            return False
        self.let_go()
        return True
