"""Connections that are cut: what goes from one process to another passes a port at which it can be stopped."""

from __future__ import annotations

import contextlib
import socket
from threading import Lock, Thread


class Passing:
    """A port, `address`, that passes on to `target` what comes, and back."""

    def __init__(self, target: str):
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self.connections = 0
        """How many have come."""
        self._listening = self._listen()
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        Thread(target=self._accept, daemon=True).start()

    def _listen(self) -> socket.socket:
        return socket.create_server(("127.0.0.1", 0))

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
                self._began(near, far)
                for one, other, there in ((near, far, True), (far, near, False)):
                    Thread(target=self._pass, args=(one, other, there), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, there: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(4096):
                self._through(data, one, other, there=there)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _began(self, near: socket.socket, far: socket.socket) -> None:
        """A connection has come, and goes on to the target."""

    def _through(self, data: bytes, one: socket.socket, other: socket.socket, *, there: bool) -> None:
        """Passes on what has come; `there`: to the target."""
        other.sendall(data)

    def close(self) -> None:
        """Nobody comes any more."""
        self._listening.close()


class Cuttable(Passing):
    """A port, `address`, that passes on to `target`. After so many bytes every connection there is at that time ends.

    With `silent` it does not end, but nothing comes through any more, as where a cable is pulled.
    """

    def __init__(self, target: str, after: list[int], *, silent: bool = False):
        self._after = sorted(after)
        self._silent = silent
        self._passed = 0
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._mute: set[socket.socket] = set()
        self.cuts = 0
        """How often it has happened."""
        super().__init__(target)

    def _began(self, near: socket.socket, far: socket.socket) -> None:
        with self._lock:
            self._open |= {near, far}

    def _through(self, data: bytes, one: socket.socket, other: socket.socket, *, there: bool) -> None:
        if one not in self._mute:
            other.sendall(data)
            self._count(len(data))

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
        super().close()
        for end in self._open | self._mute:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
