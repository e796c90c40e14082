"""Machines, the links on which their messages travel, and the scheduler that decides which machine goes on.

On a link messages arrive once and in order. `Link.post` hands a message to the network. It reaches the scheduler,
which puts it into the inbox of its target, at once or when it chooses to; the target takes it in its turn with
`receive`. Where there are faults or observers, the message passes `Network.carry` before: there it can be seen,
delayed, repeated or lost. `Network.arrive` counts messages where they may come twice or not at all.

The scheduler makes one decision after the other, on a virtual clock that counts them (ticks). Nothing sleeps: when all
that is left to do is due later, the clock jumps there. When nothing is left to do and machines still wait, that is
reported, with what each of them waits for.
"""

from __future__ import annotations

import heapq
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from pstranspile.cluster.machines.message import COMPLETE, Message
from pstranspile.ir.argument_checks import expect_number
from pstranspile.ir.diagnostics import DiagnosticError, Note, at_op, error, name_list
from pstranspile.ir.model import Op
from pstranspile.runtime.run.scope import Scope

RETRY_AFTER = 16
"""Ticks after which a sender repeats a message that was lost."""

Observer: TypeAlias = Callable[[str, Message], object]
"""Called with an event (`post`, `deliver`, `lost` or `duplicate`) and the message."""

_made = cast("Any", tuple).__new__
"""Makes a Message of its fields, without the call of a Python function that `Message(...)` costs."""


class Faults(Protocol):
    """The faults that a network inflicts on messages."""

    def __call__(self, message: Message, attempt: int, now: int) -> Sequence[int] | None:
        """Ticks until each copy of the message arrives: `[0]` is a sound network, `[]` loses it, `[0, 5]` repeats it.

        A message that is lost is sent again after `RETRY_AFTER` ticks, with `attempt` one higher. None: it will never
        arrive, however often it is sent.
        """
        ...


class Link:
    """The way from one machine to another. `trainer`: the trainer that the source acts for, -1 for none."""

    __slots__ = (
        "early_messages", "expected", "from_name", "network", "place", "queue", "sequence", "source", "target",
        "to_name", "trainer",
    )  # fmt: skip

    def __init__(self, network: Network, source: Machine, target: Machine, trainer: int):
        self.network = network
        self.source = source
        self.target = target
        self.trainer = trainer
        self.from_name = source.name
        self.to_name = target.name
        self.sequence = 0
        self.expected = 1
        """The sequence number that must come next; only kept where messages can be lost."""
        self.early_messages: dict[int, Message] | None = None
        """Messages that came too early, by sequence number; None if there were none."""
        self.queue: deque[Message] | None = None
        """Messages under way, under schedulers that choose which to deliver."""
        self.place = -1
        """The link's index in the scheduler's list of choices, -1 if it is not in the list."""

    def post(self, kind: str, step: int, variable: str = "", payload: Any = None, slot: int = -1) -> None:
        """Sends a message. The payload must not change afterwards."""
        sequence = self.sequence = self.sequence + 1
        fields = (kind, self.from_name, self.to_name, self.trainer, step, sequence, variable, payload, slot)
        self.network.take(self, _made(Message, fields))

    def number_after(self, sequence: int) -> None:
        """Sets the sequence number of the next message that is posted to the one after `sequence`."""
        self.sequence = sequence

    def expect(self, sequence: int) -> None:
        """Sets the sequence number of the next message that arrives to `sequence`; messages that came too early are
        dropped.
        """
        self.expected = sequence
        self.early_messages = None


class Network:
    """All links, and the way of the messages on them."""

    def __init__(self, scheduler: Scheduler):
        self.scheduler = scheduler
        self.observers: list[Observer] = []
        self.crashed_machines: set[str] = set()
        """Crashed machines. They send nothing but `complete`, from which the others learn of their end."""
        self.take: Callable[[Link, Message], object] = scheduler.deliver
        """Receives the messages that are posted: the scheduler's `deliver`, or `carry` where there are faults or
        observers.
        """
        self.faults: Faults | None = None

    def observe(self, observer: Observer) -> None:
        """Adds a function that is called for every event of a message."""
        self.observers.append(observer)
        self.take = self.carry

    def fail(self, faults: Faults) -> None:
        """Sets the faults that messages have from now on."""
        self.faults = faults
        self.take = self.carry

    def link(self, source: Machine, target: Machine, trainer: int) -> Link:
        """The link from one machine to another, made at the first use."""
        result = source.links.get(target.name)
        if result is None:
            result = source.links[target.name] = Link(self, source, target, trainer)
        return result

    def carry(self, link: Link, message: Message, attempt: int = 0) -> None:
        """Delivers a message to its target, unless faults delay, repeat or lose it."""
        if not attempt:
            if message.source in self.crashed_machines and message.kind != COMPLETE:
                link.number_after(message.sequence - 1)
                return
            self.notify("post", message)
        if self.faults is None:
            self.scheduler.deliver(link, message)
            return
        delays = self.faults(message, attempt, self.scheduler.now)
        if not delays:
            self.notify("lost", message)
            if delays is None:
                return
            self.scheduler.later(RETRY_AFTER, lambda: self.carry(link, message, attempt + 1))
        for delay in delays:
            if delay <= 0:
                self.arrive(link, message)
            else:
                self.scheduler.later(delay, lambda: self.arrive(link, message))

    def arrive(self, link: Link, message: Message) -> bool:
        """Delivers messages once and in order of their sequence numbers; returns whether this one is new."""
        if message.sequence == link.expected and not link.early_messages:
            link.expected += 1
            self.scheduler.deliver(link, message)
            return True
        if message.sequence < link.expected or (
            link.early_messages is not None and message.sequence in link.early_messages
        ):
            self.notify("duplicate", message)
            return False
        if link.early_messages is None:
            link.early_messages = {}
        link.early_messages[message.sequence] = message
        while link.expected in link.early_messages:
            self.scheduler.deliver(link, link.early_messages.pop(link.expected))
            link.expected += 1
        return True

    def notify(self, event: str, message: Message) -> None:
        """Calls the observers with an event of a message."""
        for observer in self.observers:
            observer(event, message)


class WaitReason(NamedTuple):
    """Why a machine does not continue: the op, what it waits for, and the machines whose messages are missing."""

    machine: str
    op: Op | None
    awaited_event: str
    missing_machines: tuple[str, ...] = ()


class TurnHook:
    """Wraps or replaces the turns of a machine: see `Machine.hook`."""

    def take(self, machine: Machine, turn: Callable[[], object]) -> None:
        """Called when the machine is to have a turn; calling `turn` takes it."""
        turn()


class Machine(ABC):
    """A machine with its variables, its inbox, and its links to others."""

    def __init__(self, name: str, network: Network, scope: Scope | None = None):
        self.name = name
        self.network = network
        self.scope = Scope() if scope is None else scope
        self.inbox: deque[Message] = deque()
        self.links: dict[str, Link] = {}
        self.down = False
        """Whether the machine has crashed."""
        self.is_scheduled = False
        """Whether the machine is on the scheduler's list already."""
        self.turn: Callable[[], object] = self.run
        """The function that the scheduler calls: `run`, wrapped in the hooks."""

    def hook(self, hook: TurnHook) -> None:
        """Wraps all turns from now on in this hook; earlier hooks stay within it."""
        self.turn = partial(hook.take, self, self.turn)

    def run(self) -> None:
        """Takes every message in the inbox, and continues as far as possible without other machines."""
        inbox = self.inbox
        if self.down:
            inbox.clear()
            return
        if self.network.observers:
            while inbox:
                message = inbox.popleft()
                self.network.notify("deliver", message)
                self.receive(message)
        self.receive_all()
        self.advance()

    @abstractmethod
    def receive(self, message: Message) -> None:
        """Takes one message."""

    def receive_all(self) -> None:
        """Takes every message in the inbox."""
        inbox, receive = self.inbox, self.receive
        while inbox:
            receive(inbox.popleft())

    def advance(self) -> None:
        """Continues as far as possible, after all messages in the inbox were taken."""
        return

    def crash(self) -> None:
        """Takes the machine down: its inbox is emptied, and it neither receives nor sends any more."""
        self.down = True
        self.inbox.clear()

    def start_again(self) -> None:
        """Makes the machine run again after a crash, with an empty inbox."""
        self.down = False
        self.inbox.clear()

    @abstractmethod
    def waiting(self) -> WaitReason | None:
        """What the machine waits for, None if it is done or paused."""


class Scheduler:
    """A scheduler that gives machines their turns one after the other: each takes all messages in its inbox, in the
    order in which they were sent.
    """

    def __init__(self) -> None:
        self.now = 0
        self._timed_actions: list[tuple[int, int, Callable[[], object]]] = []
        self._action_count = 0
        self._ready_machines: deque[Machine] = deque()
        """The machines that have something to do, in order."""

    def wake(self, machine: Machine) -> None:
        """Puts a machine on the list of those that can continue without a message."""
        if not machine.is_scheduled:
            machine.is_scheduled = True
            self._ready_machines.append(machine)

    def deliver(self, link: Link, message: Message) -> None:
        """Puts a message that has arrived into the inbox of its target."""
        target = link.target
        target.inbox.append(message)
        if not target.is_scheduled:
            self.wake(target)

    def later(self, ticks: int, action: Callable[[], object]) -> None:
        """Calls `action` after this number of ticks."""
        self._action_count += 1  # orders actions that are due at the same tick
        heapq.heappush(self._timed_actions, (self.now + max(ticks, 1), self._action_count, action))

    def forget(self, link: Link) -> None:
        """Drops the messages under way on a link."""

    def run(self) -> None:
        """Runs until no machine has anything to do and nothing is due."""
        ready, due = self._ready_machines, self._timed_actions
        while ready or due:
            if due and (not ready or due[0][0] <= self.now):
                self._on_time()
                continue
            machine = ready.popleft()
            machine.is_scheduled = False
            self.now += 1
            machine.turn()

    def _on_time(self) -> None:
        time, _, action = heapq.heappop(self._timed_actions)
        self.now = max(self.now, time)
        action()


# A scheduler with random order: the same seed gives the same order of events.

Schedule: TypeAlias = "int | Scheduler | None"
"""The order of events: a seed for a random order, a scheduler, or None for machines in turn."""


def scheduler_of(schedule: Schedule) -> Scheduler:
    """The scheduler for an order of events. Raises TypeError for other values."""
    if isinstance(schedule, Scheduler):
        return schedule
    if schedule is None:
        return Scheduler()
    expect_number(schedule, "schedule", "a seed, a Scheduler or None")
    return SeededScheduler(schedule)


class SeededScheduler(Scheduler):
    """Picks any machine that can continue, or any message under way, at random: every interleaving has a seed that
    gives it.

    Messages of one link stay in order, like calls that each wait for the one before.
    """

    def __init__(self, seed: int):
        super().__init__()
        self._random = random.Random(seed)
        self._choices: list[Machine | Link] = []

    def wake(self, machine: Machine) -> None:
        """Adds a machine to those that can continue without a message."""
        if not machine.is_scheduled:
            machine.is_scheduled = True
            self._choices.append(machine)

    def deliver(self, link: Link, message: Message) -> None:
        """Keeps a message on its link until it is picked."""
        if link.queue is None:
            link.queue = deque()
        link.queue.append(message)
        if link.place < 0:
            link.place = 0
            self._choices.append(link)

    def forget(self, link: Link) -> None:
        """Drops the messages under way on a link."""
        if link.queue:
            link.queue.clear()
            link.place = -1
            self._choices.remove(link)

    def run(self) -> None:
        """Runs until no machine has anything to do and nothing is due."""
        choices, due, draw = self._choices, self._timed_actions, self._random.random
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
                machine.is_scheduled = False
                choices[at] = choices[-1]
                choices.pop()
            machine.turn()


def messages_sent(machines: Iterable[Machine]) -> int:
    """The number of messages that these machines have sent."""
    return sum(link.sequence for machine in machines for link in machine.links.values())


def stuck(waiting: Sequence[WaitReason], now: int, causes: Sequence[str] = ()) -> DiagnosticError:
    """The error for machines that all wait, which names the op of each, what it waits for, and the missing machines.

    `causes` are sentences about faults that have happened.
    """
    notes = [Note(cause) for cause in causes]
    notes += [Note(sentence(w), w.op.origin.location if w.op and w.op.origin else None) for w in waiting]
    message = f"no machine can go on (at tick {now}): {len(waiting)} wait, and nothing is under way"
    first = next((w.op for w in waiting if w.op is not None), None)
    if first is None:
        return DiagnosticError([error("cluster-stuck", message, notes=notes)])
    return DiagnosticError([at_op("cluster-stuck", message, first, notes=notes)])


def sentence(waiting: WaitReason) -> str:
    """A sentence for a waiting machine: its op, what it waits for, and the machines whose messages are missing."""
    place = f" at {waiting.op.type}" if waiting.op else ""
    text = f"{waiting.machine} waits{place} for {waiting.awaited_event}"
    if waiting.missing_machines:
        text += f"; not come: {name_list(waiting.missing_machines)}"
    return text
