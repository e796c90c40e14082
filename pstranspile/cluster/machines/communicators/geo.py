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

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.machines.communicators.companion import Companion
from pstranspile.cluster.machines.exchanges import Exchange
from pstranspile.cluster.machines.geo_server import GeoServer
from pstranspile.cluster.machines.message import GET, GET_ROWS, SEND
from pstranspile.cluster.machines.network import Link
from pstranspile.cluster.machines.placement import Placement
from pstranspile.cluster.machines.server import Server, pairs
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.machines.waits import Action, Blocked, Replies
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Program
from pstranspile.runtime.kernels.context import Value
from pstranspile.runtime.run.describe import describe
from pstranspile.runtime.values import Array, LoDTensor, SelectedRows


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
        self._old: dict[str, Array] = {}
        """What the parameters were after the last exchange."""
        self._touched: dict[str, list[Array]] = {p.name: [] for p in self.parameters if p.sparse}
        """The rows of sparse parameters that the trainer has used since."""
        self._since = 0
        """The steps of the trainer since."""
        self._counted = 0
        """The step of the trainer that was counted last."""
        self._due = False
        """Whether an exchange is to begin."""
        self._restarted = False
        """Whether the trainer was started again, and has not fetched the parameters yet."""
        self._room: Blocked | None = None
        """The trainer, which waits for an exchange to begin."""
        self.exchanges = 0
        self._given: Mapping[str, Array] | None = None
        """What to begin with in place of what the trainer's variables say."""

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
        """Begins anew: when the start-up is over, it fetches what the servers have before the first step."""
        super().restart()
        self._since, self._due, self._room, self._given = 0, False, None, None
        for rows in self._touched.values():
            rows.clear()
        self._restarted = True

    def _ask(self, step: int, take: Callable[[GeoParameter, GeoSlice, Value], object], *, whole: bool) -> None:
        """Asks for all slices to take them over; of sparse ones, unless `whole`, for the rows that have changed."""
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
        """What the trainer does at an exchange; None: what it would do without a communicator."""
        if exchange.kind != "send":
            return None
        if self.trainer.role.name_of(program) is None:
            return lambda _values: None  # `param_init`: the snapshot is taken when the start-up program has ended
        return self._tick(exchange)

    def _tick(self, exchange: Exchange) -> Action:
        self.op = exchange.op
        tables: Any = exchange.op.attrs.get("send_varnames", ())
        touched = [self._touched.get(table) for table in tables]

        def run(values: tuple[Value, ...]) -> Blocked | None:
            for ids, rows in zip(values, touched, strict=False):
                if rows is not None:
                    used = np.unique(ids.data if ids.__class__ is LoDTensor else ids)
                    rows.append(used[used >= 0])  # a negative number is none
            if self._since >= self._push_every:  # as many steps as fit into Fluid's queue
                self._room = Blocked(self.trainer, "its communicator to begin the next exchange")
                return self._room
            self._count()
            return None

        return run

    def _count(self) -> None:
        if not self.parameters:
            return  # there is nothing to exchange
        self._since += 1
        self._counted = self.trainer.step
        if self._since >= self._push_every:
            self._due = True
            self.network.scheduler.wake(self)

    def started(self) -> Blocked | None:
        """Keeps the trainer's parameters as they are now. One that was started again fetches them first."""
        self._old = {p.name: np.array(self._fractions(p.name)) for p in self.parameters}
        if self._given is not None:
            given, self._given = self._given, None
            self._take_back(given)
            return None
        if not self._restarted or not self.parameters:
            return None
        self._restarted = False
        fetched = Blocked(self.trainer, "its communicator to fetch the parameters")
        self._ask(self.trainer.step, self._take_whole, whole=True)
        assert self.replies is not None
        self.replies.then(fetched.release)
        return fetched

    def _fractions(self, name: str) -> Array:
        """The trainer's value of a parameter. Raises DiagnosticError if it has no differences to divide."""
        value = self.scope[name]
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            message = f"%{name} is {describe(value)}; geo exchanges differences of floats"
            raise self._refused(name, message)
        return value

    def _refused(self, name: str, message: str) -> DiagnosticError:
        var = self.trainer.role.variable(name)
        message = f"{self.trainer.name}: {message}"
        return DiagnosticError([error("cluster-placement", message, var and var.location, focus=f"%{name}")])

    def own_memory(self) -> dict[str, Array]:
        """The state of this machine between steps, without the trainer's variables: arrays by name."""
        result: dict[str, Array] = {"since": np.array([self._since], "int64")}
        for parameter in self.parameters:
            result[f"old/{parameter.name}"] = np.array(self._old[parameter.name])
            if parameter.sparse:
                touched = self._touched[parameter.name]
                result[f"touched/{parameter.name}"] = np.unique(np.concatenate([np.empty(0, "int64"), *touched]))
        return result

    def memory(self) -> dict[str, Array]:
        """The same with what servers keep for the trainer, for a checkpoint.

        Nothing of it depends on how parameters are cut: rows are those of whole tables.
        """
        result = self.own_memory()
        for parameter in self.parameters:
            if parameter.sparse:
                changed = [part.start + np.array(sorted(seen), "int64") for part, seen in self._changed(parameter)]
                result[f"changed/{parameter.name}"] = np.concatenate(changed)
        return result

    def begin_with(self, memory: Mapping[str, Array]) -> None:
        """The trainer, which has not begun, will take back what `own_memory` gave when its start-up is over."""
        self._given = memory

    def _take_back(self, memory: Mapping[str, Array]) -> None:
        self._since = int(memory["since"][0]) if "since" in memory else 0
        self._counted = max(self.trainer.step - 1, 0)
        for parameter in self.parameters:
            name = parameter.name
            if f"old/{name}" in memory:
                self._old[name] = np.array(memory[f"old/{name}"])
            if parameter.sparse:
                touched = memory.get(f"touched/{name}")
                self._touched[name] = [] if touched is None else [np.array(touched)]

    def recall(self, memory: Mapping[str, Array]) -> None:
        """Takes back what `memory` gave; without it, what the trainer has now counts as exchanged."""
        self.begin_with(memory)
        self.started()
        for parameter in self.parameters:
            if parameter.sparse:
                changed = memory.get(f"changed/{parameter.name}")
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

    @property
    def quiet(self) -> bool:
        """Whether no exchange is under way or due."""
        return self.replies is None and not self._due

    def may_leave(self) -> bool:
        """The trainer leaves when all that it has learnt is sent."""
        if self.replies is not None or self._due or self._since:
            self.leaving = self._due = True
            self.network.scheduler.wake(self)
            return False
        self.let_go()
        return True

    # exchanges

    def advance(self) -> None:
        """Begins an exchange if one is due and none is under way."""
        if not self.between_rounds:
            return
        if self._due:
            self._exchange()
        elif self.leaving:
            self.network.scheduler.wake(self.trainer)

    def _exchange(self) -> None:
        self._due, self._since = False, 0
        step = self._counted
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

    def _take_over(self, parameter: GeoParameter, part: GeoSlice, answer: Value) -> None:
        """Adds what others have learnt."""
        train, old = self._own(parameter.name), self._old[parameter.name]
        if isinstance(answer, SelectedRows):
            rows = answer.rows + part.start
            train[rows] += answer.value - old[rows]
            old[rows] = answer.value
        else:
            train[part.start : part.stop] += answer - old[part.start : part.stop]
            old[part.start : part.stop] = answer

    def _take_whole(self, parameter: GeoParameter, part: GeoSlice, answer: Value) -> None:
        """Begins with what the servers have."""
        self._own(parameter.name)[part.start : part.stop] = answer
        self._old[parameter.name][part.start : part.stop] = answer

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
