"""Jobs whose trainers and servers come and go: every row is fed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import CheckpointedRun
from pstranspile.cluster.checkpoint.runs import newest
from pstranspile.cluster.checkpoint.store import read_manifest
from pstranspile.cluster.ray import launch
from tests.cluster.data.tables import write
from tests.cluster.ray_cluster.heard import Heard
from tests.cluster.ray_cluster.jobs import LOSS, job, require_equal, require_nodes, slow_host, small

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("pyarrow", reason="files of columns are read by pyarrow")

MACHINES = [(2, 2), (4, 2), (3, 3)]
"""How many trainers and servers take part, one after another."""


def count_of(actors: Mapping[str, Any]) -> tuple[int, int]:
    trainers = sum(role.startswith("trainer") for role in actors)
    return trainers, len(actors) - trainers


def simulated(data: ps.Data, dealt: Sequence[tuple[int, int]], steps: int, folder: Path) -> Any:
    """What comes of a job whose trainers change as `dealt` says."""
    source: str | None = None
    made: Any = None
    for number, ((_, trainers), end) in enumerate(zip(dealt, [*(step for step, _ in dealt[1:]), steps], strict=True)):
        target = str(folder / f"simulated_{number}")
        compiled = job(trainers, dict(MACHINES)[trainers])
        kept = CheckpointedRun(compiled, source, target)
        made = ps.simulate(compiled, data, end, run=kept.run, seed=kept.seed)
        source = target
    return made


def test_machines_join_and_leave_and_every_row_is_fed_once(
    nodes: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    begun: list[dict[str, Any]] = []
    sessions: list[Any] = []
    count = 4_000
    path = write(tmp_path / "x.parquet", small(count), units=200)
    data = ps.Data(path, batch=8, shuffle=3, columns={"dense": ["a", "b"]})

    def prepare(session: Any) -> None:
        def told(role: str, fields: Mapping[str, Any]) -> None:
            number = len(begun)  # which another thread may change
            if 0 < number < 3 and fields.get("step", 0) >= 10 * number:
                session.resize(*MACHINES[number])

        session.hosts._class = ray.remote(slow_host(0.03))
        session.listen(Heard(lambda roles: begun.append(session.hosts.actors.copy()), told))
        sessions.append(session)

    kept = tmp_path / "kept"
    made = launch(job(), data, fetch=["click"], prepare=prepare, checkpoint=kept, cpus=0.5, restarts=0)
    assert [count_of(actors) for actors in begun] == MACHINES
    for before, after in pairwise(begun):  # whoever stays is the same process
        assert all(before[role] == after[role] for role in before.keys() & after.keys())
    assert "servers are sent" in capfd.readouterr().err
    history = sessions[0].cuts.history
    assert sorted(history) == [f"trainer_{number}" for number in range(4)]
    fed = [result.values["click"] for of in history.values() for result in of.values()]
    clicks = np.sort(np.concatenate([np.ravel(value) for value in fed]))
    np.testing.assert_array_equal(clicks, np.sort([np.float32(row["click"]) for row in small(count)]))
    dealing = read_manifest(newest(kept)).dealing
    assert dealing is not None
    assert [trainers for _, trainers in dealing.dealt] == [trainers for trainers, _ in MACHINES]
    for name, value in simulated(data, dealing.dealt, count // 8, tmp_path).parameters.items():
        assert np.isfinite(value).all(), name
        np.testing.assert_array_equal(made.parameters[name], value, err_msg=name)


def test_trainers_and_servers_take_part_as_there_is_room(nodes: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    count = 4_000
    path = write(tmp_path / "x.parquet", small(count), units=200)
    data = ps.Data(path, batch=8, shuffle=3, columns={"dense": ["a", "b"]})
    begun: list[tuple[int, int]] = []
    sessions: list[Any] = []
    require_nodes(nodes)

    def prepare(session: Any) -> None:
        def report(role: str, fields: Mapping[str, Any]) -> None:
            if begun[-1] == (4, 2) and fields.get("step", 0) > 0 and len(nodes.worker_nodes) == 3:
                nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)

        session.listen(Heard(lambda roles: begun.append(count_of(session.hosts.actors)), report))
        session.hosts._class = ray.remote(slow_host(0.04))
        sessions.append(session)

    # a job waits as long for a lost node before it goes on with fewer machines
    more = {"trainers": (2, 4), "servers": (1, 2), "patience": 40.0}
    launch(job(2, 1), data, fetch=["click"], prepare=prepare, cpus=1, **more)
    print(begun, capfd.readouterr().err)
    assert begun[0] == (2, 1)
    assert (4, 2) in begun  # of six CPUs
    assert begun[-1] == (3, 1)  # of four, when a node was gone
    history = sessions[0].cuts.history
    fed = [result.values["click"] for of in history.values() for result in of.values()]
    clicks = np.sort(np.concatenate([np.ravel(value) for value in fed]))
    np.testing.assert_array_equal(clicks, np.sort([np.float32(row["click"]) for row in small(count)]))


def test_a_trainer_that_is_past_the_last_step_costs_no_restart(nodes: Any, data: ps.Data, tmp_path: Path):
    require_nodes(nodes)
    starts: list[int] = []

    class LateHost(slow_host(0.05)):
        """A host whose trainer was too fast, once."""

        def hold(self, step: int) -> bool:
            if not (tmp_path / "late").exists():
                (tmp_path / "late").touch()
                return False
            return super().hold(step)

    def prepare(session: Any) -> None:
        session.hosts._class = ray.remote(LateHost)
        session.listen(Heard(lambda roles: starts.append(len(roles))))
        session.resize(servers=1)

    made = launch(job(), data, fetch=LOSS, cpus=0.5, restarts=0, checkpoint=tmp_path / "kept", prepare=prepare)
    assert starts == [4, 3]
    require_equal(made, ps.simulate(job(), data, fetch=LOSS))
