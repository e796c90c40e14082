"""A server for trainers of Fluid: turns the calls of Fluid's gRPC service into messages of the job's trainers.

A gradient and a barrier are answered at once; a call that asks for a value is answered when the server has the value. A
caller that does not send its trainer number is identified by its connection: a trainer makes all its calls on one
connection, and most calls have the number.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pstranspile.cluster.machines import message as kinds
from pstranspile.cluster.machines.cluster import names_sent_to
from pstranspile.cluster.machines.message import Message
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.net.checks import MOST_COUNTED, form_of
from pstranspile.cluster.net.http2 import Caller, CallRefused, CallService
from pstranspile.cluster.net.loop import CALL, Event
from pstranspile.cluster.net.other_systems import GONE, Entry, ForeignTrainers, Journal
from pstranspile.cluster.net.peer import Peer
from pstranspile.cluster.net.server_checkpoints import PathRefused
from pstranspile.cluster.net.site import Site
from pstranspile.cluster.net.status import RateLimitedPrinter
from pstranspile.cluster.net.wire import Bytes, WireError
from pstranspile.fluid.net import message as calls
from pstranspile.fluid.net.message import (
    DTYPES,
    VariableMessage,
    pieces_of,
    read_name,
    read_request,
    read_variable,
    value_of,
    with_value,
)
from pstranspile.ir.diagnostics import DiagnosticError, visible
from pstranspile.ir.types import VarKind
from pstranspile.runtime.values import SelectedRows

# Finds out which trainer of Fluid makes a call. Most calls have the trainer's number; barriers and lookups of rows
# don't.
#
# A trainer makes all its calls on one connection, so the connection identifies it. Before the first call with a number,
# the caller is one of the trainers that may make such a call now. If several may, they are at the same point of their
# programs, and it does not matter which of them it is: the numbers used for them here need not be their own.
#
# A trainer number in a call is not proof. But while a trainer's connection is open, a call on another connection with
# its number is refused, so no other caller can take its place.

ANONYMOUS = (calls.BATCH_BARRIER_NAME, calls.FETCH_BARRIER_NAME, calls.SAVE_NAME)
"""The variable names of calls without the trainer's number."""

PREFETCH = "PrefetchVariable"
"""The method whose calls always contain trainer number 0, whoever makes them."""


class LastCall(NamedTuple):
    """The last call accepted from a trainer: its method, the variable's name, and the check sum of its message."""

    method: str
    name: str
    check_sum: int


class Callers:
    """Tells trainers of Fluid apart. `trainers` has the job's trainers by number, `programs` the program that each of
    them runs.
    """

    def __init__(self, server: Server, trainers: Mapping[int, Peer], programs: Mapping[int, Trainer]):
        self._server = server
        self._trainers = trainers
        self._by_address: dict[str, int] = {}
        self._callers_by_trainer: dict[int, Caller] = {}
        """The connection of each trainer, by the trainer's number in this server."""
        self._aliases: dict[int, int] = {}
        """The number in this server of each trainer that has sent its own number."""
        self._nameless: set[int] = set()
        """The numbers in this server of callers that have not yet sent their own numbers."""
        self.last_calls: dict[int, LastCall] = {}
        self.sent_names: dict[int, set[str]] = {index: set() for index in trainers}
        """The names of the variables that each trainer has sent in its present step."""
        endpoint = server.endpoint
        self.sends = {index: set(names_sent_to(one.role.main, endpoint)) for index, one in programs.items()}
        """The names of the variables that each trainer's program sends to this server in every step."""
        here = server.main.main_block.vars
        rows = {name for name, var in here.items() if var.kind is VarKind.SELECTED_ROWS}
        self.rows = {index: names & rows for index, names in self.sends.items()}
        """Those names in `sends` whose values are rows, which a trainer does not send in a step without rows."""

    def state(self) -> dict[str, Any]:
        """The state from which another process can continue in place of this one."""
        last = {index: tuple(call) for index, call in self.last_calls.items()}
        sent = {index: set(names) for index, names in self.sent_names.items()}
        return {"aliases": dict(self._aliases), "last": last, "sent": sent}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self._aliases = dict(state["aliases"])
        self.last_calls = {index: LastCall(*call) for index, call in state["last"].items()}
        self.sent_names = {index: set(names) for index, names in state["sent"].items()}

    def find(self, caller: Caller, method: str, name: str, own_number: int) -> tuple[int, bool]:
        """The number in this server of a caller, and whether this is the first call on its connection. Raises
        CallRefused.
        """
        named, address = _is_named(method, name), caller.address
        known = self._by_address.get(address)
        if known is not None:
            if named:
                self._learn(own_number, known)
            return known, False
        index = self._index_for_number(own_number) if named else self._index_without_number(method, name)
        here = self._callers_by_trainer.get(index)
        if here is not None and not here.closed:
            who = self._trainers[index].role
            raise CallRefused("UNAVAILABLE", f"{who} is here already, at {here.address}, and has not ended it")
        if method != PREFETCH or len(self._trainers) == 1:  # a lookup does not identify its trainer
            self._by_address = {a: number for a, number in self._by_address.items() if number != index}
            self._by_address[address], self._callers_by_trainer[index] = index, caller
        if named:
            self._learn(own_number, index)
        return index, True

    def record_replayed_call(self, method: str, name: str, own_number: int, here: int) -> None:
        """Records a call that an earlier process has accepted from the trainer with the number `here`."""
        if _is_named(method, name):
            self._learn(own_number, here)

    def _learn(self, own_number: int, here: int) -> None:
        """Records that the caller with the number `here` in this server has sent its own number."""
        self._nameless.discard(here)
        before = self._aliases.get(own_number)
        if before == here:
            return
        other = next((other for other, number in self._aliases.items() if number == here), None)
        if other is not None and before is not None:  # the two were mixed up, at the same point
            self._aliases[other] = before
        elif other is not None:
            del self._aliases[other]
        self._aliases[own_number] = here

    def _index_for_number(self, own_number: int) -> int:
        if own_number not in self._trainers:
            count = len(self._trainers)
            raise CallRefused(calls.INVALID, f"the job has {count} trainers, none of them has number {own_number}")
        if own_number in self._aliases:
            return self._aliases[own_number]
        taken = own_number in self._nameless or own_number in self._aliases.values()
        return self._free()[0] if taken else own_number

    def _index_without_number(self, method: str, name: str) -> int:
        index = min(self._free(), key=lambda index: not self._may(index, method, name))
        if index not in self._aliases.values():
            self._nameless.add(index)
        return index

    def _free(self) -> list[int]:
        """The numbers of the trainers without a connection. Raises CallRefused if there are none."""
        taken = set(self._by_address.values()) if len(self._trainers) > 1 else set[int]()
        free = [i for i, peer in self._trainers.items() if i not in taken and not peer.incarnation and not peer.left]
        if not free:
            raise CallRefused("UNAVAILABLE", "all trainers are here, and nothing tells which of them calls")
        return free

    def _may(self, index: int, method: str, name: str) -> bool:
        """Whether a trainer is at a point of its program where such a call comes next."""
        last = self.last_calls.get(index)
        before = "" if last is None else last.method if last.name not in ANONYMOUS else last.name
        if name == calls.BATCH_BARRIER_NAME:
            return before != calls.BATCH_BARRIER_NAME and self.sends[index] - self.rows[index] <= self.sent_names[index]
        if name == calls.FETCH_BARRIER_NAME:
            return before in ("", calls.BATCH_BARRIER_NAME, "GetVariable")
        if method == PREFETCH and self._server.mode == 0:
            return before in ("", calls.FETCH_BARRIER_NAME, PREFETCH)
        return True


def _is_named(method: str, name: str) -> bool:
    """Whether a call has the number of its trainer."""
    return method != PREFETCH and name not in ANONYMOUS


def require_part(peer: Peer, name: str) -> None:
    """Raises CallRefused if a trainer no longer takes part, or has joined as a process of this package. A repeated
    farewell is accepted.
    """
    if peer.left and name != calls.COMPLETE_NAME:
        reason = f": {peer.refusal}" if peer.refusal else ""
        raise CallRefused(calls.LATER, f"{peer.role} has left, or was given up{reason}")
    if peer.incarnation:
        raise CallRefused("ALREADY_EXISTS", f"{peer.role} is here already, as a process of its own")


GRACE = 3.0
"""Seconds within which a trainer whose connection has ended must call again, before its process counts as gone."""

GRACE_AT_BEGIN = 8.0
"""Seconds within which such a trainer must call again if this process has just replaced another one."""

_REPEATED = ("SendVariable", "DistributeNotify")
"""The methods whose calls must not be accepted twice."""


MOST_OF_STRANGERS = 1 << 26
"""The most bytes of rows or ids in a call on a connection that is not yet admitted, unless the server has a larger
variable.
"""


class _AbsentCaller:
    """The caller of calls that an earlier process has accepted: nobody waits for their answers."""

    address = ""
    is_admitted = True
    closed = True

    def let_in(self) -> None:
        """Does nothing, because this caller is admitted."""

    def answer(self, call: int, pieces: list[Bytes]) -> None:
        """Does nothing, because the trainer repeats the call."""

    def refuse(self, call: int, problem: CallRefused) -> None:
        """Does nothing, because the trainer repeats the call."""


class _RepeatedCall(Exception):
    """Raised for a call that was accepted on a connection which broke before the answer was sent: the trainer has
    repeated it.
    """

    def __init__(self, call: _Call):
        super().__init__()
        self.call = call


class _Call:
    """A call, from its arrival to its answer; `data` are the bytes of its message."""

    def __init__(
        self,
        method: str,
        message: VariableMessage,
        caller: Caller,
        number: int,
        data: Bytes,
        peer: Peer | None = None,
    ):
        self.method = method
        self.message = message
        self.value: Any = value_of(message) if message.dims or len(message.numbers) else None
        self.caller = caller
        self.number = number
        self.data = data
        self.peer = peer
        """The trainer that makes the call, None until it is identified."""
        self.is_accepted = False
        """Whether the call was accepted, so that its caller need not repeat it."""

    def is_of(self, peer: Peer) -> None:
        """Sets the trainer that makes the call."""
        self.peer = peer

    def keep(self) -> bool:
        """Marks the call as accepted, so that its caller need not repeat it; returns False if it was marked before."""
        first, self.is_accepted = not self.is_accepted, True
        return first

    def bring(self, value: Any) -> None:
        """Sets the value in the call, in the form that the server has for the variable."""
        self.value = value

    def answer(self, value: Any = None) -> None:
        """Sends the answer; without a value its message is empty."""
        name = self.message.out_varname or self.message.varname
        try:
            pieces = [] if value is None else pieces_of(with_value(VariableMessage(name), value))
        except WireError as problem:
            self.refuse(CallRefused(calls.INVALID, str(problem)))
            return
        self.caller.answer(self.number, pieces)

    def refuse(self, problem: CallRefused) -> None:
        """Sends the error that is the answer."""
        self.caller.refuse(self.number, problem)


class FluidService(ForeignTrainers):
    """Accepts the calls of Fluid's trainers for a server of this process."""

    def __init__(self, site: Site, server: Server, journal: Journal | None = None):
        self.site = site
        self.server = server
        self._journal = journal
        self.trainers = {peer.index: peer for peer in site.peers.values() if peer.index >= 0}
        self.callers = Callers(server, self.trainers, {one.index: one for one in site.cluster.trainers})
        self._steps = dict.fromkeys(self.trainers, -1)
        self._waiting_calls: dict[int, _Call] = {}
        self._missing_since: dict[int, float] = {}
        """For each trainer whose connection ended while it waited for an answer, the time since which it is missing."""
        variables = sum(len(block.vars) for block in server.main.blocks)
        self._max_waiting = len(self.trainers) * (variables + 4)
        """The most calls that may wait at once."""
        self._compares = journal is not None or server.mode != 0
        """Whether calls are compared with the last ones, because they may be repeated. (In a synchronous job without a
        journal this is not needed: a gradient may come twice.)
        """
        self._slots = 0
        self._print_notice = RateLimitedPrinter(server.name, site.now)
        self._handlers: dict[str, Callable[[_Call], None]] = {
            "SendVariable": self._send,
            "GetVariable": self._get,
            "GetVariableNoBarrier": self._get_now,
            "PrefetchVariable": self._prefetch,
            "CheckpointNotify": self._checkpoint,
            "DistributeNotify": self._notify,
        }

    @property
    def journal(self) -> Journal | None:
        """The calls since the server's last saved state; None where no state is saved."""
        return self._journal

    def service(self) -> CallService:
        """The gRPC service with the methods that trainers call."""
        methods = {name: partial(self._come, name) for name in self._handlers}
        return CallService(
            calls.SERVICE, methods, self._max_waiting, self._record_lost_caller, self._room, len(self.trainers),
            lambda: self.site.more_held() or 0,
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """The state to save together with the server's state and the journal of later calls."""
        playing = sorted(index for index, peer in self.trainers.items() if peer.receive_messages is not None)
        return {**self.callers.state(), "steps": dict(self._steps), "slots": self._slots, "playing": playing}

    def restore(self, state: Mapping[str, Any], entries: Iterable[Entry]) -> None:
        """Restores a saved state and repeats the calls since then; no answers are sent."""
        self.callers.restore(state)
        self._steps, self._slots = dict(state["steps"]), state["slots"]
        for index in state["playing"]:
            self.trainers[index].hand_to(self._answer)
        journal, self._journal = self._journal, None
        for method, index, data in entries:
            peer = self.trainers[index]
            if method == GONE:
                self.site.give_up(peer, "it was gone before")
            else:
                call = _Call(method, read_variable(data), _AbsentCaller(), 0, data, peer)
                self._handlers[method](call)
                self.callers.record_replayed_call(call.method, call.message.varname, call.message.trainer_id, index)
            self.site.run_machines()
        late = self.site.now() + GRACE_AT_BEGIN - GRACE
        self._missing_since = {call.peer.index: late for call in self._waiting_calls.values() if call.peer is not None}
        self._waiting_calls.clear()
        self._journal = journal

    def close(self) -> None:
        """Refuses all calls that wait for an answer."""
        for call in self._waiting_calls.values():
            call.refuse(CallRefused("UNAVAILABLE", f"{self.server.name} has ended"))
        self._waiting_calls.clear()

    def _come(self, method: str, caller: Caller, number: int, data: Bytes) -> None:
        """Queues a call that has arrived; it is processed in the thread of the machines."""

        def take() -> None:
            with self.site.events.charging(caller):
                self._take(method, caller, number, data)

        self.site.events.put(Event(CALL, None, action=take))

    def _room(self, method: str, begin: Bytes, known: bool) -> int:
        """The most bytes of a large call: for a tensor as many as its variable needs; for rows and ids on a connection
        that is not yet admitted, a fixed limit applies too.
        """
        size = calls.most_brought(self.server, method, read_name(begin))
        return size if known else min(size, max(MOST_OF_STRANGERS, calls.most_held(self.server)))

    def _take(self, method: str, caller: Caller, number: int, data: Bytes) -> None:
        name = "what is no message"
        try:
            message = read_request(data) if method == "GetVariable" else read_variable(data)
            name = message.varname
            call = _Call(method, message, caller, number, data)
            if self.server.mode == 3:
                raise CallRefused("UNIMPLEMENTED", f"{self.server.name} serves no Fluid trainers in a geo job")
            if len(self._waiting_calls) >= self._max_waiting:
                message = f"{self._max_waiting} calls wait for {self.server.name} already"
                raise CallRefused("RESOURCE_EXHAUSTED", message)
            self._handlers[method](call)
        except _RepeatedCall as taken:
            taken.call.answer()
        except (WireError, CallRefused) as problem:
            refusal = problem if isinstance(problem, CallRefused) else CallRefused(calls.INVALID, str(problem))
            caller.refuse(number, refusal)
            self._print_notice(f"{method} of {visible(name)} from {caller.address} is refused: {refusal}")

    def _who_calls(self, call: _Call) -> Peer:
        """The trainer that makes a well-formed call. Raises CallRefused, _RepeatedCall."""
        if call.peer is None:
            message, callers = call.message, self.callers
            index, first = callers.find(call.caller, call.method, message.varname, message.trainer_id)
            call.is_of(self.trainers[index])
            require_part(self.trainers[index], message.varname)
            self._missing_since.pop(index, None)
            call.caller.let_in()
            if first and call.method in _REPEATED and callers.last_calls.get(index) == self._about(call):
                raise _RepeatedCall(call)
        assert call.peer is not None
        return call.peer

    def _about(self, call: _Call) -> LastCall:
        return LastCall(call.method, call.message.varname, zlib.crc32(call.data))

    def _record_lost_caller(self, caller: Caller, number: int) -> None:
        """Records that a caller no longer waits: its process has ended, or its connection, after which
        it calls again.
        """
        self.site.events.put(Event(CALL, None, action=lambda: self._miss(caller, number)))

    def _miss(self, caller: Caller, number: int) -> None:
        for slot, call in self._waiting_calls.items():
            if call.caller is caller and call.number == number:
                del self._waiting_calls[slot]
                assert call.peer is not None
                self._missing_since.setdefault(call.peer.index, self.site.now())
                return

    def turns_done(self) -> None:
        """Gives up the trainers that are missing and have not called again in time."""
        for index, since in list(self._missing_since.items()):
            if self.site.now() > since + GRACE:
                del self._missing_since[index]
                self._give_up(self.trainers[index])

    def _give_up(self, peer: Peer) -> None:
        self._continue_without(peer, "its connection has ended, and it has not called again")
        self.site.run_machines()

    def end_part(self, peer: Peer, reason: str) -> None:
        """Refuses a trainer whose call was wrong: it no longer takes part, and others do not wait for it."""
        peer.refuse(reason)
        for slot, call in list(self._waiting_calls.items()):
            if call.peer is peer:
                del self._waiting_calls[slot]
                call.refuse(CallRefused(calls.INVALID, reason))
        self._print_notice(f"{peer.role} is refused, and takes no part any more: {reason}")
        self._continue_without(peer, f"it was refused: {reason}")

    def _continue_without(self, peer: Peer, why: str) -> None:
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
            if name not in self.server.receivable_variables and not any(
                name in sent for sent in self.callers.sends.values()
            ):
                raise CallRefused(calls.UNKNOWN, f"{self.server.name} takes no variable {name}")
            calls.require_gradient(self.server, call.message._replace(varname=name))
            call.bring(calls.as_declared(call.value, self.server.main.main_block.vars.get(name)))
            sent = self.callers.sent_names[self._who_calls(call).index]
            if self.server.mode and name in sent:  # the only sign that a step has begun
                self._next_step(call)
                sent.clear()
            self._post(call, kinds.SEND, name, call.value)
            sent.add(name)
        call.answer()

    def _next_step(self, call: _Call) -> None:
        self._steps[self._who_calls(call).index] += 1

    def _require_all_sent(self, call: _Call) -> None:
        """Raises CallRefused at the end of a step in which a trainer has not sent all that its program sends."""
        callers, index = self.callers, self._who_calls(call).index
        sent = {_without_trainer_number(name) for name in callers.sent_names[index]}
        lacking = sorted({_without_trainer_number(name) for name in callers.sends[index] - callers.rows[index]} - sent)
        if self.server.mode == 0 and lacking:
            raise CallRefused(calls.LATER, f"{self.trainers[index].role} has not sent {', '.join(lacking[:3])}")

    def _send_no_rows(self, call: _Call) -> None:
        """Posts empty rows for the gradients of rows that a trainer has not sent, because trainers of Fluid do not send
        empty ones.
        """
        callers, index = self.callers, self._who_calls(call).index
        for name in sorted(callers.rows[index] - callers.sent_names[index]):
            var = self.server.main.main_block.vars[name]
            assert var.dtype is not None
            none: Any = np.empty((0, *var.shape[1:]), DTYPES[var.dtype.value])
            self._post(call, kinds.SEND, name, SelectedRows(np.empty(0, "int64"), none, var.shape[0]))
        callers.sent_names[index].clear()

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
        """Looks up rows of a distributed table, with the block that is registered for the name of the ids."""
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
        except PathRefused as problem:
            raise CallRefused(calls.LATER, f"{self.server.name} does not save: {problem}") from None
        except DiagnosticError as problem:
            raise CallRefused("INTERNAL", f"{self.server.name} can't save: {problem}") from None
        call.answer()

    def _notify(self, call: _Call) -> None:
        self._require_value(call.message.varname)
        payload, counter = call.value, self.server.scope.get(call.message.varname)
        if payload.__class__ is not np.ndarray:
            raise CallRefused(calls.INVALID, f"{call.message.varname} brings no number")
        if counter.__class__ is not np.ndarray or counter.dtype.kind != "i":
            raise CallRefused(calls.INVALID, f"{call.message.varname} is no step counter of {self.server.name}")
        if payload.dtype != counter.dtype or payload.size != counter.size:
            wanted = form_of(counter)
            raise CallRefused(calls.INVALID, f"{call.message.varname} brings {form_of(payload)}, not {wanted}")
        if payload.size and not 0 <= payload.min() <= payload.max() < MOST_COUNTED:
            raise CallRefused(calls.INVALID, f"{call.message.varname} counts {payload.reshape(-1)[0]} steps")
        self._post(call, kinds.NOTIFY, call.message.varname, payload.reshape(counter.shape))
        call.answer()

    # messages

    def _post(self, call: _Call, kind: str, name: str = "", payload: Any = None, waits: bool = False) -> Peer:
        """Posts a message of the calling trainer to the server; the answer goes to the call if it `waits`."""
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
            self._waiting_calls[slot] = call
        step = self._steps[peer.index]
        number, fields = link.expected, (kind, source.name, self.server.name, peer.index, step)
        self.site.local_machines.deliver(peer, [Message(*fields, number, name, payload, slot)])
        return peer

    def _keep(self, call: _Call, peer: Peer) -> None:
        """Records a call in the journal before it is processed."""
        if not call.keep():
            return
        peer.hand_to(self._answer)
        about = self._about(call) if self._compares else LastCall(call.method, call.message.varname, 0)
        self.callers.last_calls[peer.index] = about
        if self.journal is not None:
            self.site.count_bytes(len(call.data))
            self.journal.add(call.method, peer.index, call.data, about.check_sum)

    def _answer(self, messages: list[Message]) -> None:
        """Sends the server's answers to a trainer's calls."""
        for message in messages:
            call = self._waiting_calls.pop(message.slot, None)
            if call is not None:
                call.answer(message.payload)

    # checks before a call can do harm

    def _require_value(self, name: str) -> None:
        if self.server.scope.get(name) is None:
            raise CallRefused(calls.UNKNOWN, f"{self.server.name} has no variable {name}")


def _without_trainer_number(name: str) -> str:
    """The name of a gradient without the number of its trainer, which may differ from the number in this server."""
    head, mark, number = name.rpartition(".trainer_")
    return head if mark and number.isdecimal() else name
