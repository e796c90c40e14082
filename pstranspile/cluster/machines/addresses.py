"""The servers that ops name, and links to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pstranspile.cluster.machines.network import Link, Machine
from pstranspile.cluster.machines.trainer import Trainer
from pstranspile.ir.diagnostics import DiagnosticError, at_op
from pstranspile.ir.model import Op

Servers: TypeAlias = "Mapping[str, Machine]"
"""The servers by endpoint."""


def link_to(trainer: Trainer, servers: Servers, endpoint: str, op: Op) -> Link:
    """The trainer's link to a server. Raises DiagnosticError if there is none at the endpoint."""
    server = servers.get(endpoint)
    if server is None:
        known = ", ".join(servers) or "none"
        message = f"no server listens at {endpoint}; the servers of this cluster: {known}"
        raise DiagnosticError([at_op("cluster-no-server", message, op)])
    return trainer.network.link(trainer, server, trainer.index)


def text_list(op: Op, name: str) -> Sequence[str]:
    """An attribute that is a list of texts, empty if the op does not carry it."""
    value: Any = op.attrs.get(name, ())
    return tuple(value)


def number_list(op: Op, name: str) -> Sequence[int]:
    """An attribute that is a list of whole numbers, empty if the op does not carry it."""
    value: Any = op.attrs.get(name, ())
    return tuple(map(int, value))
