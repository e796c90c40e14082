"""The communicators of trainers, which send and fetch while the trainers run, one for each mode."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.machines.asynchronous import GeoServer
from pstranspile.cluster.machines.message import FETCH_BARRIER, GET, GET_ROWS, NOTIFY, SEND, SEND_BARRIER, Message
from pstranspile.cluster.machines.network import Link, Machine, WaitReason
from pstranspile.cluster.machines.placement import Placement, merge_gradients, split_rows, with_each_row_once
from pstranspile.cluster.machines.rpc import (
    Request,
    checked_join,
    counts_steps,
    make_rpc,
    report,
    requests_of,
    send_targets,
)
from pstranspile.cluster.machines.script import Action, Exchange, Replies, WaitForRelease, find_exchanges
from pstranspile.cluster.machines.server import Server, pairs
from pstranspile.cluster.machines.trainer import Communicator, Servers, Trainer, link_to, number_list
from pstranspile.ir.diagnostics import DiagnosticError, at_op, error
from pstranspile.ir.model import Op, Program
from pstranspile.runtime.kernels.kernel import Value
from pstranspile.runtime.run.feeds import describe
from pstranspile.runtime.run.scope import own_copy
from pstranspile.runtime.values import Array, LoDTensor, SelectedRows

# The communicator of a trainer whose `send` and `recv` carry the names of slices.
#
# Which kind it is follows from the programs, as Fluid's user would have to choose it: servers that wait for barriers
# make it synchronous, a `send_barrier` of a trainer's own makes it half-asynchronous, and otherwise it is asynchronous.
#
# A trainer here is one training thread, so the synchronous and the half-asynchronous kind send every gradient by itself
# (the average of one) and the trainer waits meanwhile; they need no machine of their own. The asynchronous kind is a
# machine that runs in parallel with the trainer, with a queue for every gradient.
#
# As in Fluid, all of them send each row of a sparse gradient once, with the sum of its values in order.
#
# Unlike in Fluid, gradients left in the queues are sent when a trainer leaves; step counters are sent, so that
# schedules continue; parameters are pulled after every round in which something was sent.


def uses_communicator(main: Program) -> bool:
    """Whether a trainer's gradients are cut by a communicator instead of by ops, or wait for one."""
    return has_barrier(main) or any(
        op.type == "send" and op.attrs.get("send_varnames") and op.attrs.get("use_send_handler", True)
        for op in main.main_block.ops
    )


def has_barrier(main: Program) -> bool:
    """Whether a trainer waits for its communicator in every step."""
    return any(op.type == "send_barrier" and op.attrs.get("half_async", False) for op in main.main_block.ops)


class StepCommunicator(Communicator):
    """Sends in every step what the trainer made in it, then fetches; with barriers if the servers wait for them."""

    def __init__(self, trainer: Trainer, servers: Servers, *, synchronous: bool):
        self._trainer = trainer
        self._servers = servers
        self._synchronous = synchronous
        self._queue: list[Callable[[], object]] = []
        """The sends and fetches to do at the barrier, in the order of the program."""

    def action(self, exchange: Exchange, program: Program) -> Action | None:
        """The action of the trainer at an exchange; None for the action of a trainer without a communicator."""
        if self._trainer.role.name_of(program) is None:
            return None
        if exchange.kind == "send":
            send = make_rpc(self._trainer, exchange, program, self._servers)
            return lambda values: self._queue.append(lambda: send(tuple(map(with_each_row_once, values))))
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
        trainer, fetches, label = self._trainer, _exchanges(program, "recv"), self._trainer.role.label(program)

        def run(_values: tuple[Value, ...]) -> None:
            for send in self._queue:
                send()
            self._queue.clear()
            if self._synchronous:
                report(trainer, SEND_BARRIER, links, label)
                if not fetches:
                    report(trainer, FETCH_BARRIER, links)

        return run

    def _fetch_last(self, fetch: Action, links: Sequence[Link]) -> Action:
        trainer = self._trainer

        def run(values: tuple[Value, ...]) -> Replies:
            replies = fetch(values)
            assert isinstance(replies, Replies)
            return replies.then(lambda: report(trainer, FETCH_BARRIER, links))

        return run


def _exchanges(program: Program, kind: str) -> list[Exchange]:
    return [exchange for exchange in find_exchanges(program)[1] if exchange.kind == kind]


def make_communicator(
    trainer: Trainer, servers: Mapping[str, Server], placement: Placement, settings: Settings, trainers: int
) -> Communicator | None:
    """The communicator that a trainer needs, None if it needs none."""
    modes = {server.mode for server in servers.values()}
    if 3 in modes:
        return GeoCommunicator(trainer, servers, placement, trainers=trainers, push_every=settings.push_every)
    if not uses_communicator(trainer.role.main):
        return None
    if 0 in modes:
        return StepCommunicator(trainer, servers, synchronous=True)
    if has_barrier(trainer.role.main):
        return StepCommunicator(trainer, servers, synchronous=False)
    return AsyncCommunicator(trainer, servers, settings)


# Communicators that are machines of their own in the processes of their trainers.


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


class Companion(Machine, Communicator):
    """A communicator that sends and fetches while its trainer runs, in rounds, and writes into the trainer's scope."""

    def __init__(self, trainer: Trainer):
        super().__init__(f"{trainer.name}/communicator", trainer.network, trainer.scope)
        self.index = trainer.index
        self.trainer = trainer
        self.op: Op | None = None
        """An op whose sending the communicator has taken over, for reports."""
        self.replies: Replies | None = None
        """The replies that the current round waits for."""
        self.leaving = False
        """Whether the trainer waits to leave."""

    def link(self, server: Machine) -> Link:
        """The communicator's own link to a server."""
        return self.network.link(self, server, self.index)

    def receive(self, message: Message) -> None:
        """An answer fills its slot."""
        if self.replies is not None:
            self.replies.take((message,))

    @property
    def awaited_replies(self) -> Replies | None:
        """The replies that the current round waits for."""
        return self.replies

    @property
    def between_rounds(self) -> bool:
        """Whether no reply is awaited. If the last round has just ended, its answers are taken over first."""
        replies = self.replies
        if replies is None:
            return True
        if replies.missing_count:
            return False
        self.replies = None
        replies.join(replies.values)
        return True

    def restart(self) -> None:
        """Starts again with nothing to send."""
        self.down = self.leaving = False
        self.replies = None

    def let_go(self) -> None:
        """Permits the trainer to leave: COMPLETE is sent on the links that carried the last messages."""
        self.trainer.connect([self.link(link.target) for link in self.trainer.servers])

    def waiting(self) -> WaitReason | None:
        """What the communicator waits for."""
        if self.replies is None or not self.replies.missing_count:
            return None
        return WaitReason(self.name, self.op, "answers of servers", self.replies.silent())


# The communicator of asynchronous trainers: a queue for every gradient, emptied in rounds.


class _SendQueue(NamedTuple):
    """A `send` of the trainer's program: the target of its value, and the values that wait."""

    op: Op
    targets: list[tuple[Link, str]]
    sections: Sequence[int]
    counts: bool
    adds: bool
    values: deque[tuple[int, Value]]
    """The values that wait, each with the trainer's step that made it."""


class AsyncCommunicator(Companion):
    """Sends and fetches in rounds while the trainer computes. The trainer waits only if a queue is full.

    It writes what it fetches into the trainer's scope; a step computes with the parameters that it began with.
    """

    def __init__(self, trainer: Trainer, servers: Servers, settings: Settings):
        super().__init__(trainer)
        self._servers = servers
        self.settings = settings
        self._queues: list[_SendQueue] = []
        self._blocked_value: tuple[WaitForRelease, _SendQueue, Value] | None = None
        """The value that the trainer waits to put into a full queue."""
        self._requests: list[Request] = []
        """The requests of each round."""
        self._stores: list[tuple[int, Callable[[list[Value]], object]]] = []
        """Groups of consecutive answers: the number in each, and the function that sets variables from them."""
        self.step = 0
        """The step of the newest value that the current round sends."""

    def configure(self, settings: Settings) -> None:
        """Sets the settings to use from now on."""
        self.settings = settings

    def action(self, exchange: Exchange, program: Program) -> Action | None:
        """The action of the trainer at an exchange; None for the action of a trainer without a communicator."""
        if self.trainer.role.name_of(program) is None:
            return None
        if exchange.kind == "send" and exchange.op.attrs.get("send_varnames"):
            return self._push(exchange)  # without these names the value goes straight to the servers
        if exchange.kind == "recv":
            return self._fetch_action(exchange, program)
        return None

    def _push(self, exchange: Exchange) -> Action:
        op, trainer = exchange.op, self.trainer
        self.op = self.op or op
        targets = [(self.link(link.target), name) for link, name, _ in send_targets(trainer, op, self._servers)]
        counts = counts_steps(op)
        adds = counts or bool(op.attrs.get("merge_add", False))
        queue = _SendQueue(op, targets, number_list(op, "sections"), counts, adds, deque())
        self._queues.append(queue)

        def run(values: tuple[Value, ...]) -> WaitForRelease | None:
            (value,) = values
            if counts:
                value = own_copy(value)
            if len(queue.values) < self.settings.send_queue_size or counts:
                self._enqueue(queue, value)
                return None
            room = WaitForRelease(trainer, "room in the queue of its communicator")
            self._blocked_value = room, queue, value
            return room

        return run

    def _enqueue(self, queue: _SendQueue, value: Value) -> None:
        queue.values.append((self.trainer.step, value))
        self.network.scheduler.wake(self)

    def _fetch_action(self, exchange: Exchange, program: Program) -> Action:
        """The action of a fetch: the trainer goes on with the values that the communicator fetched last."""
        trainer, outputs = self.trainer, exchange.outputs
        requests, counts = requests_of(trainer, exchange.ops, self._servers)
        self._requests += [(self.link(link.target), kind, name) for link, kind, name in requests]
        join = checked_join(trainer, exchange, program, counts)

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
        stores = list(self._stores)  # another program of the trainer may add requests for the next round

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
        """Sends the values in the queues, gradients before step counters; returns False if there are none."""
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
                self._send(
                    queue, merge_gradients([value for _, value in values], adds=queue.adds or self.settings.merge_add)
                )
            except ValueError as problem:
                raise DiagnosticError([at_op("cluster-op", str(problem), queue.op)]) from None
        if sent and self._blocked_value is not None:
            (room, queue, value), self._blocked_value = self._blocked_value, None
            self._enqueue(queue, value)
            room.release()
        return sent

    def _send(self, queue: _SendQueue, value: Value) -> None:
        if queue.counts:
            for link, name in queue.targets:
                link.post(NOTIFY, self.step, name, value)
            return
        parts = split_rows(value, queue.sections) if queue.sections else [value]
        for (link, name), part in zip(queue.targets, parts, strict=True):
            link.post(SEND, self.step, name, part)

    def restart(self) -> None:
        """Starts again with nothing to send."""
        super().restart()
        for queue in self._queues:
            queue.values.clear()
        self._blocked_value = None

    @property
    def quiet(self) -> bool:
        """Whether no round is under way and nothing is in the queues."""
        return self.replies is None and not any(queue.values for queue in self._queues)

    def may_leave(self) -> bool:
        """Whether the queues are empty and no round is in progress; if not, the trainer is woken later."""
        if not self.quiet:
            self.leaving = True
            return False
        self.let_go()
        return True


# Geo-SGD: trainers learn on their own and exchange their changes at intervals of steps.
#
# After `push_every` steps a trainer's communicator sends, for every slice of every parameter, the difference to what it
# had after the last exchange, divided by the number of trainers; the servers add it. Then it fetches the servers'
# values and takes over what others have changed, without undoing what its trainer has learnt meanwhile:
#
#     delta = (train - old) / trainers;   old += delta;   send delta;   get s;   train += s - old;   old = s
#
# Of sparse tables only the rows that the trainer has used are sent, and the rows that anybody has changed come back.
#
# Unlike in Fluid, all ids count, not the first half of each batch; models without sparse tables exchange, too; what
# a trainer has learnt since the last exchange is sent when it leaves.


def delta_names(server: Server) -> dict[str, str]:
    """Slice of a parameter -> the name under which its server takes differences: `sum(slice, delta) -> slice`."""
    result: dict[str, str] = {}
    for delta, index in pairs(server.op, "grad_to_block_id").items():
        for op in server.main.blocks[int(index)].ops:
            result.update(dict.fromkeys(op.output_names, delta))
    return result


class GeoSlice(NamedTuple):
    """A slice of a parameter: its rows in the whole, its name on the server, and the name of differences there."""

    start: int
    stop: int
    name: str
    delta: str
    link: Link


class GeoParameter(NamedTuple):
    """A parameter that is exchanged; of a `sparse` one, only rows."""

    name: str
    sparse: bool
    slices: tuple[GeoSlice, ...]


class GeoCommunicator(Companion):
    """The machine that counts a trainer's steps and exchanges its changes."""

    def __init__(
        self,
        trainer: Trainer,
        servers: Mapping[str, Server],
        placement: Placement,
        *,
        trainers: int,
        push_every: int,
    ):
        super().__init__(trainer)
        self._push_every = push_every
        self._trainers = trainers
        self.parameters = self._find(servers, placement)
        self._exchanged_values: dict[str, Array] = {}
        """The values of the parameters after the last exchange."""
        self._touched_rows: dict[str, list[Array]] = {p.name: [] for p in self.parameters if p.sparse}
        """The rows of sparse parameters that the trainer has used since the last exchange."""
        self._steps_since_exchange = 0
        """The number of the trainer's steps since the last exchange."""
        self._counted_step = 0
        """The step of the trainer that was counted last."""
        self._exchange_is_due = False
        """Whether an exchange is to begin."""
        self._restarted = False
        """Whether the trainer was started again, and has not fetched the parameters yet."""
        self._room: WaitForRelease | None = None
        """The trainer's wait for an exchange to begin; None if it does not wait."""
        self.exchanges = 0
        self._initial_state: Mapping[str, Array] | None = None
        """The state to begin with in place of the trainer's variables, if one was given."""

    def _find(self, servers: Mapping[str, Server], placement: Placement) -> list[GeoParameter]:
        deltas = {endpoint: delta_names(server) for endpoint, server in servers.items()}
        sparse = {name for server in servers.values() for name in pairs(server.op, "sparse_grad_to_param").values()}
        result: list[GeoParameter] = []
        for name in placement.origins():
            rows = [row for row in placement.by_origin[name] if row.slice in deltas.get(row.endpoint, ())]
            if self.trainer.role.variable(name) is None or not rows:
                continue
            slices: list[GeoSlice] = []
            start = 0
            for row in sorted(rows, key=lambda row: row.offset):
                height = row.slice_shape[0] if row.slice_shape else 1
                link = self.link(servers[row.endpoint])
                slices.append(GeoSlice(start, start + height, row.slice, deltas[row.endpoint][row.slice], link))
                start += height
            result.append(GeoParameter(name, any(row.slice in sparse for row in rows), tuple(slices)))
        return result

    def restart(self) -> None:
        """Starts again: after the start-up program, the parameters are fetched from the servers before the first
        step.
        """
        super().restart()
        self._steps_since_exchange, self._exchange_is_due, self._room, self._initial_state = 0, False, None, None
        for rows in self._touched_rows.values():
            rows.clear()
        self._restarted = True

    def _ask(self, step: int, take: Callable[[GeoParameter, GeoSlice, Value], object], *, whole: bool) -> None:
        """Requests all slices, whose values go to `take`; of sparse parameters only the changed rows, unless
        `whole`.
        """
        asked = [(p, s) for p in self.parameters for s in p.slices]

        def join(answers: list[Value]) -> Sequence[Value]:
            for (parameter, part), answer in zip(asked, answers, strict=True):
                take(parameter, part, answer)
            return ()

        self.replies = Replies(step, len(asked), join, [part.link for _, part in asked])
        for slot, (parameter, part) in enumerate(asked):
            kind = GET_ROWS if parameter.sparse and not whole else GET
            part.link.post(kind, step, part.name, None, slot)

    # what the trainer does

    def action(self, exchange: Exchange, program: Program) -> Action | None:
        """The action of the trainer at an exchange; None for the action of a trainer without a communicator."""
        if exchange.kind != "send":
            return None
        if self.trainer.role.name_of(program) is None:
            return lambda _values: None  # `param_init`: the snapshot is taken when the start-up program has ended
        return self._tick(exchange)

    def _tick(self, exchange: Exchange) -> Action:
        self.op = exchange.op
        tables: Any = exchange.op.attrs.get("send_varnames", ())
        touched = [self._touched_rows.get(table) for table in tables]

        def run(values: tuple[Value, ...]) -> WaitForRelease | None:
            for ids, rows in zip(values, touched, strict=False):
                if rows is not None:
                    used = np.unique(ids.data if ids.__class__ is LoDTensor else ids)
                    rows.append(used[used >= 0])  # a negative number is none
            if self._steps_since_exchange >= self._push_every:  # as many steps as fit into Fluid's queue
                self._room = WaitForRelease(self.trainer, "its communicator to begin the next exchange")
                return self._room
            self._count()
            return None

        return run

    def _count(self) -> None:
        if not self.parameters:
            return  # there is nothing to exchange
        self._steps_since_exchange += 1
        self._counted_step = self.trainer.step
        if self._steps_since_exchange >= self._push_every:
            self._exchange_is_due = True
            self.network.scheduler.wake(self)

    def begin_training(self) -> WaitForRelease | None:
        """Stores the trainer's parameters as the values of the last exchange. A trainer that was restarted fetches them
        first.
        """
        self._exchanged_values = {p.name: np.array(self._fractions(p.name)) for p in self.parameters}
        if self._initial_state is not None:
            given, self._initial_state = self._initial_state, None
            self._take_back(given)
            return None
        if not self._restarted or not self.parameters:
            return None
        self._restarted = False
        fetched = WaitForRelease(self.trainer, "its communicator to fetch the parameters")
        self._ask(self.trainer.step, self._take_whole, whole=True)
        assert self.replies is not None
        self.replies.then(fetched.release)
        return fetched

    def _fractions(self, name: str) -> Array:
        """The trainer's value of a parameter. Raises DiagnosticError unless it is an array of floats."""
        value = self.scope[name]
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            message = f"%{name} is {describe(value)}; geo exchanges differences of floats"
            raise self._placement_error(name, message)
        return value

    def _placement_error(self, name: str, message: str) -> DiagnosticError:
        var = self.trainer.role.variable(name)
        message = f"{self.trainer.name}: {message}"
        return DiagnosticError([error("cluster-placement", message, var and var.location, focus=f"%{name}")])

    def own_memory(self) -> dict[str, Array]:
        """The state of this machine between steps, without the trainer's variables: arrays by name."""
        result: dict[str, Array] = {"since": np.array([self._steps_since_exchange], "int64")}
        for parameter in self.parameters:
            result[f"old/{parameter.name}"] = np.array(self._exchanged_values[parameter.name])
            if parameter.sparse:
                touched = self._touched_rows[parameter.name]
                result[f"touched/{parameter.name}"] = np.unique(np.concatenate([np.empty(0, "int64"), *touched]))
        return result

    def memory(self) -> dict[str, Array]:
        """The state of this machine, with the rows that servers record for the trainer, for a checkpoint: arrays by
        name.

        It does not depend on how parameters are cut: rows are those of whole tables.
        """
        result = self.own_memory()
        for parameter in self.parameters:
            if parameter.sparse:
                changed = [part.start + np.array(sorted(seen), "int64") for part, seen in self._changed_rows(parameter)]
                result[f"changed/{parameter.name}"] = np.concatenate(changed)
        return result

    def begin_with(self, memory: Mapping[str, Array]) -> None:
        """Sets the state from `own_memory` that is restored when the trainer's start-up program has ended. The trainer
        has not begun yet.
        """
        self._initial_state = memory

    def _take_back(self, memory: Mapping[str, Array]) -> None:
        self._steps_since_exchange = int(memory["since"][0]) if "since" in memory else 0
        self._counted_step = max(self.trainer.step - 1, 0)
        for parameter in self.parameters:
            name = parameter.name
            if f"old/{name}" in memory:
                self._exchanged_values[name] = np.array(memory[f"old/{name}"])
            if parameter.sparse:
                touched = memory.get(f"touched/{name}")
                self._touched_rows[name] = [] if touched is None else [np.array(touched)]

    def recall(self, memory: Mapping[str, Array]) -> None:
        """Restores the state from `memory`; without one, the trainer's present values count as exchanged."""
        self.begin_with(memory)
        self.begin_training()
        for parameter in self.parameters:
            if parameter.sparse:
                changed = memory.get(f"changed/{parameter.name}")
                for part, seen in self._changed_rows(parameter):
                    seen.clear()
                    if changed is not None:
                        mine = changed[(changed >= part.start) & (changed < part.stop)]
                        seen.update((mine - part.start).tolist())

    def _changed_rows(self, parameter: GeoParameter) -> Iterable[tuple[GeoSlice, set[int]]]:
        """Yields the rows of each slice that have changed since the trainer's last request."""
        for part in parameter.slices:
            server = part.link.target
            if isinstance(server, GeoServer) and part.name in server.changed:
                yield part, server.changed[part.name][self.index]

    @property
    def quiet(self) -> bool:
        """Whether no exchange is in progress or due."""
        return self.replies is None and not self._exchange_is_due

    def may_leave(self) -> bool:
        """Whether the trainer has sent all its changes and may leave; if not, it is woken later."""
        if self.replies is not None or self._exchange_is_due or self._steps_since_exchange:
            self.leaving = self._exchange_is_due = True
            self.network.scheduler.wake(self)
            return False
        self.let_go()
        return True

    # exchanges

    def advance(self) -> None:
        """Begins an exchange if one is due and none is under way."""
        if not self.between_rounds:
            return
        if self._exchange_is_due:
            self._exchange()
        elif self.leaving:
            self.network.scheduler.wake(self.trainer)

    def _exchange(self) -> None:
        self._exchange_is_due, self._steps_since_exchange = False, 0
        step = self._counted_step
        if self._room is not None:
            room, self._room = self._room, None
            self._count()
            room.release()
        self.exchanges += 1
        for parameter in self.parameters:
            if parameter.sparse:
                self._send_rows(parameter, step)
            else:
                self._send_all(parameter, step)
        self._ask(step, self._take_over, whole=False)

    def _send_all(self, parameter: GeoParameter, step: int) -> None:
        old = self._exchanged_values[parameter.name]
        delta = (self._learnt(parameter.name) - old) / old.dtype.type(self._trainers)
        old += delta
        for part in parameter.slices:
            part.link.post(SEND, step, part.delta, delta[part.start : part.stop])

    def _send_rows(self, parameter: GeoParameter, step: int) -> None:
        old, kept = self._exchanged_values[parameter.name], self._touched_rows[parameter.name]
        touched = np.unique(np.concatenate(kept)) if kept else np.empty(0, "int64")
        kept.clear()
        delta = (self._learnt(parameter.name)[touched] - old[touched]) / old.dtype.type(self._trainers)
        old[touched] += delta
        for part in parameter.slices:
            mine = (touched >= part.start) & (touched < part.stop)
            rows = SelectedRows(touched[mine] - part.start, delta[mine], part.stop - part.start)
            part.link.post(SEND, step, part.delta, rows)

    def _take_over(self, parameter: GeoParameter, part: GeoSlice, answer: Value) -> None:
        """Adds the changes of other trainers to the trainer's value of a slice."""
        train, old = self._own(parameter.name), self._exchanged_values[parameter.name]
        if isinstance(answer, SelectedRows):
            rows = answer.rows + part.start
            train[rows] += answer.value - old[rows]
            old[rows] = answer.value
        else:
            train[part.start : part.stop] += answer - old[part.start : part.stop]
            old[part.start : part.stop] = answer

    def _take_whole(self, parameter: GeoParameter, part: GeoSlice, answer: Value) -> None:
        """Sets the trainer's value of a slice to that of the servers."""
        self._own(parameter.name)[part.start : part.stop] = answer
        self._exchanged_values[parameter.name][part.start : part.stop] = answer

    def _learnt(self, name: str) -> Array:
        """The trainer's value of a parameter. Raises DiagnosticError if a step has changed its type."""
        value, old = self.scope[name], self._exchanged_values[name]
        if not isinstance(value, np.ndarray) or (value.shape, value.dtype) != (old.shape, old.dtype):
            raise self._placement_error(name, f"%{name} is {describe(value)} after a step, and was {describe(old)}")
        return value

    def _own(self, name: str) -> Array:
        """The trainer's value of a parameter, for writing in place. It is copied first if other machines share it."""
        if not self._learnt(name).flags.writeable:
            self.scope.put(name, np.array(self.scope[name]))
        return self.scope[name]
