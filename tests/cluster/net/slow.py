"""Slow lines: what goes from one process to another passes a port that lets few bytes through in a second."""

from __future__ import annotations

import socket
import time

from tests.cluster.net.cutting import Passing


class Slow(Passing):
    """A port, `address`, that passes on to `target` what comes, `rate` bytes a second."""

    def __init__(self, target: str, rate: int):
        self._rate = rate
        super().__init__(target)

    def _listen(self) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what waits for its way waits outside
        made.bind(("127.0.0.1", 0))
        made.listen()
        return made

    def _through(self, data: bytes, one: socket.socket, other: socket.socket, *, there: bool) -> None:
        for start in range(0, len(data), 1024):
            piece = data[start : start + 1024]
            other.sendall(piece)
            if there:
                time.sleep(len(piece) / self._rate)
