"""Network addresses of a job, `host:port`: read, checked and written in one way."""

from __future__ import annotations

import re
from collections.abc import Iterable

FIRST_PORT = 6174
"""The port of the first parameter server when only their number is given (Fluid's default port)."""

LAST_PORT = 65535

LONGEST = 300
"""Characters that an endpoint may have; the name of a host has 253 at most."""

_HOST = re.compile(r"[^\s:/,\[\]\"'%]+")


def parse_endpoint(text: str) -> str:
    """One endpoint, trimmed and in canonical spelling (`10.0.0.1:6174`, `[::1]:6174`).

    Raises ValueError with a sentence that says what is wrong: not `host:port`, a port outside 1..65535, an
    IPv6 address without brackets.
    """
    trimmed = text.strip()
    if len(trimmed) > LONGEST:
        raise ValueError(f"{trimmed[:40]!r}... is too long for host:port")
    host, colon, port = trimmed.rpartition(":")
    if not trimmed:
        raise ValueError("an endpoint is empty; write host:port")
    if not colon or not host or not port:
        raise ValueError(f"{trimmed!r} is not of the form host:port")
    if host.startswith("[") and host.endswith("]"):
        host = f"[{_ipv6(host[1:-1], trimmed)}]"
    elif ":" in host:
        raise ValueError(f"{trimmed!r}: an IPv6 address stands in brackets, as in [::1]:{FIRST_PORT}")
    elif not _HOST.fullmatch(host):
        raise ValueError(f"{trimmed!r}: {host!r} is not a host name")
    if not (port.isascii() and port.isdigit()):
        raise ValueError(f"{trimmed!r}: the port {port!r} is not a number")
    if not 1 <= int(port[:9]) <= LAST_PORT or len(port) > 9:
        raise ValueError(f"{trimmed!r}: the port {port} is outside 1..{LAST_PORT}")
    return f"{host}:{int(port)}"


def _ipv6(address: str, whole: str) -> str:
    import ipaddress  # only addresses in brackets need it

    try:
        return str(ipaddress.IPv6Address(address))
    except ValueError:
        raise ValueError(f"{whole!r}: {address!r} is not an IPv6 address") from None


def duplicates(endpoints: Iterable[str]) -> tuple[str, ...]:
    """Endpoints that occur again, in order; host names are compared without regard to case."""
    seen: set[str] = set()
    found: list[str] = []
    for endpoint in endpoints:
        key = endpoint.lower()
        if key in seen:
            found.append(endpoint)
        seen.add(key)
    return tuple(found)


def local_endpoints(count: int, first_port: int = FIRST_PORT) -> tuple[str, ...]:
    """`count` endpoints on this machine, on consecutive ports.

    Raises ValueError when the count is not positive or the ports run out.
    """
    if count < 1:
        raise ValueError(f"{count} parameter servers; there must be at least 1")
    if first_port + count - 1 > LAST_PORT:
        raise ValueError(
            f"{count} parameter servers do not fit on one machine: "
            f"ports {first_port}..{LAST_PORT} give {LAST_PORT - first_port + 1}"
        )
    return tuple(f"127.0.0.1:{first_port + i}" for i in range(count))
