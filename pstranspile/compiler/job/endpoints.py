"""The machines of a job: how many there are, and their addresses `host:port`, read, checked and written in one way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from pstranspile.ir.diagnostics import Diagnostic, error

FIRST_PORT = 6174
"""The port of the first parameter server when only their number is given (Fluid's default port)."""

LAST_PORT = 65535

LONGEST = 300
"""Characters that an endpoint may have; the name of a host has 253 at most."""

MAX_MACHINES = 10_000
"""More trainers than this, or more servers, are taken for a slip of the hand: every one has programs of its own."""

_HOST = re.compile(r"[^\s:/,\[\]\"'%]+")


def parse_endpoint(text: str) -> str:
    """One endpoint, trimmed and in canonical spelling (`10.0.0.1:6174`, `[::1]:6174`).

    Raises ValueError with a sentence on the mistake: not `host:port`, a port outside 1..65535, an
    IPv6 address without brackets.
    """
    trimmed = text.strip()
    if len(trimmed) > LONGEST:
        raise ValueError(f"{trimmed[:40]!r}... is too long for host:port")
    host, colon, port = trimmed.rpartition(":")
    scheme, is_url, address = trimmed.partition("://")
    if is_url:
        instead = f"; did you mean {address.split('/')[0]}?" if scheme.isalpha() and address.strip("/") else ""
        raise ValueError(f"{trimmed!r} is a URL; write host:port{instead}")
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
    names: list[str] = []
    for endpoint in endpoints:
        key = endpoint.lower()
        if key in seen:
            names.append(endpoint)
        seen.add(key)
    return tuple(names)


def local_endpoints(count: int, first_port: int = FIRST_PORT) -> tuple[str, ...]:
    """`count` endpoints on this machine, on consecutive ports.

    Raises ValueError when the count is not positive or the ports run out.
    """
    if count < 1:
        raise ValueError(f"{count} machines; there must be at least 1")
    if first_port + count - 1 > LAST_PORT:
        raise ValueError(
            f"{count} machines do not fit on one: ports {first_port}..{LAST_PORT} give {LAST_PORT - first_port + 1}"
        )
    return tuple(f"127.0.0.1:{first_port + i}" for i in range(count))


def shown(value: object) -> str:
    """A value in a few words, however large it is and however deep it nests."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, list | tuple | dict):
        held = cast("Sequence[object] | dict[object, object]", value)
        return f"{'a table' if isinstance(value, dict) else 'a list'} of {len(held)}"
    text = repr(value[:60]) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def endpoints_of(key: str, value: object, findings: list[Diagnostic]) -> tuple[str, ...]:
    """The endpoints that a value of `pservers` or `trainer_endpoints` means; errors go to `found`."""
    if value is None:
        return ()
    value = _count_if_number(value)
    if isinstance(value, int):
        if key != "pservers":
            message = f"{key} takes host:port, not a number"
            findings.append(error("job-type", message, focus=key))
            return ()
        if not 1 <= value <= MAX_MACHINES:
            limit = "at least 1" if value < 1 else f"at most {MAX_MACHINES}"
            findings.append(error("job-value", f"{key} is {shown(value)}; it must be {limit}", focus=key))
            return ()
        return local_endpoints(value)
    texts: Sequence[str] = value.split(",") if isinstance(value, str) else value  # type: ignore[assignment]
    if isinstance(value, str) and not value.strip():
        texts = ()
    if len(texts) > MAX_MACHINES:
        message = f"{key} lists {len(texts)} endpoints; it must be at most {MAX_MACHINES}"
        findings.append(error("job-value", message, focus=key))
        return ()
    parsed: list[str] = []
    for text in texts:
        try:
            parsed.append(parse_endpoint(text))
        except ValueError as problem:
            alone = key != "trainer_endpoints" and len(texts) == 1 and ":" not in text and text.strip()
            sentence = f"{shown(text.strip())} is neither a number nor of the form host:port" if alone else problem
            findings.append(error("job-endpoint", f"{key}: {sentence}", focus=key))
    for endpoint in dict.fromkeys(duplicates(parsed)):
        message = f"{key}: {endpoint} stands there twice; every machine needs an address of its own"
        findings.append(error("job-endpoint", message, focus=key))
    return tuple(parsed)


def _count_if_number(value: object) -> object:
    return int(value) if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,4000}\s*", value) else value


def trainers_of(given: Mapping[str, object], findings: list[Diagnostic]) -> tuple[int, tuple[str, ...]]:
    """The number of trainers and their endpoints, where these are known."""
    value = given.get("trainers", 1 if "trainer_endpoints" not in given else None)
    listed = endpoints_of("trainer_endpoints", given.get("trainer_endpoints"), findings)
    value = _count_if_number(value)
    if isinstance(value, int):
        if not 1 <= value <= MAX_MACHINES:
            limit = "at least 1" if value < 1 else f"at most {MAX_MACHINES}"
            findings.append(error("job-value", f"trainers is {shown(value)}; it must be {limit}", focus="trainers"))
        if listed and len(listed) != value:
            message = f"trainers is {value}, but trainer_endpoints lists {len(listed)}"
            findings.append(error("job-conflict", message, focus="trainer_endpoints"))
        return value, listed
    if value is None:
        return len(listed), listed
    endpoints = endpoints_of("trainers", value, findings)
    if not endpoints and not any(d.focus == "trainers" for d in findings):
        findings.append(error("job-value", "trainers is empty; there must be at least 1", focus="trainers"))
    if listed and listed != endpoints:
        message = "trainers and trainer_endpoints list different endpoints"
        findings.append(error("job-conflict", message, focus="trainer_endpoints"))
    return len(endpoints), endpoints
