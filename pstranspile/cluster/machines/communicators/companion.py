"""Communicators that are machines of their own in the processes of their trainers."""

from __future__ import annotations

from typing import NamedTuple

from pstranspile.cluster.machines.message import Message
from pstranspile.cluster.machines.network import Link, Machine, Waiting
from pstranspile.cluster.machines.trainer import Communicator, Trainer
from pstranspile.cluster.machines.waits import Replies
from pstranspile.ir.model import Op


class Settings(NamedTuple):
    """How communicators work. The first three are flags of Fluid's, with the defaults of one training thread.

    `max_merge_var_num` gradients of one variable at most are sent as one; a trainer waits when `send_queue_size` are in
    a queue; `merge_add` adds them up, otherwise they are averaged (an op with `merge_add` is added up in any case).
    `push_every`: geo-SGD exchanges what was learnt every so many steps (`geo_sgd_need_push_nums`).
    """

    max_merge_var_num: int = 1
    send_queue_size: int = 1
    merge_add: bool = True
    push_every: int = 100


class Companion(Machine, Communicator):
    """A communicator that sends and fetches while its trainer runs, in rounds, and writes into the trainer's scope."""

    def __init__(self, trainer: Trainer):
        super().__init__(f"{trainer.name}/communicator", trainer.network, trainer.scope)
        self.index = trainer.index
        self.trainer = trainer
        self.op: Op | None = None
        """An op that left it to the communicator to send, for reports."""
        self.replies: Replies | None = None
        """What the round under way waits for."""
        self.leaving = False
        """Whether the trainer waits to leave."""

    def link(self, server: Machine) -> Link:
        """The communicator's own link to a server."""
        return self.network.link(self, server, self.index)

    def receive(self, message: Message) -> None:
        """An answer fills its slot."""
        if self.replies is not None:
            self.replies.take((message,))

    @property
    def awaited(self) -> Replies | None:
        """The answers that the round under way waits for."""
        return self.replies

    @property
    def between_rounds(self) -> bool:
        """Whether nothing is waited for; what has come in the last round is taken over then."""
        replies = self.replies
        if replies is None:
            return True
        if replies.missing:
            return False
        self.replies = None
        replies.join(replies.values)
        return True

    def restart(self) -> None:
        """Begins anew, with nothing to send."""
        self.down = self.leaving = False
        self.replies = None

    def let_go(self) -> None:
        """Lets the trainer leave: COMPLETE goes out on the links that carried the last messages."""
        self.trainer.servers = [self.link(link.target) for link in self.trainer.servers]

    def waiting(self) -> Waiting | None:
        """What the communicator waits for."""
        if self.replies is None or not self.replies.missing:
            return None
        return Waiting(self.name, self.op, "answers of servers", self.replies.silent())
