"""Fluid's waiting for servers."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from pstranspile.fluid.running.interrupts import naming_wait

PAUSE = 0.2
"""Seconds between two tries."""


def wait_server_ready(endpoints: Sequence[str]) -> None:
    """Returns when something listens at every endpoint; those that are waited for are named on stderr once."""
    assert not isinstance(endpoints, str), "wait_server_ready takes a list of endpoints"
    silent = [endpoint for endpoint in endpoints if not _listens(endpoint)]
    if silent:
        print(f"waiting for {', '.join(silent)}", file=sys.stderr)
    for endpoint in silent:
        with naming_wait(lambda endpoint=endpoint: f"it waits for {endpoint}, where nobody listens"):
            while not _listens(endpoint):
                time.sleep(PAUSE)


def _listens(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as tried:
        tried.settimeout(2)
        return tried.connect_ex((host, int(port))) == 0
