"""Has a process write down what its trainers send and what its servers apply, for the books of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pstranspile.net.peer import Peer
from pstranspile.net.site import Site
from pstranspile.run.cluster.message import SEND, SEND_BARRIER, Message
from pstranspile.run.cluster.record import check_sum
from pstranspile.run.cluster.server import Server
from pstranspile.run.cluster.synchronous import SynchronousServer


def keep_books(write: Callable[..., object]) -> None:
    """From now on `write` is handed `sent`, `reported` and `applied`, each with its fields."""

    def applied(server: Server, values: list[tuple[str, int, Any]]) -> None:
        write("applied", server.name, server.updates, [[name, who, check_sum(value)] for name, who, value in values])

    def posting(site: Site, peer: Peer, messages: list[Message]) -> None:
        for message in messages:
            if message.kind == SEND:
                write(
                    "sent", message.target, message.step, message.trainer, message.variable, check_sum(message.payload)
                )
            elif message.kind == SEND_BARRIER:
                write("reported", message.target, message.step, message.trainer)
        post(site, peer, messages)

    post = Site._post
    Site._post = posting
    SynchronousServer.on_apply = staticmethod(applied)
