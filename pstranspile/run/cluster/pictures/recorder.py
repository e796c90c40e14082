"""Everything that machines tell each other, written down as it happens."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.message import (
    COLLECTIVE,
    COMPLETE,
    END,
    GET,
    GET_NOW,
    GET_ROWS,
    LOOKUP,
    PIECE,
    PREFETCH,
    REPLY,
    SEND,
    STATEMENT,
    TOTAL,
    Message,
    step_told,
)
from pstranspile.run.describe import size_in_bytes
from pstranspile.values import LoDTensor, SelectedRows

POST, DELIVER, LOST, DUPLICATE = "post", "deliver", "lost", "duplicate"
"""What happens to a message."""

DATA = (SEND, REPLY, COLLECTIVE, PIECE, TOTAL, STATEMENT)
"""Kinds of messages that carry values of variables."""

ASKING = (GET, GET_NOW, GET_ROWS, LOOKUP, PREFETCH)
"""Kinds of messages that are answered with values."""


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
        """What tells the message from all others."""
        return self.source, self.target, self.sequence


def event_of(tick: int, what: str, message: Message) -> Event:
    """What happened to a message."""
    return Event(
        tick,
        what,
        message.kind,
        message.source,
        message.target,
        message.trainer,
        END if message.kind == COMPLETE else message.step,
        message.sequence,
        message.variable,
        _size(message.payload),
    )


class Recorder:
    """Writes down what happens to every message of a cluster; to be made before the cluster starts."""

    def __init__(self, cluster: Cluster):
        self.machines = [machine.name for machine in cluster.machines.values()]
        self.events: list[Event] = []
        self._clock = cluster.scheduler
        self.trainers = [trainer.name for trainer in cluster.trainers]
        self._trainers = {trainer.index: trainer for trainer in cluster.trainers}
        cluster.network.observe(self)

    def __call__(self, event: str, message: Message) -> None:
        """Told by the network."""
        self.events.append(event_of(self._clock.now, event, message))

    def step_name(self, trainer: int, step: int) -> str:
        """`start-up`, `step 3`, or `step 3 of @generator` where several programs take turns; `end` for END."""
        if step == END:
            return "end"
        known = self._trainers.get(trainer)
        if step < 0 or known is None or known.role.turns is None:
            return step_told(step)
        return f"{step_told(step)} of @{known.role.program_of(step)}"


def _size(payload: Any) -> int:
    """Bytes of the values that a message carries."""
    if isinstance(payload, tuple) and not isinstance(payload, SelectedRows | LoDTensor):
        return sum(_size(part) for part in cast("tuple[Any, ...]", payload))
    return size_in_bytes(payload)
