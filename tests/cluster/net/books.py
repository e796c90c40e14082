"""Has a process write down what its trainers send and what its servers apply, for the books of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pstranspile.cluster.machines.message import SEND, SEND_BARRIER, Message
from pstranspile.cluster.machines.record import check_sum
from pstranspile.cluster.machines.server import Contributions, Server, ServerListener
from pstranspile.cluster.net.peer import Peer
from pstranspile.cluster.net.site import Site


def keep_books(write: Callable[..., object]) -> None:
    """From now on `write` is handed `sent`, `reported` and `applied`, each with its fields."""

    class Applied(ServerListener):
        def updating(self, server: Server, contributions: Callable[[], Contributions]) -> None:
            values = contributions()
            write(
                "applied", server.name, server.updates, [[name, who, check_sum(value)] for name, who, value in values]
            )

    def making(server: Server, *arguments: Any, **options: Any) -> None:
        make(server, *arguments, **options)
        server.listen(Applied())

    def posting(site: Site, peer: Peer, messages: list[Message]) -> None:
        for message in messages:
            if message.kind == SEND:
                write(
                    "sent", message.target, message.step, message.trainer, message.variable, check_sum(message.payload)
                )
            elif message.kind == SEND_BARRIER:
                write("reported", message.target, message.step, message.trainer)
        post(site, peer, messages)

    post, make = Site._post, Server.__init__
    Site._post, Server.__init__ = posting, making
