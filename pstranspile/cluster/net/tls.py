"""Authentication between processes: TLS with certificates on both sides, or none within one host."""

from __future__ import annotations

import os
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from threading import local
from typing import Any

from pstranspile.cluster.net.wire import Bytes, WireError
from pstranspile.ir.diagnostics import DiagnosticError, error, raise_errors
from pstranspile.ir.model import Location
from pstranspile.ir.patterns import Pattern
from pstranspile.ir.reading import reason_for

AUTHORITY = "ca.crt"
"""The file with the certificate of the authority that has signed all certificates of the job."""

CERTIFICATE = "tls.crt"
"""The file with a machine's own certificate."""

KEY = "tls.key"
"""The file with the key of a machine's certificate."""


class Credentials:
    """The TLS contexts for listening and for calling; both sides present a certificate.

    `folder` holds the certificates, whose files may be replaced at any time; "": they stay the same.
    """

    def __init__(
        self, listening: ssl.SSLContext, calling: ssl.SSLContext, folder: str = "", file_states: object = None
    ):
        self.listening, self.calling = listening, calling
        self._folder = folder
        self._file_states = file_states
        """What the files in the folder were when they were last read."""

    def renew(self, tell: Callable[[str], object]) -> None:
        """Reads the certificates again, for new connections, if one of their files was replaced.

        `tell` is called with a sentence about it. Where the new certificates can't be used, such as when a key does not
        fit yet, the earlier ones stay until a file changes again.
        """
        seen = _files_of(self._folder) if self._folder else None
        if seen == self._file_states:
            return
        self._file_states = seen
        try:
            found = read_credentials(self._folder)
        except DiagnosticError as problem:
            reason = "; ".join(finding.message for finding in problem.diagnostics)
            tell(f"the certificates in {self._folder} were replaced, but the earlier ones stay in use: {reason}")
        else:
            self.listening, self.calling = found.listening, found.calling
            tell(f"the certificates in {self._folder} were replaced; new connections show the new ones")


def _files_of(folder: str) -> list[tuple[int, ...]]:
    """What tells each file of a folder with certificates from another one that is put in its place."""
    found: list[tuple[int, ...]] = []
    for name in (AUTHORITY, CERTIFICATE, KEY):
        try:
            status = os.stat(Path(folder, name))
        except OSError:
            found.append(())
        else:
            found.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return found


def read_credentials(folder: str) -> Credentials:
    """The certificates in a folder. Raises DiagnosticError, also for a certificate that no other machine would
    accept.
    """
    seen = _files_of(folder)
    held = {name: _read(Path(folder, name)) for name in (AUTHORITY, CERTIFICATE, KEY)}
    for name, mark, what in _KINDS:
        if mark not in held[name]:
            raise _unusable(folder, name, f"{name} holds no {what} (of PEM, as text)")
    listening, calling = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    listening.verify_mode = ssl.CERT_REQUIRED
    for context in (listening, calling):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # each costs as much as a handshake
        _load(context, folder)
    _require_accepted(folder, listening)
    return Credentials(listening, calling, folder, seen)


def _load(context: ssl.SSLContext, folder: str) -> None:
    """Gives a context the certificates in a folder. Raises DiagnosticError."""
    try:
        context.load_verify_locations(str(Path(folder, AUTHORITY)))
    except OSError as problem:  # of OpenSSL, or of the system: the file has gone, as where all are being replaced
        raise _unusable(folder, AUTHORITY, plain(str(problem))) from None
    try:
        context.load_cert_chain(str(Path(folder, CERTIFICATE)), str(Path(folder, KEY)), lambda: _no_pass_phrase(folder))
    except OSError as problem:
        if isinstance(problem, ssl.SSLError) and problem.reason == "KEY_VALUES_MISMATCH":
            raise _unusable(folder, KEY, f"{KEY} is not the key of {CERTIFICATE}") from None
        raise _unusable(folder, CERTIFICATE, f"{CERTIFICATE} with {KEY}: {plain(str(problem))}") from None


_KINDS = (
    (AUTHORITY, b"-----BEGIN CERTIFICATE-----", "certificate"),
    (CERTIFICATE, b"-----BEGIN CERTIFICATE-----", "certificate"),
    (KEY, b"PRIVATE KEY-----", "key"),
)
"""Each file, what is in it, and what that is called."""


def _unusable(folder: str, name: str, reason: str) -> DiagnosticError:
    message = f"the certificates can't be used: {reason}"
    return DiagnosticError([error("start-tls", message, Location(str(Path(folder, name))))])


def _no_pass_phrase(folder: str) -> str:
    """Raises DiagnosticError for an encrypted key, whose pass phrase OpenSSL would otherwise ask for on the
    terminal.
    """
    message = f"{KEY} is encrypted; a process that nobody sits at can't ask for its pass phrase"
    raise DiagnosticError([error("start-tls", message, Location(str(Path(folder, KEY))))])


def _read(path: Path) -> bytes:
    """What a file holds. A pipe or device, which may have no end, is not read. Raises DiagnosticError."""
    try:
        if not path.is_file() and path.exists():
            reason = "is no regular file"
        else:
            return path.read_bytes()
    except OSError as problem:
        reason = f"can't be read: {reason_for(problem, path)}"
    message = f"{reason}; --tls DIR holds {AUTHORITY}, {CERTIFICATE} and {KEY}"
    raise DiagnosticError([error("start-tls", message, Location(str(path)))])


_NEVER_ACCEPTED = {9: "is not valid yet", 10: "has expired", 18: "", 19: "", 20: "", 21: ""}
"""OpenSSL's codes of reasons for which no other machine accepts a certificate: its dates, and that another authority
has signed it.
"""


def _require_accepted(folder: str, listening: ssl.SSLContext) -> None:
    """Shakes hands with itself. Raises DiagnosticError if the certificate is one that no other machine accepts."""
    came, goes = ssl.MemoryBIO(), ssl.MemoryBIO()
    calling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    calling.check_hostname = False  # for which addresses the certificate is is seen by those who call there
    _load(calling, folder)
    sides = [calling.wrap_bio(came, goes), listening.wrap_bio(goes, came, server_side=True)]
    for side in sides * _ROUNDS:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as problem:
            if problem.verify_code in _NEVER_ACCEPTED:
                dates = _NEVER_ACCEPTED[problem.verify_code]
                what = f"{CERTIFICATE}, or {AUTHORITY}, {dates}" if dates else ""
                other = f"{CERTIFICATE} is not signed by {AUTHORITY}: {problem.verify_message}"
                raise _unusable(folder, CERTIFICATE, what or other) from None
            return  # a certificate that is only for callers, or only for those who listen
        except ssl.SSLError:
            return  # which a connection tells of


_ROUNDS = 4
"""Turns of each side after which a handshake is done."""


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


OWN_REFUSED = (
    "CERTIFICATE_EXPIRED",
    "BAD_CERTIFICATE",
    "UNKNOWN_CA",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_REQUIRED",
    "UNSUPPORTED_CERTIFICATE",
    "ACCESS_DENIED",
)
"""How names of alerts end with which the other side refuses this one's certificate."""

_OF_NO_TLS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "UNKNOWN_PROTOCOL",
    "PACKET_LENGTH_TOO_LONG",
)
"""Names of errors for first bytes that are none of TLS."""

NO_TLS = "it talks without TLS, and this side with TLS"
"""Why a connection is over on which the other side has sent other bytes."""

NEEDS_TLS = b"\x15\x03\x03\x00\x02\x02\x46"
"""What that side is sent: an alert about the version of its protocol."""

HANDSHAKE, ALERT = b"\x16\x03", b"\x15\x03"
"""The first bytes of a side that begins TLS, and of one that ends it."""


def reason_of(problem: OSError, shaking: bool) -> str:
    """The reason why a TLS connection failed, in words: whose certificate was rejected and why, or another problem.
    `shaking`: the handshake was not finished.
    """
    name = (problem.reason or "") if isinstance(problem, ssl.SSLError) else ""
    text = plain(str(problem))
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"TLS: its certificate is not accepted: {problem.verify_message or text}"
    if "ALERT" in name and name.endswith(OWN_REFUSED):
        return f"TLS: it does not accept the certificate of this side: {_ALERT.sub('', text)}"
    if name == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "TLS: it shows no certificate"
    if shaking and name in _OF_NO_TLS:
        return NO_TLS
    if shaking and isinstance(problem, (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)):
        return "it has ended the connection before TLS began; it may talk without TLS"
    return f"TLS: {text}" if isinstance(problem, ssl.SSLError) else text


_ALERT = Pattern(r"^(sslv3|tlsv1|tlsv13) alert ")


def plain(reason: str) -> str:
    """The reason why a connection is over, without the decoration of libraries: `[SSL: NAME] certificate has expired
    (_ssl.c:1)`.

    A system error number is replaced by its text.
    """
    number = _NUMBER.match(reason)
    return os.strerror(int(number[1])) if number else _AROUND.sub("", reason)


_NUMBER, _AROUND = Pattern(r"\[Errno ([1-9][0-9]{0,3})\]"), Pattern(r"^\[[^]]*\] *| *\(_ssl\.c:\d+\)$")


class _ReceiveBuffer(local):
    """The buffer for received bytes that all guards of a thread share, because connections must cost nothing before
    they say something.
    """

    def __init__(self) -> None:
        self.chunk = memoryview(bytearray(CHUNK))


_received = _ReceiveBuffer()


class Guard:
    """One side of a guarded connection on `sock`, which does not block. Its methods raise OSError if the connection is
    over, and BlockingIOError or SSLWantReadError if the caller must wait for the socket.
    """

    def __init__(self, sock: Any, context: ssl.SSLContext, server: bool, name: str):
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._side = context.wrap_bio(self._incoming, self._outgoing, server, None if server else name)
        self._handshake_bytes = 0
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
                self._handshake_bytes += self._receive(RECORD)
                if self._handshake_bytes > MOST_HANDSHAKE:
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
        return bool(self._sealed) or self._outgoing.pending > 0

    @property
    def handshake_begun(self) -> bool:
        """Whether bytes of the handshake have come."""
        return self._handshake_bytes > 0

    @property
    def pending(self) -> bool:
        """Whether more can be read without the socket."""
        return self._side.pending() > 0 or self._incoming.pending > 0

    def read(self, room: memoryview) -> int:
        """Decrypts received bytes into `room`, as many as fit; returns their number, 0 at the end.

        A record has 16 KiB, and one call reads one record, so this loop does nothing else.
        """
        read: Any = self._side.read
        came, size, at = self._incoming, len(room), 0
        fruitless = 0
        if self._outgoing.pending > MOST_FRUITLESS:
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
        chunk = _received.chunk
        size = self._sock.recv_into(chunk[:most])
        if size:
            self._incoming.write(chunk[:size])
        else:
            self._incoming.write_eof()
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
        while self._sealed or self._outgoing.pending:
            if not self._sealed:
                self._sealed = memoryview(self._outgoing.read())
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


# Connections of a process with itself, which measure what TLS costs.


WITHOUT_CERTIFICATES = "ADH-AES256-GCM-SHA384:@SECLEVEL=0"
"""The cipher of connections that measure what TLS costs: keys are agreed on without certificates."""

GROUP = """\
-----BEGIN DH PARAMETERS-----
MIIBCAKCAQEA//////////+t+FRYortKmq/cViAnPTzx2LnFg84tNpWp4TZBFGQz
+8yTnc4kmz75fS/jY2MMddj2gbICrsRhetPfHtXV/WVhJDP1H18GbtCFY2VVPe0a
87VXE15/V8k1mE8McODmi3fipona8+/och3xWKE2rec1MKzKT0g6eXq8CrGCsyT7
YdEIqUuyyOP7uWrat2DX9GgdT0Kj3jlN9K5W7edjcrsZCwenyO4KbXCeAvzhzffi
7MA0BM0oNC9hkXL+nOmFg/+OTxIy7vKBg8P+OxtMb61zO7X8vC7CIAXFjvGDfRaD
ssbzSibBsu/6iGtCOGEoXJf//////////wIBAg==
-----END DH PARAMETERS-----
"""
"""The group in which these keys are agreed on: ffdhe2048 of RFC 7919."""


def contexts_without_certificates(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts for listening and for calling that need no certificates, and encrypt as those with certificates do.

    A file is written into the folder. Raises ssl.SSLError if OpenSSL has no such ciphers.
    """
    contexts: list[ssl.SSLContext] = []
    for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(protocol)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(WITHOUT_CERTIFICATES)
        contexts.append(context)
    group = folder / "group.pem"
    group.write_text(GROUP)
    contexts[0].load_dh_params(str(group))
    return contexts[0], contexts[1]
