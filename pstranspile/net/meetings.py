"""Meetings: trainers that go on without waiting for each other wait after certain steps, so that all can be saved.

A server of such a job applies what comes as it comes: what one trainer did in step 12 may be in its parameters before
what another one did in step 8. So there is no moment at which everybody has done 10 steps, unless those who are there
first wait for the others. A trainer that has done the steps sends what its communicator has left, and then says at
every server that it is there; what it has sent before has come before. When all have said so, a server's part is
copied, and the trainers are told. One that was told so by all servers copies its own part, and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pstranspile.net.parts import Parts
from pstranspile.net.peer import Connection, Peer
from pstranspile.net.site import Site
from pstranspile.run.cluster.cluster import Cluster
from pstranspile.run.cluster.server import Server
from pstranspile.run.cluster.trainer import Trainer
from pstranspile.run.cluster.waits import Blocked, Wait

AT, MET, SAVED = "at", "met", "saved"
"""What a trainer says: before which step it waits. And what a server says: before which step all have met last, and
whether it has kept its part then, with this trainer among them.
"""


def are_needed(cluster: Cluster) -> bool:
    """Whether the trainers of a job are never at one step together unless they meet."""
    return any(server.mode for server in cluster.servers)


class ServerMeetings:
    """A server's side: it is saved when all trainers that are there have come to a step, and nobody is further."""

    def __init__(self, site: Site, server: Server, parts: Parts):
        self._site, self._server, self._parts = site, server, parts
        self._at: dict[str, int] = {}
        """The step before which each trainer waits, or waited last, by incarnation."""
        self._met = -1
        self._saved_with: set[str] = set()
        """Those who were there in the last meeting, if the server's part was kept."""
        self._other_questions = site.answer
        site.answer = self._answer

    def _answer(self, peer: Peer, question: Mapping[str, Any]) -> Mapping[str, Any]:
        step = question.get(AT)
        if not isinstance(step, int) or peer.index < 0:
            return self._other_questions(peer, question)
        self._at[peer.incarnation] = step
        self.look()
        return self._told(peer)

    def _told(self, peer: Peer) -> dict[str, Any]:
        return {MET: self._met, SAVED: peer.incarnation in self._saved_with}

    def look(self) -> None:
        """Somebody may have come, or left."""
        live = [peer for peer in self._site.peers.values() if peer.index in self._server.live]
        step = min((at for peer in live if (at := self._at.get(peer.incarnation, -1)) > self._met), default=-1)
        there = {peer.incarnation for peer in live if self._at.get(peer.incarnation, -1) == step}
        further = {peer.incarnation for peer in live if self._is_further(peer, step)}
        if step < 0 or len(there | further) < len(live):
            return
        self._met, self._saved_with = step, set() if further else there
        if not further:
            self._parts.save(self._server, step)
        for peer in live:
            peer.tell(self._told(peer))

    def _is_further(self, peer: Peer, step: int) -> bool:
        """Whether a trainer has gone on with a step. (Its messages tell how many steps it has done.)"""
        return self._at.get(peer.incarnation, -1) > step or peer.last_step >= step


class TrainerMeetings:
    """A trainer's side: it waits after every so many steps, and once more when it has done all."""

    def __init__(self, site: Site, trainer: Trainer, parts: Parts):
        self._site, self._trainer, self._parts = site, trainer, parts
        self._servers = [peer for peer in site.peers.values() if peer.index < 0]
        self._met = -1
        """The step of the last meeting, or of the first step that was done here: nobody is waited for before that."""
        self._pause: Blocked | None = None
        self._step = -1
        self._told: dict[str, Connection] = {}
        """The connection on which each server was told that the trainer waits."""

    def begin(self, step: int) -> None:
        """This is the first step that the trainer does."""
        self._met = step
        self._trainer.before_step = self._before
        self._site.on_turn = self.look

    def end(self) -> None:
        """Meets the others after the last step, unless that has been done."""
        step = self._trainer.step
        if step > self._met and not self._trainer.gone:
            self._wait(step)
            self._site.run(lambda: self._pause is None)

    def _before(self, step: int) -> Wait | None:
        if step <= self._met or step % self._parts.every:
            return None
        return self._wait(step)

    def _wait(self, step: int) -> Blocked:
        silent = [peer.role for peer in self._servers]
        self._pause = Blocked(self._trainer, f"the others, to be saved with them after step {step}", silent)
        self._step = step
        self._told.clear()
        for peer in self._servers:
            self._site.answers.pop(peer.role, None)
        return self._pause

    def look(self) -> None:
        """Tells the servers that this trainer waits, when nothing of it is under way; goes on when all have met."""
        communicator = self._trainer.communicator
        if self._pause is None or (communicator is not None and not communicator.quiet):
            return
        for peer in self._servers:
            if peer.connection is not None and self._told.get(peer.role) is not peer.connection:
                self._told[peer.role] = peer.connection
                peer.ask({AT: self._step})
        answers = [self._site.answers.get(peer.role, {}) for peer in self._servers]
        if all(answer.get(MET, -1) >= self._step for answer in answers):
            if all(answer[MET] == self._step and answer[SAVED] for answer in answers):
                self._parts.save(self._trainer, self._step)
            pause, self._pause, self._met = self._pause, None, self._step
            pause.release()
            self._site.run_machines()
