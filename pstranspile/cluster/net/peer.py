"""Another process of the job, as this one sees it: what was sent to it and may have to be sent again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Protocol

import numpy as np

from pstranspile.cluster.machines.message import COMPLETE, Message
from pstranspile.cluster.net.frames import ALIVE, ANSWER, ASK, MESSAGES, MOST_BODY, Header, check_sum, json_body
from pstranspile.cluster.net.values import bytes_of


class Connection(Protocol):
    """A way to another process that is open, or was."""

    @property
    def address(self) -> str:
        """Address of the other process, for messages to the user."""
        ...

    @property
    def known(self) -> bool:
        """Whether the other side has been let in. Before, it may say nothing but a greeting."""
        ...

    def let_in(self, most: int = MOST_BODY, on_long: Callable[[int], object] | None = None) -> None:
        """The other side may send frames from now on, with bodies of up to `most` bytes.

        `on_long` is called with the size of a larger one, whose sender has said its last.
        """
        ...

    @property
    def guarded(self) -> bool:
        """Whether TLS authenticates what comes and goes."""
        ...

    def send(self, header: Header, body: bytes, body_sum: Callable[[], int] | None = None) -> None:
        """Hands over a frame, which is sent when it can be; nothing happens if it is closed.

        `body_sum` gives the check sum of a body that may be sent more than once.
        """
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


MESSAGE = 256
"""Bytes that a message takes besides its numbers."""


class Unconfirmed:
    """A frame of messages that the other side has not made durable yet.

    Whoever connects again has all of them sent again, however often, so their check sums are computed once.
    """

    __slots__ = ("_sum", "body", "number")

    def __init__(self, number: int, body: bytes):
        self.number = number
        self.body = body
        self._sum: int | None = None

    def body_sum(self) -> int:
        """The check sum of the body."""
        if self._sum is None:
            self._sum = check_sum(self.body)
        return self._sum


_KEPT = ("incarnation", "former", "life", "left", "given_up", "refusal", "announced", "received", "last_step")
"""The attributes of a peer that a server keeps with its own state."""


class Peer:
    """A process: `role` names it, `machines` are those that run in it, `index` is a trainer's number (-1: a server).

    Frames of messages are numbered in each direction, and kept until the other side could no longer lose them. A
    connection that breaks is followed by another one on which what did not arrive is sent again.
    """

    def __init__(self, role: str, machines: frozenset[str], index: int):
        self.role = role
        self.machines = machines
        self.index = index
        self.incarnation = ""
        """Random identifier of the process that plays the role now; empty if none has come yet."""
        self.life = 0
        """How many processes played the role before."""
        self.sent = 0
        """The number of the last frame sent."""
        self.received = 0
        """The number of the last frame taken."""
        self.durable = 0
        """The last of the frames taken that this process could not lose."""
        self.unconfirmed: deque[Unconfirmed] = deque()
        self.held = 0
        """Bytes of the frames that the other side has not confirmed."""
        self.brought = 0
        """Bytes of messages that it has brought, since it was looked at how many of them wait."""
        self.talk = 0.0
        """Bytes of JSON that it has sent, less those that it may have sent in the time since."""
        self.talked_at = 0.0
        """When it sent the last of them."""
        self.connection: Connection | None = None
        self.heard = 0.0
        """When something came from it last, by the process's clock."""
        self.last_sent = 0.0
        """When something was sent to it last."""
        self.left = False
        """Whether it takes no part any more: it has ended, or was given up."""
        self.given_up = False
        """Whether it was given up, and may not come again."""
        self.refusal = ""
        """What was wrong with a message of it, for which it was given up."""
        self.announced = False
        """Whether this process, not the first in its role, has been let in at a step."""
        self.takes: Callable[[list[Message]], object] | None = None
        """What takes the messages for it, if it is no process of this protocol."""
        self.former: set[str] = set()
        """The processes that played the role before."""
        self.last_step = -1
        """The last step that a message of it was about."""

    # who plays the role

    def is_played_by(self, incarnation: str) -> None:
        """This is the process that plays the role now."""
        self.incarnation = incarnation

    def knows_nothing(self) -> None:
        """Another process plays the role, which numbers what it sends anew, and knows what was sent to the other."""
        self.received = self.durable = 0

    def leave(self) -> None:
        """It takes no part any more."""
        self.left = True

    def give_up(self) -> None:
        """It takes no part any more, and may not come again."""
        self.left = self.given_up = True
        self.forget_sent()

    def refuse(self, reason: str) -> None:
        """It is given up, or is to be, for this reason."""
        self.refusal = reason

    def come_back(self) -> None:
        """A process that is not the first in the role has been let in at a step."""
        self.left, self.announced = False, True

    def hand_to(self, takes: Callable[[list[Message]], object]) -> None:
        """It is no process of this protocol: what is posted to it goes to `takes`."""
        self.takes = takes

    # what comes from it

    def hear(self, now: float) -> None:
        """Something has come from it, or it could not be heard before."""
        self.heard = now

    def take_frame(self, number: int, *, durable: bool) -> None:
        """The frame with this number is taken; `durable`: this process could not lose it."""
        self.received = number
        if durable:
            self.durable = number

    def make_durable(self, number: int) -> None:
        """This process could not lose the frames up to this number any more."""
        self.durable = number

    def take(self, message: Message, *, sums_on: bool) -> None:
        """A message of it is taken. One that says it leaves counts, unless its process `sums_on` for others."""
        self.brought += bytes_of(message.payload) + MESSAGE
        if message.kind == COMPLETE:
            self.left = not sums_on
        elif message.step > self.last_step:
            self.last_step = message.step

    def waits_with(self, size: int) -> None:
        """Of what it has brought, messages of so many bytes wait to be taken."""
        self.brought = size

    def talks(self, size: int, now: float, most_a_second: float) -> float:
        """It sends so many bytes of JSON; gives how many that are with those before, less what it may in the time."""
        self.talk = max(self.talk - (now - self.talked_at) * most_a_second, 0.0) + size
        self.talked_at = now
        return self.talk

    # what goes to it

    def post(self, body: bytes, now: float) -> None:
        """Sends messages; they are kept until they are durable on the other side."""
        self.sent += 1
        item = Unconfirmed(self.sent, body)
        self.unconfirmed.append(item)
        self.held += len(body)
        self._send_messages(item, now)

    def sign_of_life(self, now: float) -> None:
        """Sends a sign of life and what this side has received. Any thread may do it."""
        self._send(ALIVE, 0, b"", now)

    def ask(self, question: Mapping[str, Any]) -> None:
        """Asks the other side something."""
        self._send(ASK, 0, json_body(question), self.last_sent)

    def send_answer(self, fields: Mapping[str, Any]) -> None:
        """Tells the other side something that it has asked for earlier."""
        self._send(ANSWER, 0, json_body(fields), self.last_sent)

    def _send(self, kind: int, number: int, body: bytes, now: float) -> None:
        connection = self.connection
        if connection is not None:
            self.last_sent = now
            connection.send(Header(kind, number, self.received, self.durable), body)

    def _send_messages(self, item: Unconfirmed, now: float) -> None:
        if self.connection is not None:
            self.last_sent = now
            header = Header(MESSAGES, item.number, self.received, self.durable)
            self.connection.send(header, item.body, item.body_sum)

    @property
    def confirmed_up_to(self) -> int:
        """The last frame sent that the other side can't lose any more."""
        return self.sent - len(self.unconfirmed)

    def confirmed(self, durable: int) -> None:
        """The other side can't lose frames up to this number."""
        while self.unconfirmed and self.unconfirmed[0].number <= durable:
            self.held -= len(self.unconfirmed.popleft().body)

    def forget_sent(self) -> None:
        """Discards the frames that were not confirmed, so that they are not sent again."""
        self.unconfirmed.clear()
        self.held = 0

    def connect(self, connection: Connection, received: int, now: float) -> None:
        """A connection is open. What the other side has not received is sent again."""
        self.connection = connection
        self.heard = now
        for item in self.unconfirmed:
            if item.number > received:
                self._send_messages(item, now)

    def disconnect(self) -> None:
        """The connection is over."""
        self.connection = None

    def begin_anew(self, incarnation: str) -> None:
        """Another process has taken the role, which knows nothing of earlier frames."""
        self.former.add(self.incarnation)
        self.incarnation = incarnation
        self.life += 1
        self.sent = self.received = self.durable = 0
        self.forget_sent()
        self.left = self.given_up = self.announced = False
        self.refusal = ""

    # what a server keeps of it

    def state(self) -> dict[str, Any]:
        """What must be known of it to go on in another process."""
        frames = [np.frombuffer(item.body, "uint8") for item in self.unconfirmed]
        return {**{name: copy(getattr(self, name)) for name in _KEPT}, "frames": frames}

    def restore(self, state: Mapping[str, Any], now: float) -> None:
        """Goes on from what `state` gave. This process counts anew: what may have to be sent again is numbered from 1.

        Raises LookupError, TypeError, ValueError or AttributeError if it was changed.
        """
        for name in _KEPT:
            setattr(self, name, state[name])
        self.hear(now)
        self.make_durable(self.received)
        bodies = [*(item.body for item in self.unconfirmed), *(data.tobytes() for data in state["frames"])]
        self.unconfirmed = deque(Unconfirmed(number, body) for number, body in enumerate(bodies, 1))
        self.sent, self.held = len(bodies), sum(map(len, bodies))
