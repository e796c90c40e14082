"""A scheduler that draws: the same seed gives the same order of events."""

from __future__ import annotations

import random
from collections import deque
from typing import TypeAlias

from pstranspile.cluster.machines.message import Message
from pstranspile.cluster.machines.network import Link, Machine, Scheduler

Schedule: TypeAlias = "int | Scheduler | None"
"""The order of events: the one that a seed gives, or a scheduler; None: machines in turn."""


def scheduler_of(schedule: Schedule) -> Scheduler:
    """What decides in which order things happen."""
    if isinstance(schedule, Scheduler):
        return schedule
    return Scheduler() if schedule is None else SeededScheduler(schedule)


class SeededScheduler(Scheduler):
    """Any machine that can go on, or any message under way, at random: every interleaving has a seed that gives it.

    Messages of one link stay in order, as calls do that each wait for the one before.
    """

    plain = False

    def __init__(self, seed: int):
        super().__init__()
        self._random = random.Random(seed)
        self._choices: list[Machine | Link] = []

    def wake(self, machine: Machine) -> None:
        """The machine can go on without a message."""
        if not machine.listed:
            machine.listed = True
            self._choices.append(machine)

    def deliver(self, link: Link, message: Message) -> None:
        """The message waits on its link until it is chosen."""
        if link.queue is None:
            link.queue = deque()
        link.queue.append(message)
        if link.place < 0:
            link.place = 0
            self._choices.append(link)

    def forget(self, link: Link) -> None:
        """What is under way on a link is lost."""
        if link.queue:
            link.queue.clear()
            link.place = -1
            self._choices.remove(link)

    def run(self) -> None:
        """Goes on until no machine has anything to do and nothing is due."""
        choices, due, draw = self._choices, self._due, self._random.random
        while choices or due:
            if due and (not choices or due[0][0] <= self.now):
                self._on_time()
                continue
            at = int(draw() * len(choices))
            chosen = choices[at]
            self.now += 1
            if isinstance(chosen, Link):
                assert chosen.queue is not None
                machine = chosen.target
                machine.inbox.append(chosen.queue.popleft())
                if not chosen.queue:
                    chosen.place = -1
                    choices[at] = choices[-1]
                    choices.pop()
            else:
                machine = chosen
                machine.listed = False
                choices[at] = choices[-1]
                choices.pop()
            machine.turn()
