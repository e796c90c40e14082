"""What all machines of a cluster have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import NamedTuple

from pstranspile.ir.model import Op
from pstranspile.run.cluster.message import Message
from pstranspile.run.cluster.network import Link, Network
from pstranspile.run.scope import Scope


class Waiting(NamedTuple):
    """Why a machine does not go on: at which op, for what, and which machines have not come."""

    machine: str
    op: Op | None
    what: str
    missing: tuple[str, ...] = ()


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
        self.listed = False
        """Whether the scheduler has the machine on its list already."""

    def run(self) -> None:
        """Takes every message that has come, and goes on as far as possible without others."""
        inbox, network, receive = self.inbox, self.network, self.receive
        if network.direct is not None:
            while inbox:
                receive(inbox.popleft())
            return
        while inbox:
            message = inbox.popleft()
            network.delivered(message)
            receive(message)

    @abstractmethod
    def receive(self, message: Message) -> None:
        """Takes one message."""

    @abstractmethod
    def waiting(self) -> Waiting | None:
        """What the machine waits for, None if it is done or paused."""
