"""Whether every gradient that synchronous trainers sent was applied once, in its step: the books of a run.

A gradient counts when its trainer has reported that it sent everything of the step (its send barrier). What a trainer
sent of a step before it crashed without that report must not be applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.message import SEND, SEND_BARRIER, Message, step_label
from pstranspile.cluster.machines.server import Contributions, Server, ServerListener


class Entry(NamedTuple):
    """A gradient: the server it went to, the step (an index from 0), the trainer's number, and the variable."""

    server: str
    step: int
    trainer: int
    variable: str


class UpdateLedger(ServerListener):
    """Watches the servers of a cluster; to be made before it starts. Takes the network's place of an observer.

    Without a cluster, somebody else enters what was sent, reported and applied.
    """

    def __init__(self, cluster: Cluster | None = None):
        self.sent: dict[Entry, Any] = {}
        """The gradients sent. A value identifies its gradient, since it is kept."""
        self.reported: set[tuple[str, int, int]] = set()
        """Server, step and trainer of every send barrier sent."""
        self.applied: dict[tuple[str, int], list[tuple[str, int, Any]]] = {}
        """Per server and update: variable, trainer and value. A server that is started again makes updates anew."""
        self.doubled: list[Entry] = []
        if cluster is None:
            return
        for server in cluster.servers:
            server.listen(self)
        cluster.network.observe(self)

    def __call__(self, event: str, message: Message) -> None:
        """Told of every message that is posted."""
        if event != "post":
            return
        if message.kind == SEND:
            entry = Entry(message.target, message.step, message.trainer, message.variable)
            if entry in self.sent:
                self.doubled.append(entry)
            self.sent[entry] = message.payload
        elif message.kind == SEND_BARRIER:
            self.reported.add((message.target, message.step, message.trainer))

    def updating(self, server: Server, contributions: Callable[[], Contributions]) -> None:
        """A server begins an update."""
        self.applied[server.name, server.updates] = contributions()

    def problems(self, *, ended: bool = True) -> list[str]:
        """What is wrong, in words; empty if every gradient was applied once, in its step.

        `ended=False`: the run stopped half-way, so gradients may not have been applied yet.
        """
        result = [f"{_entry_label(entry)} was sent twice by the program" for entry in self.doubled]
        seen: dict[Entry, int] = {}
        for (server, step), values in self.applied.items():
            for variable, trainer, value in values:
                entry = Entry(server, step, trainer, variable)
                seen[entry] = seen.get(entry, 0) + 1
                if entry not in self.sent:
                    result.append(f"{_entry_label(entry)} was applied, but never sent in this step")
                elif not _same(self.sent[entry], value):
                    result.append(f"{_entry_label(entry)} was applied with another value than was sent")
                elif (server, step, trainer) not in self.reported:
                    result.append(f"{_entry_label(entry)} was applied, but its trainer did not report")
        result += [f"{_entry_label(entry)} was applied {count} times" for entry, count in seen.items() if count > 1]
        for entry in self.sent:
            if ended and entry not in seen and (entry.server, entry.step, entry.trainer) in self.reported:
                result.append(f"{_entry_label(entry)} was lost")
        return result


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same: one object, or, where a server read it back from a file, bit for bit."""
    if one is other:
        return True
    if isinstance(one, tuple):
        parts = cast("tuple[Any, ...]", one)
        return isinstance(other, tuple) and all(map(_same, parts, cast("tuple[Any, ...]", other)))
    if not hasattr(one, "tobytes"):
        return one == other
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def _entry_label(entry: Entry) -> str:
    return f"{entry.variable} of trainer {entry.trainer}, {step_label(entry.step)}, on {entry.server}"
