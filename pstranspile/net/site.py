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
from queue import Empty
from threading import Event as Flag
from threading import Thread
from typing import Any

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
from pstranspile.net.loop import CLOSED, FOREIGN, FRAME, Event, Loop
from pstranspile.net.part import Part
from pstranspile.net.peer import Connection, Peer
from pstranspile.net.terms import Objection, Refused, Terms, number_of
from pstranspile.net.values import Bytes, WireError
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.message import Message
from pstranspile.run.cluster.network import Waiting

LOOK, TICK, IDLE = 0.1, 0.5, 2.0
"""Seconds between looks at the clock at least, and at most, and after which a process says what it waits for."""


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
        clock: Callable[[], float] = time.monotonic,
    ):
        self.cluster = cluster
        self.role = role
        self.terms = terms
        self.events = Loop()
        self.incarnation = secrets.token_hex(8)
        self.answer: Callable[[Peer, Mapping[str, Any]], Mapping[str, Any]] = lambda peer, question: {}
        self.joins: int | None = None
        """The step from which this process, not the first in its role, takes part; told in every greeting."""
        self.on_greeted: Callable[[Peer, Mapping[str, Any]], object] | None = None
        """Told of every process that is let in, before it is answered."""
        self.greeted: set[str] = set()
        """The roles that have greeted this process."""
        self.on_turn: Callable[[], object] | None = None
        """Called whenever the machines have gone as far as they can."""
        self.on_welcome: Callable[[Peer, Mapping[str, Any]], object] | None = None
        self.on_foreign: Callable[[Peer], object] | None = None
        """Told of a server that speaks another protocol; None: it can't take part."""
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
        self.keeps = False
        """Whether what is taken may have to be sent again, until its state was kept."""
        self.bytes_since_kept = 0
        """Bytes of frames of messages that have come since this was set to 0."""
        self._clock = clock
        self._idle = 0.0
        self._pause = LOOK
        """Seconds to wait for events: few while somebody is to be gone to again."""
        self._looked = clock()
        self._said_goodbye = Flag()
        self.part = Part(cluster, role, self._post)
        self.own, self.peers = self.part.own, self.part.peers
        self._by_connection: dict[Connection, Peer] = {}
        self._waiting_for: dict[str, Connection] = {}
        """Connections that this process has begun, by role, until they are welcomed."""
        self._redial: dict[str, float] = {}
        """When to go to a role again."""
        self.answers: dict[str, Mapping[str, Any]] = {}
        """The last answer of each role to a question."""
        self.questions = 0
        """How many questions this process has asked."""

    def _post(self, peer: Peer, messages: list[Message]) -> None:
        if peer.takes is not None:
            peer.takes(messages)
        elif not peer.left:
            peer.post(messages_body(messages, self.part.numbers), self._clock())

    # the loop

    def run(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Goes on with the machines and with what comes from others until `done`; False if that takes too long."""
        end = None if timeout is None else self._clock() + timeout
        self._looked = self._clock()
        while True:
            self.run_machines()
            if self.on_turn is not None:
                self.on_turn()
            if done():
                return True
            if end is not None and self._clock() >= end:
                return False
            try:
                self._handle(self.events.get(timeout=self._pause))
                while not self.events.empty():
                    self._handle(self.events.get(0.0))
            except Empty:
                self._nothing_came()
            self._look_at_the_clock()

    def _nothing_came(self) -> None:
        self._idle += self._pause
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
        elif event.what == FOREIGN and connection is not None:
            self._met_foreign(connection)
        elif event.action is not None:
            event.action()
        elif self.on_event is not None:
            self.on_event(event)

    def _drop(self, connection: Connection, problem: WireError) -> None:
        """Ends a connection on which something wrong has come, and says why, and whether to come again."""
        self.refused += 1
        fields = {"reason": str(problem), "again": not isinstance(problem, Objection)}
        connection.send(frame(Header(REFUSED, 0, 0, 0), json_body(fields)))
        connection.close()
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._pause = LOOK
        peer = self._by_connection.pop(connection, None)
        if peer is not None and peer.connection is connection:
            peer.connection = None
            if peer.role in self._redial:
                self._redial[peer.role] = self._clock() + 0.2
        for role, begun in list(self._waiting_for.items()):
            if begun is connection:
                del self._waiting_for[role]
                self._redial[role] = self._clock() + 0.2

    def show_signs_of_life(self) -> None:
        """From now on others are told that this process is there, also while its machines are busy."""
        pause = min(self.terms.lease / 10, 1.0)

        def tell() -> None:
            while not self._said_goodbye.wait(pause):
                now = self._clock()
                for peer in self.peers.values():
                    if now - peer.told > pause:
                        peer.sign_of_life(now)

        Thread(target=tell, daemon=True).start()

    def _look_at_the_clock(self) -> None:
        now = self._clock()
        if now - self._looked < LOOK:
            return
        if now - self._looked > TICK + self.terms.lease / 4:  # this process was busy, or stopped: nobody could be heard
            for peer in self.peers.values():
                peer.heard = now
        self._looked = now
        for peer in self.peers.values():
            if peer.connection is not None:
                if now - peer.heard > self.terms.lease / 2:  # nothing comes through: another one may do, in time
                    connection = peer.connection
                    connection.close()
                    self._forget(connection)
            elif self.patience and peer.incarnation and not peer.left and now - peer.heard > self.patience:
                raise Refused(f"{peer.role} was not heard for {self.patience:g} seconds")
            if not peer.left and peer.incarnation and peer.index >= 0 and now - peer.heard > self.terms.lease:
                self.give_up(peer)
        away = [role for role in self._redial if self.peers[role].connection is None]
        self._pause = LOOK if away else TICK
        for role in away:
            if now >= self._redial[role]:
                self.go_to(role)

    # greeting

    def go_to(self, role: str) -> None:
        """Begins a connection to another role, and goes there again whenever it breaks."""
        assert self.dial is not None
        peer = self.peers[role]
        connection = self.dial(role)
        self._waiting_for[role] = connection
        self._redial[role] = self._clock() + self.terms.lease / 2  # the greeting, or the answer, may be lost
        fields = {
            "job": self.terms.job,
            "token": self.terms.token,
            "incarnation": self.incarnation,
            "role": self.role,
            "received": peer.received,
            "knows": peer.incarnation,
            "joins": self.joins,
        }
        connection.send(frame(Header(HELLO, 0, 0, 0), json_body(fields)))

    def _take(self, connection: Connection, data: Bytes) -> None:
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
            question = read_json(data)
            told = {**self.answer(peer, question), "number": question.get("number")}
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
        self.terms.require(fields, self.role, self.peers)
        peer = self.peers[fields["role"]]
        if peer.takes is not None:
            raise Objection(f"{peer.role} is here already, as a machine of Fluid")
        incarnation = str(fields["incarnation"])
        if incarnation in peer.former:
            raise Objection(f"another process has taken the place of this {peer.role}")
        if peer.incarnation != incarnation:
            if peer.incarnation:
                if peer.connection is not None and self._clock() - peer.heard < 3.0:
                    raise WireError(f"{peer.role} is here already, at {peer.connection.address}")
                if not peer.left:
                    self.give_up(peer)
                peer.begin_anew(incarnation)
                self.part.reset_links(peer)
            peer.incarnation = incarnation
        elif peer.given_up:
            raise Objection(f"{peer.role} was given up: it was not heard for {self.terms.lease:g} seconds")
        if self.on_greeted is not None:
            self.on_greeted(peer, fields)
        self.greeted.add(peer.role)
        connection.known = True
        if peer.connection is not None:
            peer.connection.close()
            self._by_connection.pop(peer.connection, None)
        received = number_of(fields, "received") if fields.get("knows") == self.incarnation else 0
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

    def _greeted_on(self, connection: Connection) -> str | None:
        return next((role for role, begun in self._waiting_for.items() if begun is connection), None)

    def _answered(self, connection: Connection, kind: int, fields: Mapping[str, Any]) -> None:
        """A process that this one went to has answered the greeting."""
        role = self._greeted_on(connection)
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
        received = number_of(fields, "received")
        if peer.incarnation and incarnation != peer.incarnation:
            if received < peer.confirmed_up_to:
                raise Refused(f"{role} at {connection.address} was started again without what it had taken")
            peer.received = peer.durable = 0
        peer.incarnation = incarnation
        self._by_connection[connection] = peer
        peer.connect(connection, received, self._clock())
        if self.on_welcome is not None:
            self.on_welcome(peer, fields)

    def _met_foreign(self, connection: Connection) -> None:
        """Who was greeted does not speak this protocol."""
        role = self._greeted_on(connection)
        if role is None:
            return
        if self.on_foreign is None:
            raise Refused(
                f"{role} at {connection.address} is no machine of this package (--fluid lets one of Fluid in)"
            )
        del self._waiting_for[role], self._redial[role]
        self.on_foreign(self.peers[role])

    # messages

    def _take_messages(self, peer: Peer, header: Header, data: Bytes) -> None:
        if header.number <= peer.received:
            return
        if header.number != peer.received + 1:
            raise WireError(f"frame {header.number} has come where {peer.received + 1} is due")
        messages = read_messages(data, self.part.machines)
        for message in messages:
            self.part.require_allowed(peer, message)
        peer.received = header.number
        if not self.keeps:
            peer.durable = header.number
        self.bytes_since_kept += len(data)
        for message in messages:
            self.part.deliver(peer, message)

    def give_up(self, peer: Peer) -> None:
        """A trainer's process takes no part any more, and may not come again."""
        if peer.left or peer.index < 0:
            return
        self.part.take_out(peer)
        peer.left = peer.given_up = True
        peer.unconfirmed.clear()

    def _ended(self, peer: Peer, fields: Mapping[str, Any]) -> None:
        """A process says that it ends; a server that is done needs not be waited for."""
        if fields.get("done") is True and peer.index < 0:
            peer.left = True
            self._redial.pop(peer.role, None)

    def say_goodbye(self, done: bool) -> None:
        """Tells all others that this process ends, and whether its part is done."""
        self._said_goodbye.set()
        for peer in self.peers.values():
            if peer.connection is not None:
                peer.connection.send(frame(Header(BYE, 0, peer.received, peer.durable), json_body({"done": done})))
                peer.connection.close()

    @property
    def confirmed(self) -> bool:
        """Whether nothing that was sent could be lost any more."""
        return not any(peer.unconfirmed for peer in self.peers.values() if not peer.left)
