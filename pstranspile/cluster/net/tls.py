"""Authentication between processes: TLS with certificates on both sides, or none within one host."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from threading import local
from typing import Any, NamedTuple

from pstranspile.cluster.net.values import Bytes, WireError
from pstranspile.ir.diagnostics import DiagnosticError, error, raise_errors
from pstranspile.ir.model import Location

AUTHORITY = "ca.crt"
"""The file with the certificate of the authority that has signed all certificates of the job."""

CERTIFICATE = "tls.crt"
"""The file with a machine's own certificate."""

KEY = "tls.key"
"""The file with the key of a machine's certificate."""


class Credentials(NamedTuple):
    """The TLS contexts for listening and for calling; both sides present a certificate."""

    listening: ssl.SSLContext
    calling: ssl.SSLContext


def read_credentials(folder: str) -> Credentials:
    """The certificates in a folder. Raises DiagnosticError."""
    for name in (AUTHORITY, CERTIFICATE, KEY):
        _require_readable(Path(folder, name))
    listening, calling = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    listening.verify_mode = ssl.CERT_REQUIRED
    for context in (listening, calling):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # each costs as much as a handshake
        try:
            context.load_verify_locations(str(Path(folder, AUTHORITY)))
            context.load_cert_chain(str(Path(folder, CERTIFICATE)), str(Path(folder, KEY)), _no_pass_phrase)
        except ssl.SSLError as problem:
            message = f"the certificates can't be used: {problem.reason or problem}"
            raise DiagnosticError([error("start-tls", message, Location(folder))]) from None
    return Credentials(listening, calling)


def _no_pass_phrase() -> str:
    """Raises DiagnosticError for an encrypted key, whose pass phrase OpenSSL would otherwise ask for on the
    terminal.
    """
    message = f"{KEY} is encrypted; a process that nobody sits at can't ask for its pass phrase"
    raise DiagnosticError([error("start-tls", message)])


def _require_readable(path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as problem:
        message = f"can't be read: {problem.strerror}; --tls DIR holds {AUTHORITY}, {CERTIFICATE} and {KEY}"
        raise DiagnosticError([error("start-tls", message, Location(str(path)))]) from None


def require_guarded(addresses: Mapping[str, str], roles: Iterable[str]) -> None:
    """Raises DiagnosticError if one of these machines is not on this host, as traffic could be overheard."""
    findings = [
        error("start-tls", f"{role} is at {addresses[role]}, which is not on this host; give --tls DIR, or --insecure")
        for role in roles
        if role in addresses and not _on_this_host(addresses[role])
    ]
    raise_errors(findings)


def _on_this_host(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# TLS between a channel and its socket.
#
# OpenSSL works in memory here. On a socket of its own it would call the system for every record of 16 KiB, twice when
# it reads, and wake the other side as often; so it is called once for many records.

RECORD = 1 << 14
"""The most bytes of a record; each record costs a header, a tag and a call."""

CHUNK = 1 << 19
"""The bytes that one call reads."""

SEALED = 1 << 16
"""The bytes that are encrypted at once: so few that they stay in the processor's cache on their way through OpenSSL,
and that the other side decrypts the first ones while this side encrypts the next.
"""


MOST_HANDSHAKE = 1 << 17
"""Bytes that the other side may send until the handshake is done; its certificates are most of them."""


MOST_FRUITLESS = 1 << 17
"""The most bytes that may come in a turn without one byte of a message, such as changes of keys; and the most bytes of
answers to them that the other side may leave unread.
"""


_of_thread = local()


def _chunk() -> memoryview:
    """The buffer for received bytes. All guards of a thread share it, as connections cost nothing before they say
    something.
    """
    try:
        return _of_thread.chunk
    except AttributeError:
        _of_thread.chunk = memoryview(bytearray(CHUNK))
        return _of_thread.chunk


class Guard:
    """One side of a guarded connection on `sock`, which does not block. Its methods raise OSError if the connection is
    over, and BlockingIOError or SSLWantReadError if the caller must wait for the socket.
    """

    def __init__(self, sock: Any, context: ssl.SSLContext, server: bool, name: str):
        self._sock = sock
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._side = context.wrap_bio(self._came, self._goes, server, None if server else name)
        self._shaking = 0
        """Bytes of the handshake that have come."""
        self._sealed = memoryview(b"")
        """The encrypted bytes that are not sent yet."""

    def shake_hands(self) -> None:
        """Continues the handshake, until it is done or the other side has to continue. Raises WireError if that sends
        more than a handshake.
        """
        while True:
            try:
                self._side.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
                self._shaking += self._receive(RECORD)
                if self._shaking > MOST_HANDSHAKE:
                    raise WireError(f"a handshake has more than {MOST_HANDSHAKE} bytes") from None
            except ssl.SSLError:
                self.flush()  # sends the alert to the other side
                raise
            else:
                self.flush()
                return

    @property
    def unsent(self) -> bool:
        """Whether encrypted bytes are not sent yet."""
        return bool(self._sealed) or self._goes.pending > 0

    @property
    def heard(self) -> bool:
        """Whether bytes of the handshake have come."""
        return self._shaking > 0

    @property
    def pending(self) -> bool:
        """Whether more can be read without the socket."""
        return self._side.pending() > 0 or self._came.pending > 0

    def read(self, room: memoryview) -> int:
        """Decrypts received bytes into `room`, as many as fit; returns their number, 0 at the end.

        A record has 16 KiB, and one call reads one record, so this loop does nothing else.
        """
        read: Any = self._side.read
        came, size, at = self._came, len(room), 0
        fruitless = 0
        if self._goes.pending > MOST_FRUITLESS:
            raise WireError(f"more than {MOST_FRUITLESS} bytes of TLS are not read")
        while True:
            try:
                while at < size:
                    more = read(size - at, room[at:] if at else room)
                    at += more
                    if not more or not came.pending:
                        return at
            except ssl.SSLWantReadError:
                pass
            except OSError:
                if not at:
                    raise
            if at:
                return at
            if fruitless > MOST_FRUITLESS:
                raise WireError(f"more than {MOST_FRUITLESS} bytes of TLS bring nothing")
            received = self._receive()
            if not received:
                return 0
            fruitless += received

    def _receive(self, most: int = CHUNK) -> int:
        chunk = _chunk()
        size = self._sock.recv_into(chunk[:most])
        if size:
            self._came.write(chunk[:size])
        else:
            self._came.write_eof()
        return size

    def write(self, out: deque[memoryview], most: int = 1 << 62) -> None:
        """Encrypts and sends pieces, and removes them from `out`; about `most` bytes at most."""
        self.flush()
        while out and most > 0:
            sealed = 0
            while out and sealed < SEALED:
                sealed += self._side.write(_next_piece(out))
            most -= sealed
            self.flush()

    def flush(self) -> None:
        """Sends the encrypted bytes."""
        while self._sealed or self._goes.pending:
            if not self._sealed:
                self._sealed = memoryview(self._goes.read())
            self._sealed = self._sealed[self._sock.send(self._sealed) :]


def _next_piece(out: deque[memoryview]) -> Bytes:
    """Removes and returns the bytes to encrypt next: as many small pieces as fit into one record, or a part of a large
    one.
    """
    if len(out[0]) > SEALED:
        piece, out[0] = out[0][:SEALED], out[0][SEALED:]
        return piece
    first = out.popleft()
    few, size = [first], len(first)
    while out and size + len(out[0]) <= RECORD:
        few.append(out.popleft())
        size += len(few[-1])
    return first if len(few) == 1 else b"".join(few)
