"""Nodes that are gone at bad moments: when machines start, in a cut, when others are to take part, two at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest

import pstranspile as ps
from pstranspile.cluster.ray import launch
from pstranspile.cluster.ray.hosts import Host
from tests.cluster.ray_cluster.heard import Heard
from tests.cluster.ray_cluster.jobs import LOSS, PATIENCE, job, machines_of, require_equal, require_nodes

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("pyarrow", reason="files of columns are read by pyarrow")


def waiting_host(file: Path) -> type[Host]:
    """A host whose trainer waits after its tenth step until there is a file."""

    class WaitingHost(Host):
        def _record_step(self, trainer: Any) -> None:
            super()._record_step(trainer)
            while trainer.step == 10 and not file.exists():
                sleep(0.05)

    return WaitingHost


MOMENTS = ("two at once", "resize", "start", "cut", "again")
"""When nodes are gone. CI takes the first moment, a campaign (PSTRANSPILE_NODE_KILLS) all of them."""


@pytest.mark.parametrize("moment", MOMENTS if "PSTRANSPILE_NODE_KILLS" in os.environ else MOMENTS[:1])
def test_a_job_does_what_the_simulation_does_though_nodes_are_gone(
    nodes: Any, data: ps.Data, moment: str, tmp_path: Path
):
    gone: list[str] = []
    watching: list[Thread] = []
    starts: list[int] = []
    require_nodes(nodes)

    def remove(session: Any, count: int = 1) -> None:
        for place in sorted(machines_of(session))[:count]:
            gone.append(place)
            nodes.remove_node(next(n for n in nodes.worker_nodes if n.node_id == place), allow_graceful=False)

    def remove_at_last_step(session: Any) -> None:
        while session._last_step is None:
            sleep(0.05)
        remove(session)
        (tmp_path / "gone").touch()

    def prepare(session: Any) -> None:
        def start(roles: Any) -> None:
            starts.append(len(roles))
            if (moment, len(starts)) in (("start", 1), ("again", 2)):
                remove(session)

        def report(role: str, fields: Mapping[str, Any]) -> None:
            step = fields.get("step", 0)
            now = {
                "cut": "saved" in fields and fields["saved"] >= 10,
                "two at once": step >= 14,
                "again": step >= 14,
            }
            if now.get(moment) and not gone:
                remove(session, 2 if moment == "two at once" else 1)

        session.listen(Heard(start, report))
        if moment == "resize":
            session.hosts._class = ray.remote(waiting_host(tmp_path / "gone"))
            session.resize(servers=3)
            watching.append(Thread(target=remove_at_last_step, args=(session,)))
            watching[0].start()

    made = launch(job(), data, fetch=LOSS, checkpoint_every=5, cpus=0.5, patience=PATIENCE, prepare=prepare)
    for thread in watching:
        thread.join()
    assert len(gone) == (2 if moment in ("two at once", "again") else 1)
    assert len(starts) >= 2
    require_equal(made, ps.simulate(job(), data, fetch=LOSS))
