"""Counting what servers that wait for nobody did with the gradients they were sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from pstranspile.cluster.machines.message import GET, GET_NOW, SEND, Message
from pstranspile.compiler.plan.plan import Plan
from pstranspile.proof.report import Applied


class Ledger:
    """An observer of a network: which gradients were sent and taken, and how old the parameters behind them were.

    `plans` are those of the programs that train: each names its own gradients.
    """

    def __init__(self, plans: Iterable[Plan] = ()):
        self.parameter_of = {
            plan.sent_name(s, trainer): s.name
            for plan in plans
            for parameter in plan.parameters
            for s in parameter.slices
            for trainer in range(plan.trainers)
        }
        self.sent: dict[tuple[str, str, int], Message] = {}
        """What was sent, by source, target and number."""
        self.taken: Counter[tuple[str, str, int]] = Counter()
        self.updates: Counter[str] = Counter()
        self.seen: dict[tuple[int, str], int] = {}
        self.staleness: list[int] = []

    def __call__(self, event: str, message: Message) -> None:
        """Told of every message that is posted and delivered."""
        key = message.source, message.target, message.sequence
        if message.kind == SEND and event == "post":
            self.sent[key] = message
        elif message.kind == SEND and event == "deliver":
            self.taken[key] += 1
            name = self.parameter_of.get(message.variable)
            if name is not None:
                self.staleness.append(self.updates[name] - self.seen.get((message.trainer, name), 0))
                self.updates[name] += 1
        elif event == "deliver" and message.kind in (GET, GET_NOW):
            self.seen[message.trainer, message.variable] = self.updates[message.variable]

    def result(self) -> Applied:
        """The outcome of the gradients of the plans: those that were applied exactly once count as applied."""
        sent = [key for key, message in self.sent.items() if message.variable in self.parameter_of]
        ages = self.staleness
        once = sum(self.taken[key] == 1 for key in sent)
        return Applied(len(sent), once, max(ages, default=0), sum(ages) / len(ages) if ages else 0.0)

    def problems(self, *, restarts: bool) -> Iterator[str]:
        """What was lost or doubled. With `restarts` servers go back, and take again what came after; each time counts
        on a state without it.
        """
        for key, message in self.sent.items():
            count = self.taken[key]
            if not count:
                yield f"{message} was lost"
            elif count > 1 and not restarts:
                yield f"{message} was applied {count} times"
