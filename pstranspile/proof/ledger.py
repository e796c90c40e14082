"""Counting what asynchronous servers did with the gradients they were sent."""

from __future__ import annotations

from collections.abc import Sequence

from pstranspile.plan.plan import Plan
from pstranspile.proof.report import Applied
from pstranspile.run.cluster.message import GET, GET_NOW, SEND, Message


class Ledger:
    """An observer of a network: which gradients were sent and taken, and how old the parameters behind them were."""

    def __init__(self, plans: Sequence[Plan]):
        """`plans` are those of the programs that train: each names its own gradients."""
        self.parameter_of = {
            plan.sent_name(s, trainer): s.name
            for plan in plans
            for parameter in plan.parameters
            for s in parameter.slices
            for trainer in range(plan.trainers)
        }
        self.sent: dict[tuple[str, str, int], int] = {}
        self.taken: dict[tuple[str, str, int], int] = {}
        self.updates: dict[str, int] = {}
        self.seen: dict[tuple[int, str], int] = {}
        self.staleness: list[int] = []

    def __call__(self, event: str, message: Message) -> None:
        """Told of every message that is posted and delivered."""
        if message.kind == SEND and message.variable in self.parameter_of:
            key = (message.source, message.target, message.sequence)
            book = self.sent if event == "post" else self.taken if event == "deliver" else None
            if book is not None:
                book[key] = book.get(key, 0) + 1
            if event == "deliver":
                name = self.parameter_of[message.variable]
                count = self.updates.get(name, 0)
                self.staleness.append(count - self.seen.get((message.trainer, name), 0))
                self.updates[name] = count + 1
        elif event == "deliver" and message.kind in (GET, GET_NOW):
            self.seen[message.trainer, message.variable] = self.updates.get(message.variable, 0)

    def result(self) -> Applied:
        """What came of it: gradients applied exactly once count as applied."""
        once = sum(1 for key, count in self.taken.items() if count == 1 and key in self.sent)
        ages = self.staleness
        return Applied(len(self.sent), once, max(ages, default=0), sum(ages) / len(ages) if ages else 0.0)
