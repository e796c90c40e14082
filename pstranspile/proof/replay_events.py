"""Replays of runs in the order in which servers took messages."""

from __future__ import annotations

from typing import Any, NamedTuple

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.message import GET, GET_NOW, GET_ROWS, LOOKUP, PREFETCH, Message
from pstranspile.proof.given import Given
from pstranspile.proof.machine_values import Place
from pstranspile.proof.replay import Replay
from pstranspile.proof.slices import Owned, owned_slices

ANSWERED = (GET, GET_NOW, GET_ROWS)


class Event(NamedTuple):
    """A message that a server took: its kind, the server, the variable, and the trainer."""

    kind: str
    server: str
    variable: str
    trainer: int
    payload: Any = None


class EventReplay(Replay):
    """A replay that keeps the order in which the servers took messages."""

    def __init__(self, given: Given, cluster: Cluster):
        super().__init__(given, cluster)
        self.events: list[Event] = []
        self.cluster.network.observe(self._watch)
        self.servers = {f"pserver_{i}" for i in range(len(self.made.plan.pservers))}
        self.slices: dict[Place, Owned] = {}
        """The slices by server and name there."""
        for plan in self.plans:
            self.slices.update({(owned.server, owned.slice.name): owned for owned in owned_slices(plan)})

    def _watch(self, event: str, message: Message) -> None:
        if event == "deliver" and message.target in self.servers:
            payload = message.payload if message.kind in (LOOKUP, PREFETCH) else None
            self.events.append(Event(message.kind, message.target, message.variable, message.trainer, payload))

    def taken(self) -> list[Event]:
        """The events since the last call."""
        events, self.events = self.events, []
        return events
