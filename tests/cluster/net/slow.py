"""Slow lines: what goes from one process to another passes a port that lets few bytes through in a second."""

from __future__ import annotations

import contextlib
import socket
import time
from threading import Thread


class Slow:
    """A port, `address`, that passes on to `target` what comes, `rate` bytes a second."""

    def __init__(self, target: str, rate: int):
        host, _, port = target.rpartition(":")
        self._target, self._rate = (host, int(port)), rate
        self.connections = 0
        """How many have come."""
        self._listening = socket.socket()
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what waits for its way waits outside
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen()
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                self.connections += 1
                for one, other, rate in ((near, far, self._rate), (far, near, 1 << 30)):
                    Thread(target=self._pass, args=(one, other, rate), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, rate: int) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1024):
                other.sendall(data)
                time.sleep(len(data) / rate)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Nobody comes any more."""
        self._listening.close()
