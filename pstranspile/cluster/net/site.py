"""One process's part of a cluster: its own machines, and stand-ins for all others whose inboxes go out as frames.

The machines are those of the simulation, and so is the scheduler that runs them. A machine of another process has a
stand-in: on its turn, all messages that others have posted to it are sent in one frame. A frame that comes in puts its
messages into the inboxes of the process's own machines. So all messages that a machine posts before it has to wait go
out at once: one round trip per step and pair of processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty
from threading import Event as Flag
from threading import Thread
from typing import Any

import numpy as np

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.network import Waiting
from pstranspile.cluster.net.frames import (
    ALIVE,
    ANSWER,
    ASK,
    BYE,
    HELLO,
    MESSAGES,
    REFUSED,
    WELCOME,
    Header,
    json_body,
    read_header,
    read_json,
    read_messages,
)
from pstranspile.cluster.net.greeting import LOOK, Greeting
from pstranspile.cluster.net.loop import CALL, CLOSED, FOREIGN, FRAME, Event, Loop
from pstranspile.cluster.net.peer import Connection, Peer
from pstranspile.cluster.net.terms import Misconduct, Refused, Terms, number_of
from pstranspile.cluster.net.values import Bytes, WireError

TICK, IDLE = 0.5, 2.0
"""Seconds between looks at the clock, and seconds after which an idle process reports what it waits for."""


class Site(Greeting):
    """The machines of a cluster that run in this process, as `role`.

    `answer` is called with questions of other processes, and gives the answers.
    """

    def __init__(self, cluster: Cluster, role: str, terms: Terms, *, clock: Callable[[], float] = time.monotonic):
        super().__init__(cluster, role, terms, clock)
        self.events = Loop()
        self.defer = lambda action: self.events.put(Event(CALL, None, action=action))
        self.answer: Callable[[Peer, Mapping[str, Any]], Mapping[str, Any]] = lambda peer, question: {}
        self.on_turn: Callable[[], object] | None = None
        """Called whenever the machines have gone as far as they can."""
        self.on_pause: Callable[[], object] | None = None
        """Called before this process waits for others."""
        self.on_look: Callable[[], object] | None = None
        """Called after it has waited."""
        self.on_idle: Callable[[], object] | None = None
        """Called when nothing has come for `IDLE` seconds, and again after as many more."""
        self.idle = 0.0
        """Seconds of waiting since something has come, besides signs of life."""
        self.trainers_ended: Callable[[], bool] = lambda: False
        """Whether it is known that the processes of all trainers have ended."""
        self.unmet: Callable[[], Sequence[str]] = self._not_come
        """Names the processes that have not taken part yet, those of trainers at first."""
        self.patience = 0.0
        """Seconds after which a server that can't be reached is given up by this trainer; 0: never."""
        self.on_event: Callable[[Event], object] | None = None
        """Told of events that are not about connections."""
        self.keeps = False
        """Whether what is taken may have to be sent again, until its state was kept."""
        self.bytes_since_kept = 0
        """Bytes of frames of messages that have come since this was set to 0."""
        self._reported = 0.0
        """The value of `idle` at the last call of `on_idle`."""
        self._looked = clock()
        self._ending = Flag()
        self.answers: dict[str, Mapping[str, Any]] = {}
        """The last answer of each role to a question."""
        self.questions = 0
        """How many questions this process has asked."""

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
            if self.on_pause is not None:
                self.on_pause()
            self._await_events()
            self._look_at_the_clock()
            if self.on_look is not None:
                self.on_look()

    def _await_events(self) -> None:
        """Takes what comes, for which it waits a moment."""
        begun = self._clock()
        try:
            event = self.events.get(timeout=self._pause)
        except Empty:
            event = None
        self.idle += self._clock() - begun
        if event is not None:
            self._handle(event)
            while not self.events.empty():
                self._handle(self.events.get(0.0))
        if self.idle < IDLE:
            self._reported = 0.0
        elif self.idle - self._reported >= IDLE:
            self._reported = self.idle
            if self.on_idle is not None:
                self.on_idle()

    def waiting(self) -> list[Waiting]:
        """What the machines of this process wait for."""
        machines = [self.cluster.machines[name] for name in sorted(self.own)]
        return [entry for machine in machines if (entry := machine.waiting()) is not None]

    def _not_come(self) -> list[str]:
        coming = (peer for peer in self.peers.values() if peer.index >= 0 and peer.takes is None and not peer.left)
        return [peer.role for peer in coming if not peer.incarnation]

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
            with self.events.charging(connection):
                try:
                    self._take(connection, event.data)
                except Misconduct as problem:
                    self.refuse(self._by_connection[connection], str(problem))
                except WireError as problem:
                    self._drop(connection, problem)
        elif event.what == CLOSED and connection is not None:
            self._note(connection, event.reason)
            self._forget(connection)
        elif event.what == FOREIGN and connection is not None:
            self._met_foreign(connection)
        elif event.action is not None:
            event.action()
        elif self.on_event is not None:
            self.on_event(event)

    def show_signs_of_life(self) -> None:
        """Begins to send signs of life, also while the machines are busy."""
        pause = min(self.terms.lease / 10, 1.0)

        def tell() -> None:
            while not self._ending.wait(pause):
                now = self._clock()
                for peer in self.peers.values():
                    if now - peer.last_sent > pause:
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
        self.turn_away(now)
        self.judge_claims(now)
        for peer in self.peers.values():
            if peer.connection is not None:
                if now - peer.heard > self.terms.lease / 2:  # nothing comes through: another one may do, in time
                    connection = peer.connection
                    connection.close()
                    self._forget(connection)
            elif (
                (peer.index < 0 and not peer.left)
                and self.patience
                and peer.incarnation
                and now - peer.heard > self.patience
            ):
                raise Refused(f"{peer.role} was not heard for {self.patience:g} seconds")
            if not peer.left and peer.incarnation and peer.index >= 0 and now - peer.heard > self.terms.lease:
                self.give_up(peer, f"it was not heard for {self.terms.lease:g} seconds")
            elif peer.index >= 0 and peer.connection is None and self.trainers_ended():
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
                self._greeted(connection, read_json(data))
            elif header.kind in (WELCOME, REFUSED):
                self._answered(connection, header.kind, read_json(data))
            else:
                raise WireError("a connection begins with a greeting")
            return
        try:
            self._take_of(peer, connection, header, data)
        except WireError as problem:
            raise Misconduct(str(problem)) from None

    def _take_of(self, peer: Peer, connection: Connection, header: Header, data: Bytes) -> None:
        """Takes a frame of a process that was let in."""
        peer.heard = self._clock()
        peer.confirmed(header.durable)
        if header.kind != ALIVE:
            self.idle = 0.0
        if header.kind == MESSAGES:
            self._take_messages(peer, header, data)
        elif header.kind == ASK:
            question = read_json(data)
            last_sent = {**self.answer(peer, question), "number": number_of(question, "number")}
            connection.send(Header(ANSWER, 0, peer.received, peer.durable), json_body(last_sent))
        elif header.kind == ANSWER and peer.index >= 0 and not self.among_trainers:
            raise WireError("nothing was asked")
        elif header.kind == ANSWER:
            last_sent = read_json(data)
            if "number" in last_sent:
                self.answers[peer.role] = last_sent
            self.hear_of_gone(peer, last_sent)
            self.hear_of_others(peer, last_sent)
        elif header.kind == BYE:
            self._ended(peer, read_json(data))
        elif header.kind == REFUSED:
            fields = read_json(data)
            connection.close()
            self._forget(connection)
            if not fields.get("again") and (peer.index < 0 or self.among_trainers):
                self.hear_refusal(peer, connection, str(fields.get("reason")))
        elif header.kind != ALIVE:
            raise WireError("there was a greeting already")

    # messages

    def _take_messages(self, peer: Peer, header: Header, data: Bytes) -> None:
        if header.number <= peer.received:
            return
        if header.number != peer.received + 1:
            raise WireError(f"frame {header.number} has come where {peer.received + 1} is due")
        messages = read_messages(data, self.part.machines)
        self.part.require_sound(peer, messages)
        self.require_room(peer)
        peer.received = header.number
        if not self.keeps:
            peer.durable = header.number
        self.bytes_since_kept += len(data)
        for message in messages:
            self.part.deliver(peer, message)

    def _ended(self, peer: Peer, fields: Mapping[str, Any]) -> None:
        """A process ends. If its part is done, it counts as left, where it is certain that nothing more comes."""
        if fields.get("done") is True and (peer.index < 0 or self.among_trainers):
            peer.left = True
            self._redial.pop(peer.role, None)
        elif self.among_trainers:
            self.give_up(peer, "its process has ended before its part was done")

    def send_bye(self, done: bool) -> None:
        """Tells all others that this process ends, and whether its part is done."""
        self._ending.set()
        for peer in self.peers.values():
            if peer.connection is not None:
                peer.connection.send(Header(BYE, 0, peer.received, peer.durable), json_body({"done": done}))
                peer.connection.close()

    @property
    def confirmed(self) -> bool:
        """Whether nothing that was sent could be lost any more."""
        return not any(peer.unconfirmed for peer in self.peers.values() if not peer.left)
