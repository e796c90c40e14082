"""Fluid 1.8 as another system whose machines may take part in a job."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

from pstranspile.cluster.machines.message import COMPLETE, REPLY, Message
from pstranspile.cluster.machines.server import Server, pairs
from pstranspile.cluster.net.foreign import Journal
from pstranspile.cluster.net.loop import CALL, Event
from pstranspile.cluster.net.peer import Peer
from pstranspile.cluster.net.site import Site
from pstranspile.cluster.net.terms import Refused
from pstranspile.fluid.net.message import VariableMessage, output_of_prefetch, require_gradient, require_saving
from pstranspile.fluid.net.requests import Requests
from pstranspile.fluid.net.service import FluidService

# A server of Fluid, as a trainer of this package sees it: messages posted to it become calls of Fluid's gRPC service.
#
# The calls to one server are made one after the other, by a thread of their own, as Fluid's trainers make them: a
# server has a fixed number of threads, and a call that waits for others occupies one.


class _OfJob(Requests):
    """The calls to a server whose program is known, which are checked before they are sent."""

    def __init__(self, server: Server, address: str, trainer: int):
        blocks = pairs(server.op, "prefetch_var_name_to_block_id")
        rows = {name: output_of_prefetch(server.main, int(block)) for name, block in blocks.items()}
        super().__init__(address, server.name, trainer, server.main.main_block.vars, rows)
        self._server = server

    def require(self, message: VariableMessage) -> None:
        """Raises CallRefused if the server does not accept the variable that is sent."""
        require_gradient(self._server, message)

    def _checkpoint(self, message: Message) -> bool:
        require_saving(self._server)
        return super()._checkpoint(message)


class FluidClient:
    """Makes the calls of this process's trainer to a server of Fluid. Raises Refused if the job can't have such a
    server.
    """

    def __init__(self, site: Site, peer: Peer, address: str):
        self.site = site
        self.peer = peer
        self.server = next(server for server in site.cluster.servers if server.name == peer.role)
        trainer = next(trainer.index for trainer in site.cluster.trainers if trainer.name == site.role)
        self._requests = _OfJob(self.server, address, trainer)
        if self.server.mode == 3:
            raise self._requests.refused("servers of Fluid can't take part in a geo job")
        if any(trainer.role.turns is not None for trainer in site.cluster.trainers):
            raise self._requests.refused(
                "a server of Fluid updates all parameters in every step, whatever program it runs"
            )
        self._posted = self._made = 0
        self._closed = False
        self._queue: SimpleQueue[Message | None] = SimpleQueue()
        peer.hand_to(self._take)
        Thread(target=self._work, daemon=True).start()

    @property
    def idle(self) -> bool:
        """Whether every posted message has been answered."""
        return self._posted == self._made

    def close(self) -> None:
        """Closes the channel: no more calls can be made, and a call in progress is cancelled."""
        self._closed = True
        self._queue.put(None)
        self._requests.close()

    def _take(self, messages: list[Message]) -> None:
        self._posted += len(messages)
        for message in messages:
            self._queue.put(message)

    # the thread of the calls

    def _work(self) -> None:
        while (message := self._queue.get()) is not None:
            try:
                value = self._requests.make(message)
            except Refused as problem:
                self._fail(problem)
                return
            self._made += 1
            if message.slot >= 0:
                self._later(lambda message=message, value=value: self._reply(message, value))
            elif message.kind == COMPLETE:
                self._later(lambda: None)

    def _later(self, action: Callable[[], object]) -> None:
        self.site.events.put(Event(CALL, None, action=action))

    def _fail(self, problem: Refused) -> None:
        def fail() -> None:
            raise problem

        if not self._closed:
            self._later(fail)

    # the thread of the machines

    def _reply(self, message: Message, value: Any) -> None:
        cluster = self.site.cluster
        source = cluster.machines[message.source]
        link = cluster.network.link(self.server, source, message.trainer)
        fields = REPLY, self.server.name, message.source, message.trainer, message.step
        self.site.part.deliver(self.peer, Message(*fields, link.expected, message.variable, value, message.slot))


class FluidSystem:
    """Trainers and servers that run Fluid itself, connected by its own network protocol (gRPC with
    VariableMessages).
    """

    name = "Fluid"

    def trainers(self, site: Site, server: Server, journal: Journal | None) -> FluidService:
        """The trainers of Fluid in a job, for a server of this process."""
        return FluidService(site, server, journal)

    def server(self, site: Site, peer: Peer, address: str) -> FluidClient:
        """A server of Fluid, for the trainer of this process. Raises Refused if the job can't have such a server."""
        return FluidClient(site, peer, address)
