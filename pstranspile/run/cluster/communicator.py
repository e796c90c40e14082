"""The communicator of a trainer whose `send` and `recv` carry the names of slices.

Which kind it is follows from the programs, as Fluid's user would have to choose it: servers that wait for barriers make
it synchronous, a `send_barrier` of a trainer's own makes it half-asynchronous, and otherwise it is asynchronous.

A trainer here is one training thread, so the synchronous and the half-asynchronous kind send every gradient as it is
(the average of one) and the trainer waits meanwhile; they need no machine of their own. The asynchronous kind is a
machine beside the trainer, with a queue for every gradient.

Other than in Fluid: what is in the queues when a trainer leaves is sent; step counters are sent, so that
schedules go on; parameters are pulled after every round in which something was sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.ir.model import Op, Program
from pstranspile.kernels.context import Value
from pstranspile.run.cluster import codes
from pstranspile.run.cluster.cutting import cut, merged
from pstranspile.run.cluster.geo import GeoCommunicator
from pstranspile.run.cluster.message import FETCH_BARRIER, NOTIFY, SEND, SEND_BARRIER, Message
from pstranspile.run.cluster.network import Link, Machine, Waiting
from pstranspile.run.cluster.placement import Placement
from pstranspile.run.cluster.rpc import (
    Servers,
    checked,
    joined,
    link_to,
    make_rpc,
    number_list,
    program_told,
    requests_of,
    send_targets,
)
from pstranspile.run.cluster.script import Exchange, find_exchanges
from pstranspile.run.cluster.server import Server
from pstranspile.run.cluster.trainer import Action, Trainer
from pstranspile.run.scope import own_copy


class Settings(NamedTuple):
    """How communicators work. The first three are flags of Fluid's, with the defaults of one training thread.

    `max_merge_var_num` gradients of one variable at most are sent as one; a trainer waits when `send_queue_size` are in
    a queue; `merge_add` adds them up, otherwise they are averaged (an op with `merge_add` is added up in any case).
    `push_every`: geo-SGD exchanges what was learnt every so many steps (`geo_sgd_need_push_nums`).
    """

    max_merge_var_num: int = 1
    send_queue_size: int = 1
    merge_add: bool = True
    push_every: int = 100


def uses_communicator(main: Program) -> bool:
    """Whether a trainer's gradients are cut by a communicator, not by ops, or wait for one."""
    return has_barrier(main) or any(
        op.type == "send" and op.attrs.get("send_varnames") and op.attrs.get("use_send_handler", True)
        for op in main.main_block.ops
    )


def has_barrier(main: Program) -> bool:
    """Whether a trainer waits for its communicator in every step."""
    return any(op.type == "send_barrier" and op.attrs.get("half_async", False) for op in main.main_block.ops)


class StepCommunicator:
    """Sends in every step what the trainer made in it, then fetches; with barriers if the servers wait for them."""

    def __init__(self, trainer: Trainer, servers: Servers, *, synchronous: bool):
        self._trainer = trainer
        self._servers = servers
        self._synchronous = synchronous
        self._queue: list[Callable[[], object]] = []
        """What to do at the barrier, in the order of the program."""

    def action(self, exchange: Exchange, program: Program) -> Action | None:
        """What the trainer does at an exchange; None: what it would do without a communicator."""
        if self._trainer.name_of(program) is None:
            return None
        if exchange.kind == "send":
            send = make_rpc(self._trainer, exchange, program, self._servers)
            return lambda values: self._queue.append(lambda: send(values))
        if exchange.kind == "send_barrier":
            return self._barrier(exchange, program)
        if exchange.kind == "recv" and self._synchronous and exchange.op is _exchanges(program, "recv")[-1].op:
            (barrier, *_) = _exchanges(program, "send_barrier") or (None,)
            fetch = make_rpc(self._trainer, exchange, program, self._servers)
            return fetch if barrier is None else self._fetch_last(fetch, self._links(barrier))
        return None

    def _links(self, barrier: Exchange) -> list[Link]:
        endpoints: Any = barrier.op.attrs["endpoints"]
        return [link_to(self._trainer, self._servers, endpoint, barrier.op) for endpoint in endpoints]

    def _barrier(self, exchange: Exchange, program: Program) -> Action:
        links = self._links(exchange)
        fetches, told = _exchanges(program, "recv"), program_told(self._trainer, program)

        def run(_values: tuple[Value, ...]) -> None:
            for send in self._queue:
                send()
            self._queue.clear()
            if self._synchronous:
                self._post(SEND_BARRIER, links, told)
                if not fetches:
                    self._post(FETCH_BARRIER, links)

        return run

    def _post(self, kind: str, links: Sequence[Link], told: str | None = None) -> None:
        step = self._trainer.step
        for link in links:
            link.post(kind, step, "", told)

    def _fetch_last(self, fetch: Action, links: Sequence[Link]) -> Action:
        def run(values: tuple[Value, ...]) -> Sequence[Value] | None:
            received = fetch(values)
            self._trainer.after_answers(lambda: self._post(FETCH_BARRIER, links))
            return received

        return run


def _exchanges(program: Program, kind: str) -> list[Exchange]:
    return [exchange for exchange in find_exchanges(program)[1] if exchange.kind == kind]


class Communicator(Protocol):
    """A trainer's communicator."""

    def action(self, exchange: Exchange, program: Program) -> Action | None:
        """What the trainer does at an exchange; None: what it would do without a communicator."""
        ...


class _Queued(NamedTuple):
    """A `send` of the trainer's program: where its value goes, and the values that wait."""

    op: Op
    targets: list[tuple[Link, str, int]]
    sections: Sequence[int]
    counts: bool
    adds: bool
    values: deque[tuple[int, Value]]
    """Each with the trainer's step that made it."""


class AsyncCommunicator(Machine):
    """Sends and fetches beside the trainer, in rounds; the trainer waits only if a queue is full.

    It writes what it fetches into the trainer's scope; a step computes with the parameters that it began with.
    """

    def __init__(self, trainer: Trainer, servers: Servers, settings: Settings):
        super().__init__(f"{trainer.name}/communicator", trainer.network, trainer.scope)
        self.index = trainer.index
        self._trainer = trainer
        self._servers = servers
        self._settings = settings
        self._queues: list[_Queued] = []
        self._full: Callable[[], object] | None = None
        """Puts what the trainer waits to send into its queue."""
        self._answers: list[Value] = []
        self._open = 0
        self._posts: list[tuple[Link, str, str]] = []
        """What to ask for in a round: link, kind of message, name on the server."""
        self._stores: list[tuple[int, Callable[[list[Value]], object]]] = []
        """Of how many answers in a row to make which variables of the trainer."""
        self._storing: list[tuple[int, Callable[[list[Value]], object]]] = []
        """The same of the round under way; another program of the trainer may ask for more in the next one."""
        self._leaving = False
        self.step = 0
        """The last step that the round under way sends something of."""
        trainer.on_leaving = self._may_leave

    def action(self, exchange: Exchange, program: Program) -> Action | None:
        """What the trainer does at an exchange; None: what it would do without a communicator."""
        if self._trainer.name_of(program) is None:
            return None
        if exchange.kind == "send" and exchange.op.attrs.get("send_varnames"):
            return self._push(exchange)  # without these names it goes straight to the servers
        if exchange.kind == "recv":
            return self._pulled(exchange, program)
        return None

    def _push(self, exchange: Exchange) -> Action:
        op, settings, trainer = exchange.op, self._settings, self._trainer
        targets = [
            (self.network.link(self, link.target, self.index), name, place)
            for link, name, place in send_targets(trainer, op, self._servers)
        ]
        counts = not op.attrs.get("use_send_handler", True)
        adds = counts or settings.merge_add or bool(op.attrs.get("merge_add", False))
        waiting: deque[tuple[int, Value]] = deque()
        self._queues.append(_Queued(op, targets, number_list(op, "sections"), counts, adds, waiting))

        def put(value: Value) -> None:
            waiting.append((trainer.step, value))
            self.network.scheduler.wake(self)

        def run(values: tuple[Value, ...]) -> Sequence[Value] | None:
            (value,) = values
            if counts:
                value = own_copy(value)
            if len(waiting) < settings.send_queue_size or counts:
                put(value)
                return None
            self._full = lambda: put(value)
            return trainer.block("room in the queue of its communicator")

        return run

    def _pulled(self, exchange: Exchange, program: Program) -> Action:
        """The trainer does not fetch itself; it goes on with what was fetched last."""
        trainer, outputs = self._trainer, exchange.outputs
        requests, counts = requests_of(trainer, exchange.ops, self._servers)
        self._posts += [(self.network.link(self, link.target, self.index), kind, name) for link, kind, name in requests]
        finish = checked(trainer, exchange, program, counts, joined(counts))

        def store(answers: list[Value]) -> None:
            for name, value in zip(outputs, finish(answers), strict=True):
                trainer.scope.put(name, value)

        self._stores.append((len(requests), store))
        return lambda _values: [trainer.scope.get(name) for name in outputs]

    def run(self) -> None:
        """Takes answers, and begins a new round if the last one is over."""
        super().run()
        if self._open:
            return
        if self._answers:
            answers, self._answers = self._answers, []
            for count, store in self._storing:
                store(answers[:count])
                answers = answers[count:]
        if not self._send_round():
            if self._leaving:
                self.network.scheduler.wake(self._trainer)
            return
        if not self._posts:
            self.network.scheduler.wake(self)
            return
        self._open = len(self._posts)
        self._storing = list(self._stores)
        self._answers = [None] * self._open
        for slot, (link, kind, name) in enumerate(self._posts):
            link.post(kind, self.step, name, None, slot)

    def receive(self, message: Message) -> None:
        """An answer fills its slot."""
        self._answers[message.slot] = message.payload
        self._open -= 1

    def _send_round(self) -> bool:
        """Sends what is in the queues, gradients before step counters; False if there is nothing."""
        most = self._settings.max_merge_var_num
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
                self._send(queue, merged([value for _, value in values], adds=queue.adds))
            except ValueError as problem:
                raise DiagnosticError([at_op(codes.OP, str(problem), queue.op)]) from None
        if sent and self._full is not None:
            put, self._full = self._full, None
            put()
            self._trainer.release()
        return sent

    def _send(self, queue: _Queued, value: Value) -> None:
        if queue.counts:
            for link, name, _ in queue.targets:
                link.post(NOTIFY, self.step, name, value)
            return
        parts = cut(value, queue.sections) if queue.sections else [value]
        for (link, name, _), part in zip(queue.targets, parts, strict=True):
            link.post(SEND, self.step, name, part)

    def restart(self) -> None:
        """Begins anew, with nothing to send."""
        for queue in self._queues:
            queue.values.clear()
        self._full, self._answers, self._open, self._leaving = None, [], 0, False

    def receive_carefully(self) -> None:
        """From now on takes only answers that belong to the round under way."""
        take = self.receive
        self.receive = lambda message: take(message) if self._open and message.step == self.step else None

    def _may_leave(self, trainer: Trainer) -> bool:
        """The trainer leaves when all is sent; the servers are told over the communicator's own links."""
        if self._open or any(queue.values for queue in self._queues):
            self._leaving = True
            return False
        trainer.servers = [self.network.link(self, link.target, self.index) for link in trainer.servers]
        return True

    def waiting(self) -> Waiting | None:
        """What the communicator waits for."""
        if not self._open:
            return None
        op = next((queue.op for queue in self._queues), None)
        missing = [
            post[0].target.name for post, answer in zip(self._posts, self._answers, strict=True) if answer is None
        ]
        return Waiting(self.name, op, "answers of servers", tuple(dict.fromkeys(missing)))


def make_communicator(
    trainer: Trainer, servers: Mapping[str, Server], placement: Placement, settings: Settings, trainers: int
) -> Communicator | None:
    """The communicator that a trainer needs, None if it needs none."""
    modes = {server.mode for server in servers.values()}
    if 3 in modes:
        return GeoCommunicator(trainer, servers, placement, trainers=trainers, push_every=settings.push_every)
    if not uses_communicator(trainer.main):
        return None
    if 0 in modes:
        return StepCommunicator(trainer, servers, synchronous=True)
    if has_barrier(trainer.main):
        return StepCommunicator(trainer, servers, synchronous=False)
    return AsyncCommunicator(trainer, servers, settings)
