"""Which trainer of Fluid makes a call. Most calls bring its number; barriers and lookups of rows don't.

A trainer makes all its calls on one connection, so the connection identifies it. Before the first call with a number,
the caller is one of the trainers that may make such a call now. If several may, they are at the same place of their
programs, and it does not matter which is which: the numbers used for them here need not be their own.

Nothing proves a number. But a trainer whose connection is open is not believed to call on another one: whoever says so
is refused, and can't take its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pstranspile.cluster.machines.programs import names_sent_to
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.net.calls import Caller, CallRefused
from pstranspile.cluster.net.peer import Peer
from pstranspile.fluid.net import calls
from pstranspile.ir.types import VarKind

ANONYMOUS = (calls.BATCH_BARRIER_NAME, calls.FETCH_BARRIER_NAME, calls.SAVE_NAME)
"""What calls are about that don't bring the trainer's number."""

PREFETCH = "PrefetchVariable"
"""The method whose calls say they are of trainer 0, whoever makes them."""


class LastCall(NamedTuple):
    """The last call of a trainer that was taken: its method, what it was about, and the check sum of its message."""

    method: str
    name: str
    check_sum: int


class Callers:
    """Tells trainers of Fluid apart. `trainers` are the job's, by number; `programs` what each of them runs."""

    def __init__(self, server: Server, trainers: Mapping[int, Peer], programs: Mapping[int, Trainer]):
        self._server = server
        self._trainers = trainers
        self._by_address: dict[str, int] = {}
        self._here: dict[int, Caller] = {}
        """The connection of each trainer that is known by its own."""
        self._aliases: dict[int, int] = {}
        """The number here of each trainer that has sent its own number."""
        self._nameless: set[int] = set()
        """The numbers here of callers that have not sent their own numbers yet."""
        self.last: dict[int, LastCall] = {}
        self.sent: dict[int, set[str]] = {index: set() for index in trainers}
        """What each trainer has sent of its step."""
        endpoint = server.endpoint
        self.sends = {index: set(names_sent_to(one.role.main, endpoint)) for index, one in programs.items()}
        """What each trainer's program sends to this server in every step."""
        here = server.main.main_block.vars
        rows = {name for name, var in here.items() if var.kind is VarKind.SELECTED_ROWS}
        self.rows = {index: names & rows for index, names in self.sends.items()}
        """What of it are rows, of which there may be none in a step."""

    def state(self) -> dict[str, Any]:
        """The state with which another process can take the place of this one."""
        last = {index: tuple(call) for index, call in self.last.items()}
        sent = {index: set(names) for index, names in self.sent.items()}
        return {"aliases": dict(self._aliases), "last": last, "sent": sent}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave."""
        self._aliases = dict(state["aliases"])
        self.last = {index: LastCall(*call) for index, call in state["last"].items()}
        self.sent = {index: set(names) for index, names in state["sent"].items()}

    def find(self, caller: Caller, method: str, name: str, own_number: int) -> tuple[int, bool]:
        """The number here of a caller, and whether the call is the first one on a connection. Raises CallRefused."""
        named, address = _is_named(method, name), caller.address
        known = self._by_address.get(address)
        if known is not None:
            if named:
                self._learn(own_number, known)
            return known, False
        index = self._named(own_number) if named else self._unnamed(method, name)
        here = self._here.get(index)
        if here is not None and not here.closed:
            who = self._trainers[index].role
            raise CallRefused("UNAVAILABLE", f"{who} is here already, at {here.address}, and has not ended it")
        if method != PREFETCH or len(self._trainers) == 1:  # a lookup does not identify its trainer
            self._by_address = {a: number for a, number in self._by_address.items() if number != index}
            self._by_address[address], self._here[index] = index, caller
        if named:
            self._learn(own_number, index)
        return index, True

    def replayed(self, method: str, name: str, own_number: int, here: int) -> None:
        """A call is taken again that another process took from the trainer with a number here."""
        if _is_named(method, name):
            self._learn(own_number, here)

    def _learn(self, own_number: int, here: int) -> None:
        """A caller with a number here has sent its own number."""
        self._nameless.discard(here)
        before = self._aliases.get(own_number)
        if before == here:
            return
        other = next((other for other, number in self._aliases.items() if number == here), None)
        if other is not None and before is not None:  # the two were taken for each other, at the same place
            self._aliases[other] = before
        elif other is not None:
            del self._aliases[other]
        self._aliases[own_number] = here

    def _named(self, own_number: int) -> int:
        if own_number not in self._trainers:
            count = len(self._trainers)
            raise CallRefused(calls.INVALID, f"the job has {count} trainers, none of them has number {own_number}")
        if own_number in self._aliases:
            return self._aliases[own_number]
        taken = own_number in self._nameless or own_number in self._aliases.values()
        return self._free()[0] if taken else own_number

    def _unnamed(self, method: str, name: str) -> int:
        index = min(self._free(), key=lambda index: not self._may(index, method, name))
        if index not in self._aliases.values():
            self._nameless.add(index)
        return index

    def _free(self) -> list[int]:
        """The trainers without a connection. Raises CallRefused if there are none."""
        taken = set(self._by_address.values()) if len(self._trainers) > 1 else set[int]()
        free = [i for i, peer in self._trainers.items() if i not in taken and not peer.incarnation and not peer.left]
        if not free:
            raise CallRefused("UNAVAILABLE", "all trainers are here, and nothing tells which of them calls")
        return free

    def _may(self, index: int, method: str, name: str) -> bool:
        """Whether a trainer is at a place where it makes such a call next."""
        last = self.last.get(index)
        before = "" if last is None else last.method if last.name not in ANONYMOUS else last.name
        if name == calls.BATCH_BARRIER_NAME:
            return before != calls.BATCH_BARRIER_NAME and self.sends[index] - self.rows[index] <= self.sent[index]
        if name == calls.FETCH_BARRIER_NAME:
            return before in ("", calls.BATCH_BARRIER_NAME, "GetVariable")
        if method == PREFETCH and self._server.mode == 0:
            return before in ("", calls.FETCH_BARRIER_NAME, PREFETCH)
        return True


def _is_named(method: str, name: str) -> bool:
    """Whether a call brings the number of its trainer."""
    return method != PREFETCH and name not in ANONYMOUS


def require_part(peer: Peer, name: str) -> None:
    """Raises CallRefused if a trainer takes no part, or as a process of another kind. It may say so twice."""
    if peer.left and name != calls.COMPLETE_NAME:
        reason = f": {peer.refusal}" if peer.refusal else ""
        raise CallRefused(calls.LATER, f"{peer.role} has left, or was given up{reason}")
    if peer.incarnation:
        raise CallRefused("ALREADY_EXISTS", f"{peer.role} is here already, as a process of its own")
