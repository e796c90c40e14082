"""A server for trainers of Fluid: the calls of Fluid's gRPC service become messages of the job's trainers.

A gradient and a barrier are answered at once; a call that asks for something is answered when the server does. What a
trainer does not say of itself, which one it is, the connection tells: a trainer makes all its calls on one, and most of
them bring its number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pstranspile.ir.types import VarKind
from pstranspile.net.calls import Caller, CallRefused, CallService
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
from pstranspile.net.fluid_message import DTYPES, VariableMessage, pieces_of, read_variable, value_of, with_value
from pstranspile.net.loop import CALL, Event
from pstranspile.net.peer import Peer
from pstranspile.net.site import Site
from pstranspile.net.values import Bytes, WireError
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

    def __init__(self, method: str, message: VariableMessage, value: Any, caller: Caller, number: int):
        self.method = method
        self.message = message
        self.value = value
        self.caller = caller
        self.number = number
        self.peer: Peer | None = None
        self.slot = -1

    def answer(self, value: Any = None) -> None:
        """Sends the answer; one without bytes where Fluid wants no value."""
        name = self.message.out_varname or self.message.varname
        try:
            pieces = [] if value is None else pieces_of(with_value(VariableMessage(name), value))
        except WireError as problem:
            self.refuse(CallRefused(INVALID, str(problem)))
            return
        self.caller.answer(self.number, pieces)

    def refuse(self, problem: CallRefused) -> None:
        """Sends why there is no answer."""
        self.caller.refuse(self.number, problem)


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
        variables = sum(len(block.vars) for block in server.main.blocks)
        self._most = len(self.trainers) * (variables + 4)
        """How many calls may wait at once."""
        self._slots = self._refused = 0
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
        methods = {name: partial(self._come, name) for name in self._handlers}
        return CallService(SERVICE, methods, self._most, self._lost)

    def close(self) -> None:
        """Nobody is answered any more."""
        for call in self._waiting.values():
            call.refuse(CallRefused("UNAVAILABLE", f"{self.server.name} has ended"))
        self._waiting.clear()

    def _come(self, method: str, caller: Caller, number: int, data: Bytes) -> None:
        """A call has come; it is taken when the machines have their turn."""
        self.site.events.put(Event(CALL, None, action=lambda: self._take(method, caller, number, data)))

    def _take(self, method: str, caller: Caller, number: int, data: Bytes) -> None:
        name = "what is no message"
        try:
            message = read_variable(data)
            name = message.varname
            value = value_of(message) if message.dims or len(message.numbers) else None
            if self.server.mode == 3:
                raise CallRefused("UNIMPLEMENTED", f"{self.server.name} serves no Fluid trainers in a geo job")
            if len(self._waiting) >= self._most:
                raise CallRefused("RESOURCE_EXHAUSTED", f"{self._most} calls wait for {self.server.name} already")
            self._handlers[method](_Call(method, message, value, caller, number))
        except (WireError, CallRefused) as problem:
            refusal = problem if isinstance(problem, CallRefused) else CallRefused(INVALID, str(problem))
            caller.refuse(number, refusal)
            self._refused += 1
            if self._refused <= MOST_TOLD:
                told = f"{method} of {name} from {caller.address} is refused: {refusal}"
                print(f"pstranspile start: {self.server.name}: {told}", file=sys.stderr)

    def _lost(self, caller: Caller, number: int) -> None:
        """A caller has given up waiting: its process has ended, or aborts."""
        self.site.events.put(Event(CALL, None, action=lambda: self._forget(caller, number)))

    def _forget(self, caller: Caller, number: int) -> None:
        for slot, call in self._waiting.items():
            if call.caller is caller and call.number == number:
                del self._waiting[slot]
                assert call.peer is not None
                print(f"pstranspile start: {self.server.name}: {call.peer.role} is gone", file=sys.stderr)
                self.site.give_up(call.peer)
                return

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
        address = call.caller.address
        known = self._by_address.get(address)
        if known is None:
            named = call.method != "PrefetchVariable" and call.message.varname not in _ANONYMOUS
            known = self._named(call.message.trainer_id) if named else self._guess()
            self._by_address = {a: index for a, index in self._by_address.items() if index != known}
            self._by_address[address] = known
        peer = self.trainers[known]
        if peer.left:
            raise CallRefused(LATER, f"{peer.role} has left, or was given up")
        if peer.incarnation:
            raise CallRefused("ALREADY_EXISTS", f"{peer.role} is here already, as a process of its own")
        peer.takes = self._answer
        call.caller.known = True
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
