"""A server for trainers of Fluid: the calls of Fluid's gRPC service become messages of the job's trainers.

A gradient and a barrier are answered at once; a call that asks for a value is answered when the server has it. A caller
that does not send its trainer number is identified by its connection: a trainer makes all its calls on one, and most of
them bring its number.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from pstranspile.cluster.machines import message as kinds
from pstranspile.cluster.machines.message import Message
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.net.calls import Caller, CallRefused, CallService
from pstranspile.cluster.net.checks import MOST_COUNTED, form_of
from pstranspile.cluster.net.journal import GONE, Entry, Journal
from pstranspile.cluster.net.loop import CALL, Event
from pstranspile.cluster.net.peer import Peer
from pstranspile.cluster.net.saves import Unplaced
from pstranspile.cluster.net.site import Site
from pstranspile.cluster.net.telling import Told
from pstranspile.cluster.net.values import Bytes, WireError
from pstranspile.fluid.net import calls
from pstranspile.fluid.net.callers import Callers, LastCall, require_part
from pstranspile.fluid.net.message import (
    DTYPES,
    VariableMessage,
    pieces_of,
    read_name,
    read_variable,
    value_of,
    with_value,
)
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.visible import visible
from pstranspile.runtime.values import SelectedRows

GRACE, GRACE_AT_BEGIN = 3.0, 8.0
"""Seconds in which a trainer whose connection has ended calls again, or else its process is gone; and where this
process has just taken the place of another one.
"""

_REPEATED = ("SendVariable", "DistributeNotify")
"""The methods whose calls must not be taken twice."""


MOST_OF_STRANGERS = 1 << 26
"""Bytes of rows or ids that a caller may bring before it is known, unless the server has a larger variable."""


class _Nobody:
    """Who waits for the answers to calls that another process, which is gone, has taken."""

    address = ""
    known = True
    closed = True

    def answer(self, call: int, pieces: list[Bytes]) -> None:
        """Nothing: whoever made the call makes it again."""

    def refuse(self, call: int, problem: CallRefused) -> None:
        """Nothing, likewise."""


class _TakenBefore(Exception):
    """A call that was taken on a connection which broke before the answer came: its trainer repeats it."""

    def __init__(self, call: _Call):
        super().__init__()
        self.call = call


class _Call:
    """A call, from when it has come to its answer; `data` are the bytes of its message."""

    def __init__(self, method: str, message: VariableMessage, caller: Caller, number: int, data: Bytes):
        self.method = method
        self.message = message
        self.value: Any = value_of(message) if message.dims or len(message.numbers) else None
        self.caller = caller
        self.number = number
        self.data = data
        self.peer: Peer | None = None
        self.kept = False
        """Whether the call was taken already, and its caller need not repeat it."""

    def answer(self, value: Any = None) -> None:
        """Sends the answer; one without bytes where Fluid wants no value."""
        name = self.message.out_varname or self.message.varname
        try:
            pieces = [] if value is None else pieces_of(with_value(VariableMessage(name), value))
        except WireError as problem:
            self.refuse(CallRefused(calls.INVALID, str(problem)))
            return
        self.caller.answer(self.number, pieces)

    def refuse(self, problem: CallRefused) -> None:
        """Sends why there is no answer."""
        self.caller.refuse(self.number, problem)


class FluidService:
    """Takes Fluid's calls for a server of this process."""

    def __init__(self, site: Site, server: Server, journal: Journal | None = None):
        self.site = site
        self.server = server
        self.journal = journal
        self.trainers = {peer.index: peer for peer in site.peers.values() if peer.index >= 0}
        self.callers = Callers(server, self.trainers, {one.index: one for one in site.cluster.trainers})
        self._steps = dict.fromkeys(self.trainers, -1)
        self._waiting: dict[int, _Call] = {}
        self._missed: dict[int, float] = {}
        """Since when trainers are missed whose connection has ended while they waited for an answer."""
        variables = sum(len(block.vars) for block in server.main.blocks)
        self._most = len(self.trainers) * (variables + 4)
        """How many calls may wait at once."""
        self._compares = journal is not None or server.mode != 0
        """Whether calls are compared with those that may be repeated. (A gradient of a round may come twice.)"""
        self._slots = 0
        self._told = Told(server.name, site.now)
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
        return CallService(calls.SERVICE, methods, self._most, self._lost, self._room, len(self.trainers))

    def state(self) -> dict[str, Any]:
        """The state that must be kept with the server's state and the journal of later calls."""
        playing = sorted(index for index, peer in self.trainers.items() if peer.takes is not None)
        return {**self.callers.state(), "steps": dict(self._steps), "slots": self._slots, "playing": playing}

    def restore(self, state: Mapping[str, Any], entries: Iterable[Entry]) -> None:
        """Goes on from a kept state with the calls that have come after it; nobody is answered."""
        self.callers.restore(state)
        self._steps, self._slots = dict(state["steps"]), state["slots"]
        for index in state["playing"]:
            self.trainers[index].takes = self._answer
        journal, self.journal = self.journal, None
        for method, index, data in entries:
            peer = self.trainers[index]
            if method == GONE:
                self.site.give_up(peer, "it was gone before")
            else:
                call = _Call(method, read_variable(data), _Nobody(), 0, data)
                call.peer = peer
                self._handlers[method](call)
                self.callers.replayed(call.method, call.message.varname, call.message.trainer_id, index)
            self.site.run_machines()
        late = self.site.now() + GRACE_AT_BEGIN - GRACE
        self._missed = {call.peer.index: late for call in self._waiting.values() if call.peer is not None}
        self._waiting.clear()
        self.journal = journal

    def close(self) -> None:
        """Nobody is answered any more."""
        for call in self._waiting.values():
            call.refuse(CallRefused("UNAVAILABLE", f"{self.server.name} has ended"))
        self._waiting.clear()

    def _come(self, method: str, caller: Caller, number: int, data: Bytes) -> None:
        """A call has come; it is taken when the machines have their turn."""

        def take() -> None:
            with self.site.events.charging(caller):
                self._take(method, caller, number, data)

        self.site.events.put(Event(CALL, None, action=take))

    def _room(self, method: str, begin: Bytes, known: bool) -> int:
        """How many bytes a large call may bring: a tensor as many as its variable holds, rows and ids of callers that
        are not known a bounded number.
        """
        size = calls.most_brought(self.server, method, read_name(begin))
        return size if known else min(size, max(MOST_OF_STRANGERS, calls.most_held(self.server)))

    def _take(self, method: str, caller: Caller, number: int, data: Bytes) -> None:
        name = "what is no message"
        try:
            message = read_variable(data)
            name = message.varname
            call = _Call(method, message, caller, number, data)
            if self.server.mode == 3:
                raise CallRefused("UNIMPLEMENTED", f"{self.server.name} serves no Fluid trainers in a geo job")
            if len(self._waiting) >= self._most:
                raise CallRefused("RESOURCE_EXHAUSTED", f"{self._most} calls wait for {self.server.name} already")
            self._handlers[method](call)
        except _TakenBefore as taken:
            taken.call.answer()
        except (WireError, CallRefused) as problem:
            refusal = problem if isinstance(problem, CallRefused) else CallRefused(calls.INVALID, str(problem))
            caller.refuse(number, refusal)
            self._told(f"{method} of {visible(name)} from {caller.address} is refused: {refusal}")

    def _who_calls(self, call: _Call) -> Peer:
        """The trainer that makes a call, which is sound. Raises CallRefused; _TakenBefore."""
        if call.peer is None:
            message, callers = call.message, self.callers
            index, first = callers.find(call.caller, call.method, message.varname, message.trainer_id)
            call.peer = self.trainers[index]
            require_part(call.peer, message.varname)
            self._missed.pop(index, None)
            call.caller.known = True
            if first and call.method in _REPEATED and callers.last.get(index) == self._about(call):
                raise _TakenBefore(call)
        return call.peer

    def _about(self, call: _Call) -> LastCall:
        return LastCall(call.method, call.message.varname, zlib.crc32(call.data))

    def _lost(self, caller: Caller, number: int) -> None:
        """A caller has given up waiting: its process has ended, or its connection, and it calls again."""
        self.site.events.put(Event(CALL, None, action=lambda: self._miss(caller, number)))

    def _miss(self, caller: Caller, number: int) -> None:
        for slot, call in self._waiting.items():
            if call.caller is caller and call.number == number:
                del self._waiting[slot]
                assert call.peer is not None
                self._missed.setdefault(call.peer.index, self.site.now())
                return

    def look(self) -> None:
        """Gives up trainers that are missed and have not called again."""
        for index, since in list(self._missed.items()):
            if self.site.now() > since + GRACE:
                del self._missed[index]
                self._give_up(self.trainers[index])

    def _give_up(self, peer: Peer) -> None:
        self._without(peer, "its connection has ended, and it has not called again")
        self.site.run_machines()

    def end_part(self, peer: Peer, reason: str) -> None:
        """Something is wrong with what a trainer has called: it takes no part any more, and nobody waits for it."""
        peer.refusal = reason
        for slot, call in list(self._waiting.items()):
            if call.peer is peer:
                del self._waiting[slot]
                call.refuse(CallRefused(calls.INVALID, reason))
        self._told(f"{peer.role} is refused, and takes no part any more: {reason}")
        self._without(peer, f"it was refused: {reason}")

    def _without(self, peer: Peer, why: str) -> None:
        if self.journal is not None and not peer.left:
            self.journal.add(GONE, peer.index, b"", 0)
        self.site.give_up(peer, why)

    def _send(self, call: _Call) -> None:
        name = call.message.varname
        if name == calls.BATCH_BARRIER_NAME:
            self._require_all_sent(call)
            self._send_no_rows(call)
            self._post(call, kinds.SEND_BARRIER)
        elif name == calls.COMPLETE_NAME:
            self._post(call, kinds.COMPLETE)
        else:
            name = name.partition(calls.PIECE)[0]
            if name not in self.server.takes and not any(name in sent for sent in self.callers.sends.values()):
                raise CallRefused(calls.UNKNOWN, f"{self.server.name} takes no variable {name}")
            calls.require_gradient(self.server, call.message._replace(varname=name))
            call.value = calls.as_declared(call.value, self.server.main.main_block.vars.get(name))
            sent = self.callers.sent[self._who_calls(call).index]
            if self.server.mode and name in sent:  # the only sign that a step has begun
                self._next_step(call)
                sent.clear()
            self._post(call, kinds.SEND, name, call.value)
            sent.add(name)
        call.answer()

    def _next_step(self, call: _Call) -> None:
        self._steps[self._who_calls(call).index] += 1

    def _require_all_sent(self, call: _Call) -> None:
        """Raises CallRefused at the end of a step in which a trainer has not sent what its program sends."""
        callers, index = self.callers, self._who_calls(call).index
        sent = {_unnumbered(name) for name in callers.sent[index]}
        lacking = sorted({_unnumbered(name) for name in callers.sends[index] - callers.rows[index]} - sent)
        if self.server.mode == 0 and lacking:
            raise CallRefused(calls.LATER, f"{self.trainers[index].role} has not sent {', '.join(lacking[:3])}")

    def _send_no_rows(self, call: _Call) -> None:
        """Gradients without rows count as sent: trainers of Fluid send none."""
        callers, index = self.callers, self._who_calls(call).index
        for name in sorted(callers.rows[index] - callers.sent[index]):
            var = self.server.main.main_block.vars[name]
            assert var.dtype is not None
            none: Any = np.empty((0, *var.shape[1:]), DTYPES[var.dtype.value])
            self._post(call, kinds.SEND, name, SelectedRows(np.empty(0, "int64"), none, var.shape[0]))
        callers.sent[index].clear()

    def _get(self, call: _Call) -> None:
        name = call.message.varname
        if name == calls.FETCH_BARRIER_NAME:
            peer = self._post(call, kinds.FETCH_BARRIER)
            if self.server.mode == 0 or self._steps[peer.index] < 0:
                self._next_step(call)
            call.answer()
            return
        self._require_value(name)
        self._post(call, kinds.GET, name, waits=True)

    def _get_now(self, call: _Call) -> None:
        name = call.message.varname.removesuffix(calls.NO_BARRIER)
        self._require_value(name)
        self._post(call, kinds.GET_NOW, name, waits=True)

    def _prefetch(self, call: _Call) -> None:
        name, ids = call.message.table_name, call.value
        if not name:
            self._prefetch_by_block(call)
            return
        table = self.server.scope.values_here.get(name)
        held: Any = table.value if isinstance(table, SelectedRows) else table
        if held is None or not held.ndim:
            raise CallRefused(calls.UNKNOWN, f"{self.server.name} has no table {name}")
        calls.require_ids(self.server.name, name, ids, len(held))
        self._post(call, kinds.LOOKUP, name, ids.reshape(-1), waits=True)

    def _prefetch_by_block(self, call: _Call) -> None:
        """Rows of a distributed table: a block is registered for the name of the ids."""
        name = call.message.varname
        block = self.server.prefetch_blocks.get(name)
        if block is None:
            raise CallRefused(calls.UNKNOWN, f"{self.server.name} has no block that looks up {name}")
        table = self.server.scope.values_here[block.execution.program.main_block.ops[-1].inputs["W"][0]]
        calls.require_room(self.server.name, name, call.value, table)
        self._post(call, kinds.PREFETCH, name, call.value, waits=True)

    def _checkpoint(self, call: _Call) -> None:
        if call.message.varname != calls.SAVE_NAME:
            raise CallRefused("UNIMPLEMENTED", f"{call.message.varname} is nothing that trainers of Fluid ask for")
        calls.require_saving(self.server)
        self._who_calls(call)
        try:
            self.server.save_to(call.message.out_varname)
        except Unplaced as problem:
            raise CallRefused(calls.LATER, f"{self.server.name} does not save: {problem}") from None
        except DiagnosticError as problem:
            raise CallRefused("INTERNAL", f"{self.server.name} can't save: {problem}") from None
        call.answer()

    def _notify(self, call: _Call) -> None:
        self._require_value(call.message.varname)
        payload, held = call.value, self.server.scope.get(call.message.varname)
        if payload.__class__ is not np.ndarray:
            raise CallRefused(calls.INVALID, f"{call.message.varname} brings no number")
        if held.__class__ is not np.ndarray or held.dtype.kind != "i":
            raise CallRefused(calls.INVALID, f"{call.message.varname} is no step counter of {self.server.name}")
        if payload.dtype != held.dtype or payload.size != held.size:
            wanted = form_of(held)
            raise CallRefused(calls.INVALID, f"{call.message.varname} brings {form_of(payload)}, not {wanted}")
        if payload.size and not 0 <= payload.min() <= payload.max() < MOST_COUNTED:
            raise CallRefused(calls.INVALID, f"{call.message.varname} counts {payload.reshape(-1)[0]} steps")
        self._post(call, kinds.NOTIFY, call.message.varname, payload.reshape(held.shape))
        call.answer()

    # messages

    def _post(self, call: _Call, kind: str, name: str = "", payload: Any = None, waits: bool = False) -> Peer:
        """Hands the server a message of the trainer that calls; an answer goes to the call that `waits`."""
        peer = self._who_calls(call)
        self.site.require_room(peer)
        self._keep(call, peer)
        cluster = self.site.cluster
        source = cluster.trainers[peer.index]
        link = cluster.network.link(source, self.server, peer.index)
        slot = -1
        if waits:
            self._slots += 1
            slot = self._slots
            self._waiting[slot] = call
        step = self._steps[peer.index]
        number, fields = link.expected, (kind, source.name, self.server.name, peer.index, step)
        self.site.part.deliver(peer, Message(*fields, number, name, payload, slot))
        return peer

    def _keep(self, call: _Call, peer: Peer) -> None:
        """Writes a call down that is about to be taken."""
        if call.kept:
            return
        call.kept = True
        peer.takes = self._answer
        about = self._about(call) if self._compares else LastCall(call.method, call.message.varname, 0)
        self.callers.last[peer.index] = about
        if self.journal is not None:
            self.site.bytes_since_kept += len(call.data)
            self.journal.add(call.method, peer.index, call.data, about.check_sum)

    def _answer(self, messages: list[Message]) -> None:
        """The server's answers to a trainer."""
        for message in messages:
            call = self._waiting.pop(message.slot, None)
            if call is not None:
                call.answer(message.payload)

    # what is refused before it can do harm

    def _require_value(self, name: str) -> None:
        if self.server.scope.get(name) is None:
            raise CallRefused(calls.UNKNOWN, f"{self.server.name} has no variable {name}")


def _unnumbered(name: str) -> str:
    """The name of a gradient without the number of its trainer, which may not be the one that it has here."""
    head, mark, number = name.rpartition(".trainer_")
    return head if mark and number.isdecimal() else name
