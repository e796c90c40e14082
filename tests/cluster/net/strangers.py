"""Who comes to a port without being a machine of the job."""

from __future__ import annotations

import socket
from contextlib import suppress


def connect(address: str) -> socket.socket:
    """A connection to host:port, of a stranger who waits for half a minute."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def say(address: str, data: bytes, *, more: bool = False) -> bytes:
    """Says something to who listens there, and gives all that is answered until the other side ends the connection.

    With `more` the connection stays open on this side, so that the other one has to end it.
    """
    answer = b""
    with connect(address) as sock, suppress(ConnectionError):
        sock.sendall(data)
        if not more:
            with suppress(OSError):  # the other side was faster
                sock.shutdown(socket.SHUT_WR)
        while part := sock.recv(1 << 16):
            answer += part
    return answer
