"""Geo-SGD: trainers learn on their own and exchange what they have learnt every so many steps.

After `push_every` steps a trainer's communicator sends, for every slice of every parameter, the difference to what it
had after the last exchange, divided by the number of trainers; the servers add it. Then it fetches the servers' values
and takes over what others have changed, without undoing what its trainer has learnt meanwhile:

    delta = (train - old) / trainers;   old += delta;   send delta;   get s;   train += s - old;   old = s

Of sparse tables only the rows that the trainer has used are sent, and the rows that anybody has changed come back.

Other than in Fluid all ids count, not the first half of each batch; models without sparse tables exchange, too; what a
trainer has learnt since the last exchange is sent when it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Op, Program
from pstranspile.kernels.context import Value
from pstranspile.run.cluster import codes
from pstranspile.run.cluster.asynchronous import AsynchronousServer
from pstranspile.run.cluster.blocks import Block
from pstranspile.run.cluster.message import GET, GET_ROWS, SEND, Message
from pstranspile.run.cluster.network import Link, Machine, Waiting
from pstranspile.run.cluster.placement import Placement
from pstranspile.run.cluster.script import Exchange
from pstranspile.run.cluster.server import Server, pairs
from pstranspile.run.cluster.trainer import Action, Trainer
from pstranspile.run.describe import describe
from pstranspile.values import Array, LoDTensor, SelectedRows


class GeoServer(AsynchronousServer):
    """A server with `distributed_mode` 3: adds differences, and keeps for every trainer which rows have changed."""

    KEPT = (*AsynchronousServer.KEPT, "changed")

    def open(self, trainers: Mapping[int, str]) -> None:
        """Begins to listen; no row has changed for anybody."""
        super().open(trainers)
        self._handlers[GET_ROWS] = self.on_get_rows
        tables = dict.fromkeys(pairs(self.op, "sparse_grad_to_param").values())
        self.changed: dict[str, dict[int, set[int]]] = {table: {index: set() for index in trainers} for table in tables}

    def after_send(self, message: Message, block: Block) -> None:
        """Notes rows that have changed, for all trainers; the sender itself is among them."""
        if message.payload.__class__ is not SelectedRows:
            return
        rows = message.payload.rows.tolist()
        for name in block.changes:
            for seen in self.changed.get(name, {}).values():
                seen.update(rows)

    def on_get_rows(self, message: Message) -> None:
        """Answers with the rows that have changed since this trainer asked last."""
        table = self.scope.get(message.variable)
        if table is None or message.variable not in self.changed:
            raise self.unknown(message, "is asked for the changed rows of")
        seen = self.changed[message.variable][message.trainer]
        rows = np.array(sorted(seen), "int64")
        seen.clear()
        self.reply(message, SelectedRows(rows, table[rows], len(table)))


def delta_names(server: Server) -> dict[str, str]:
    """Slice of a parameter -> the name under which its server takes differences: `sum(slice, delta) -> slice`."""
    found: dict[str, str] = {}
    for delta, index in pairs(server.op, "grad_to_block_id").items():
        for op in server.main.blocks[int(index)].ops:
            found.update(dict.fromkeys(op.output_names, delta))
    return found


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


class GeoCommunicator(Machine):
    """A machine beside the trainer that counts its steps and exchanges."""

    def __init__(
        self,
        trainer: Trainer,
        servers: Mapping[str, Server],
        placement: Placement,
        *,
        trainers: int,
        push_every: int,
    ):
        super().__init__(f"{trainer.name}/communicator", trainer.network, trainer.scope)
        self._trainer = trainer
        self.index = trainer.index
        self._push_every = push_every
        self._trainers = trainers
        self.parameters = self._find(servers, placement)
        self._sparse = {parameter.name for parameter in self.parameters if parameter.sparse}
        self._old: dict[str, Array] = {}
        self._touched: dict[str, list[Array]] = {name: [] for name in sorted(self._sparse)}
        self._since = 0
        self._counted = 0
        """The step of the trainer that was counted last."""
        self._step = -1
        """The last step that the exchange under way is about."""
        self._op: Op | None = None
        self._anew = False
        """Whether the trainer was started again, and has not fetched the parameters yet."""
        self._due = False
        self._full = False
        """Whether the trainer waits for an exchange to begin."""
        self._leaving = False
        self._asked: list[tuple[GeoParameter, GeoSlice]] = []
        self._answers: list[Value] = []
        self._open = 0
        self.exchanges = 0
        trainer.on_leaving = self._may_leave
        trainer.before_steps = self.snapshot

    def _find(self, servers: Mapping[str, Server], placement: Placement) -> list[GeoParameter]:
        deltas = {endpoint: delta_names(server) for endpoint, server in servers.items()}
        sparse = {name for server in servers.values() for name in pairs(server.op, "sparse_grad_to_param").values()}
        found: list[GeoParameter] = []
        for name in placement.origins():
            rows = [row for row in placement.by_origin[name] if row.slice in deltas.get(row.endpoint, ())]
            if self._trainer.declares(name) is None or not rows:
                continue
            slices: list[GeoSlice] = []
            start = 0
            for row in sorted(rows, key=lambda row: row.offset):
                height = row.slice_shape[0] if row.slice_shape else 1
                link = self.network.link(self, servers[row.endpoint], self.index)
                slices.append(GeoSlice(start, start + height, row.slice, deltas[row.endpoint][row.slice], link))
                start += height
            found.append(GeoParameter(name, any(row.slice in sparse for row in rows), tuple(slices)))
        return found

    def restart(self) -> None:
        """Begins anew: when the start-up is over, it fetches what the servers have before the first step."""
        self._since, self._due, self._full, self._leaving = 0, False, False, False
        self._asked, self._answers, self._open = [], [], 0
        for rows in self._touched.values():
            rows.clear()
        self._anew = True

    def receive_carefully(self) -> None:
        """From now on takes only answers that belong to the exchange under way."""
        take = self.receive
        self.receive = lambda message: take(message) if self._open and message.step == self._step else None

    def _begin_anew(self) -> None:
        """Fetches every slice whole; the trainer waits meanwhile."""
        self._step = self._trainer.step
        self._trainer.block("its communicator to fetch the parameters")
        self._ask(whole=True)

    def _ask(self, *, whole: bool) -> None:
        """Asks for all slices; of sparse ones, unless `whole`, for the rows that have changed."""
        self._asked = [(p, s) for p in self.parameters for s in p.slices]
        self._answers = [None] * len(self._asked)
        self._open = len(self._asked)
        for slot, (parameter, part) in enumerate(self._asked):
            kind = GET_ROWS if parameter.sparse and not whole else GET
            part.link.post(kind, self._step, part.name, None, slot)

    # what the trainer does

    def action(self, exchange: Exchange, program: Program) -> Action | None:
        """What the trainer does at an exchange; None: what it would do without a communicator."""
        if exchange.kind != "send":
            return None
        if self._trainer.name_of(program) is None:
            return lambda _values: None  # `param_init`: the snapshot is taken when the start-up program has ended
        return self._tick(exchange)

    def _tick(self, exchange: Exchange) -> Action:
        self._op = exchange.op
        tables: Any = exchange.op.attrs.get("send_varnames", ())
        touched = [self._touched.get(table) for table in tables]

        def run(values: tuple[Value, ...]) -> Sequence[Value] | None:
            for ids, rows in zip(values, touched, strict=False):
                if rows is not None:
                    used = np.unique(ids.data if ids.__class__ is LoDTensor else ids)
                    rows.append(used[used >= 0])  # a negative number is none
            if self._since >= self._push_every:  # as many steps as fit into Fluid's queue
                self._full = True
                return self._trainer.block("its communicator to begin the next exchange")
            self._count()
            return None

        return run

    def _count(self) -> None:
        if not self.parameters:
            return  # there is nothing to exchange
        self._since += 1
        self._counted = self._trainer.step
        if self._since >= self._push_every:
            self._due = True
            self.network.scheduler.wake(self)

    def snapshot(self) -> None:
        """Keeps the trainer's parameters as they are now."""
        if self._anew:
            self._begin_anew()
        self._old = {p.name: np.array(self._fractions(p.name)) for p in self.parameters}

    def _fractions(self, name: str) -> Array:
        """The trainer's value of a parameter. Raises DiagnosticError if it has no differences to divide."""
        value = self.scope[name]
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            message = f"%{name} is {describe(value)}; geo exchanges differences of floats"
            raise self._refused(name, message)
        return value

    def _refused(self, name: str, message: str) -> DiagnosticError:
        var = self._trainer.declares(name)
        message = f"{self._trainer.name}: {message}"
        return DiagnosticError([error(codes.PLACEMENT, message, var and var.location, focus=f"%{name}")])

    def memory(self) -> dict[str, Array]:
        """What is kept between steps beside the trainer's variables, for a checkpoint: arrays by name.

        Nothing of it depends on how parameters are cut: rows are those of whole tables.
        """
        found: dict[str, Array] = {"since": np.array([self._since], "int64")}
        for parameter in self.parameters:
            found[f"old/{parameter.name}"] = np.array(self._old[parameter.name])
            if parameter.sparse:
                touched = self._touched[parameter.name]
                found[f"touched/{parameter.name}"] = np.unique(np.concatenate([np.empty(0, "int64"), *touched]))
                changed = [part.start + np.array(sorted(seen), "int64") for part, seen in self._changed(parameter)]
                found[f"changed/{parameter.name}"] = np.concatenate(changed)
        return found

    def recall(self, memory: Mapping[str, Array]) -> None:
        """Takes back what `memory` gave; without it, what the trainer has now counts as exchanged."""
        self.snapshot()
        self._since = int(memory["since"][0]) if "since" in memory else 0
        self._counted = max(self._trainer.step - 1, 0)
        for parameter in self.parameters:
            name = parameter.name
            if f"old/{name}" in memory:
                self._old[name] = np.array(memory[f"old/{name}"])
            if parameter.sparse:
                touched, changed = memory.get(f"touched/{name}"), memory.get(f"changed/{name}")
                self._touched[name] = [] if touched is None else [np.array(touched)]
                for part, seen in self._changed(parameter):
                    seen.clear()
                    if changed is not None:
                        mine = changed[(changed >= part.start) & (changed < part.stop)]
                        seen.update((mine - part.start).tolist())

    def _changed(self, parameter: GeoParameter) -> Iterable[tuple[GeoSlice, set[int]]]:
        """The rows of each slice that have changed since the trainer asked last."""
        for part in parameter.slices:
            server = part.link.target
            if isinstance(server, GeoServer) and part.name in server.changed:
                yield part, server.changed[part.name][self.index]

    def _may_leave(self, trainer: Trainer) -> bool:
        """The trainer leaves when all that it has learnt is sent."""
        if self._open or self._due or self._since:
            self._leaving = self._due = True
            self.network.scheduler.wake(self)
            return False
        trainer.servers = [self.network.link(self, link.target, self.index) for link in trainer.servers]
        return True

    # the machine

    def run(self) -> None:
        """Takes answers; begins an exchange if one is due and none is under way."""
        super().run()
        if self._open:
            return
        if self._asked:
            self._take_over()
        if self._due:
            self._exchange()
        elif self._leaving:
            self.network.scheduler.wake(self._trainer)

    def receive(self, message: Message) -> None:
        """An answer fills its slot."""
        self._answers[message.slot] = message.payload
        self._open -= 1

    def _exchange(self) -> None:
        self._due, self._since = False, 0
        step = self._step = self._counted
        if self._full:
            self._full = False
            self._count()
            self._trainer.release()
        self.exchanges += 1
        for parameter in self.parameters:
            if parameter.sparse:
                self._send_rows(parameter, step)
            else:
                self._send_all(parameter, step)
        self._ask(whole=False)

    def _send_all(self, parameter: GeoParameter, step: int) -> None:
        old = self._old[parameter.name]
        delta = (self._learnt(parameter.name) - old) / old.dtype.type(self._trainers)
        old += delta
        for part in parameter.slices:
            part.link.post(SEND, step, part.delta, delta[part.start : part.stop])

    def _send_rows(self, parameter: GeoParameter, step: int) -> None:
        old, kept = self._old[parameter.name], self._touched[parameter.name]
        touched = np.unique(np.concatenate(kept)) if kept else np.empty(0, "int64")
        kept.clear()
        delta = (self._learnt(parameter.name)[touched] - old[touched]) / old.dtype.type(self._trainers)
        old[touched] += delta
        for part in parameter.slices:
            mine = (touched >= part.start) & (touched < part.stop)
            rows = SelectedRows(touched[mine] - part.start, delta[mine], part.stop - part.start)
            part.link.post(SEND, step, part.delta, rows)

    def _take_over(self) -> None:
        """Adds what others have learnt."""
        answers, self._answers = self._answers, []
        asked, self._asked = self._asked, []
        whole = self._anew
        if whole:
            self._anew = False
            self._trainer.release()
        for (parameter, part), answer in zip(asked, answers, strict=True):
            train, old = self._own(parameter.name), self._old[parameter.name]
            if whole:
                train[part.start : part.stop] = old[part.start : part.stop] = answer
            elif isinstance(answer, SelectedRows):
                rows = answer.rows + part.start
                train[rows] += answer.value - old[rows]
                old[rows] = answer.value
            else:
                train[part.start : part.stop] += answer - old[part.start : part.stop]
                old[part.start : part.stop] = answer

    def _learnt(self, name: str) -> Array:
        """The trainer's value of a parameter. Raises DiagnosticError when a step gave it another type."""
        value, old = self.scope[name], self._old[name]
        if not isinstance(value, np.ndarray) or (value.shape, value.dtype) != (old.shape, old.dtype):
            raise self._refused(name, f"%{name} is {describe(value)} after a step, and was {describe(old)}")
        return value

    def _own(self, name: str) -> Array:
        """The trainer's value of a parameter, to be written in place: what arrived at start-up others hold as well."""
        if not self._learnt(name).flags.writeable:
            self.scope.put(name, np.array(self.scope[name]))
        return self.scope[name]

    def waiting(self) -> Waiting | None:
        """What the communicator waits for."""
        if not self._open:
            return None
        slots = zip(self._asked, self._answers, strict=True)
        missing = dict.fromkeys(part.link.target.name for (_, part), answer in slots if answer is None)
        return Waiting(self.name, self._op, "answers of servers", tuple(missing))
