"""Fluid 1.8 as another system whose machines may take part in a job.

The calls of a trainer to a server go by Fluid's gRPC service: each message becomes a call, which blocks until the
answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np

from pstranspile.cluster.machines.message import (
    CHECKPOINT,
    COMPLETE,
    FETCH_BARRIER,
    GET,
    GET_NOW,
    LOOKUP,
    NOTIFY,
    PREFETCH,
    REPLY,
    SEND,
    SEND_BARRIER,
    Message,
)
from pstranspile.cluster.machines.server import Server, pairs
from pstranspile.cluster.net.http2 import CallRefused
from pstranspile.cluster.net.loop import CALL, Event
from pstranspile.cluster.net.other_systems import Journal, grpc_library
from pstranspile.cluster.net.peer import Peer
from pstranspile.cluster.net.site import Site
from pstranspile.cluster.net.terms import PeerRefused
from pstranspile.cluster.net.wire import WireError
from pstranspile.fluid.net.message import (
    BATCH_BARRIER_NAME,
    COMPLETE_NAME,
    DTYPES,
    FETCH_BARRIER_NAME,
    NO_BARRIER,
    SAVE_NAME,
    SERVICE,
    VariableMessage,
    output_of_prefetch,
    read_variable,
    require_gradient,
    require_ids,
    require_saving,
    value_of,
    with_value,
    write_variable,
)
from pstranspile.fluid.net.service import FluidService
from pstranspile.ir.model import Var
from pstranspile.runtime.values import LoDTensor, SelectedRows

DEADLINE = 180_000.0
"""The default deadline of a call in milliseconds, the same as in Fluid's trainers."""

DEADLINE_FLAG = "FLAGS_rpc_deadline"
"""The environment variable for another deadline in milliseconds, the same as for Fluid's trainers."""


_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


def channel_to(address: str) -> Any:
    """A new channel to a server. Raises DiagnosticError if grpcio is not installed."""
    return grpc_library().insecure_channel(address, options=_OPTIONS)


class Requests:
    """The calls of trainer number `trainer` to the server at `address`, which messages call `name`.

    `variables` are the server's variables, as far as they are known. `rows` has, for the name of each tensor of ids,
    the name of the answer to `prefetch`. `channel` is an existing channel to use. Raises Refused if the environment
    sets a deadline that is not a number, DiagnosticError if grpcio is not installed.
    """

    def __init__(
        self,
        address: str,
        name: str,
        trainer: int,
        variables: Mapping[str, Var],
        rows: Mapping[str, str],
        channel: Any = None,
    ):
        given = os.environ.get(DEADLINE_FLAG, "")
        if given and not given.isdecimal():
            raise PeerRefused(f"{DEADLINE_FLAG} is {given}, which is no number of milliseconds")
        self.address = address
        self._name = name
        self._trainer = trainer
        self._variables, self._rows_of = variables, rows
        self._deadline = float(given or DEADLINE) / 1000
        self._channel: Any = channel_to(address) if channel is None else channel
        self._errors = grpc_library().RpcError, ValueError  # ValueError: the channel is closed
        self._methods: dict[str, Any] = {}
        self._makers: dict[str, Callable[[Message], Any]] = {
            SEND: self._send,
            GET: lambda message: self._get(message, message.variable),
            GET_NOW: lambda message: self._get(message, message.variable + NO_BARRIER, "GetVariableNoBarrier"),
            LOOKUP: self._look_up,
            PREFETCH: self._prefetch,
            SEND_BARRIER: lambda _: self._call("SendVariable", VariableMessage(BATCH_BARRIER_NAME)),
            FETCH_BARRIER: lambda _: self._call("GetVariable", VariableMessage(FETCH_BARRIER_NAME)),
            NOTIFY: self._notify,
            CHECKPOINT: self._checkpoint,
            COMPLETE: lambda _: self._call("SendVariable", VariableMessage(COMPLETE_NAME, trainer_id=trainer)),
        }

    def make(self, message: Message) -> Any:
        """Makes the call for a message; returns the value in the answer. Raises Refused where the call fails."""
        try:
            return self._makers[message.kind](message)
        except (CallRefused, WireError) as problem:
            raise self.unusable_server_error(f"{message.kind} {message.variable}: {problem}") from None
        except self._errors as problem:
            raise self.unusable_server_error(f"{message.kind} {message.variable}: {_reason_of(problem)}") from None

    def unusable_server_error(self, reason: str) -> PeerRefused:
        """The error to raise when the server can't be used any more."""
        return PeerRefused(f"{self._name} at {self.address}, a server of Fluid: {reason}")

    def require(self, message: VariableMessage) -> None:
        """Raises CallRefused if the server does not accept the variable that is sent; a server with unknown variables
        accepts any.
        """

    def close(self) -> None:
        """Closes the channel: no more calls can be made, and a call in progress is cancelled."""
        self._channel.close()

    def _call(self, method: str, message: VariableMessage) -> bytes | None:
        call = self._methods.get(method)
        if call is None:
            call = self._methods[method] = self._channel.unary_unary(f"/{SERVICE}/{method}")
        return call(write_variable(message), timeout=self._deadline, wait_for_ready=True)

    def _ask(self, method: str, message: VariableMessage) -> Any:
        """The value that a server returns for a call, which must have the requested name. Raises WireError."""
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
            return  # like Fluid's trainers, which send no empty rows: servers have cleared earlier ones
        if isinstance(value, LoDTensor):
            value = value.data
        sent = with_value(VariableMessage(message.variable, trainer_id=self._trainer), value)
        self.require(sent)
        self._call("SendVariable", sent)

    def _get(self, message: Message, name: str, method: str = "GetVariable") -> Any:
        return self._ask(method, VariableMessage(name, out_varname=message.variable, trainer_id=self._trainer))

    def _look_up(self, message: Message) -> Any:
        """Rows of a slice of a table. They are requested in the form that a server needs: every id once, in ascending
        order.
        """
        table = self._variables[message.variable]
        require_ids(self._name, message.variable, message.payload, table.shape[0])
        ids: Any
        places: Any
        ids, places = np.unique(message.payload, return_inverse=True)
        sent, got = (f"prefetch_{way}@{self.address}" for way in ("send", "recv"))
        asked = VariableMessage(sent, out_varname=got, table_name=message.variable)
        return self._rows(asked, ids.reshape(-1, 1), table.name).take(places.reshape(-1), axis=0)

    def _prefetch(self, message: Message) -> Any:
        """Rows of a distributed table, from the block that the server has registered for the name of the ids."""
        got = self._rows_of[message.variable]
        return self._rows(VariableMessage(message.variable, out_varname=got), message.payload, got)

    def _rows(self, asked: VariableMessage, ids: Any, like: str) -> Any:
        """A row for each id, as wide as the variable `like`; an empty array, without a call, if there are no ids."""
        var = self._variables[like]
        assert var.dtype is not None
        if not ids.size:
            return np.empty((0, *var.shape[1:]), DTYPES[var.dtype.value])
        found = self._ask("PrefetchVariable", with_value(asked, ids))
        if found.__class__ is not np.ndarray or found.shape != (ids.size, *var.shape[1:]):
            raise WireError(f"the server does not answer with a row of {like} for each id")
        return found

    def _notify(self, message: Message) -> None:
        sent = VariableMessage(message.variable, trainer_id=self._trainer)
        self._call("DistributeNotify", with_value(sent, np.asarray(message.payload)))

    def _checkpoint(self, message: Message) -> bool:
        self._call("CheckpointNotify", VariableMessage(SAVE_NAME, out_varname=str(message.payload)))
        return True


def _reason_of(problem: Any) -> str:
    """The reason why a call ended, as a text for a message."""
    if not hasattr(problem, "code"):
        return "this side has ended it"
    return f"{problem.code().name.lower()}: {problem.details()}".removesuffix(": ")


# A server of Fluid, as a trainer of this package sees it: messages posted to it become calls of Fluid's gRPC service.
#
# The calls to one server are made one after the other, by a thread of their own, as Fluid's trainers make them: a
# server has a fixed number of threads, and a call that waits for others occupies one.


class _CheckedRequests(Requests):
    """The calls to a server whose program is known, which are checked before they are sent."""

    def __init__(self, server: Server, address: str, trainer: int):
        blocks = pairs(server.op, "prefetch_var_name_to_block_id")
        rows = {name: output_of_prefetch(server.main, int(block)) for name, block in blocks.items()}
        super().__init__(address, server.name, trainer, server.main.main_block.vars, rows)
        self._server = server

    def require(self, message: VariableMessage) -> None:
        """Raises CallRefused if the server does not accept the variable that is sent."""
        require_gradient(self._server, message)

    def _checkpoint(self, message: Message) -> bool:
        require_saving(self._server)
        return super()._checkpoint(message)


class FluidClient:
    """Makes the calls of this process's trainer to a server of Fluid. Raises Refused if the job can't have such a
    server.
    """

    def __init__(self, site: Site, peer: Peer, address: str):
        self.site = site
        self.peer = peer
        self.server = next(server for server in site.cluster.servers if server.name == peer.role)
        trainer = next(trainer.index for trainer in site.cluster.trainers if trainer.name == site.role)
        self._requests = _CheckedRequests(self.server, address, trainer)
        if self.server.mode == 3:
            raise self._requests.unusable_server_error("servers of Fluid can't take part in a geo job")
        if any(trainer.role.turns is not None for trainer in site.cluster.trainers):
            raise self._requests.unusable_server_error(
                "a server of Fluid updates all parameters in every step, whatever program it runs"
            )
        self._posted_count = self._answered_count = 0
        self._is_closed = False
        self._queue: SimpleQueue[Message | None] = SimpleQueue()
        peer.hand_to(self._take)
        Thread(target=self._work, daemon=True).start()

    @property
    def idle(self) -> bool:
        """Whether every posted message has been answered."""
        return self._posted_count == self._answered_count

    def close(self) -> None:
        """Closes the channel: no more calls can be made, and a call in progress is cancelled."""
        self._is_closed = True
        self._queue.put(None)
        self._requests.close()

    def _take(self, messages: list[Message]) -> None:
        self._posted_count += len(messages)
        for message in messages:
            self._queue.put(message)

    # the thread of the calls

    def _work(self) -> None:
        while (message := self._queue.get()) is not None:
            try:
                value = self._requests.make(message)
            except PeerRefused as problem:
                self._fail(problem)
                return
            self._answered_count += 1
            if message.slot >= 0:
                self._later(lambda message=message, value=value: self._reply(message, value))
            elif message.kind == COMPLETE:
                self._later(lambda: None)

    def _later(self, action: Callable[[], object]) -> None:
        self.site.events.put(Event(CALL, None, action=action))

    def _fail(self, problem: PeerRefused) -> None:
        def fail() -> None:
            raise problem

        if not self._is_closed:
            self._later(fail)

    # the thread of the machines

    def _reply(self, message: Message, value: Any) -> None:
        cluster = self.site.cluster
        source = cluster.machines[message.source]
        link = cluster.network.link(self.server, source, message.trainer)
        fields = REPLY, self.server.name, message.source, message.trainer, message.step
        self.site.local_machines.deliver(
            self.peer, [Message(*fields, link.expected, message.variable, value, message.slot)]
        )


class FluidSystem:
    """Trainers and servers that run Fluid itself, connected by its own network protocol (gRPC with
    VariableMessages).
    """

    name = "Fluid"

    def trainers(self, site: Site, server: Server, journal: Journal | None) -> FluidService:
        """The trainers of Fluid in a job, for a server of this process."""
        return FluidService(site, server, journal)

    def server(self, site: Site, peer: Peer, address: str) -> FluidClient:
        """A server of Fluid, for the trainer of this process. Raises Refused if the job can't have such a server."""
        return FluidClient(site, peer, address)
