"""What a trainer waits for in the middle of a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from pstranspile.cluster.machines.message import Message
from pstranspile.cluster.machines.network import Link, Machine
from pstranspile.runtime.kernels.context import Value

Join: TypeAlias = "Callable[[list[Value]], Sequence[Value]]"
"""Makes the values that an op receives of the replies."""


class Wait(ABC):
    """What a machine must wait for. `missing` counts the values that have not come."""

    __slots__ = ("missing", "values")
    missing: int
    values: list[Value]
    """What has come so far."""

    @abstractmethod
    def take(self, messages: Iterable[Message]) -> None:
        """Replies have come."""

    @abstractmethod
    def join(self, values: list[Value]) -> Sequence[Value] | None:
        """What the machine goes on with when nothing is missing, made of what has come."""

    @abstractmethod
    def silent(self) -> tuple[str, ...]:
        """The machines that have not come."""


Action: TypeAlias = "Callable[[tuple[Value, ...]], Sequence[Value] | Wait | None]"
"""Carries out an exchange: takes the values to send, and gives the values received (None: there are none), or a Wait if
other machines must answer first.
"""


class Replies(Wait):
    """Replies that a machine waits for, one in each slot.

    Replies to requests of another step are ignored. `asked` has the link of each slot's request, for reports.
    """

    __slots__ = ("_asked", "_join", "_then", "step")

    def __init__(self, step: int, count: int, join: Join | None = None, asked: Sequence[Link] = ()):
        self.missing = count
        self.step = step
        self._join = join
        self._asked = asked
        self._then: Callable[[], object] | None = None
        self.values = [None] * count

    def take(self, messages: Iterable[Message]) -> None:
        """Every reply fills its slot."""
        values, step, missing = self.values, self.step, self.missing
        for message in messages:
            if missing and message.step == step:
                values[message.slot] = message.payload
                missing -= 1
        self.missing = missing

    def awaits(self, message: Message) -> bool:
        """Whether a message is the answer for a slot that waits for one, from the machine that was asked."""
        slot, asked = message.slot, self._asked
        if not 0 <= slot < len(self.values) or self.values[slot] is not None or message.payload is None:
            return False
        return slot >= len(asked) or asked[slot].target.name == message.source

    def then(self, action: Callable[[], object]) -> Replies:
        """Sets an action to run once all replies have come; gives the replies themselves."""
        self._then = action
        return self

    def join(self, values: list[Value]) -> Sequence[Value]:
        """What the op receives."""
        received = values if self._join is None else self._join(values)
        if self._then is not None:
            self._then()
        return received

    def silent(self) -> tuple[str, ...]:
        """The machines that were asked and have not answered."""
        pairs = zip(self._asked, self.values, strict=False)
        return tuple(dict.fromkeys(link.target.name for link, value in pairs if value is None))


class Blocked(Wait):
    """A wait of a machine until it is released. Reports show `what` it waits for, and `silent`: for which machines
    (default: the machine's communicator).
    """

    __slots__ = ("_machine", "_silent", "_what")

    def __init__(self, machine: Machine, what: str, silent: Sequence[str] | None = None):
        self.missing, self.values = 1, []
        self._what = what
        self._machine = machine
        self._silent = (f"{machine.name}/communicator",) if silent is None else tuple(silent)

    def release(self) -> None:
        """The machine goes on."""
        self.missing = 0
        self._machine.network.scheduler.wake(self._machine)

    def take(self, messages: Iterable[Message]) -> None:
        """Replies to what was asked before are not waited for."""

    def join(self, values: list[Value]) -> None:
        """A machine that was released has received nothing."""

    def silent(self) -> tuple[str, ...]:
        """Who is to release the machine."""
        return self._silent

    def __str__(self) -> str:
        """What the machine waits for."""
        return self._what
