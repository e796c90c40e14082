"""The messages to a synchronous server since its last update."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.cluster.machines.cutting import merged
from pstranspile.cluster.machines.message import Message
from pstranspile.runtime.kernels.context import Value


class Round(NamedTuple):
    """The step under way, as a synchronous server sees it."""

    received: dict[str, Value]
    """Gradients by name. If several trainers sent one, that of one trainer."""
    senders: dict[str, int]
    """The trainers of these gradients."""
    shared: dict[str, dict[int, Value]]
    """The values that several trainers sent under one name, by trainer."""
    reported: dict[int, tuple[str | None, int]]
    """The trainers whose send barrier has come, with the program that they ran (None: there is only one) and the step.
    Their later messages wait for the update.
    """
    fetched: set[int]
    """The trainers whose fetch barrier has come."""
    waiting: list[Message]
    """Messages that can't be taken yet."""

    def take(self, message: Message) -> None:
        """Keeps a gradient."""
        name, trainer = message.variable, message.trainer
        if name not in self.received or self.senders[name] == trainer:
            self.senders[name] = trainer
            self.received[name] = message.payload
        else:
            parts = self.shared.setdefault(name, {self.senders[name]: self.received[name]})
            parts[trainer] = message.payload

    def forget(self, trainer: int) -> None:
        """Drops the gradients and barriers of a trainer in the step under way."""
        self.reported.pop(trainer, None)
        self.fetched.discard(trainer)
        for name in [name for name, sender in self.senders.items() if sender == trainer and name in self.received]:
            del self.received[name]
        for name, parts in list(self.shared.items()):
            parts.pop(trainer, None)
            if not parts:
                del self.shared[name]
            elif name not in self.received:
                self.senders[name], self.received[name] = next(iter(parts.items()))

    def of(self, trainer: int) -> set[str]:
        """What a trainer has sent."""
        alone = {name for name, sender in self.senders.items() if sender == trainer and name in self.received}
        return alone | {name for name, parts in self.shared.items() if trainer in parts}

    def contributions(self) -> list[tuple[str, int, Value]]:
        """The contributions to an update: variable, trainer and value."""
        shared = self.shared
        single = [(name, self.senders[name], value) for name, value in self.received.items() if name not in shared]
        return single + [(name, trainer, value) for name, parts in shared.items() for trainer, value in parts.items()]

    def merged(self) -> dict[str, Value]:
        """The gradients by name. Values that several trainers sent under one name are added up."""
        for name, parts in self.shared.items():
            self.received[name] = merged([parts[trainer] for trainer in sorted(parts)], adds=True)
        self.shared.clear()
        return self.received

    def clear(self) -> None:
        """The update is made."""
        self.received.clear()
        self.senders.clear()
        self.reported.clear()


def new_round() -> Round:
    """A round without messages."""
    return Round({}, {}, {}, {}, set(), [])
