"""A server of Fluid, as a trainer of this package sees it: what is posted to it becomes calls of Fluid's gRPC service.

The calls to one server are made one after the other, by a thread of its own, as Fluid's trainers make them: a server
has so many threads, and a call that waits for others holds one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

import grpc  # pyright: ignore[reportMissingTypeStubs]
import numpy as np

from pstranspile.net.calls import CallRefused
from pstranspile.net.fluid import calls
from pstranspile.net.fluid.message import DTYPES, VariableMessage, read_variable, value_of, with_value, write_variable
from pstranspile.net.loop import CALL, Event
from pstranspile.net.peer import Peer
from pstranspile.net.site import Site
from pstranspile.net.terms import Refused
from pstranspile.net.values import WireError
from pstranspile.run.cluster import message as kinds
from pstranspile.run.cluster.message import Message
from pstranspile.run.cluster.server import pairs
from pstranspile.values import LoDTensor, SelectedRows

DEADLINE, DEADLINE_FLAG = 180_000.0, "FLAGS_rpc_deadline"
"""Milliseconds that a call may take, and the environment variable that gives others: as Fluid's trainers have it."""


_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


class FluidClient:
    """Makes the calls of this process's trainer to a server of Fluid. Raises Refused if the job can't have one."""

    def __init__(self, site: Site, peer: Peer, address: str):
        self.site = site
        self.peer = peer
        self.address = address
        self.server = next(server for server in site.cluster.servers if server.name == peer.role)
        self.trainer = next(trainer.index for trainer in site.cluster.trainers if trainer.name == site.role)
        if self.server.mode == 3:
            raise self._refused("servers of Fluid can't take part in a geo job")
        if any(trainer.role.turns is not None for trainer in site.cluster.trainers):
            raise self._refused("a server of Fluid updates all parameters in every step, whatever program it runs")
        given = os.environ.get(DEADLINE_FLAG, "")
        if given and not given.isdecimal():
            raise Refused(f"{DEADLINE_FLAG} is {given}, which is no number of milliseconds")
        self.deadline = float(given or DEADLINE) / 1000
        self._posted = self._made = 0
        self._closed = False
        self._queue: SimpleQueue[Message | None] = SimpleQueue()
        library: Any = grpc
        self._channel: Any = library.insecure_channel(address, options=_OPTIONS)
        self._methods: dict[str, Any] = {}
        self._calls: dict[str, Callable[[Message], Any]] = {
            kinds.SEND: self._send,
            kinds.GET: lambda message: self._get(message, message.variable),
            kinds.GET_NOW: lambda message: self._get(
                message, message.variable + calls.NO_BARRIER, "GetVariableNoBarrier"
            ),
            kinds.LOOKUP: self._look_up,
            kinds.PREFETCH: self._prefetch,
            kinds.SEND_BARRIER: lambda _: self._tell("SendVariable", VariableMessage(calls.BATCH_BARRIER_NAME)),
            kinds.FETCH_BARRIER: lambda _: self._tell("GetVariable", VariableMessage(calls.FETCH_BARRIER_NAME)),
            kinds.NOTIFY: self._notify,
            kinds.CHECKPOINT: self._checkpoint,
            kinds.COMPLETE: lambda _: self._tell(
                "SendVariable", VariableMessage(calls.COMPLETE_NAME, trainer_id=self.trainer)
            ),
        }
        peer.takes = self._take
        Thread(target=self._work, daemon=True).start()

    @property
    def idle(self) -> bool:
        """Whether all posted messages have been answered."""
        return self._posted == self._made

    def close(self) -> None:
        """No more calls are made; one that is under way is given up."""
        self._closed = True
        self._queue.put(None)
        self._channel.close()

    def _take(self, messages: list[Message]) -> None:
        self._posted += len(messages)
        for message in messages:
            self._queue.put(message)

    # the thread of the calls

    def _work(self) -> None:
        while (message := self._queue.get()) is not None:
            try:
                value = self._calls[message.kind](message)
            except (CallRefused, WireError) as problem:
                self._fail(f"{message.kind} {message.variable}: {problem}")
                return
            except (grpc.RpcError, ValueError) as problem:  # ValueError: the channel is closed
                self._fail(f"{message.kind} {message.variable}: {_reason_of(problem)}")
                return
            self._made += 1
            if message.slot >= 0:
                self._later(lambda message=message, value=value: self._reply(message, value))
            elif message.kind == kinds.COMPLETE:
                self._later(lambda: None)

    def _later(self, action: Callable[[], object]) -> None:
        self.site.events.put(Event(CALL, None, action=action))

    def _fail(self, reason: str) -> None:
        def fail() -> None:
            raise self._refused(reason)

        if not self._closed:
            self._later(fail)

    def _refused(self, reason: str) -> Refused:
        return Refused(f"{self.peer.role} at {self.address}, a server of Fluid: {reason}")

    def _call(self, method: str, message: VariableMessage) -> bytes | None:
        call = self._methods.get(method)
        if call is None:
            call = self._methods[method] = self._channel.unary_unary(f"/{calls.SERVICE}/{method}")
        return call(write_variable(message), timeout=self.deadline, wait_for_ready=True)

    def _tell(self, method: str, message: VariableMessage) -> None:
        self._call(method, message)

    def _ask(self, method: str, message: VariableMessage) -> Any:
        """What a server answers under the name that was asked for."""
        data = self._call(method, message)
        if not data:
            raise WireError("the server has no such variable")
        answer = read_variable(data)
        if answer.varname != message.out_varname:
            raise WireError(f"the answer is called {answer.varname}, not {message.out_varname}")
        return value_of(answer)

    def _send(self, message: Message) -> None:
        value: Any = message.payload
        if isinstance(value, SelectedRows) and not len(value.rows):
            return  # as Fluid's trainers: its servers have cleared what came before
        if isinstance(value, LoDTensor):
            value = value.data
        sent = with_value(VariableMessage(message.variable, trainer_id=self.trainer), value)
        calls.require_gradient(self.server, sent)
        self._tell("SendVariable", sent)

    def _get(self, message: Message, name: str, method: str = "GetVariable") -> Any:
        return self._ask(method, VariableMessage(name, out_varname=message.variable, trainer_id=self.trainer))

    def _look_up(self, message: Message) -> Any:
        """Rows of a slice of a table; a server wants every id once, in order."""
        table = self.server.main.main_block.vars[message.variable]
        calls.require_ids(self.server.name, message.variable, message.payload, table.shape[0])
        ids: Any
        places: Any
        ids, places = np.unique(message.payload, return_inverse=True)
        sent, got = (f"prefetch_{way}@{self.server.endpoint}" for way in ("send", "recv"))
        asked = VariableMessage(sent, out_varname=got, table_name=message.variable)
        return self._rows(asked, ids.reshape(-1, 1), table.name).take(places.reshape(-1), axis=0)

    def _prefetch(self, message: Message) -> Any:
        """Rows of a distributed table, by the block that is registered for the name of the ids."""
        block = int(pairs(self.server.op, "prefetch_var_name_to_block_id")[message.variable])
        got = calls.output_of_prefetch(self.server.main, block)
        return self._rows(VariableMessage(message.variable, out_varname=got), message.payload, got)

    def _rows(self, asked: VariableMessage, ids: Any, like: str) -> Any:
        """A row for each id; their width is that of a variable, of which there may be no ids at all."""
        var = self.server.main.main_block.vars[like]
        assert var.dtype is not None
        if not ids.size:
            return np.empty((0, *var.shape[1:]), DTYPES[var.dtype.value])
        found = self._ask("PrefetchVariable", with_value(asked, ids))
        if found.__class__ is not np.ndarray or found.shape != (ids.size, *var.shape[1:]):
            raise WireError(f"the server does not answer with a row of {like} for each id")
        return found

    def _notify(self, message: Message) -> None:
        sent = VariableMessage(message.variable, trainer_id=self.trainer)
        self._tell("DistributeNotify", with_value(sent, np.asarray(message.payload)))

    def _checkpoint(self, message: Message) -> bool:
        calls.require_saving(self.server)
        self._tell("CheckpointNotify", VariableMessage(calls.SAVE_NAME, out_varname=str(message.payload)))
        return True

    # the thread of the machines

    def _reply(self, message: Message, value: Any) -> None:
        cluster = self.site.cluster
        source = cluster.machines[message.source]
        link = cluster.network.link(self.server, source, message.trainer)
        fields = kinds.REPLY, self.server.name, message.source, message.trainer, message.step
        self.site.part.deliver(self.peer, Message(*fields, link.expected, message.variable, value, message.slot))


def _reason_of(problem: Any) -> str:
    """The reason for the end of a call, for a person."""
    if not hasattr(problem, "code"):
        return "this side has ended it"
    return f"{problem.code().name.lower()}: {problem.details()}".removesuffix(": ")
