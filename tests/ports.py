"""Ports for the machines of tests: each process of tests has its own, and no connection is given one of them."""

import os
import socket
from collections.abc import Iterator

import pytest

BLOCK = 80
"""Ports that a process of tests goes through before it begins again."""

BLOCKS = 100
"""Blocks among which processes with successive numbers have different ones."""


def _ports(first: int) -> Iterator[int]:
    """Ports of this process's block in turns, from those that begin at `first`."""
    start = first + os.getpid() % BLOCKS * BLOCK
    while True:
        yield from range(start, start + BLOCK)


_long = _ports(20_000)
"""Ports of five digits, below those that the kernel gives to connections."""

_short = _ports(2_000)
"""Ports of four digits, as long as those in recorded programs."""


def free_ports(count: int, *, short: bool = False) -> list[int]:
    """Ports at which nobody listens, and that no other process of tests takes meanwhile."""
    found: list[int] = []
    for port in _short if short else _long:
        if len(found) == count:
            break
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


def free_port_of_ipv6() -> int:
    """A port of `[::1]` at which nobody listens. Skips the test on a host without IPv6, as many containers are."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            return int(probe.getsockname()[1])
    except OSError as reason:
        pytest.skip(f"this host has no IPv6: {reason}")
