"""Who goes on next: one decision after the other, on a virtual clock, and always the same for the same seed.

The clock counts decisions (ticks). Nothing sleeps: when all that is left to do is due later, the clock jumps there.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pstranspile.run.cluster.message import Message
from pstranspile.run.cluster.network import Link

if TYPE_CHECKING:
    from pstranspile.run.cluster.machine import Machine


class Scheduler:
    """Machines in turn: each takes all messages that have come, in the order in which they were sent."""

    def __init__(self) -> None:
        self.now = 0
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._counted = 0
        self.queue: deque[Machine] = deque()

    @property
    def ready(self) -> deque[Machine] | None:
        """The machines that have something to do, in order; None if messages must pass `deliver`."""
        return self.queue

    def wake(self, machine: Machine) -> None:
        """The machine can go on without a message."""
        if not machine.listed:
            machine.listed = True
            self.queue.append(machine)

    def deliver(self, link: Link, message: Message) -> None:
        """A message has come to the end of its link."""
        target = link.target
        target.inbox.append(message)
        if not target.listed:
            target.listed = True
            self.queue.append(target)

    def later(self, ticks: int, action: Callable[[], object]) -> None:
        """Does something after so many ticks."""
        self._counted += 1  # tells apart what is due at the same tick
        heapq.heappush(self._due, (self.now + max(ticks, 1), self._counted, action))

    def forget(self, link: Link) -> None:
        """What is under way on a link is lost."""

    def run(self) -> None:
        """Goes on until no machine has anything to do and nothing is due."""
        queue, due = self.queue, self._due
        while queue or due:
            if due and (not queue or due[0][0] <= self.now):
                self._on_time()
                continue
            machine = queue.popleft()
            machine.listed = False
            self.now += 1
            machine.run()

    def _on_time(self) -> None:
        time, _, action = heapq.heappop(self._due)
        self.now = max(self.now, time)
        action()


class SeededScheduler(Scheduler):
    """Any machine that can go on, or any message under way, at random: every interleaving has a seed that gives it.

    Messages of one link stay in order, as calls do that each wait for the one before.
    """

    def __init__(self, seed: int):
        super().__init__()
        self._random = random.Random(seed)
        self._choices: list[Machine | Link] = []

    @property
    def ready(self) -> None:
        """None: every message is a choice."""
        return

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
            machine.run()
