"""Another process of the job, as this one sees it: its state, and the frames sent to it that may have to be sent
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Protocol

import numpy as np

from pstranspile.cluster.machines.message import COMPLETE, Message
from pstranspile.cluster.net.wire import ALIVE, ANSWER, ASK, MESSAGES, MOST_BODY, Header, bytes_of, check_sum, json_body


class Connection(Protocol):
    """A connection to another process, open or closed."""

    @property
    def address(self) -> str:
        """The address of the other process, for messages to the user."""
        ...

    @property
    def is_admitted(self) -> bool:
        """Whether the other side has been admitted. Before that, it may send nothing but a greeting."""
        ...

    @property
    def received_bytes(self) -> int:
        """The number of bytes that have come since the beginning, those of an unfinished frame included."""
        ...

    def let_in(self, most: int = MOST_BODY, on_long: Callable[[int], object] | None = None) -> None:
        """Admits the other side: it may now send frames with bodies of up to `most` bytes.

        `on_long` is called with the size of a larger body; nothing more is read from that sender.
        """
        ...

    @property
    def guarded(self) -> bool:
        """Whether TLS authenticates what comes and goes."""
        ...

    def send(self, header: Header, body: bytes, body_sum: Callable[[], int] | None = None) -> None:
        """Sends a frame as soon as possible; does nothing if the connection is closed.

        `body_sum` returns the check sum of a body that may be sent more than once.
        """
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


MESSAGE = 256
"""The bytes that count for a message in addition to its numbers."""


class UnconfirmedFrame:
    """A frame of messages that the other side has not made durable yet.

    It may be sent again on any number of new connections, so its check sum is computed once.
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
"""The attributes of a peer that a server saves with its own state."""


class Peer:
    """A process of the job: `role` is its name, `machines` are those that run in it, `index` is a trainer's number (-1:
    a server).

    Frames of messages are numbered in each direction, and kept until the other side could no longer lose them. After a
    connection breaks, the frames that did not arrive are sent again on the next one.
    """

    def __init__(self, role: str, machines: frozenset[str], index: int):
        self.role = role
        self.machines = machines
        self.index = index
        self.incarnation = ""
        """A random identifier of the process that plays the role now; empty if none has come yet."""
        self.life = 0
        """How many processes played the role before."""
        self.last_sent_number = 0
        """The number of the last frame sent."""
        self.received = 0
        """The number of the last frame received."""
        self.durable_number = 0
        """The last of the received frames that would survive the end of this process."""
        self.unconfirmed: deque[UnconfirmedFrame] = deque()
        self.unconfirmed_bytes = 0
        """The bytes of the frames that the other side has not confirmed."""
        self.uncounted_bytes = 0
        """The bytes of the messages received from it since the waiting ones were last counted."""
        self.talk = 0.0
        """The bytes of JSON that it has sent, less an allowance for the time since."""
        self.talked_at = 0.0
        """The time at which it last sent JSON."""
        self.connection: Connection | None = None
        self.heard_at = 0.0
        """The time at which it was last heard, by the process's clock."""
        self._bytes_when_heard = 0
        """The bytes that the connection had brought when the process was last heard by them."""
        self.last_sent = 0.0
        """The time at which a frame was last sent to it."""
        self.left = False
        """Whether it takes no part any more, because it has ended or was given up."""
        self.given_up = False
        """Whether it was given up, and may not come again."""
        self.refusal = ""
        """The reason why one of its messages was refused, for which it was given up."""
        self.announced = False
        """Whether this process, which is not the first in its role, has been admitted at a step."""
        self.receive_messages: Callable[[list[Message]], object] | None = None
        """The function that takes messages for the process, if it speaks another protocol."""
        self.former: set[str] = set()
        """The incarnations of processes that played the role before."""
        self.last_step = -1
        """The last step in the messages received from it."""

    # the process in the role

    def is_played_by(self, incarnation: str) -> None:
        """Sets the incarnation of the process that plays the role now."""
        self.incarnation = incarnation

    def knows_nothing(self) -> None:
        """Resets the counts of received frames, as the process in the role is another one, which numbers its frames
        anew. Frames sent to the former process count as known to it.
        """
        self.received = self.durable_number = 0

    def leave(self) -> None:
        """Marks the process as taking no part any more."""
        self.left = True

    def give_up(self) -> None:
        """Marks the process as taking no part any more, and never again."""
        self.left = self.given_up = True
        self.forget_sent()

    def refuse(self, reason: str) -> None:
        """Records the reason for which the process is given up."""
        self.refusal = reason

    def come_back(self) -> None:
        """Marks the process, which is not the first in the role, as admitted at a step."""
        self.left, self.announced = False, True

    def hand_to(self, takes: Callable[[list[Message]], object]) -> None:
        """Makes messages for the process, which speaks another protocol, go to `receive_messages`."""
        self.receive_messages = takes

    # receiving

    def hear(self, now: float) -> None:
        """Records the time at which the process was heard, or from which it could have been heard."""
        self.heard_at = now

    def hear_progress(self, now: float) -> None:
        """Records that the process was heard, if bytes of a frame have come since the last such time.

        A large frame may be longer on its way than a lease lasts, and signs of life wait behind it.
        """
        if self.connection is not None and self.connection.received_bytes != self._bytes_when_heard:
            self._bytes_when_heard = self.connection.received_bytes
            self.heard_at = now

    def take_frame(self, number: int, *, durable: bool) -> None:
        """Records the receipt of the frame with this number; `durable`: it would survive the end of this process."""
        self.received = number
        if durable:
            self.durable_number = number

    def make_durable(self, number: int) -> None:
        """Records that the frames up to this number would survive the end of this process."""
        self.durable_number = number

    def take(self, message: Message, *, sums_on: bool) -> None:
        """Records a message of the process. After a message of leaving it counts as left, unless it still sums for
        others (`sums_on`).
        """
        self.uncounted_bytes += bytes_of(message.payload) + MESSAGE
        if message.kind == COMPLETE:
            self.left = not sums_on
        elif message.step > self.last_step:
            self.last_step = message.step

    def waits_with(self, size: int) -> None:
        """Sets the number of bytes of its messages that wait to be taken."""
        self.uncounted_bytes = size

    def talks(self, size: int, now: float, most_a_second: float) -> float:
        """Counts bytes of JSON; returns the total less the allowance for the time passed."""
        self.talk = max(self.talk - (now - self.talked_at) * most_a_second, 0.0) + size
        self.talked_at = now
        return self.talk

    # sending

    def post(self, body: bytes, now: float) -> None:
        """Sends a body of messages, which is kept until it is durable on the other side."""
        self.last_sent_number += 1
        item = UnconfirmedFrame(self.last_sent_number, body)
        self.unconfirmed.append(item)
        self.unconfirmed_bytes += len(body)
        self._send_messages(item, now)

    def sign_of_life(self, now: float) -> None:
        """Sends a sign of life, with the number of the last received frame. Any thread may call it."""
        self._send(ALIVE, 0, b"", now)

    def ask(self, question: Mapping[str, Any]) -> None:
        """Sends a question."""
        self._send(ASK, 0, json_body(question), self.last_sent)

    def send_answer(self, fields: Mapping[str, Any]) -> None:
        """Sends the answer to an earlier question, or news."""
        self._send(ANSWER, 0, json_body(fields), self.last_sent)

    def _send(self, kind: int, number: int, body: bytes, now: float) -> None:
        connection = self.connection
        if connection is not None:
            self.last_sent = now
            connection.send(Header(kind, number, self.received, self.durable_number), body)

    def _send_messages(self, item: UnconfirmedFrame, now: float) -> None:
        if self.connection is not None:
            self.last_sent = now
            header = Header(MESSAGES, item.number, self.received, self.durable_number)
            self.connection.send(header, item.body, item.body_sum)

    @property
    def confirmed_up_to(self) -> int:
        """The last sent frame that the other side can't lose any more."""
        return self.last_sent_number - len(self.unconfirmed)

    def drop_confirmed(self, durable: int) -> None:
        """Drops the sent frames up to this number, which the other side can't lose any more."""
        while self.unconfirmed and self.unconfirmed[0].number <= durable:
            self.unconfirmed_bytes -= len(self.unconfirmed.popleft().body)

    def forget_sent(self) -> None:
        """Drops the unconfirmed frames, so that they are not sent again."""
        self.unconfirmed.clear()
        self.unconfirmed_bytes = 0

    def connect(self, connection: Connection, received: int, now: float) -> None:
        """Sets an open connection, and sends the frames again that the other side has not received."""
        self.connection = connection
        self._bytes_when_heard = connection.received_bytes
        self.heard_at = now
        for item in self.unconfirmed:
            if item.number > received:
                self._send_messages(item, now)

    def disconnect(self) -> None:
        """Records that the connection is over."""
        self.connection = None

    def begin_anew(self, incarnation: str) -> None:
        """Resets the state for a new process in the role, which has none of the earlier frames."""
        self.former.add(self.incarnation)
        self.incarnation = incarnation
        self.life += 1
        self.last_sent_number = self.received = self.durable_number = 0
        self.forget_sent()
        self.left = self.given_up = self.announced = False
        self.refusal = ""

    # saved state

    def state(self) -> dict[str, Any]:
        """The state of the peer that another process needs to continue."""
        frames = [np.frombuffer(item.body, "uint8") for item in self.unconfirmed]
        return {**{name: copy(getattr(self, name)) for name in _KEPT}, "frames": frames}

    def restore(self, state: Mapping[str, Any], now: float) -> None:
        """Restores the result of `state`. Frames that may have to be sent again are numbered from 1.

        Raises LookupError, TypeError, ValueError or AttributeError if it is damaged.
        """
        for name in _KEPT:
            setattr(self, name, state[name])
        self.hear(now)
        self.make_durable(self.received)
        bodies = [*(item.body for item in self.unconfirmed), *(data.tobytes() for data in state["frames"])]
        self.unconfirmed = deque(UnconfirmedFrame(number, body) for number, body in enumerate(bodies, 1))
        self.last_sent_number, self.unconfirmed_bytes = len(bodies), sum(map(len, bodies))
