"""The modes of distribution, a file for each: what it finds in a program, plans and emits."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from pstranspile.modes.base import Mode

REGISTRY = {
    "sync": "pstranspile.modes.sync:Sync",
    "async": "pstranspile.modes.asynchronous:Async",
    "half-async": "pstranspile.modes.half_async:HalfAsync",
    "fleet-sync": "pstranspile.modes.fleet_sync:FleetSync",
    "geo": "pstranspile.modes.geo.mode:Geo",
    "nccl2": "pstranspile.modes.nccl2:Nccl2",
    "grad-allreduce": "pstranspile.modes.grad_allreduce:GradAllreduce",
    "local-sgd": "pstranspile.modes.local_sgd:LocalSgd",
    "single-process-multi-thread": "pstranspile.modes.single_process:SingleProcess",
}
"""Every mode by name: where its class is. A compile imports that of its own mode only."""


@cache
def mode_of(name: str) -> Mode[Any]:
    """The mode of this name. Raises KeyError."""
    module, _, cls = REGISTRY[name].partition(":")
    return getattr(import_module(module), cls)()
