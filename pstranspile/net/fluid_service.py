"""A server for trainers of Fluid: the calls of Fluid's gRPC service become messages of the job's trainers.

A call that a server answers later waits in a thread of its own; a gradient and a barrier are answered at once. What a
trainer does not say of itself, which one it is, the connection tells: a trainer makes all its calls on one, and most of
them bring its number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np

from pstranspile.ir.types import VarKind
from pstranspile.net.fluid_calls import (
    BATCH_BARRIER_NAME,
    COMPLETE_NAME,
    FETCH_BARRIER_NAME,
    INVALID,
    LATER,
    NO_BARRIER,
    PIECE,
    SAVE_NAME,
    SERVICE,
    UNKNOWN,
    require_gradient,
    require_ids,
    require_room,
    require_saving,
)
from pstranspile.net.fluid_message import DTYPES, VariableMessage, read_variable, value_of, write_value
from pstranspile.net.peer import Peer
from pstranspile.net.site import Site
from pstranspile.net.transport import CALL, Caller, CallRefused, CallService, Event
from pstranspile.net.values import WireError
from pstranspile.run.cluster.message import (
    CHECKPOINT,
    COMPLETE,
    FETCH_BARRIER,
    GET,
    GET_NOW,
    LOOKUP,
    NOTIFY,
    PREFETCH,
    SEND,
    SEND_BARRIER,
    Message,
)
from pstranspile.run.cluster.programs import names_sent_to
from pstranspile.run.cluster.server import Server
from pstranspile.values import SelectedRows

MOST_TOLD = 100
"""Refused calls that are told on stderr; a stranger may make any number."""


class _Call:
    """A call, from when it has come to its answer."""

    def __init__(self, method: str, message: VariableMessage, value: Any, address: str):
        self.method = method
        self.message = message
        self.value = value
        self.address = address
        self.peer: Peer | None = None
        self.slot = -1
        self._answer: SimpleQueue[tuple[Any, CallRefused | None]] = SimpleQueue()

    def answer(self, value: Any = None, problem: CallRefused | None = None) -> None:
        """Ends the waiting."""
        self._answer.put((value, problem))

    def wait(self) -> bytes:
        """The bytes of the answer; none where Fluid wants no value. Raises CallRefused."""
        value, problem = self._answer.get()
        if problem is not None:
            raise problem
        if value is None:
            return b""
        name = self.message.out_varname or self.message.varname
        try:
            return write_value(VariableMessage(name), value)
        except WireError as wrong:
            raise CallRefused(INVALID, str(wrong)) from None


class FluidService:
    """Takes Fluid's calls for a server of this process."""

    def __init__(self, site: Site, server: Server):
        self.site = site
        self.server = server
        self.trainers = {peer.index: peer for peer in site.peers.values() if peer.index >= 0}
        self._by_address: dict[str, int] = {}
        self._guessed: set[int] = set()
        """The trainers that have not told their number yet."""
        self._steps = dict.fromkeys(self.trainers, -1)
        self._sent: dict[int, set[str]] = {index: set() for index in self.trainers}
        """What each trainer has sent of its step."""
        self._rows = {index: self._rows_of(index) for index in self.trainers}
        self._waiting: dict[int, _Call] = {}
        self._open: set[_Call] = set()
        """The calls that are not answered yet."""
        variables = sum(len(block.vars) for block in server.main.blocks)
        self._most = len(self.trainers) * (variables + 4)
        """How many calls may wait at once."""
        self._slots = self._refused = 0
        self._closed = False
        self._handlers: dict[str, Callable[[_Call], None]] = {
            "SendVariable": self._send,
            "GetVariable": self._get,
            "GetVariableNoBarrier": self._get_now,
            "PrefetchVariable": self._prefetch,
            "CheckpointNotify": self._checkpoint,
            "DistributeNotify": self._notify,
        }

    def service(self) -> CallService:
        """The methods that trainers call."""
        methods = {name: self._method(name) for name in self._handlers}
        return CallService(SERVICE, methods, self._most)

    def close(self) -> None:
        """Nobody is answered any more."""
        self._closed = True
        for call in list(self._open):
            call.answer(problem=self._over())

    def _over(self) -> CallRefused:
        return CallRefused("UNAVAILABLE", f"{self.server.name} has ended")

    # threads of calls

    def _method(self, name: str) -> Callable[[bytes, Caller], bytes]:
        def answer(data: bytes, caller: Caller) -> bytes:
            try:
                message = read_variable(data)
                value = value_of(message) if message.dims or len(message.numbers) else None
            except WireError as problem:
                raise CallRefused(INVALID, str(problem)) from None
            call = _Call(name, message, value, caller.address)
            if len(self._open) >= self._most:
                raise CallRefused("RESOURCE_EXHAUSTED", f"{self._most} calls wait for {self.server.name} already")
            self._open.add(call)
            if self._closed:
                raise self._over()
            caller.at_end(lambda: self._later(lambda: self._lost(call)))
            self._later(lambda: self._take(call))
            try:
                return call.wait()
            finally:
                self._open.discard(call)

        return answer

    def _later(self, action: Callable[[], object]) -> None:
        self.site.events.put(Event(CALL, None, action=action))

    # the thread of the machines

    def _take(self, call: _Call) -> None:
        try:
            if self.server.mode == 3:
                raise CallRefused("UNIMPLEMENTED", f"{self.server.name} serves no Fluid trainers in a geo job")
            self._handlers[call.method](call)
        except CallRefused as problem:
            told = f"{call.method} of {call.message.varname} from {call.address} is refused: {problem}"
            self._refused += 1
            if self._refused <= MOST_TOLD:
                print(f"pstranspile start: {self.server.name}: {told}", file=sys.stderr)
            call.answer(problem=problem)

    def _lost(self, call: _Call) -> None:
        """A caller has given up waiting: its process has ended, or aborts."""
        if call.peer is not None and self._waiting.pop(call.slot, None) is not None:
            print(f"pstranspile start: {self.server.name}: {call.peer.role} is gone", file=sys.stderr)
            self.site.give_up(call.peer)
            call.answer()

    def _send(self, call: _Call) -> None:
        name = call.message.varname
        if name == BATCH_BARRIER_NAME:
            self._send_no_rows(call)
            self._post(call, SEND_BARRIER)
        elif name == COMPLETE_NAME:
            self._post(call, COMPLETE)
        else:
            name = name.partition(PIECE)[0]
            require_gradient(self.server, call.message._replace(varname=name))
            peer = self._post(call, SEND, name, call.value)
            self._sent[peer.index].add(name)
        call.answer()

    def _send_no_rows(self, call: _Call) -> None:
        """Gradients without rows count as sent: trainers of Fluid send none."""
        index = self._trainer_of(call).index
        for name in sorted(self._rows[index] - self._sent[index]):
            var = self.server.main.main_block.vars[name]
            assert var.dtype is not None
            none: Any = np.empty((0, *var.shape[1:]), DTYPES[var.dtype.value])
            self._post(call, SEND, name, SelectedRows(np.empty(0, "int64"), none, var.shape[0]))
        self._sent[index].clear()

    def _rows_of(self, trainer: int) -> set[str]:
        """The gradients that are rows and that a trainer's program sends to this server in every step."""
        program, declared = self.site.cluster.trainers[trainer].role.main, self.server.main.main_block.vars
        names = names_sent_to(program, self.server.endpoint)
        return {name for name in names if name in declared and declared[name].kind is VarKind.SELECTED_ROWS}

    def _get(self, call: _Call) -> None:
        name = call.message.varname
        if name == FETCH_BARRIER_NAME:
            peer = self._post(call, FETCH_BARRIER)
            self._steps[peer.index] += 1
            call.answer()
            return
        self._require_value(name)
        self._post(call, GET, name, waits=True)

    def _get_now(self, call: _Call) -> None:
        name = call.message.varname.removesuffix(NO_BARRIER)
        self._require_value(name)
        self._post(call, GET_NOW, name, waits=True)

    def _prefetch(self, call: _Call) -> None:
        name, ids = call.message.table_name, call.value
        if not name:
            self._prefetch_by_block(call)
            return
        table = self.server.scope.values_here.get(name)
        held: Any = table.value if isinstance(table, SelectedRows) else table
        if held is None or not held.ndim:
            raise CallRefused(UNKNOWN, f"{self.server.name} has no table {name}")
        require_ids(self.server.name, name, ids, len(held))
        self._post(call, LOOKUP, name, ids.reshape(-1), waits=True)

    def _prefetch_by_block(self, call: _Call) -> None:
        """Rows of a distributed table: a block is registered for the name of the ids."""
        name = call.message.varname
        block = self.server.prefetch_blocks.get(name)
        if block is None:
            raise CallRefused(UNKNOWN, f"{self.server.name} has no block that looks up {name}")
        table = self.server.scope.values_here[block.execution.program.main_block.ops[-1].inputs["W"][0]]
        require_room(self.server.name, name, call.value, table)
        self._post(call, PREFETCH, name, call.value, waits=True)

    def _checkpoint(self, call: _Call) -> None:
        if call.message.varname != SAVE_NAME:
            raise CallRefused("UNIMPLEMENTED", f"{call.message.varname} is nothing that trainers of Fluid ask for")
        require_saving(self.server)
        self._post(call, CHECKPOINT, "", call.message.out_varname, waits=True)

    def _notify(self, call: _Call) -> None:
        self._require_value(call.message.varname)
        payload: Any = call.value
        if payload.__class__ is not np.ndarray:
            raise CallRefused(INVALID, f"{call.message.varname} brings no number")
        self._post(call, NOTIFY, call.message.varname, payload)
        call.answer()

    # messages

    def _post(self, call: _Call, kind: str, name: str = "", payload: Any = None, waits: bool = False) -> Peer:
        """Hands the server a message of the trainer that calls; an answer goes to the call that `waits`."""
        peer = call.peer = self._trainer_of(call)
        cluster = self.site.cluster
        source = cluster.trainers[peer.index]
        link = cluster.network.link(source, self.server, peer.index)
        slot = -1
        if waits:
            self._slots += 1
            slot = call.slot = self._slots
            self._waiting[slot] = call
        step = self._steps[peer.index]
        number, fields = link.expected, (kind, source.name, self.server.name, peer.index, step)
        self.site.part.deliver(peer, Message(*fields, number, name, payload, slot))
        return peer

    def _answer(self, messages: list[Message]) -> None:
        """The server's answers to a trainer."""
        for message in messages:
            call = self._waiting.pop(message.slot, None)
            if call is not None:
                call.answer(None if call.method == "CheckpointNotify" else message.payload)

    # who calls

    def _trainer_of(self, call: _Call) -> Peer:
        """The trainer on whose connection a call comes. Raises CallRefused."""
        known = self._by_address.get(call.address)
        if known is None:
            named = call.method != "PrefetchVariable" and call.message.varname not in _ANONYMOUS
            known = self._named(call.message.trainer_id) if named else self._guess()
            self._by_address = {a: index for a, index in self._by_address.items() if index != known}
            self._by_address[call.address] = known
        peer = self.trainers[known]
        if peer.left:
            raise CallRefused(LATER, f"{peer.role} has left, or was given up")
        if peer.incarnation:
            raise CallRefused("ALREADY_EXISTS", f"{peer.role} is here already, as a process of its own")
        peer.takes = self._answer
        return peer

    def _named(self, index: int) -> int:
        """The trainer that calls itself by a number: it may have another connection now."""
        if index not in self.trainers:
            raise CallRefused(INVALID, f"the job has {len(self.trainers)} trainers, none of them has number {index}")
        return self._guess() if index in self._guessed else index

    def _guess(self) -> int:
        """A trainer that nobody plays yet; only which numbers are told apart matters then."""
        taken = set(self._by_address.values())
        for index, peer in self.trainers.items():
            if index not in taken and not peer.incarnation and not peer.left:
                self._guessed.add(index)
                return index
        raise CallRefused("UNAVAILABLE", "all trainers are here, and nothing tells which of them calls")

    # what is refused before it can do harm

    def _require_value(self, name: str) -> None:
        if self.server.scope.get(name) is None:
            raise CallRefused(UNKNOWN, f"{self.server.name} has no variable {name}")


_ANONYMOUS = (BATCH_BARRIER_NAME, FETCH_BARRIER_NAME, SAVE_NAME)
"""What calls are about that don't bring the trainer's number."""
