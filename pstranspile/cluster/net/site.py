"""One process's part of a cluster: its own machines, and stand-ins for all others whose inboxes go out as frames.

The machines are those of the simulation, and so is the scheduler that runs them. A machine of another process has a
stand-in: on its turn, all messages that others have posted to it are sent in one frame. A frame that comes in puts its
messages into the inboxes of the process's own machines. So all messages that a machine posts before it has to wait go
out at once: one round trip per step and pair of processes.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Empty
from threading import Event as Flag
from threading import Thread
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.communicator import Companion
from pstranspile.cluster.machines.injection import process_of
from pstranspile.cluster.machines.message import COMPLETE, REPLY, Message
from pstranspile.cluster.machines.network import Machine, TurnHook, WaitReason
from pstranspile.cluster.machines.rings import GONE
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.net.checks import JOINED, most_sent
from pstranspile.cluster.net.loop import CALL, CLOSED, FOREIGN, FRAME, Event, Loop
from pstranspile.cluster.net.peer import MESSAGE, Connection, Peer
from pstranspile.cluster.net.status import RateLimitedPrinter
from pstranspile.cluster.net.terms import (
    MORE_HELD,
    MOST_HELD,
    MOST_STEPS,
    Misconduct,
    Objection,
    PeerRefused,
    Terms,
    WrongToken,
    number_of,
)
from pstranspile.cluster.net.tls import plain
from pstranspile.cluster.net.wire import (
    ALIVE,
    ANSWER,
    ASK,
    BYE,
    HELLO,
    MESSAGES,
    MOST_MESSAGES,
    REFUSED,
    WELCOME,
    Bytes,
    Header,
    WireError,
    bytes_of,
    json_body,
    messages_body,
    read_header,
    read_json,
    read_messages,
)
from pstranspile.ir.diagnostics import lasting, visible

# One process's part of a cluster: its own machines, and stand-ins for all others.

Post: TypeAlias = "Callable[[Peer, list[Message]], object]"
"""Called with another process and the messages that machines of this process have posted to its machines."""


class StandIn(TurnHook):
    """Replaces the turn of a machine of the process `peer`: all messages posted to it are sent, with `post`.

    `lone` is the only machine of this process, if it has just one. It takes its turns first, as far as it can: the
    barrier that ends a trainer's step then travels with the gradients of the next one.
    """

    def __init__(self, peer: Peer, post: Post, lone: Machine | None):
        self._peer, self._post, self._lone = peer, post, lone

    def take(self, machine: Machine, turn: Callable[[], object]) -> None:
        """Sends the messages that were posted to the machine, or postpones that."""
        if self._lone is not None and self._lone.is_scheduled:
            machine.network.scheduler.wake(machine)
            return
        messages = list(machine.inbox)
        machine.inbox.clear()
        if messages:
            self._post(self._peer, messages)


class LocalMachines:
    """The machines of a cluster that run in the process `role`; messages to other machines go to `post`."""

    def __init__(self, cluster: Cluster, role: str, post: Post):
        self.cluster = cluster
        self.machines = sorted(cluster.machines)
        """The names of all machines; their places are their numbers on the wire."""
        self.numbers = {name: number for number, name in enumerate(self.machines)}
        indices = {trainer.name: trainer.index for trainer in cluster.trainers}
        by_role: dict[str, set[str]] = {}
        for name in self.machines:
            by_role.setdefault(process_of(name), set()).add(name)
        self.local_names = frozenset(by_role.pop(role))
        self._steps: dict[tuple[str, str], int] = {}
        """The step of the last message on each link to a server of this process."""
        self.peers = {name: Peer(name, frozenset(names), indices.get(name, -1)) for name, names in by_role.items()}
        own = [cluster.machines[name] for name in sorted(self.local_names)]
        self._servers = frozenset(machine.name for machine in own if isinstance(machine, Server))
        self._asking_machines = {machine.name: machine for machine in own if isinstance(machine, (Trainer, Companion))}
        """The machines of this process that ask servers, by name."""
        lone = own[0] if len(own) == 1 else None
        for peer in self.peers.values():
            stand_in = StandIn(peer, post, lone)
            for name in peer.machines:
                cluster.machines[name].hook(stand_in)

    def require_sound(self, peer: Peer, messages: Sequence[Message]) -> None:
        """Raises WireError, before any message is taken, if a process may not send one of these messages, or not
        now.
        """
        due: dict[tuple[str, str], int] = {}
        awaited: dict[str, set[int]] = {}
        left = peer.left
        machines, asking, rings, steps = self.cluster.machines, self._asking_machines, self.cluster.rings, self._steps
        allowed: object = None
        for message in messages:
            kind, source, target, trainer, step, sequence, _, payload, _ = message
            if (kind, source, target, trainer) != allowed or target in rings:
                self.require_allowed(peer, message)
                allowed = kind, source, target, trainer
            way = source, target
            expected = due.get(way)
            if expected is None:
                expected = self.cluster.network.link(machines[source], machines[target], trainer).expected
            if sequence != expected:
                if sequence > expected or peer.index >= 0:
                    raise WireError(f"message {sequence} has come where {expected} is due: {message}")
                continue
            due[way] = expected + 1
            if target in self._servers:
                if left:
                    raise WireError(f"{peer.role} has left, or was given up, and sends on: {message}")
                if not -MOST_STEPS < step < MOST_STEPS or step < steps.get(way, -MOST_STEPS):
                    raise WireError(f"{peer.role} was further than step {step}: {message}")
                left = kind == COMPLETE
                if left and payload is not None:
                    raise WireError(f"{peer.role} may not leave so: {message}")
                steps[way] = step
            elif target in asking:
                self._require_awaited(peer, message, asking[target], awaited.setdefault(target, set()))

    def _require_awaited(self, peer: Peer, message: Message, target: Trainer | Companion, filled: set[int]) -> None:
        """Raises WireError for an answer to something that the machine has not asked. (Old answers are ignored.)"""
        if message.kind != REPLY or peer.index >= 0:
            raise WireError(f"{peer.role} may send {message.target} nothing but answers: {message}")
        replies = target.awaited_replies
        if replies is not None and replies.step == message.step:
            if message.slot in filled or not replies.awaits(message):
                raise WireError(f"{peer.role} answers what it was not asked: {message}")
            filled.add(message.slot)

    def require_allowed(self, peer: Peer, message: Message) -> None:
        """Raises WireError for a message that its sender may not send, or that is not for a machine of this process."""
        if message.source not in peer.machines or message.target not in self.local_names:
            raise WireError(f"{peer.role} may not send messages from {message.source} to {message.target}")
        if message.kind != REPLY and peer.index >= 0 and message.trainer != peer.index:
            raise WireError(f"{peer.role} may not send messages of trainer {message.trainer}")
        side = self.cluster.rings.get(message.target)
        if side is not None and not side.accepts(message):
            raise WireError(f"{peer.role} may not send this to {message.target}: {message}")

    def deliver(self, peer: Peer, messages: Sequence[Message]) -> None:
        """Delivers messages to their machines, each once. Raises WireError if an earlier message is missing."""
        cluster, way, link = self.cluster, None, None
        for message in messages:
            if link is None or (message.source, message.target) != way:
                way = message.source, message.target
                link = cluster.network.link(cluster.machines[way[0]], cluster.machines[way[1]], message.trainer)
            if message.sequence > link.expected:
                raise WireError(f"message {message.sequence} has come where {link.expected} is due: {message}")
            if cluster.network.arrive(link, message):
                peer.take(message, sums_on=message.target in cluster.rings)

    def reset_links(self, peer: Peer) -> None:
        """Resets the numbers of messages to and from the machines of a process that was replaced by another one."""
        machines = self.cluster.machines
        for name in peer.machines:
            for mine in self.local_names:
                self._steps.pop((name, mine), None)
                for source, target in ((name, mine), (mine, name)):
                    link = machines[source].links.get(target)
                    if link is not None:
                        link.number_after(0)
                        link.expect(1)

    def take_out(self, peer: Peer) -> None:
        """Sends COMPLETE to the machines of this process in place of a trainer.

        The message is not one of the trainer's own, whose numbers are unchanged.
        """
        cluster = self.cluster
        source = cluster.machines.get(f"{peer.role}/communicator", cluster.machines[peer.role])
        for name in sorted(self.local_names):
            machine = cluster.machines[name]
            if machine in cluster.servers or name in cluster.rings:
                link = cluster.network.link(source, machine, peer.index)
                step, gone = max(peer.last_step, 0), GONE if name in cluster.rings else None
                message = Message(COMPLETE, source.name, name, peer.index, step, link.expected, "", gone, -1)
                cluster.scheduler.deliver(link, message)


# Connections between the processes of a job, the greeting that begins each, and the admission of processes.

LOOK = 0.1
"""The least seconds between two looks at the clock, and the pause for events while a connection is to be opened
again.
"""


SLOW = 1.0
"""Seconds before a process with a wrong token is answered, so that many tokens can't be tried quickly."""

MOST_TURNED_AWAY = 64
"""The most processes that may wait for that answer; further ones are answered at once."""


MOST_BEGUN = 20
"""The most processes that may take over a role within `BEGUN_IN` seconds.

A process that fails at its start is restarted a few times, which is below this number.
"""

BEGUN_IN = 60.0
"""Seconds over which the processes that take over a role are counted."""


HERE = 3.0
"""Seconds since a process was last heard within which another process in its role is refused, as the first is still
there.
"""


MOST_TALK = 1 << 20
"""The most bytes of questions, answers and other JSON that a trainer may send at once: far more than a job needs. A
server reads them much more slowly than messages of the same size.
"""

MOST_TALK_A_SECOND = 1 << 18
"""The most bytes of such JSON that a trainer may send per second, on average."""

TICK = 0.5
"""Seconds between two looks at the clock."""

IDLE = 2.0
"""Seconds after which an idle process reports what it waits for."""


class SiteListener:
    """Notified of the life of a site, and asked about it; every method may be overridden.

    A question is put to one listener after the other. The first answer other than None counts.
    """

    def peer_admitted(self, peer: Peer, fields: Mapping[str, Any]) -> None:
        """Called when a process that has connected is admitted, before it is answered."""

    def admitted_by(self, peer: Peer, fields: Mapping[str, Any]) -> None:
        """Called when a process to which this one connected has admitted it."""

    def met_foreign(self, peer: Peer) -> bool | None:
        """Called when a server to which this process connected speaks another protocol; returns True if the listener
        speaks it.
        """
        return None

    def answer(self, peer: Peer, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The answer to a question of another process; None to leave it to other listeners."""
        return None

    def news(self, text: str, role: str, gone: bool) -> None:
        """Called when a trainer takes no part any more (`gone`), or takes part again; the text is a sentence about
        it.
        """

    def turns_done(self) -> None:
        """Called when the machines of this process have gone as far as they can."""

    def pausing(self) -> None:
        """Called when this process begins to wait for others."""

    def resumed(self) -> None:
        """Called after a wait: something has come, or nothing has for some time."""

    def idle(self) -> None:
        """Called when nothing has come for `IDLE` seconds, and again after each further period."""

    def unmet(self) -> Sequence[str] | None:
        """The processes that have not taken part yet, in words for the user; None for the default, the trainers among
        them.
        """
        return None

    def variable_bytes(self) -> int | None:
        """The bytes of the variables of this process's server; None if it has no server, and nothing is limited."""
        return None

    def waiting_bytes(self, trainer: int) -> int | None:
        """The bytes of the messages of a trainer that this process's server can't take yet."""
        return None


_Answer = TypeVar("_Answer")


class Site:
    """The machines of a cluster that run in this process, as `role`, and the connections to all other processes.

    `ways` opens a connection to each role to which this process connects; received frames go into `events`. `patience`:
    seconds after which this trainer gives up a server that it can't reach; 0: never. `keeps`: whether received messages
    may have to be sent again until a state with them was saved. `trainers_ended`: whether it is known that the
    processes of all trainers have ended.
    """

    def __init__(
        self,
        cluster: Cluster,
        role: str,
        terms: Terms,
        *,
        clock: Callable[[], float] = time.monotonic,
        events: Loop | None = None,
        ways: Mapping[str, Callable[[], Connection]] = MappingProxyType({}),
        patience: float = 0.0,
        keeps: bool = False,
        trainers_ended: Callable[[], bool] = lambda: False,
    ):
        self.cluster = cluster
        self.role = role
        self.terms = terms
        self.events = Loop() if events is None else events
        self.incarnation = secrets.token_hex(8)
        self.joins: int | None = None
        """The step from which this process, which is not the first in its role, takes part; it is in every greeting."""
        self.greeted_roles: set[str] = set()
        """The roles that have greeted this process."""
        self.refused_connections = 0
        """The number of connections that were ended because of an error in the received bytes."""
        self.among_trainers = bool(cluster.rings)
        """Whether trainers exchange values with each other. If so, all have to agree on which of them are gone, and a
        trainer that is gone can't rejoin.
        """
        self.report_problem = RateLimitedPrinter(role, clock)
        """Prints lines about errors of other processes."""
        self.unreached: dict[str, str] = {}
        """For each role, why the last connection ended before this process was admitted, as far as it is known."""
        self.idle_seconds = 0.0
        """Seconds of waiting since the last frame other than a sign of life."""
        self.bytes_since_kept = 0
        """Bytes of frames with messages received since the state was last saved."""
        self.answers: dict[str, Mapping[str, Any]] = {}
        """The last answer of each role to a question."""
        self.local_machines = LocalMachines(cluster, role, self._post)
        self.local_names, self.peers = self.local_machines.local_names, self.local_machines.peers
        self._listeners: list[SiteListener] = []
        self._clock = clock
        self._dialers = ways
        self._patience = patience
        self._keeps_state = keeps
        self._trainers_ended = trainers_ended
        self._gone_of: dict[str, set[str]] = {}
        """The trainers without which each server continues, as far as it has said so to this process."""
        self._takeover_times: dict[str, deque[float]] = {}
        """The times at which processes took each role from another one."""
        self._turned_away: deque[tuple[float, Connection, WireError]] = deque()
        """The connections to be refused later: the time, the connection, and the reason."""
        self._pause = LOOK
        """Seconds to wait for events; few while a connection has to be opened again."""
        trainers = [trainer.name for trainer in cluster.trainers]
        self._connecting_roles = frozenset(trainers[trainers.index(role) + 1 :] if role in trainers else trainers)
        """The roles whose processes connect to this one: see `process.py`. Servers connect to nobody."""
        for peer in self.peers.values():
            peer.hear(clock())  # a process that has not come yet counts as heard when this one begins
        self._frame_limit = most_sent(cluster)
        """The size of the largest frame that a trainer sends, in bytes."""
        self._claims: dict[str, dict[str, float]] = {}
        """For each trainer, the trainers (this one included) that claim it takes no part any more, and since when."""
        self._refusal_reasons: dict[str, str] = {}
        """The reason for which each trainer has refused this one."""
        self._doubted_trainers: set[str] = set()
        """The trainers whose claims were reported as doubtful."""
        self._by_connection: dict[Connection, Peer] = {}
        self._waiting_for: dict[str, Connection] = {}
        """Connections that this process has opened, by role, until they are welcomed."""
        self._redial: dict[str, float] = {}
        """The time at which to connect to a role again."""
        self._reported_idle = 0.0
        """The value of `idle_seconds` when listeners were last notified of it."""
        self._last_look = clock()
        self._ending = Flag()
        self._questions = 0
        """The number of questions that this process has asked."""

    def listen(self, listener: SiteListener) -> None:
        """Adds a listener; it is called, and asked, after earlier ones."""
        self._listeners.append(listener)

    def _first_answer(self, ask: Callable[[SiteListener], _Answer | None]) -> _Answer | None:
        """The first answer of a listener other than None."""
        return next((answer for one in self._listeners if (answer := ask(one)) is not None), None)

    # admission

    def _post(self, peer: Peer, messages: list[Message]) -> None:
        if peer.receive_messages is not None:
            peer.receive_messages(messages)
        elif not peer.left:
            size = sum(bytes_of(message.payload) for message in messages) if peer.index >= 0 else 0
            if peer.index >= 0 and peer.unconfirmed_bytes + size > MOST_HELD and self._holds_much(peer, size):
                if not peer.refusal:
                    peer.refuse(f"answers of {peer.unconfirmed_bytes + size} bytes to it are not confirmed")
                    refusing = Event(CALL, None, action=lambda: self.refuse(peer, peer.refusal))
                    self.events.put(refusing)  # after the machines have had their turns
                return
            for joined in _group_messages(messages):
                try:
                    body = messages_body(joined, self.local_machines.numbers)
                except WireError as problem:
                    names = ", ".join(sorted({visible(message.variable) for message in joined})[:3])
                    raise PeerRefused(f"{names} can't go to {peer.role}: {problem}") from None
                peer.post(body, self._clock())

    def _holds_much(self, peer: Peer, size: int) -> bool:
        """Whether a trainer would leave more bytes of answers unconfirmed than it may, with `size` more."""
        more = self.more_held()
        return more is not None and peer.unconfirmed_bytes + size > MOST_HELD + more

    def more_held(self) -> int | None:
        """The bytes of answers that a trainer may leave unread beyond `MOST_HELD`; None if nothing is limited."""
        variables = self._first_answer(lambda one: one.variable_bytes())
        return None if variables is None else MORE_HELD * variables

    def require_room(self, peer: Peer) -> None:
        """Raises WireError if too many bytes of a trainer's messages wait until other trainers are as far."""
        if peer.uncounted_bytes <= MOST_HELD or peer.index < 0:
            return
        variables = self._first_answer(lambda one: one.variable_bytes())
        if variables is None:
            return
        peer.waits_with(self._first_answer(lambda one: one.waiting_bytes(peer.index)) or 0)
        if peer.uncounted_bytes > MOST_HELD + MORE_HELD * variables:
            raise WireError(
                f"messages of {peer.uncounted_bytes} bytes wait until other trainers are as far as {peer.role}"
            )

    def go_to(self, role: str) -> None:
        """Connects to another role, and connects again whenever the connection breaks."""
        peer = self.peers[role]
        connection = self._dialers[role]()
        self._waiting_for[role] = connection
        self._redial[role] = self._clock() + self.terms.lease / 2  # the greeting, or the answer, may be lost
        fields = {
            "job": self.terms.job,
            "token": self.terms.token,
            "incarnation": self.incarnation,
            "role": self.role,
            "to": role,
            "received": peer.received,
            "knows": peer.incarnation,
            "joins": self.joins,
            "gone": self._given_up_roles(),
        }
        connection.send(Header(HELLO, 0, 0, 0), json_body(fields))

    def _handle_greeting(self, connection: Connection, fields: Mapping[str, Any]) -> None:
        """Admits another process that has connected, or refuses it with a reason."""
        self.terms.require(fields, self.role, self.peers)
        if fields.get("to", self.role) != self.role:
            raise Objection(f"{fields['to']} was expected at this address, where {self.role} listens")
        if fields["role"] not in self._connecting_roles:
            raise Objection(f"{fields['role']} does not connect to {self.role}, but the other way round, if at all")
        peer, knows = self.peers[fields["role"]], fields.get("knows") == self.incarnation
        received = number_of(fields, "received") if knows else 0
        if peer.receive_messages is not None:
            raise Objection(f"{peer.role} is here already, as a machine of Fluid")
        incarnation = str(fields["incarnation"])
        if incarnation in peer.former:
            raise Objection(f"another process has taken the place of this {peer.role}")
        if self.among_trainers and str(fields.get("knows") or self.incarnation) != self.incarnation:
            if not peer.incarnation:
                raise PeerRefused(_exclusion_message(self.role))
            self._claim(self.role, peer.role, "it knows another process in its role")
            raise WireError(f"{peer.role} knows another process as {self.role}")
        if peer.incarnation != incarnation:
            if peer.incarnation:
                silence = self._clock() - peer.heard_at
                if peer.connection is not None and silence < HERE:
                    raise WireError(f"{peer.role} is here already, at {peer.connection.address}")
                if self.among_trainers and not peer.given_up and silence < min(HERE, self.terms.lease / 2):
                    raise WireError(f"{peer.role} was here a moment ago")
                self._require_few(peer)
                if not peer.left:
                    self.give_up(peer, "another process has come in its place")
                if self.among_trainers:
                    raise Objection(_exclusion_message(peer.role))
                peer.begin_anew(incarnation)
                self.local_machines.reset_links(peer)
                if peer.index >= 0:
                    self._notify_listeners(f"{peer.role} is back, as a new process", peer, gone=False)
                    self._tell_trainers({"back": peer.role}, peer)
            peer.is_played_by(incarnation)
        elif peer.given_up:
            reason = peer.refusal or f"it was not heard for {lasting(self.terms.lease)}"
            raise Objection(f"{peer.role} was given up: {reason}")
        self.hear_of_gone(peer, fields)
        for listener in self._listeners:
            listener.peer_admitted(peer, fields)
        self.greeted_roles.add(peer.role)
        self._let_in(connection, peer)
        if peer.connection is not None:
            peer.connection.close()
            self._by_connection.pop(peer.connection, None)
        welcome = {
            "job": self.terms.job,
            "incarnation": self.incarnation,
            "role": self.role,
            "received": peer.received,
            "life": peer.life,
            "gone": self._given_up_roles(),
        }
        connection.send(Header(WELCOME, 0, peer.received, peer.durable_number), json_body(welcome))
        self._by_connection[connection] = peer
        peer.connect(connection, received, self._clock())

    def _let_in(self, connection: Connection, peer: Peer) -> None:
        """Marks the other side of a connection as admitted. A trainer may send frames up to the size that its programs
        need.
        """
        if peer.index < 0:
            connection.let_in()
            return

        def refuse(size: int) -> None:
            if self._by_connection.get(connection) is peer:
                self.refuse(
                    peer, f"a frame of {size} bytes has come, where no trainer sends more than {self._frame_limit}"
                )

        connection.let_in(self._frame_limit, refuse)

    def _require_few(self, peer: Peer) -> None:
        """Raises WireError if too many processes have taken a role one after the other, as each is remembered."""
        begun, now = self._takeover_times.setdefault(peer.role, deque(maxlen=MOST_BEGUN)), self._clock()
        if len(begun) == MOST_BEGUN and now - begun[0] < BEGUN_IN:
            raise WireError(f"{MOST_BEGUN} processes have become {peer.role} within {lasting(BEGUN_IN)}")
        begun.append(now)

    def _note(self, connection: Connection, reason: str) -> None:
        """Records why a connection ended, if it ended before this process was admitted."""
        role = self._greeted_on(connection)
        if role is not None and reason:
            self.unreached[role] = visible(plain(reason))

    def _greeted_on(self, connection: Connection) -> str | None:
        return next((role for role, begun in self._waiting_for.items() if begun is connection), None)

    def _handle_greeting_answer(self, connection: Connection, kind: int, fields: Mapping[str, Any]) -> None:
        """Handles the answer to the greeting of this process."""
        role = self._greeted_on(connection)
        if role is None:
            raise WireError("nobody was greeted on this connection")
        if kind == REFUSED:
            connection.close()
            self._forget(connection)
            if fields.get("again"):  # such as a process whose predecessor has just ended unnoticed
                self.unreached[role] = visible(str(fields.get("reason")))
                return
            self.hear_refusal(self.peers[role], connection, str(fields.get("reason")))
            return
        incarnation, received = str(fields.get("incarnation", "")), number_of(fields, "received")
        number_of(fields, "life")
        self._let_in(connection, self.peers[role])
        del self._waiting_for[role]
        peer = self.peers[role]
        if self.among_trainers and (peer.given_up or (peer.incarnation and incarnation != peer.incarnation)):
            self.give_up(peer, "another process has come in its place")
            connection.close()
            self._forget(connection)
            return
        self.hear_of_gone(peer, fields)
        if peer.incarnation and incarnation != peer.incarnation:
            if received < peer.confirmed_up_to:
                raise PeerRefused(f"{role} at {connection.address} was started again without what it had taken")
            peer.knows_nothing()
            self._notify_listeners(f"{role} is back, as a new process", peer, gone=False)
        peer.is_played_by(incarnation)
        self._by_connection[connection] = peer
        peer.connect(connection, received, self._clock())
        for listener in self._listeners:
            listener.admitted_by(peer, fields)

    def _met_foreign(self, connection: Connection) -> None:
        """Handles a greeted process that speaks another protocol. Raises Refused if no listener speaks it.

        Where a machine of this package was met before, somebody else has taken its port for now, and it is called
        again.
        """
        role = self._greeted_on(connection)
        if role is None:
            return
        if self.peers[role].incarnation:
            self._note(connection, "another protocol is spoken there")
            self._forget(connection)
            return
        if not self._first_answer(lambda one: one.met_foreign(self.peers[role])):
            raise PeerRefused(
                f"{role} at {connection.address} is no machine of this package (--fluid lets one of Fluid in)"
            )
        del self._waiting_for[role], self._redial[role]

    def give_up(self, peer: Peer, why: str) -> None:
        """Gives up a trainer's process, which may not rejoin; the others are sent the reason."""
        if peer.left or peer.index < 0:
            return
        self.local_machines.take_out(peer)
        peer.give_up()
        self._notify_listeners(f"goes on without {peer.role}: {why}", peer, gone=True)
        if self.among_trainers:  # where no trainer can rejoin
            self._claims.setdefault(peer.role, {})[self.role] = self._clock()
            self._spread(peer)
        else:
            self._tell_trainers({"without": peer.role, "why": why}, peer)

    def _notify_listeners(self, news: str, about: Peer, *, gone: bool) -> None:
        for listener in self._listeners:
            listener.news(f"{self.role}: {news}", about.role, gone)

    def _tell_trainers(self, fields: Mapping[str, Any], about: Peer) -> None:
        """Sends news about a trainer to the other trainers that use this protocol."""
        for peer in self.peers.values():
            if peer is not about and peer.index >= 0 and peer.connection is not None and peer.receive_messages is None:
                peer.send_answer(fields)

    def hear_of_others(self, teller: Peer, fields: Mapping[str, Any]) -> None:
        """Handles a server's news that it continues without a trainer, or with it again; the first such news is
        reported.
        """
        if teller.index >= 0 or self.among_trainers:
            return
        role = fields.get("without", fields.get("back"))
        peer = self.peers.get(role) if isinstance(role, str) else None
        if peer is None or peer.index < 0:
            return
        known = any(peer.role in gone for gone in self._gone_of.values())
        gone = self._gone_of.setdefault(teller.role, set())
        if "without" in fields:
            gone.add(peer.role)
            if not known:
                why = visible(str(fields.get("why")))
                self._notify_listeners(f"{teller.role} goes on without {peer.role}: {why}", peer, gone=True)
        else:
            gone.discard(peer.role)
            if known and not any(peer.role in gone for gone in self._gone_of.values()):
                self._notify_listeners(f"{peer.role} is back, as a new process", peer, gone=False)

    def refuse(self, peer: Peer, reason: str) -> None:
        """Refuses a process that was admitted and has sent something wrong: it is sent the reason, and takes no part
        any more.

        Raises Refused if it is a server, as a trainer can't continue without it.
        """
        connection = peer.connection
        place = "" if connection is None else f" at {connection.address}"
        if connection is not None:
            connection.send(Header(REFUSED, 0, 0, 0), json_body({"reason": reason, "again": False}))
        if peer.index < 0:
            raise PeerRefused(f"{peer.role}{place} says what is wrong: {reason}")
        if not peer.left:
            peer.refuse(reason)
        self.report_problem(f"{peer.role}{place} is refused, and takes no part any more: {reason}")
        self.give_up(peer, f"it was refused: {reason}")
        if connection is not None and peer.connection is connection:
            connection.close()
            self._forget(connection)

    def _spread(self, gone: Peer) -> None:
        """Sends all others, and the trainer itself if it is connected, the news that it takes no part any more."""
        for peer in self.peers.values():
            if peer.connection is not None:
                peer.send_answer({"gone": [gone.role]})
        if gone.connection is not None:
            connection = gone.connection
            connection.close()
            self._forget(connection)

    def _given_up_roles(self) -> list[str]:
        return [peer.role for peer in self.peers.values() if peer.given_up and self.among_trainers]

    def hear_of_gone(self, teller: Peer, fields: Mapping[str, Any]) -> None:
        """Records which trainers another process has given up."""
        gone: Any = fields.get("gone")
        if self.among_trainers and isinstance(gone, list):
            for role in (str(role) for role in cast("list[Any]", gone)):
                self._claim(role, teller.role, "it was not heard for too long, or has ended")

    def hear_refusal(self, peer: Peer, connection: Connection, reason: str) -> None:
        """Handles a refusal of this process by another one. Raises Refused, unless the other is one of several trainers
        that this one has met: then it counts as a claim.
        """
        if not (self.among_trainers and peer.incarnation):
            raise PeerRefused(f"{peer.role} at {connection.address} refuses {self.role}: {reason}")
        self._claim(self.role, peer.role, reason)

    def _claim(self, about: str, teller: str, why: str) -> None:
        if about != teller and (about == self.role or about in self.peers):
            self._claims.setdefault(about, {}).setdefault(teller, self._clock())
            if about == self.role:
                self._refusal_reasons[teller] = visible(why)

    def judge_claims(self, now: float) -> None:
        """Gives up the trainers about which others justly claim that they take no part any more. Raises Refused if this
        one is among them.

        The claim of one trainer is not enough where others hear the trainer in question: see `_justified_claimants`.
        """
        for about in list(self._claims):
            peer = self.peers.get(about)
            if peer is not None and peer.left:
                continue
            tellers = self._justified_claimants(about, now)
            if tellers and peer is not None:
                self.give_up(peer, f"{' and '.join(tellers)} {'do' if tellers[1:] else 'does'} so")
            elif tellers:
                why = self._refusal_reasons[tellers[0]]
                raise PeerRefused(
                    f"{' and '.join(tellers)} {'have' if tellers[1:] else 'has'} given up this {about}: {why}"
                )
            elif peer is not None:
                self._doubt(about, now)

    def _doubt(self, about: str, now: float) -> None:
        """Reports, once, a trainer that claims another one takes no part any more although that one is heard here."""
        for teller, said in sorted(self._claims[about].items()):
            if (
                now - said > self.terms.lease / 2
                and teller not in self._doubted_trainers
                and not self.peers[teller].left
            ):
                self._doubted_trainers.add(teller)
                self.report_problem(
                    f"{teller} says that {about} takes no part any more, which is heard here, and stays"
                )

    def _justified_claimants(self, about: str, now: float) -> list[str]:
        """The trainers whose claim that another one takes no part any more is justified; empty if there are none.

        The claim is justified if the trainer in question is not heard here either, or if most of the others claim it.
        If two trainers claim it of each other, one has to go: the one that claimed it long before the other, or, if
        their connection broke, the one with the higher number.
        """
        claims, lease = self._claims[about], self.terms.lease
        live = {self.role, *(role for role, peer in self.peers.items() if not peer.left)}
        tellers = sorted(teller for teller in claims if teller in live and teller != self.role)
        if not tellers and about != self.role:
            return []
        peer = self.peers.get(about)
        if peer is not None and now - peer.heard_at > lease / 4:
            return tellers
        if 2 * len(tellers) > len(live - {about}):
            return tellers
        for teller, said in sorted(claims.items()):
            answered = self._claims.get(teller, {}).get(about)
            if answered is None or not (teller in tellers or about == self.role):
                continue
            later = said - answered
            if later > lease / 2 or (later >= -lease / 2 and self._number(about) > self._number(teller)):
                return [teller]
        return []

    def _number(self, role: str) -> int:
        return next(trainer.index for trainer in self.cluster.trainers if trainer.name == role)

    def _drop(self, connection: Connection, problem: WireError) -> None:
        """Ends a connection with a wrong frame; the answer has the reason, and says whether to connect again."""
        self.refused_connections += 1
        self._note(connection, str(problem))
        if isinstance(problem, Objection) and not connection.is_admitted:
            self.report_problem(f"{connection.address} is not let in: {problem}")
            if isinstance(problem, WrongToken) and len(self._turned_away) < MOST_TURNED_AWAY:
                self._turned_away.append((self._clock() + SLOW, connection, problem))
                return
        self._turn_away(connection, problem)

    def turn_away(self, now: float) -> None:
        """Answers the refused processes whose waiting time is over."""
        while self._turned_away and self._turned_away[0][0] <= now:
            _, connection, problem = self._turned_away.popleft()
            self._turn_away(connection, problem)

    def _turn_away(self, connection: Connection, problem: WireError) -> None:
        fields = {"reason": str(problem), "again": not isinstance(problem, Objection)}
        connection.send(Header(REFUSED, 0, 0, 0), json_body(fields))
        connection.close()
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._pause = LOOK
        peer = self._by_connection.pop(connection, None)
        if peer is not None and peer.connection is connection:
            peer.disconnect()
            if peer.role in self._redial:
                self._redial[peer.role] = self._clock() + self._redial_delay(peer)
        for role, begun in list(self._waiting_for.items()):
            if begun is connection:
                del self._waiting_for[role]
                self._redial[role] = self._clock() + self._redial_delay(self.peers[role])

    def _redial_delay(self, peer: Peer) -> float:
        """Seconds until the next connection to a process. (A process that was given up may still run, and needs the
        refusal.)
        """
        refused = peer.role in self._claims.get(self.role, ())
        if peer.given_up and peer.refusal and not refused:
            return min(self.terms.lease / 4, 1.0)  # if both have refused each other, one must learn of it soon
        return self.terms.lease / 4 if peer.given_up or refused else 0.2

    # running

    def run(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Runs the machines and handles events until `done`; returns False if that takes longer than `timeout`
        seconds.
        """
        end = None if timeout is None else self._clock() + timeout
        self._last_look = self._clock()
        while True:
            self.run_machines()
            for listener in self._listeners:
                listener.turns_done()
            if done():
                return True
            if end is not None and self._clock() >= end:
                return False
            for listener in self._listeners:
                listener.pausing()
            self._await_events()
            self._look_at_the_clock()
            for listener in self._listeners:
                listener.resumed()

    def _await_events(self) -> None:
        """Handles events, for which it waits a moment."""
        begun = self._clock()
        try:
            event = self.events.get(timeout=self._pause)
        except Empty:
            event = None
        self.idle_seconds += self._clock() - begun
        if event is not None:
            self._handle(event)
            while not self.events.empty():
                self._handle(self.events.get(0.0))
        if self.idle_seconds < IDLE:
            self._reported_idle = 0.0
        elif self.idle_seconds - self._reported_idle >= IDLE:
            self._reported_idle = self.idle_seconds
            for listener in self._listeners:
                listener.idle()

    def waiting(self) -> list[WaitReason]:
        """The waits of the machines of this process."""
        machines = [self.cluster.machines[name] for name in sorted(self.local_names)]
        return [entry for machine in machines if (entry := machine.waiting()) is not None]

    def unmet(self) -> Sequence[str]:
        """The processes that have not taken part yet, as a listener names them, else the trainers among them."""
        named = self._first_answer(lambda one: one.unmet())
        if named is not None:
            return named
        coming = (
            peer for peer in self.peers.values() if peer.index >= 0 and peer.receive_messages is None and not peer.left
        )
        return [peer.role for peer in coming if not peer.incarnation]

    def now(self) -> float:
        """The time, in seconds from an arbitrary moment."""
        return self._clock()

    def run_machines(self) -> None:
        """Runs the machines as far as possible without other processes."""
        with np.errstate(all="ignore"):
            self.cluster.scheduler.run()

    def _handle(self, event: Event) -> None:
        connection = event.connection
        if event.kind == FRAME and connection is not None:
            with self.events.charging(connection):
                try:
                    self._take(connection, event.data)
                except Misconduct as problem:
                    self.refuse(self._by_connection[connection], str(problem))
                except WireError as problem:
                    self._drop(connection, problem)
        elif event.kind == CLOSED and connection is not None:
            self._note(connection, event.reason)
            self._forget(connection)
        elif event.kind == FOREIGN and connection is not None:
            self._met_foreign(connection)
        elif event.action is not None:
            event.action()

    def show_signs_of_life(self) -> None:
        """Starts to send signs of life, which continue while the machines are busy."""
        pause = min(self.terms.lease / 10, 1.0)

        def send_signs_of_life() -> None:
            while not self._ending.wait(pause):
                now = self._clock()
                for peer in self.peers.values():
                    if now - peer.last_sent > pause:
                        peer.sign_of_life(now)

        Thread(target=send_signs_of_life, daemon=True).start()

    def _look_at_the_clock(self) -> None:
        now = self._clock()
        if now - self._last_look < LOOK:
            return
        if (
            now - self._last_look > TICK + self.terms.lease / 4
        ):  # this process was busy or stopped, and could hear nobody
            for peer in self.peers.values():
                peer.hear(now)
        self._last_look = now
        self.turn_away(now)
        self.judge_claims(now)
        for peer in self.peers.values():
            peer.hear_progress(now)
            if peer.connection is not None:
                if now - peer.heard_at > self.terms.lease / 2:  # another connection may be better
                    connection = peer.connection
                    connection.close()
                    self._forget(connection)
            elif (
                (peer.index < 0 and not peer.left)
                and self._patience
                and peer.incarnation
                and now - peer.heard_at > self._patience
            ):
                raise PeerRefused(f"{peer.role} was not heard for {lasting(self._patience)}")
            if not peer.left and peer.incarnation and peer.index >= 0 and now - peer.heard_at > self.terms.lease:
                self.give_up(peer, f"it was not heard for {lasting(self.terms.lease)}")
            elif peer.index >= 0 and peer.connection is None and self._trainers_ended():
                self.give_up(peer, "its process has ended")
        away = [role for role in self._redial if self.peers[role].connection is None]
        self._pause = LOOK if any(not self.peers[role].given_up for role in away) else TICK
        for role in away:
            if now >= self._redial[role]:
                self.go_to(role)

    def _take(self, connection: Connection, data: Bytes) -> None:
        header = read_header(data, connection.guarded)
        peer = self._by_connection.get(connection)
        if peer is None:
            if header.kind == HELLO:
                self._handle_greeting(connection, read_json(data))
            elif header.kind in (WELCOME, REFUSED):
                self._handle_greeting_answer(connection, header.kind, read_json(data))
            else:
                raise WireError("a connection begins with a greeting")
            return
        try:
            self._take_of(peer, connection, header, data)
        except WireError as problem:
            raise Misconduct(str(problem)) from None

    def _take_of(self, peer: Peer, connection: Connection, header: Header, data: Bytes) -> None:
        """Handles a frame of an admitted process."""
        peer.hear(self._clock())
        peer.drop_confirmed(header.durable_number)
        if header.kind != ALIVE:
            self.idle_seconds = 0.0
        if header.kind == MESSAGES:
            self._take_messages(peer, header, data)
        elif header.kind != ALIVE and self._talks_much(peer, len(data)):
            raise WireError(f"it asks and answers with more than {MOST_TALK_A_SECOND} bytes a second")
        elif header.kind == ASK:
            question = read_json(data)
            answer = self._first_answer(lambda one: one.answer(peer, question)) or {}
            fields = {**answer, "number": number_of(question, "number")}
            connection.send(Header(ANSWER, 0, peer.received, peer.durable_number), json_body(fields))
        elif header.kind == ANSWER and peer.index >= 0 and not self.among_trainers:
            raise WireError("nothing was asked")
        elif header.kind == ANSWER:
            fields = read_json(data)
            if "number" in fields:
                self.answers[peer.role] = fields
            self.hear_of_gone(peer, fields)
            self.hear_of_others(peer, fields)
        elif header.kind == BYE:
            self._handle_process_end(peer, read_json(data))
        elif header.kind == REFUSED:
            fields = read_json(data)
            connection.close()
            self._forget(connection)
            if not fields.get("again") and (peer.index < 0 or self.among_trainers):
                self.hear_refusal(peer, connection, str(fields.get("reason")))
        elif header.kind != ALIVE:
            raise WireError("there was a greeting already")

    def _talks_much(self, peer: Peer, size: int) -> bool:
        """Whether a trainer sends more JSON than it may, with `size` more bytes."""
        return peer.talks(size, self._clock(), MOST_TALK_A_SECOND) > MOST_TALK and peer.index >= 0

    # messages

    def _take_messages(self, peer: Peer, header: Header, data: Bytes) -> None:
        if header.number <= peer.received:
            return
        if header.number != peer.received + 1:
            raise WireError(f"frame {header.number} has come where {peer.received + 1} is due")
        messages = read_messages(data, self.local_machines.machines)
        self.local_machines.require_sound(peer, messages)
        self.require_room(peer)
        peer.take_frame(header.number, durable=not self._keeps_state)
        self.count_bytes(len(data))
        self.local_machines.deliver(peer, messages)

    def _handle_process_end(self, peer: Peer, fields: Mapping[str, Any]) -> None:
        """Handles the end of a process. If its part is done, it counts as left, provided that no more messages can
        come.
        """
        if fields.get("done") is True and (peer.index < 0 or self.among_trainers):
            peer.leave()
            self._redial.pop(peer.role, None)
        elif self.among_trainers:
            self.give_up(peer, "its process has ended before its part was done")

    def count_bytes(self, size: int) -> None:
        """Adds to the bytes of messages that have come and that no saved state contains yet."""
        self.bytes_since_kept += size

    def begin_to_keep(self) -> None:
        """Resets these bytes, as a state is being saved that contains all messages received."""
        self.bytes_since_kept = 0

    def stop_keeping(self) -> None:
        """Confirms all messages received and to come, as the part of this process is done and nothing need be sent
        again.
        """
        self._keeps_state = False
        for peer in self.peers.values():
            peer.make_durable(peer.received)

    # questions to others

    def ask(self, role: str, question: Mapping[str, Any], timeout: float) -> Mapping[str, Any]:
        """Asks another process, repeats the question on new connections, and returns the answer. Raises Refused if none
        comes.
        """
        peer = self.peers[role]
        self._questions += 1
        number = self._questions
        asked_on: list[object] = [None]

        def has_answer() -> bool:
            if peer.connection is not None and peer.connection is not asked_on[0]:
                asked_on[0] = peer.connection
                peer.ask({**question, "number": number})
            return self.answers.get(role, {}).get("number") == number

        if not self.run(has_answer, timeout):
            raise PeerRefused(f"{role} does not answer")
        return self.answers.pop(role)

    def come_back_at(self, step: int) -> None:
        """Sets the step from which this process, which is not the first in its role, takes part; every later greeting
        has it.
        """
        self.joins = step

    # the end

    def send_bye(self, done: bool) -> None:
        """Notifies all others that this process ends, and whether its part is done."""
        self._ending.set()
        for peer in self.peers.values():
            if peer.connection is not None:
                peer.connection.send(Header(BYE, 0, peer.received, peer.durable_number), json_body({"done": done}))
                peer.connection.close()

    @property
    def all_confirmed(self) -> bool:
        """Whether nothing that was sent can be lost any more."""
        return not any(peer.unconfirmed for peer in self.peers.values() if not peer.left)


def _group_messages(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yields the messages of one turn in groups, each of which fits into one frame."""
    together: list[Message] = []
    size = 0
    for message in messages:
        more = bytes_of(message.payload) + len(message.variable) + MESSAGE
        if together and (size + more > JOINED or len(together) >= MOST_MESSAGES):
            yield together
            together, size = [], 0
        together.append(message)
        size += more
    yield together


def _exclusion_message(role: str) -> str:
    return f"the others go on without {role}, which can't take part again in a job without servers"
