"""One process's part of a cluster: its own machines, and stand-ins for all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.collectives.ring import GONE
from pstranspile.cluster.machines.communicators.companion import Companion
from pstranspile.cluster.machines.faults.injection import process_of
from pstranspile.cluster.machines.message import COMPLETE, REPLY, Message
from pstranspile.cluster.machines.network import Machine
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.cluster.net.peer import MESSAGE, Peer
from pstranspile.cluster.net.terms import MOST_STEPS
from pstranspile.cluster.net.values import WireError, bytes_of

Post: TypeAlias = "Callable[[Peer, list[Message]], object]"
"""Called with the messages that the machines of this process have posted to those of another one."""


class Part:
    """The machines of a cluster that run in the process `role`; messages to the others go to `post`."""

    def __init__(self, cluster: Cluster, role: str, post: Post):
        self.cluster = cluster
        self.machines = sorted(cluster.machines)
        """The names of all machines; their places are their numbers on the wire."""
        self.numbers = {name: number for number, name in enumerate(self.machines)}
        indices = {trainer.name: trainer.index for trainer in cluster.trainers}
        by_role: dict[str, set[str]] = {}
        for name in self.machines:
            by_role.setdefault(process_of(name), set()).add(name)
        self.own = frozenset(by_role.pop(role))
        self._steps: dict[tuple[str, str], int] = {}
        """The step of the last message on each way to a server of this process."""
        self.peers = {name: Peer(name, frozenset(names), indices.get(name, -1)) for name, names in by_role.items()}
        for peer in self.peers.values():
            for name in peer.machines:
                machine = cluster.machines[name]
                machine.turn = self._sender(machine, peer, post)

    def _sender(self, machine: Machine, peer: Peer, post: Post) -> Callable[[], None]:
        """What sends all that was posted to a machine of another process.

        A trainer that has its process to itself goes on first, as far as it can: the barrier that ends a step then
        travels with the gradients of the next one.
        """
        lone = self.cluster.machines[next(iter(self.own))] if len(self.own) == 1 else None

        def send() -> None:
            if lone is not None and lone.listed:
                self.cluster.scheduler.wake(machine)
                return
            messages = list(machine.inbox)
            machine.inbox.clear()
            if messages:
                post(peer, messages)

        return send

    def require_sound(self, peer: Peer, messages: Sequence[Message]) -> None:
        """Raises WireError, before anything was taken, if a process may not send one of these messages, or not now."""
        due: dict[tuple[str, str], int] = {}
        awaited: dict[str, set[int]] = {}
        left = peer.left
        for message in messages:
            self.require_allowed(peer, message)
            machines, way = self.cluster.machines, (message.source, message.target)
            target = machines[message.target]
            expected = due.get(way)
            if expected is None:
                expected = self.cluster.network.link(machines[message.source], target, message.trainer).expected
            if message.sequence > expected or (message.sequence < expected and peer.index >= 0):
                raise WireError(f"message {message.sequence} has come where {expected} is due: {message}")
            if message.sequence < expected:
                continue
            due[way] = expected + 1
            if isinstance(target, Server):
                if left:
                    raise WireError(f"{peer.role} has left, or was given up, and sends on: {message}")
                if not -MOST_STEPS < message.step < MOST_STEPS or message.step < self._steps.get(way, -MOST_STEPS):
                    raise WireError(f"{peer.role} was further than step {message.step}: {message}")
                if message.kind == COMPLETE and message.payload is not None:
                    raise WireError(f"{peer.role} may not leave so: {message}")
                self._steps[way] = message.step
                left = message.kind == COMPLETE
            elif isinstance(target, (Trainer, Companion)):
                self._require_awaited(peer, message, target, awaited.setdefault(message.target, set()))

    def _require_awaited(self, peer: Peer, message: Message, target: Trainer | Companion, filled: set[int]) -> None:
        """Raises WireError for an answer to something else than what a machine has asked. (Old ones are ignored.)"""
        if message.kind != REPLY or peer.index >= 0:
            raise WireError(f"{peer.role} may send {message.target} nothing but answers: {message}")
        replies = target.awaited
        if replies is not None and replies.step == message.step:
            if message.slot in filled or not replies.awaits(message):
                raise WireError(f"{peer.role} answers what it was not asked: {message}")
            filled.add(message.slot)

    def require_allowed(self, peer: Peer, message: Message) -> None:
        """Raises WireError for a message that its sender may not send, or that is for no machine of this process."""
        if message.source not in peer.machines or message.target not in self.own:
            raise WireError(f"{peer.role} may not send messages from {message.source} to {message.target}")
        if message.kind != REPLY and peer.index >= 0 and message.trainer != peer.index:
            raise WireError(f"{peer.role} may not send messages of trainer {message.trainer}")
        side = self.cluster.rings.get(message.target)
        if side is not None and not side.accepts(message):
            raise WireError(f"{peer.role} may not send this to {message.target}: {message}")

    def deliver(self, peer: Peer, message: Message) -> None:
        """Hands a message to its machine, once. Raises WireError if one before it is missing."""
        cluster = self.cluster
        target = cluster.machines[message.target]
        link = cluster.network.link(cluster.machines[message.source], target, message.trainer)
        if message.sequence < link.expected:
            return
        if message.sequence != link.expected:
            raise WireError(f"message {message.sequence} has come where {link.expected} is due: {message}")
        link.expected += 1
        peer.brought += bytes_of(message.payload) + MESSAGE
        if message.kind == COMPLETE:
            peer.left = message.target not in cluster.rings  # its process sums on for the others
        elif message.step > peer.last_step:
            peer.last_step = message.step
        cluster.scheduler.deliver(link, message)

    def reset_links(self, peer: Peer) -> None:
        """A process has taken another one's place: messages on links to and from its machines are counted anew."""
        machines = self.cluster.machines
        for name in peer.machines:
            for mine in self.own:
                self._steps.pop((name, mine), None)
                for source, target in ((name, mine), (mine, name)):
                    link = machines[source].links.get(target)
                    if link is not None:
                        link.sequence, link.expected = 0, 1

    def take_out(self, peer: Peer) -> None:
        """Sends COMPLETE to the machines here in place of the trainer.

        The message is not one of the trainer's: those that come from it keep their numbers.
        """
        cluster = self.cluster
        source = cluster.machines.get(f"{peer.role}/communicator", cluster.machines[peer.role])
        for name in sorted(self.own):
            machine = cluster.machines[name]
            if machine in cluster.servers or name in cluster.rings:
                link = cluster.network.link(source, machine, peer.index)
                step, gone = max(peer.last_step, 0), GONE if name in cluster.rings else None
                message = Message(COMPLETE, source.name, name, peer.index, step, link.expected, "", gone, -1)
                cluster.scheduler.deliver(link, message)
