"""The communicator of a trainer whose `send` and `recv` carry the names of slices.

Which kind it is follows from the programs, as Fluid's user would have to choose it: servers that wait for barriers make
it synchronous, a `send_barrier` of a trainer's own makes it half-asynchronous, and otherwise it is asynchronous.

A trainer here is one training thread, so the synchronous and the half-asynchronous kind send every gradient as it is
(the average of one) and the trainer waits meanwhile; they need no machine of their own. The asynchronous kind is a
machine that runs in parallel with the trainer, with a queue for every gradient.

Other than in Fluid: what is in the queues when a trainer leaves is sent; step counters are sent, so that
schedules go on; parameters are pulled after every round in which something was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pstranspile.cluster.machines.addresses import Servers, link_to
from pstranspile.cluster.machines.communicators.asynchronous import AsyncCommunicator
from pstranspile.cluster.machines.communicators.companion import Settings
from pstranspile.cluster.machines.communicators.geo import GeoCommunicator
from pstranspile.cluster.machines.exchanges import Exchange, find_exchanges
from pstranspile.cluster.machines.message import FETCH_BARRIER, SEND_BARRIER
from pstranspile.cluster.machines.network import Link
from pstranspile.cluster.machines.placement import Placement
from pstranspile.cluster.machines.rpc import make_rpc, report
from pstranspile.cluster.machines.server import Server
from pstranspile.cluster.machines.trainer import Communicator, Trainer
from pstranspile.cluster.machines.waits import Action, Replies
from pstranspile.ir.model import Program
from pstranspile.runtime.kernels.context import Value


def uses_communicator(main: Program) -> bool:
    """Whether a trainer's gradients are cut by a communicator, not by ops, or wait for one."""
    return has_barrier(main) or any(
        op.type == "send" and op.attrs.get("send_varnames") and op.attrs.get("use_send_handler", True)
        for op in main.main_block.ops
    )


def has_barrier(main: Program) -> bool:
    """Whether a trainer waits for its communicator in every step."""
    return any(op.type == "send_barrier" and op.attrs.get("half_async", False) for op in main.main_block.ops)


class StepCommunicator(Communicator):
    """Sends in every step what the trainer made in it, then fetches; with barriers if the servers wait for them."""

    def __init__(self, trainer: Trainer, servers: Servers, *, synchronous: bool):
        self._trainer = trainer
        self._servers = servers
        self._synchronous = synchronous
        self._queue: list[Callable[[], object]] = []
        """What to do at the barrier, in the order of the program."""

    def action(self, exchange: Exchange, program: Program) -> Action | None:
        """What the trainer does at an exchange; None: what it would do without a communicator."""
        if self._trainer.role.name_of(program) is None:
            return None
        if exchange.kind == "send":
            send = make_rpc(self._trainer, exchange, program, self._servers)
            return lambda values: self._queue.append(lambda: send(values))
        if exchange.kind == "send_barrier":
            return self._barrier(exchange, program)
        if exchange.kind == "recv" and self._synchronous and exchange.op is _exchanges(program, "recv")[-1].op:
            (barrier, *_) = _exchanges(program, "send_barrier") or (None,)
            fetch = make_rpc(self._trainer, exchange, program, self._servers)
            return fetch if barrier is None else self._fetch_last(fetch, self._links(barrier))
        return None

    def _links(self, barrier: Exchange) -> list[Link]:
        endpoints: Any = barrier.op.attrs["endpoints"]
        return [link_to(self._trainer, self._servers, endpoint, barrier.op) for endpoint in endpoints]

    def _barrier(self, exchange: Exchange, program: Program) -> Action:
        links = self._links(exchange)
        trainer, fetches, label = self._trainer, _exchanges(program, "recv"), self._trainer.role.label(program)

        def run(_values: tuple[Value, ...]) -> None:
            for send in self._queue:
                send()
            self._queue.clear()
            if self._synchronous:
                report(trainer, SEND_BARRIER, links, label)
                if not fetches:
                    report(trainer, FETCH_BARRIER, links)

        return run

    def _fetch_last(self, fetch: Action, links: Sequence[Link]) -> Action:
        trainer = self._trainer

        def run(values: tuple[Value, ...]) -> Replies:
            replies = fetch(values)
            assert isinstance(replies, Replies)
            return replies.then(lambda: report(trainer, FETCH_BARRIER, links))

        return run


def _exchanges(program: Program, kind: str) -> list[Exchange]:
    return [exchange for exchange in find_exchanges(program)[1] if exchange.kind == kind]


def make_communicator(
    trainer: Trainer, servers: Mapping[str, Server], placement: Placement, settings: Settings, trainers: int
) -> Communicator | None:
    """The communicator that a trainer needs, None if it needs none."""
    modes = {server.mode for server in servers.values()}
    if 3 in modes:
        return GeoCommunicator(trainer, servers, placement, trainers=trainers, push_every=settings.push_every)
    if not uses_communicator(trainer.role.main):
        return None
    if 0 in modes:
        return StepCommunicator(trainer, servers, synchronous=True)
    if has_barrier(trainer.role.main):
        return StepCommunicator(trainer, servers, synchronous=False)
    return AsyncCommunicator(trainer, servers, settings)
