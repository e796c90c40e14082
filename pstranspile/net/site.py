"""One process's part of a cluster: its own machines, and stand-ins for all others whose inboxes go out as frames.

The machines are those of the simulation, and so is the scheduler that runs them. A machine of another process is there
as well, but when its turn comes, what others have posted to it is sent in one frame. A frame that comes in puts its
messages into the inboxes of the process's own machines. So everything that a machine posts before it has to wait goes
out at once: one round trip per step and pair of processes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from pstranspile.net.frames import (
    ALIVE,
    ASK,
    BYE,
    HELLO,
    MESSAGES,
    REFUSED,
    TELL,
    WELCOME,
    Header,
    frame,
    json_body,
    messages_body,
    read_header,
    read_json,
    read_messages,
)
from pstranspile.net.peer import Connection, Peer
from pstranspile.net.transport import CLOSED, FRAME, OPENED, Event, Events
from pstranspile.net.values import WireError
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.faults import process_of
from pstranspile.run.cluster.message import COMPLETE, REPLY, Message
from pstranspile.run.cluster.network import Machine, Waiting

TICK, IDLE = 0.5, 2.0
"""Seconds between looks at the clock, and after which a process says what it waits for."""


class Terms(NamedTuple):
    """What the processes of a job agree on, and how patient they are (in seconds).

    `job` is the hash of all programs. Whoever was not heard for `lease` is given up; signs of life are sent every
    `lease / 10`, but at least every second.
    """

    job: str
    token: str = ""
    lease: float = 30.0


class Refused(Exception):
    """Another process does not let this one take part; the message says why."""


class Objection(WireError):
    """Why a process is not let in, now and later."""


class Site:
    """The machines of a cluster that run in this process, as `role`.

    `answer` is told of questions that another process asks, and gives the answer.
    """

    def __init__(
        self,
        cluster: Cluster,
        role: str,
        terms: Terms,
        *,
        events: Events | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.cluster = cluster
        self.role = role
        self.terms = terms
        self.events: Events = SimpleQueue() if events is None else events
        self.incarnation = secrets.token_hex(8)
        self.answer: Callable[[Peer, Mapping[str, Any]], Mapping[str, Any]] = lambda peer, question: {}
        self.on_turn: Callable[[], object] | None = None
        """Called whenever the machines have gone as far as they can."""
        self.on_welcome: Callable[[Peer, Mapping[str, Any]], object] | None = None
        self.refused = 0
        """Connections that were ended since something was wrong with what came on them."""
        self.dial: Callable[[str], Connection] | None = None
        """Opens a connection to another role."""
        self.on_idle: Callable[[], object] | None = None
        """Called when nothing has come for `IDLE` seconds."""
        self.patience = 0.0
        """Seconds after which a server that can't be reached is given up by this trainer; 0: never."""
        self.on_event: Callable[[Event], object] | None = None
        """Told of events that are not about connections."""
        self.bytes_since_kept = 0
        """Bytes of frames of messages that have come since this was set to 0."""
        self._clock = clock
        self._idle = 0.0
        self._machines = sorted(cluster.machines)
        self._numbers = {name: number for number, name in enumerate(self._machines)}
        indices = {trainer.name: trainer.index for trainer in cluster.trainers}
        by_role: dict[str, set[str]] = {}
        for name in self._machines:
            by_role.setdefault(self.role_of(name), set()).add(name)
        self.own = frozenset(by_role.pop(role))
        self.peers = {name: Peer(name, frozenset(names), indices.get(name, -1)) for name, names in by_role.items()}
        self._by_connection: dict[Connection, Peer] = {}
        self._waiting_for: dict[str, Connection] = {}
        """Connections that this process has begun, by role, until they are welcomed."""
        self._redial: dict[str, float] = {}
        """When to go to a role again."""
        self.answers: dict[str, Mapping[str, Any]] = {}
        """The last answer of each role to a question."""
        self._take_the_place_of_others()

    def role_of(self, machine: str) -> str:
        """The process that a machine runs in: a ring is in that of the first trainer."""
        return self.cluster.trainers[0].name if machine in self.cluster.rings else process_of(machine)

    def _take_the_place_of_others(self) -> None:
        for peer in self.peers.values():
            for name in peer.machines:
                machine: Any = self.cluster.machines[name]
                machine.run = self._sender(machine, peer)

    def _sender(self, machine: Machine, peer: Peer) -> Callable[[], None]:
        def send() -> None:
            messages = list(machine.inbox)
            machine.inbox.clear()
            if messages and not peer.left:
                peer.post(messages_body(messages, self._numbers), self._clock())

        return send

    # the loop

    def run(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Goes on with the machines and with what comes from others until `done`; False if that takes too long."""
        end = None if timeout is None else self._clock() + timeout
        while True:
            self.run_machines()
            if self.on_turn is not None:
                self.on_turn()
            if done():
                return True
            if end is not None and self._clock() >= end:
                return False
            try:
                self._handle(self.events.get(timeout=TICK))
                while not self.events.empty():
                    self._handle(self.events.get())
            except Empty:
                self._nothing_came()
            self._look_at_the_clock()

    def _nothing_came(self) -> None:
        self._idle += TICK
        if self._idle >= IDLE:
            self._idle = 0.0
            if self.on_idle is not None:
                self.on_idle()

    def waiting(self) -> list[Waiting]:
        """What the machines of this process wait for."""
        machines = [self.cluster.machines[name] for name in sorted(self.own)]
        return [found for machine in machines if (found := machine.waiting()) is not None]

    def now(self) -> float:
        """The time, in seconds from some moment."""
        return self._clock()

    def run_machines(self) -> None:
        """Goes on with the machines as far as possible without others."""
        with np.errstate(all="ignore"):
            self.cluster.scheduler.run()

    def _handle(self, event: Event) -> None:
        connection = event.connection
        if event.what == FRAME and connection is not None:
            self._idle = 0.0
            try:
                self._take(connection, event.data)
            except WireError as problem:
                self._drop(connection, problem)
        elif event.what == CLOSED and connection is not None:
            self._forget(connection)
        elif event.what != OPENED and self.on_event is not None:
            self.on_event(event)

    def _drop(self, connection: Connection, problem: WireError) -> None:
        """Ends a connection on which something wrong has come, and says why, and whether to come again."""
        self.refused += 1
        fields = {"reason": str(problem), "again": not isinstance(problem, Objection)}
        connection.send(frame(Header(REFUSED, 0, 0, 0), json_body(fields)))
        connection.close()
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        peer = self._by_connection.pop(connection, None)
        if peer is not None and peer.connection is connection:
            peer.connection = None
            if peer.role in self._redial:
                self._redial[peer.role] = self._clock() + 0.2
        for role, begun in list(self._waiting_for.items()):
            if begun is connection:
                del self._waiting_for[role]
                self._redial[role] = self._clock() + 0.2

    def _look_at_the_clock(self) -> None:
        now = self._clock()
        for peer in self.peers.values():
            if peer.connection is not None:
                if now - peer.heard > self.terms.lease:
                    connection = peer.connection
                    connection.close()
                    self._forget(connection)
                elif now - peer.told > min(self.terms.lease / 10, 1.0):
                    peer.sign_of_life(now)
            elif self.patience and peer.incarnation and not peer.left and now - peer.heard > self.patience:
                raise Refused(f"{peer.role} was not heard for {self.patience:g} seconds")
            if not peer.left and peer.incarnation and peer.index >= 0 and now - peer.heard > self.terms.lease:
                self.give_up(peer)
        for role, due in self._redial.items():
            peer = self.peers[role]
            if now >= due and peer.connection is None and role not in self._waiting_for:
                self.go_to(role)

    # greeting

    def go_to(self, role: str) -> None:
        """Begins a connection to another role, and goes there again whenever it breaks."""
        assert self.dial is not None
        peer = self.peers[role]
        connection = self.dial(role)
        self._waiting_for[role] = connection
        self._redial[role] = self._clock() + 2 * self.terms.lease
        fields = {
            "job": self.terms.job,
            "token": self.terms.token,
            "incarnation": self.incarnation,
            "role": self.role,
            "received": peer.received,
            "knows": peer.incarnation,
        }
        connection.send(frame(Header(HELLO, 0, 0, 0), json_body(fields)))

    def _take(self, connection: Connection, data: bytes) -> None:
        header = read_header(data)
        peer = self._by_connection.get(connection)
        if peer is None:
            if header.kind == HELLO:
                self._greeted(connection, read_json(data))
            elif header.kind in (WELCOME, REFUSED):
                self._answered(connection, header.kind, read_json(data))
            else:
                raise WireError("a connection begins with a greeting")
            return
        peer.heard = self._clock()
        peer.confirmed(header.durable)
        if header.kind == MESSAGES:
            self._take_messages(peer, header, data)
        elif header.kind == ASK:
            told = self.answer(peer, read_json(data))
            connection.send(frame(Header(TELL, 0, peer.received, peer.durable), json_body(told)))
        elif header.kind == TELL:
            self.answers[peer.role] = read_json(data)
        elif header.kind == BYE:
            self._ended(peer, read_json(data))
        elif header.kind == REFUSED:
            connection.close()
            self._forget(connection)
        elif header.kind != ALIVE:
            raise WireError("there was a greeting already")

    def _greeted(self, connection: Connection, fields: Mapping[str, Any]) -> None:
        """Another process has come: it is let in, or told why not."""
        reason = self._objection(fields)
        if reason:
            raise Objection(reason)
        peer = self.peers[fields["role"]]
        incarnation = str(fields["incarnation"])
        known = peer.incarnation == incarnation
        if not known:
            if peer.incarnation:
                if peer.connection is not None and self._clock() - peer.heard < 3.0:
                    raise WireError(f"{peer.role} is here already, at {peer.connection.address}")
                if not peer.left:
                    self.give_up(peer)
                peer.begin_anew(incarnation)
                self._reset_links(peer)
            peer.incarnation = incarnation
        elif peer.left and not fields.get("leaving"):
            raise Objection(f"{peer.role} was given up: it was not heard for {self.terms.lease:g} seconds")
        if peer.connection is not None:
            peer.connection.close()
            self._by_connection.pop(peer.connection, None)
        received = _number(fields, "received") if fields.get("knows") == self.incarnation else 0
        welcome = {
            "job": self.terms.job,
            "incarnation": self.incarnation,
            "role": self.role,
            "received": peer.received,
            "life": peer.life,
        }
        connection.send(frame(Header(WELCOME, 0, peer.received, peer.durable), json_body(welcome)))
        self._by_connection[connection] = peer
        peer.connect(connection, received, self._clock())

    def _objection(self, fields: Mapping[str, Any]) -> str:
        if not secrets.compare_digest(str(fields.get("token", "")), self.terms.token):
            return "the token is another"
        if fields.get("job") != self.terms.job:
            return f"{self.role} takes part in another job: {self.terms.job[:12]}, not {str(fields.get('job'))[:12]}"
        if fields.get("role") not in self.peers or not fields.get("incarnation"):
            return f"the job has no {fields.get('role')} beside {self.role}"
        return ""

    def _answered(self, connection: Connection, kind: int, fields: Mapping[str, Any]) -> None:
        """A process that this one went to has answered the greeting."""
        role = next((role for role, begun in self._waiting_for.items() if begun is connection), None)
        if role is None:
            raise WireError("nobody was greeted on this connection")
        if kind == REFUSED:
            connection.close()
            self._forget(connection)
            if fields.get("again"):  # such as one that has just ended, and has not been missed yet
                return
            raise Refused(f"{role} at {connection.address} refuses {self.role}: {fields.get('reason')}")
        del self._waiting_for[role]
        peer = self.peers[role]
        incarnation = str(fields.get("incarnation", ""))
        if peer.incarnation and incarnation != peer.incarnation:
            peer.received = peer.durable = 0
        peer.incarnation = incarnation
        self._by_connection[connection] = peer
        peer.connect(connection, _number(fields, "received"), self._clock())
        if self.on_welcome is not None:
            self.on_welcome(peer, fields)

    # messages

    def _take_messages(self, peer: Peer, header: Header, data: bytes) -> None:
        if header.number <= peer.received:
            return
        if header.number != peer.received + 1:
            raise WireError(f"frame {header.number} has come where {peer.received + 1} is due")
        messages = read_messages(data, self._machines)
        for message in messages:
            self._require_allowed(peer, message)
        peer.received = header.number
        self.bytes_since_kept += len(data)
        for message in messages:
            self._deliver(peer, message)

    def _require_allowed(self, peer: Peer, message: Message) -> None:
        """Raises WireError for a message that its sender may not send, or that is for no machine of this process."""
        if message.source not in peer.machines or message.target not in self.own:
            raise WireError(f"{peer.role} may not send messages from {message.source} to {message.target}")
        if message.kind != REPLY and peer.index >= 0 and message.trainer != peer.index:
            raise WireError(f"{peer.role} may not send messages of trainer {message.trainer}")

    def _deliver(self, peer: Peer, message: Message) -> None:
        """Hands a message to its machine, once."""
        cluster = self.cluster
        target = cluster.machines[message.target]
        link = cluster.network.link(cluster.machines[message.source], target, message.trainer)
        if message.sequence < link.expected:
            return
        if message.sequence != link.expected:
            raise WireError(f"message {message.sequence} has come where {link.expected} is due: {message}")
        link.expected += 1
        if message.kind == COMPLETE:
            peer.left = True
        elif message.step > peer.last_step:
            peer.last_step = message.step
        cluster.scheduler.deliver(link, message)

    def _reset_links(self, peer: Peer) -> None:
        """A process has taken another one's place: messages on links to and from its machines are counted anew."""
        machines = self.cluster.machines
        for name in peer.machines:
            for mine in self.own:
                for source, target in ((name, mine), (mine, name)):
                    link = machines[source].links.get(target)
                    if link is not None:
                        link.sequence, link.expected = 0, 1

    def give_up(self, peer: Peer) -> None:
        """A trainer takes no part any more; the machines here are told so as by the trainer itself."""
        if peer.left or peer.index < 0:
            return
        cluster = self.cluster
        source = cluster.machines.get(f"{peer.role}/communicator", cluster.machines[peer.role])
        for name in sorted(self.own):
            machine = cluster.machines[name]
            if machine in cluster.servers or name in cluster.rings:
                link = cluster.network.link(source, machine, peer.index)
                step = max(peer.last_step, 0)
                message = Message(COMPLETE, source.name, name, peer.index, step, link.expected, "", None, -1)
                link.expected += 1
                cluster.scheduler.deliver(link, message)
        peer.left = True
        peer.unconfirmed.clear()

    def _ended(self, peer: Peer, fields: Mapping[str, Any]) -> None:
        """A process says that it ends, with an error perhaps."""
        if fields.get("error"):
            peer.incarnation = peer.incarnation or "ended"
            self.give_up(peer)
            if peer.index < 0:
                raise Refused(f"{peer.role} has ended: {fields['error']}")

    def ask(self, role: str, question: Mapping[str, Any], timeout: float) -> Mapping[str, Any]:
        """Asks another process, and waits for the answer. Raises Refused if none comes."""
        peer = self.peers[role]
        self.answers.pop(role, None)
        if peer.connection is not None:
            peer.connection.send(frame(Header(ASK, 0, peer.received, peer.durable), json_body(question)))
        if not self.run(lambda: role in self.answers, timeout):
            raise Refused(f"{role} does not answer")
        return self.answers.pop(role)

    def say_goodbye(self, problem: str = "") -> None:
        """Tells all others that this process ends."""
        for peer in self.peers.values():
            if peer.connection is not None:
                peer.connection.send(frame(Header(BYE, 0, peer.received, peer.durable), json_body({"error": problem})))
                peer.connection.close()

    @property
    def confirmed(self) -> bool:
        """Whether nothing that was sent could be lost any more."""
        return not any(peer.unconfirmed for peer in self.peers.values() if not peer.left)


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise WireError(f"{name} is no number")
    return value
