"""A recorder of every message of a cluster."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from pstranspile.cluster.machines import message as kinds
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.message import COMPLETE, END, Message, step_label
from pstranspile.ir.visible import visible
from pstranspile.runtime.run.describe import size_in_bytes
from pstranspile.runtime.values import LoDTensor, SelectedRows

POST, DELIVER, LOST, DUPLICATE = "post", "deliver", "lost", "duplicate"
"""What happens to a message."""

DATA = (kinds.SEND, kinds.REPLY, kinds.COLLECTIVE, kinds.PIECE, kinds.TOTAL, kinds.STATEMENT)
"""Kinds of messages that carry values of variables."""

ASKING = (kinds.GET, kinds.GET_NOW, kinds.GET_ROWS, kinds.LOOKUP, kinds.PREFETCH)
"""Kinds of messages that are answered with values."""


MOST = 1 << 16
"""Characters of a name that are recorded."""


class Event(NamedTuple):
    """Something that happened to a message, at a tick of the virtual clock.

    `step` is that of the trainer the message is about, an index from 0, below 0 during start-up, or END.
    `variable` is, of a reply, that of the request; `bytes` counts the values that the message carries.
    """

    tick: int
    what: str
    kind: str
    source: str
    target: str
    trainer: int
    step: int
    sequence: int
    variable: str
    bytes: int

    @property
    def message(self) -> tuple[str, str, int]:
        """What identifies the message."""
        return self.source, self.target, self.sequence


def event_of(tick: int, what: str, message: Message) -> Event:
    """The event for a message to which `what` happened."""
    kind, source, target, trainer, step, sequence, variable, payload, _ = message
    step = END if kind == COMPLETE else step
    return Event(tick, what, kind, source, target, trainer, step, sequence, visible(variable, MOST), _size(payload))


class Recorder:
    """Records what happens to every message of a cluster. It must be made before the cluster starts."""

    def __init__(self, cluster: Cluster):
        self.machines = [machine.name for machine in cluster.machines.values()]
        self.events: list[Event] = []
        self._clock = cluster.scheduler
        self.trainers = [trainer.name for trainer in cluster.trainers]
        self._trainers = {trainer.index: trainer for trainer in cluster.trainers}
        self.together = any(server.mode == 0 for server in cluster.servers)
        """Whether servers wait for the gradients of all trainers, and make one update of them."""
        cluster.network.observe(self)

    def __call__(self, event: str, message: Message) -> None:
        """Records an event of the network."""
        self.events.append(event_of(self._clock.now, event, message))

    def step_name(self, trainer: int, step: int) -> str:
        """`start-up`, `step 3`, or `step 3 of @generator` where several programs take turns; `end` for END."""
        if step == END:
            return "end"
        known = self._trainers.get(trainer)
        if step < 0 or known is None or known.role.turns is None:
            return step_label(step)
        return f"{step_label(step)} of @{known.role.program_of(step)}"


def _size(payload: Any) -> int:
    """Bytes of the values that a message carries."""
    if isinstance(payload, tuple) and not isinstance(payload, SelectedRows | LoDTensor):
        return sum(_size(part) for part in cast("tuple[Any, ...]", payload))
    return size_in_bytes(payload)
