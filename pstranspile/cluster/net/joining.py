"""How a trainer whose process was started again rejoins: it asks every server for a step, and is let in at that step.

A server may be started again meanwhile, and forget the request. So every later greeting carries the step, and a server
that does not know of it lets the trainer in again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.net.peer import Peer
from pstranspile.cluster.net.site import Site
from pstranspile.cluster.net.terms import MOST_STEPS, Refused, step_of


class Readmission:
    """A server's side: it lets trainers in again."""

    def __init__(self, site: Site, server: Server):
        self.site = site
        self.server = server
        site.answer = self.answer
        site.on_greeted = self.greeted

    def answer(self, peer: Peer, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a trainer that asks for the server's progress, or to be let in at a step."""
        step = step_of(question, "rejoin")
        if step is None:
            return {"updates": self.server.updates, "step": peer.last_step}
        if peer.index < 0 or (peer.left and peer.given_up) or self._late(peer, step):
            return {"joined": False}
        self._let_in(peer, step)
        return {"joined": True}

    def _late(self, peer: Peer, step: int) -> bool:
        """Whether the server has begun with a step in which other trainers take part."""
        server = self.server
        if server.mode or all(other.left for other in self.site.peers.values() if other.index >= 0 and other != peer):
            return False
        return step < server.updates or (step == server.updates and getattr(server, "sending", False))

    def greeted(self, peer: Peer, fields: Mapping[str, Any]) -> None:
        """Lets a trainer in again which other servers have let in, and this server may have forgotten."""
        step = step_of(fields, "joins")
        if step is not None and peer.index >= 0 and not peer.announced:
            self._let_in(peer, step)

    def _let_in(self, peer: Peer, step: int) -> None:
        """Announces the trainer. If it counts as taking part now, it is taken out first: the server has let it in at an
        earlier step, which another server had begun, or has not seen an earlier process of it.
        """
        waited = self.server.withdraw(peer.index)
        if not waited and (peer.announced or not peer.life):
            self.site.part.take_out(peer)
            self.site.run_machines()
        peer.left, peer.announced = False, True
        self.server.announce(peer.index, step)


def rejoin(site: Site, servers: Sequence[str], patience: float) -> int:
    """Lets this trainer, which took part before, take part again; gives the first step in which it does.

    No server has begun to serve that step. Raises Refused.
    """
    ahead = 1
    while True:
        asked = [site.peers[server].incarnation for server in servers]
        answers = [(server, _ask(site, server, {"rejoin": None}, patience)) for server in servers]
        if any(server.mode == 0 for server in site.cluster.servers):
            step = max(_number(server, answer, "updates") for server, answer in answers) + ahead
        else:
            step = max(_number(server, answer, "step") for server, answer in answers) + 1
        joined = all(_ask(site, server, {"rejoin": step}, patience).get("joined") is True for server in servers)
        if joined and asked == [site.peers[server].incarnation for server in servers]:
            site.joins = step
            return step
        ahead *= 2


def _number(server: str, answer: Mapping[str, Any], name: str) -> int:
    """How far a server is; -1: it has not begun. Raises Refused if it does not say so."""
    value = answer.get(name)
    if type(value) is not int or not -1 <= value < MOST_STEPS:
        raise Refused(f"{server} answers what it was not asked: {name} is no number of a step")
    return value


def _ask(site: Site, role: str, question: Mapping[str, Any], timeout: float) -> Mapping[str, Any]:
    """Asks another process, repeats the question on new connections, and waits for the answer. Raises Refused if none
    comes.
    """
    peer = site.peers[role]
    site.questions += 1
    number = site.questions
    asked_on: list[object] = [None]

    def answered() -> bool:
        if peer.connection is not None and peer.connection is not asked_on[0]:
            asked_on[0] = peer.connection
            peer.ask({**question, "number": number})
        return site.answers.get(role, {}).get("number") == number

    if not site.run(answered, timeout):
        raise Refused(f"{role} does not answer")
    return site.answers.pop(role)
