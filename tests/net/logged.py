"""`pstranspile start` that also writes down, for the books of a run, what trainers send and what servers apply.

logged.py LOG ARGUMENTS...   a line of JSON for each gradient, send barrier and update, written at once
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from pstranspile.cli import main
from pstranspile.net.peer import Peer
from pstranspile.net.site import Site
from pstranspile.net.status import StatusPipe
from pstranspile.run.cluster.message import SEND, SEND_BARRIER, Message
from pstranspile.run.cluster.record import check_sum
from pstranspile.run.cluster.server import Server
from pstranspile.run.cluster.synchronous import SynchronousServer

PACE = float(os.environ["PSTRANSPILE_PACE"])
"""Seconds from step to step: so that a process that is started again finds the others still at work."""

LOG = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def write(*fields: object) -> None:
    os.write(LOG, json.dumps([os.getpid(), *fields]).encode() + b"\n")


def applied(server: Server, values: list[tuple[str, int, Any]]) -> None:
    write("applied", server.name, server.updates, [[name, who, check_sum(value)] for name, who, value in values])


def posting(site: Site, peer: Peer, messages: list[Message]) -> None:
    for message in messages:
        if message.kind == SEND:
            write("sent", message.target, message.step, message.trainer, message.variable, check_sum(message.payload))
        elif message.kind == SEND_BARRIER:
            write("reported", message.target, message.step, message.trainer)
    post(site, peer, messages)


def telling(pipe: StatusPipe, **fields: Any) -> None:
    tell(pipe, **fields)
    if "values" in fields:
        time.sleep(PACE)


tell, StatusPipe.__call__ = StatusPipe.__call__, telling
post = Site._post
Site._post = posting
SynchronousServer.on_apply = staticmethod(applied)
sys.exit(main(sys.argv[2:]))
