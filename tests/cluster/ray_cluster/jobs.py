"""What jobs on a Ray cluster are made of in tests, and what comes of them."""

from __future__ import annotations

from time import sleep
from typing import Any

import numpy as np

import pstranspile as ps
from pstranspile.cluster.ray.hosts import Host
from tests.cluster.data.tables import module, rows
from tests.cluster.ray_cluster.nodes import node


def small(count: int) -> list[dict[str, Any]]:
    """Rows of numbers below 1, which training does not make infinite: those would be equal whatever is done to them."""
    return [{**row, **{name: row[name] / (4 * count) for name in ("click", "a", "b")}} for row in rows(count)]


def job(trainers: int = 2, servers: int = 2) -> ps.Compiled:
    return ps.compile(module(), ps.Job(pservers=["a:1", "b:2", "c:3"][:servers], trainers=trainers))


LOSS = ["mean_0.tmp_0"]

PATIENCE = 240.0
"""Seconds that all machines may take to start again, on a host at work."""


def require_equal(made: Any, expected: Any) -> None:
    assert made.arrays().keys() == expected.arrays().keys()
    for name, value in expected.arrays().items():
        assert np.isfinite(value).all(), name
        np.testing.assert_array_equal(made.arrays()[name], value, err_msg=name)


def slow_host(seconds: float) -> type[Host]:
    """A host whose trainer waits so long after each step, so that a job lasts as long as others need to take part."""

    class SlowHost(Host):
        def _record_step(self, trainer: Any) -> None:
            sleep(seconds)
            super()._record_step(trainer)

    return SlowHost


STARTS = 3
"""How often a node may be started that Ray gives up: now and then one does not come up within half a minute."""


def require_nodes(nodes: Any) -> None:
    """Has three nodes: other tests end some."""
    missed = 0
    while len(nodes.worker_nodes) < 3:
        try:
            nodes.add_node(**node(2))
        except Exception as problem:
            missed += 1
            if "timed out during startup" not in str(problem) or missed == STARTS:
                raise
            print("Ray has given up a node that did not start:", problem)


def node_of(session: Any, role: str) -> str:
    import ray

    return ray._private.state.actors(session.hosts.actors[role]._actor_id.hex())["Address"]["NodeID"]


def machines_of(session: Any) -> dict[str, list[str]]:
    """The machines on each node."""
    result: dict[str, list[str]] = {}
    for role in session.hosts.actors:
        result.setdefault(node_of(session, role), []).append(role)
    return result
