"""Where the trainers of a job meet beside training: each gives an array, and gets those of all."""

from __future__ import annotations

import hmac
import io
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from pstranspile.fluid.environment import seconds
from pstranspile.fluid.machines import require_open
from pstranspile.fluid.missing import refused

MEETING = "PADDLE_GLOO_HTTP_ENDPOINT"
"""The variable of the environment by which launchers say where trainers meet, as those of 2.x do."""
_LENGTH = struct.Struct("<Q")
_MOST = 1 << 32
"""Bytes of one array."""


def _whole(link: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = link.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise ConnectionError("a trainer has left the meeting of all trainers")
        parts += part
    return bytes(parts)


def _give(link: socket.socket, held: bytes) -> None:
    link.sendall(_LENGTH.pack(len(held)) + held)


def _take(link: socket.socket, most: int = _MOST) -> bytes:
    (size,) = _LENGTH.unpack(_whole(link, _LENGTH.size))
    if size > most:
        raise ConnectionError(f"a trainer gives {size} bytes, of which {most} are taken")
    return _whole(link, size)


def _packed(arrays: Sequence[Any]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, *arrays, allow_pickle=False)
    return buffer.getvalue()


def _unpacked(held: bytes) -> list[Any]:
    with np.load(io.BytesIO(held), allow_pickle=False) as arrays:
        return [arrays[f"arr_{number}"] for number in range(len(arrays.files))]


class Meeting:
    """The meeting of `count` trainers, to which trainer 0 listens at an address.

    All come to it as often, and in the same order. Talk beyond this host is refused as that of machines.
    """

    def __init__(self, index: int, count: int, endpoint: str):
        if os.environ.get("PSTRANSPILE_TLS"):
            raise refused("what trainers give each other beside training", "PSTRANSPILE_TLS is set; add up logs")
        require_open({"trainer_0": endpoint})
        self._index, self._count = index, count
        self._host, _, port = endpoint.rpartition(":")
        self._port = int(port)
        self._patience = seconds("PSTRANSPILE_PATIENCE", 120)
        self._hello = os.environ.get("PSTRANSPILE_TOKEN", "").encode()
        self._links: dict[int, socket.socket] = {}

    def all_of(self, given: Any) -> list[Any]:
        """What all trainers give, in order. Raises ConnectionError and TimeoutError where one does not come."""
        if not self._links:
            self._meet()
        own = np.asarray(given)
        if self._index:
            (link,) = self._links.values()
            _give(link, _packed([own]))
            return _unpacked(_take(link))
        held = [own, *(_unpacked(_take(self._links[number]))[0] for number in range(1, self._count))]
        for link in self._links.values():
            _give(link, _packed(held))
        return held

    def _meet(self) -> None:
        if self._index:
            self._links[0] = self._call()
            return
        with socket.create_server((self._host, self._port)) as door:
            door.settimeout(self._patience)
            while len(self._links) < self._count - 1:
                link, _ = door.accept()
                link.settimeout(self._patience)
                number = self._number_of(link)
                if number is None:
                    link.close()
                else:
                    self._links[number] = link

    def _number_of(self, link: socket.socket) -> int | None:
        """Which trainer calls, None for anybody else."""
        try:
            (number,) = _LENGTH.unpack(_whole(link, _LENGTH.size))
            known = hmac.compare_digest(_take(link, len(self._hello)), self._hello)
        except OSError:
            return None
        return number if known and 0 < number < self._count and number not in self._links else None

    def _call(self) -> socket.socket:
        end = time.monotonic() + self._patience
        while True:
            try:
                link = socket.create_connection((self._host, self._port), self._patience)
            except ConnectionRefusedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
                continue
            link.sendall(_LENGTH.pack(self._index))
            _give(link, self._hello)
            return link
