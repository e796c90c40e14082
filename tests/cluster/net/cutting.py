"""Connections that are cut: what goes from one process to another passes a port at which it can be stopped."""

from __future__ import annotations

import contextlib
import socket
from threading import Lock, Thread


class Cuttable:
    """A port, `address`, that passes on to `target`. After so many bytes every connection there is at that time ends.

    With `silent` it does not end, but nothing comes through any more, as where a cable is pulled.
    """

    def __init__(self, target: str, after: list[int], *, silent: bool = False):
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._after = sorted(after)
        self._silent = silent
        self._passed = 0
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._mute: set[socket.socket] = set()
        self.cuts = 0
        """How often it has happened."""
        self._listening = socket.create_server(("127.0.0.1", 0))
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
                with self._lock:
                    self._open |= {near, far}
                for one, other in ((near, far), (far, near)):
                    Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(4096):
                if one in self._mute:
                    continue
                other.sendall(data)
                self._count(len(data))
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _count(self, size: int) -> None:
        with self._lock:
            self._passed += size
            if not self._after or self._passed < self._after[0]:
                return
            self._after.pop(0)
            self.cuts += 1
            cut, self._open = self._open, set()
            if self._silent:
                self._mute |= cut
                return
        for end in cut:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Nothing passes any more."""
        self._listening.close()
        for end in self._open | self._mute:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
