"""Jobs on a cluster of three nodes: as the simulation, with a node that dies, with trainers that come and go."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, minimize
from pstranspile.cluster.checkpoint.runs import newest
from pstranspile.cluster.checkpoint.store import read_manifest
from pstranspile.cluster.ray import launch
from pstranspile.cluster.ray.hosts import Host
from pstranspile.ir.model import STARTUP
from pstranspile.tools.cli.live_board import BARS
from tests.cluster.data.tables import module, rows, write
from tests.cluster.ray_cluster.books import Books
from tests.cluster.ray_cluster.heard import Heard
from tests.cluster.ray_cluster.jobs import LOSS, PATIENCE, job, machines_of, require_equal, require_nodes, small
from tests.terminal import on_terminal

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("pyarrow", reason="files of columns are read by pyarrow")

KILLS = int(os.environ.get("PSTRANSPILE_NODE_KILLS", "1"))
"""How many times a node dies, at steps drawn at random."""


def first_of(source: str | None) -> int:
    """The step that a job begins with, which goes on from a checkpoint."""
    return read_manifest(newest(source)).step if source else 0


@pytest.mark.parametrize("step", [14, *random.Random(1).choices(range(2, 48), k=KILLS - 1)])
def test_it_does_what_the_simulation_does_though_a_node_dies(
    nodes: Any, data: ps.Data, capfd: pytest.CaptureFixture[str], tmp_path: Path, step: int
):
    killed: list[str] = []
    books = Books(tmp_path / "books")
    require_nodes(nodes)

    def prepare(session: Any) -> None:
        def told(role: str, fields: Mapping[str, Any]) -> None:
            if fields.get("step", 0) >= step and not killed:
                machines = machines_of(session)
                both = [n for n, on in machines.items() if {role[:7] for role in on} == {"pserver", "trainer"}]
                place = both[step % len(both)]
                print("step", fields["step"], "ends", *machines[place])
                killed.append(place)
                nodes.remove_node(next(n for n in nodes.worker_nodes if n.node_id == place), allow_graceful=False)

        session.listen(Heard(lambda roles: books.begin(first_of(session.cuts.source)), told))
        session.hosts._class = ray.remote(books.host())

    # of four nodes' places that two servers leave, a node without any has three: one trainer is beside a server
    made = launch(job(4), data, fetch=LOSS, checkpoint_every=5, cpus=0.6, patience=PATIENCE, prepare=prepare)
    assert len(killed) == 1
    assert len(books.begun) == 2
    told = capfd.readouterr()
    where = "its last cut" if books.begun[1] else "its beginning"  # parts of the first cut may be on their way yet
    assert f"the job goes back to {where}" in told.err
    assert books.begun[1] % 5 == 0
    require_equal(made, ps.simulate(job(4), data, fetch=LOSS))
    assert books.problems() == []
    print(told.out)


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_machines_that_do_not_wait_for_each_other_go_back_to_a_cut(
    nodes: Any, data: ps.Data, mode: str, capfd: pytest.CaptureFixture[str]
):
    settings: dict[str, Any] = {"geo_sgd_need_push_nums": 2} if mode == "geo" else {}
    result = ps.compile(module(), ps.Job(pservers=["a:1", "b:2"], trainers=2, mode=mode, **settings))
    begun: list[int] = []

    def prepare(session: Any) -> None:
        def told(role: str, fields: Mapping[str, Any]) -> None:
            if fields.get("step", 0) >= 14 and len(begun) == 1 and session.cuts.source:
                ray.kill(session.hosts.actors["pserver_1"], no_restart=False)

        session.listen(Heard(lambda roles: begun.append(len(roles)), told))

    made = launch(result, data, fetch=LOSS, checkpoint_every=5, cpus=0.5, prepare=prepare)
    assert len(begun) == 2
    assert "the job goes back to its last cut" in capfd.readouterr().err
    steps = len(ps.simulate(result, data, fetch=LOSS).fetched[0][LOSS[0]])
    for trainer in made.fetched:
        assert len(trainer[LOSS[0]]) == steps
        assert np.isfinite(trainer[LOSS[0]]).all()


def test_rows_of_a_dataset(nodes: Any, data: ps.Data):
    pytest.importorskip("pandas", reason="Ray's datasets need pandas")
    from pstranspile.cluster.ray import DatasetRows

    dataset = ray.data.from_items(small(40), override_num_blocks=2)
    fed = DatasetRows(dataset, batch=8, shuffle=3, columns={"dense": ["a", "b"]})
    expected = ps.simulate(job(1), fed, fetch=LOSS)
    require_equal(launch(job(1), fed, fetch=LOSS, cpus=0.5), expected)


def test_it_starts_where_one_machine_starts(nodes: Any):
    """The initialiser of the weight has a seed of its own, the program has none."""
    d = L.Draft()
    x, y = L.data(d, "x", [-1, 4]), L.data(d, "y", [-1, 1])
    weight = L.ParamAttr("w", initializer=L.Uniform(-0.5, 0.5, seed=5))
    minimize(L.mean(L.square_error_cost(L.fc(x, 1, param_attr=weight), y)), SGD(0.05))
    scope, still = ps.Scope(), {"x": np.zeros((1, 4, 4), "f4"), "y": np.zeros((1, 4, 1), "f4")}
    ps.run(d.module()[STARTUP], scope=scope)
    made = launch(ps.compile(d.module(), ps.Job(pservers=["a:1"], trainers=2)), still, cpus=0.5)
    np.testing.assert_array_equal(made.parameters["w"], scope["w"])
    assert repr(made) == "<Launched on Ray: 2 trainers, 1 step; 2 parameters>"


def test_machines_are_seen_at_work(nodes: Any, data: ps.Data, tmp_path: Path):
    pytest.importorskip("rich", reason="the extra `live` is optional")
    from pstranspile.ops.textual import print_module

    (tmp_path / "net.ir").write_text(print_module(module()))
    job = [str(tmp_path / "net.ir"), "--pservers", "2", "--trainers", "2", "--on", "ray", "--cpus", "0.5"]
    fed = ["--feed", *data.files, "--batch", "8", "--columns", "dense=a,b", "--fetch", LOSS[0]]
    screen = on_terminal(120, "launch", *job, *fed, "--live", RAY_ADDRESS=nodes.address)
    text = screen.text()
    assert re.search(r"^step 50/50 .*messages/s", text, re.MULTILINE), text
    assert re.search(rf"^trainer_1 .*step 50 .*{LOSS[0]} [{BARS}]+", text, re.MULTILINE), text
    assert re.search(r"^pserver_0 .*update 50 ", text, re.MULTILINE), text


WITHOUT_ITS_HEAD = """
import sys
import ray
from ray.cluster_utils import Cluster
import pstranspile as ps
from pstranspile.cluster.ray import launch
from tests.cluster.ray_cluster.heard import Heard
from tests.cluster.ray_cluster.nodes import node
from tests.cluster.ray_cluster.test_on_a_cluster import job

nodes = Cluster(initialize_head=True, head_node_args={**node(2), "include_dashboard": False})
ray.init(address=nodes.address, logging_level="error", log_to_driver=False)

ended = []

def prepare(session):
    def told(role, fields):
        if session.cuts.source and not ended:
            ended.append(nodes.head_node.kill_all_processes(check_alive=False, allow_graceful=False))

    session.listen(Heard(reported=told))

try:
    data = ps.Data(sys.argv[1], batch=8, shuffle=3, columns={"dense": ["a", "b"]})
    launch(job(), data, cpus=0.5, checkpoint=sys.argv[2], checkpoint_every=5, prepare=prepare)
except ps.DiagnosticError as problem:
    print(problem, flush=True)
"""


def test_a_job_whose_head_is_gone_leaves_a_checkpoint_that_goes_on(nodes: Any, data: ps.Data, tmp_path: Path):
    kept, known = str(tmp_path / "kept"), {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", WITHOUT_ITS_HEAD, *data.files, kept]
    done = subprocess.run(command, capture_output=True, text=True, env=known, timeout=300, check=False)
    assert re.search(r"error\[ray-lost\]: Ray's head at .* is gone", done.stdout), done
    assert f"--resume {kept} goes on from the last checkpoint" in done.stdout
    made = launch(job(), data, resume=kept, cpus=0.5)
    for name, value in ps.simulate(job(), data).parameters.items():
        assert np.isfinite(value).all(), name
        np.testing.assert_array_equal(made.parameters[name], value, err_msg=name)


def test_what_can_not_be_placed_is_explained(nodes: Any, data: ps.Data):
    with pytest.raises(ps.DiagnosticError) as caught:
        launch(job(20), data, cpus=1.0, patience=2)
    assert "20 trainers and 2 servers, with 1 CPUs each, ask for 22 CPUs; the cluster has" in str(caught.value)


class Missing(Host):
    """A host on a node where something is not installed."""

    def __init__(self) -> None:
        raise ModuleNotFoundError("No module named 'pyarrow'")


def test_a_host_that_can_not_be_made_says_why(nodes: Any, data: ps.Data):
    def prepare(session: Any) -> None:
        session.hosts._class = ray.remote(Missing)

    says = r"(pserver|trainer)_\d does not start .*: ModuleNotFoundError: No module named"
    with pytest.raises(ps.DiagnosticError, match=says):
        launch(job(), data, cpus=0.5, prepare=prepare)


def test_rows_that_raise_are_told_by_what_they_raise(nodes: Any):
    def given() -> Any:
        raise LookupError("no such day")

    with pytest.raises(LookupError, match="no such day"):
        launch(job(), ps.Rows(given, batch=8), cpus=0.5)


def test_mistakes_are_told_as_elsewhere(nodes: Any, data: ps.Data, tmp_path: Path):
    path = write(tmp_path / "bad.jsonl", [*rows(20), {**rows(1)[0], "a": None}])
    with pytest.raises(ps.DiagnosticError, match=r"bad.jsonl:21:1: error\[data-row\]"):
        launch(job(), ps.Data(path, batch=8, columns={"dense": ["a", "b"]}), cpus=0.5)
