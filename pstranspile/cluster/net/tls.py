"""Who may talk to whom over a network: certificates that both sides show, or none on one host."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from pstranspile.ir.diagnostics import DiagnosticError, error, raise_errors
from pstranspile.ir.model import Location

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
"""Files of a folder: the authority that has signed all certificates of the job, this machine's own, and its key."""


class Credentials(NamedTuple):
    """What is needed to listen, and to call; both sides show a certificate."""

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
    """OpenSSL would ask the terminal for one."""
    message = f"{KEY} is encrypted; a process that nobody sits at can't ask for its pass phrase"
    raise DiagnosticError([error("start-tls", message)])


def _require_readable(path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as problem:
        message = f"can't be read: {problem.strerror}; --tls DIR holds {AUTHORITY}, {CERTIFICATE} and {KEY}"
        raise DiagnosticError([error("start-tls", message, Location(str(path)))]) from None


def require_guarded(addresses: Mapping[str, str], roles: Iterable[str]) -> None:
    """Raises DiagnosticError if one of these machines is not on this host, where traffic could be overheard."""
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
