"""Small clusters that run into trouble, for tests of faults."""

from __future__ import annotations

from typing import Any

import numpy as np

import pstranspile as ps
from pstranspile.cluster.machines.cluster import Cluster
from pstranspile.cluster.machines.scenario import parse_scenario
from pstranspile.cluster.machines.simulate import cluster_of
from tests.cluster.machines.fuzz import compiled, feeds, model

STEPS = 6
WITH_SERVERS = ("sync", "fleet-sync", "async", "async-communicator", "half-async", "dc-asgd", "geo")
WITHOUT = ("grad-allreduce", "local-sgd", "nccl2")
MODES = (*WITH_SERVERS, *WITHOUT)
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "async-communicator": ("async", {"runtime_split_send_recv": True}),
    "dc-asgd": ("async", {"enable_dc_asgd": True}),
    "geo": ("geo", {"geo_sgd_need_push_nums": 2}),
}


def cluster(
    mode: str, scenario: str = "", schedule: int | None = None, kind: str = "dense", trainers: int = 2
) -> Cluster:
    name, settings = SETTINGS.get(mode, (mode, {}))
    faults = parse_scenario(scenario) if scenario else None
    found = cluster_of(compiled(kind, trainers, 2, name, **settings), schedule=schedule, faults=faults)
    found.feed(feeds(kind, trainers, STEPS))
    return found


def ended(found: Cluster) -> dict[str, Any]:
    found.run_to(STEPS)
    found.finish()
    assert all(server.ended for server in found.servers)
    return found.parameters()


def equal(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    assert ours.keys() == theirs.keys()
    return all(np.array_equal(value, theirs[name]) for name, value in ours.items())


def alone(parts: list[Any], kind: str = "dense") -> dict[str, Any]:
    """One machine, fed the rows that `parts` says of each step: "both" trainers', or those of one of them."""
    whole = feeds(kind, 2, STEPS)
    module, scope = model(kind), ps.Scope()
    ps.run(module["startup"], scope=scope)
    rows = {"both": slice(None), 0: slice(0, 2), 1: slice(2, 4)}
    for step, part in enumerate(parts):
        ps.run(module["main"], feed={name: array[step][rows[part]] for name, array in whole.items()}, scope=scope)
    return {var.name: np.asarray(scope[var.name]) for var in module.main.parameters()}


def alike(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=1e-6)


TROUBLE = """seed 3
delay 0.3 1..30
drop 0.2
duplicate 0.3
crash pserver_0 step 5 after 2 restart 40
crash pserver_1 step 10 restart 5
keep 2
"""
