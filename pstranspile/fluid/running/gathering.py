"""The meeting of a job's trainers beside training: each contributes an array, and gets the arrays of all."""

from __future__ import annotations

import hmac
import io
import os
import socket
import struct
import time
from collections.abc import Sequence
from math import prod
from selectors import EVENT_READ, DefaultSelector
from typing import Any, NamedTuple, cast

import numpy as np

from pstranspile.cluster.net.terms import token_of_environment
from pstranspile.cluster.net.transport import place_of
from pstranspile.fluid.machines import require_open
from pstranspile.fluid.missing import unsupported_error
from pstranspile.fluid.running.failures import naming_wait
from pstranspile.fluid.running.flags import MEETING, seconds
from pstranspile.ir.diagnostics import lasting, name_list, visible
from pstranspile.runtime.run.files import DAMAGE, array_header

_LENGTH = struct.Struct("<Q")
_MOST_NEWCOMERS = 32
"""The greatest number of open connections that have not yet named their trainer."""

_PATIENCE = 10.0
"""Seconds within which a connection must name its trainer."""

_MOST = 1 << 32
"""The greatest size of one message, in bytes."""

_MOST_HEAD = 1 << 14
"""The greatest size of the header of an array, in bytes."""

_MOST_TOLD = 200
"""The greatest number of characters of an error about an array."""


def _whole(link: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = link.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise ConnectionResetError
        parts += part
    return bytes(parts)


def _give(link: socket.socket, held: bytes) -> None:
    link.sendall(_LENGTH.pack(len(held)) + held)


def _take(link: socket.socket, most: int = _MOST) -> bytes:
    (size,) = _LENGTH.unpack(_whole(link, _LENGTH.size))
    if size > most:
        raise ConnectionError(f"a trainer gives {size} bytes, of which {most} are taken")
    return _whole(link, size)


def _pack_arrays(arrays: Sequence[Any]) -> bytes:
    """Arrays as `.npy` files one after the other, each after its length, without compression."""
    parts: list[bytes] = []
    for array in arrays:
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        parts += (_LENGTH.pack(buffer.tell()), buffer.getvalue())
    return b"".join(parts)


def _unpack_arrays(held: bytes, count: int) -> list[Any]:
    """The arrays in packed bytes. Raises ConnectionError if these are not exactly `count` arrays."""
    arrays: list[Any] = []
    at = 0
    while at < len(held) and len(arrays) < count:
        end = at + _LENGTH.size
        size = _LENGTH.unpack(held[at:end])[0] if end <= len(held) else len(held)
        if size > len(held) - end:
            raise ConnectionError("a trainer gives what is no array: it ends too soon")
        arrays.append(_array(memoryview(held)[end : end + size]))
        at = end + size
    if at != len(held) or len(arrays) != count:
        raise ConnectionError(f"a trainer gives {len(arrays)} arrays in {len(held)} bytes, where {count} are expected")
    return arrays


def _array(data: memoryview) -> Any:
    """The array in a `.npy` file, whose data must be exactly as long as its header says. Raises ConnectionError."""
    head = io.BytesIO(data[:_MOST_HEAD])
    try:
        shape, by_columns, dtype = array_header(head)
        if dtype.hasobject or any(dim < 0 for dim in shape):
            raise ValueError("it holds objects, or has dims below 0")
        if len(data) - head.tell() != prod(shape) * dtype.itemsize:
            raise ValueError(f"dims {list(shape)} of {dtype} don't take {len(data) - head.tell()} bytes")
        return np.ndarray(shape, dtype, data[head.tell() :], order="F" if by_columns else "C").copy(order="K")
    except DAMAGE as problem:
        raise ConnectionError(f"a trainer gives what is no array: {visible(str(problem), _MOST_TOLD)}") from None


class _Newcomer(NamedTuple):
    """A connection that has not yet named its trainer: its socket, the bytes received so far, and the time of its
    arrival.
    """

    link: socket.socket
    received_bytes: bytearray
    arrival_time: float


def _send_away(one: _Newcomer, selector: DefaultSelector, newcomers: dict[socket.socket, _Newcomer]) -> None:
    selector.unregister(one.link)
    del newcomers[one.link]
    one.link.close()


class Rendezvous:
    """The meeting of `count` trainers; trainer 0 listens at an address, the others connect to it.

    All trainers call it equally often, and in the same order. An address beyond this host is refused under the same
    conditions as those of machines.
    """

    def __init__(self, index: int, count: int, endpoint: str):
        if os.environ.get("PSTRANSPILE_TLS"):
            raise unsupported_error(
                "what trainers give each other beside training", "PSTRANSPILE_TLS is set; add up logs"
            )
        require_open({"trainer_0": endpoint})
        self._index, self._count = index, count
        self._endpoint = endpoint
        try:
            self._place = place_of(endpoint)
        except OSError as problem:
            raise ConnectionError(f"trainers can't meet at {visible(endpoint)} ({MEETING}): {problem}") from None
        self._patience = seconds("PSTRANSPILE_PATIENCE", 120)
        self._hello = token_of_environment(os.environ).encode()
        self._links: dict[int, socket.socket] = {}

    def all_of(self, given: Any) -> list[Any]:
        """The values that all trainers contribute, in order. Raises ConnectionError and TimeoutError where a trainer
        does not come.
        """
        with naming_wait(self._waits):
            return self._exchange_arrays(given)

    def _waits(self) -> str:
        """The sentence that says what this trainer waits for."""
        place = f"the meeting of all trainers at {self._endpoint}"
        if self._index:
            return f"trainer_{self._index} waits for trainer_0 in {place}"
        missing = [f"trainer_{number}" for number in range(1, self._count) if number not in self._links]
        met = [f"trainer_{number}" for number in range(1, self._count)]
        return f"trainer_0 waits for {name_list(missing or met)} in {place}"

    def _exchange_arrays(self, given: Any) -> list[Any]:
        if not self._links:
            self._meet()
        own = np.asarray(given)
        if self._index:
            self._give(0, _pack_arrays([own]))
            return _unpack_arrays(self._take(0), self._count)
        held = [own, *(_unpack_arrays(self._take(number), 1)[0] for number in range(1, self._count))]
        for number in self._links:
            self._give(number, _pack_arrays(held))
        return held

    def _give(self, number: int, held: bytes) -> None:
        """Sends bytes to a trainer. Raises ConnectionError, TimeoutError."""
        try:
            _give(self._links[number], held)
        except OSError as problem:
            raise self._connection_error(number, problem) from None

    def _take(self, number: int) -> bytes:
        """The bytes that a trainer sends. Raises ConnectionError, TimeoutError."""
        try:
            return _take(self._links[number])
        except OSError as problem:
            raise self._connection_error(number, problem) from None

    def _connection_error(self, number: int, problem: OSError) -> OSError:
        """The error to raise after the connection to a trainer has failed with `problem`."""
        if isinstance(problem, TimeoutError):
            return TimeoutError(f"trainer_{number} has not come to the meeting of all trainers {self._patience_text}")
        if isinstance(problem, ConnectionResetError | BrokenPipeError) or problem.errno is not None:
            reason = "its process has ended, or its connection"
            return ConnectionError(f"trainer_{number} has left the meeting of all trainers: {reason}")
        return ConnectionError(f"trainer_{number}: {problem}")

    @property
    def _family(self) -> socket.AddressFamily:
        """The family of the addresses at which trainer 0 listens."""
        return socket.AF_INET6 if ":" in self._place[0] else socket.AF_INET

    @property
    def _patience_text(self) -> str:
        return f"within {lasting(self._patience)} (PSTRANSPILE_PATIENCE)"

    def _meet(self) -> None:
        if self._index:
            self._links[0] = self._call()
            return
        try:
            door = socket.create_server(self._place, family=self._family)
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise ConnectionError(f"trainers can't meet at {self._endpoint} ({MEETING}): {reason}") from None
        with door, DefaultSelector() as selector:
            door.setblocking(False)
            selector.register(door, EVENT_READ)
            newcomers: dict[socket.socket, _Newcomer] = {}
            end = time.monotonic() + self._patience
            while len(self._links) < self._count - 1:
                if time.monotonic() > end:
                    missing = [f"trainer_{number}" for number in range(1, self._count) if number not in self._links]
                    have = "has" if len(missing) == 1 else "have"
                    raise TimeoutError(
                        f"{name_list(missing)} {have} not come to the meeting of all trainers {self._patience_text}"
                    )
                for key, _ in selector.select(0.25):
                    if key.fileobj is door:
                        self._let_come(door, selector, newcomers)
                        continue
                    one = newcomers.get(cast("socket.socket", key.fileobj))
                    if one is not None and self._hear(one, selector, newcomers):
                        end = time.monotonic() + self._patience
                late = time.monotonic() - _PATIENCE
                for one in [one for one in newcomers.values() if one.arrival_time < late]:
                    _send_away(one, selector, newcomers)
            for one in list(newcomers.values()):
                _send_away(one, selector, newcomers)

    def _let_come(
        self, door: socket.socket, selector: DefaultSelector, newcomers: dict[socket.socket, _Newcomer]
    ) -> None:
        """Accepts a connection; if too many have not named their trainer, closes the one that has sent least.

        The newest connection is not closed, because a trainer's name may arrive a moment later than its connection.
        """
        try:
            link, _ = door.accept()
        except OSError:
            return
        link.setblocking(False)
        one = newcomers[link] = _Newcomer(link, bytearray(), time.monotonic())
        selector.register(link, EVENT_READ)
        self._hear(one, selector, newcomers)
        if len(newcomers) > _MOST_NEWCOMERS:
            others = (other for other in newcomers.values() if other is not one)
            _send_away(min(others, key=lambda other: len(other.received_bytes)), selector, newcomers)

    def _hear(self, one: _Newcomer, selector: DefaultSelector, newcomers: dict[socket.socket, _Newcomer]) -> bool:
        """Receives bytes of the greeting, whose length is known; returns whether a trainer has joined by it."""
        size = 2 * _LENGTH.size + len(self._hello)
        try:
            part = one.link.recv(size - len(one.received_bytes))
        except BlockingIOError:
            return False
        except OSError:
            part = b""
        one.received_bytes.extend(part)
        if part and len(one.received_bytes) < size:
            return False
        number = self._number_of(bytes(one.received_bytes))
        if not part or number is None:
            _send_away(one, selector, newcomers)
            return False
        selector.unregister(one.link)
        del newcomers[one.link]
        one.link.settimeout(self._patience)
        self._links[number] = one.link
        return True

    def _number_of(self, greeting: bytes) -> int | None:
        """The number of the trainer that sent a greeting, None if it is not one of this job's trainers."""
        if len(greeting) < 2 * _LENGTH.size + len(self._hello):
            return None
        number, size = (_LENGTH.unpack_from(greeting, place)[0] for place in (0, _LENGTH.size))
        known = size == len(self._hello) and hmac.compare_digest(greeting[2 * _LENGTH.size :], self._hello)
        return number if known and 0 < number < self._count and number not in self._links else None

    def _call(self) -> socket.socket:
        end = time.monotonic() + self._patience
        while True:
            try:
                link = socket.create_connection(self._place, self._patience)
                link.sendall(_LENGTH.pack(self._index) + _LENGTH.pack(len(self._hello)) + self._hello)
                return link
            except ConnectionRefusedError:
                if time.monotonic() > end:
                    reason = f"nobody has listened {self._patience_text}"
                    raise self._unmet(reason) from None
            except OSError as problem:
                raise self._unmet(problem.strerror or str(problem)) from None
            time.sleep(0.05)

    def _unmet(self, reason: str) -> TimeoutError:
        """The error to raise when a trainer can't reach the address of the meeting."""
        return TimeoutError(f"trainers meet at {self._endpoint} ({MEETING}), which can't be reached: {reason}")
