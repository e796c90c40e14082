"""Jobs on a cluster of three nodes: as the simulation, with a node that dies, with trainers that come and go."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.checkpoint.api import newest
from pstranspile.checkpoint.running import CheckpointedRun
from pstranspile.checkpoint.store import read_manifest
from pstranspile.cli.live_board import BARS
from pstranspile.ray import launch
from pstranspile.ray.host import Host
from tests.data_rows.tables import module, rows, write
from tests.ray_cluster.books import Books
from tests.ray_cluster.nodes import node, start
from tests.terminal import on_terminal

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("pyarrow", reason="files of columns are read by pyarrow")

KILLS = int(os.environ.get("PSTRANSPILE_NODE_KILLS", "1"))
"""How many times a node dies, at steps drawn at random."""


@pytest.fixture(scope="module")
def nodes() -> Generator[Any]:
    """Three nodes with two CPUs each, and a head without."""
    try:
        cluster = start()
    except Exception as problem:
        pytest.skip(f"Ray itself does not start on this machine: {problem}")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def small(count: int) -> list[dict[str, Any]]:
    """Rows of numbers below 1, which training does not make infinite: those would be equal whatever is done to them."""
    return [{**row, **{name: row[name] / (4 * count) for name in ("click", "a", "b")}} for row in rows(count)]


@pytest.fixture
def data(tmp_path: Path) -> ps.Data:
    """400 rows, of which a step takes 8."""
    path = write(tmp_path / "x.parquet", small(400), units=50)
    return ps.Data(path, batch=8, shuffle=3, columns={"dense": ["a", "b"]})


def job(trainers: int = 2, servers: int = 2) -> ps.Compiled:
    return ps.compile(module(), ps.Job(pservers=["a:1", "b:2", "c:3"][:servers], trainers=trainers))


LOSS = ["mean_0.tmp_0"]


def require_equal(made: Any, expected: Any) -> None:
    assert made.arrays().keys() == expected.arrays().keys()
    for name, value in expected.arrays().items():
        assert np.isfinite(value).all(), name
        np.testing.assert_array_equal(made.arrays()[name], value, err_msg=name)


def node_of(session: Any, role: str) -> str:
    return ray._private.state.actors(session.hosts.actors[role]._actor_id.hex())["Address"]["NodeID"]


def machines_of(session: Any) -> dict[str, list[str]]:
    """The machines on each node."""
    result: dict[str, list[str]] = {}
    for role in session.hosts.actors:
        result.setdefault(node_of(session, role), []).append(role)
    return result


def first_of(source: str | None) -> int:
    """The step that a job begins with, which goes on from a checkpoint."""
    return read_manifest(newest(source)).step if source else 0


@pytest.mark.parametrize("step", [14, *random.Random(1).choices(range(2, 48), k=KILLS - 1)])
def test_it_does_what_the_simulation_does_though_a_node_dies(
    nodes: Any, data: ps.Data, capfd: pytest.CaptureFixture[str], tmp_path: Path, step: int
):
    killed: list[str] = []
    books = Books(tmp_path / "books")
    while len(nodes.worker_nodes) < 3:  # the one that the time before has ended
        nodes.add_node(**node(2))

    def prepare(session: Any) -> None:
        def told(role: str, fields: Mapping[str, Any]) -> None:
            if fields.get("step", 0) >= step and not killed:
                machines = machines_of(session)
                both = [n for n, on in machines.items() if {role[:7] for role in on} == {"pserver", "trainer"}]
                place = both[step % len(both)]
                print("step", fields["step"], "ends", *machines[place])
                killed.append(place)
                nodes.remove_node(next(n for n in nodes.worker_nodes if n.node_id == place), allow_graceful=False)

        session.on_told = told
        session.on_begin = lambda roles: books.begin(first_of(session.cuts.source))
        session.hosts._class = ray.remote(books.host())

    # of four nodes' places that two servers leave, a node without any has three: one trainer is beside a server
    made = launch(job(4), data, fetch=LOSS, checkpoint_every=5, cpus=0.6, prepare=prepare)
    assert len(killed) == 1
    assert len(books.begun) == 2
    told = capfd.readouterr()
    assert "the job goes back to its last cut" in told.err or step < 5  # no cut yet: from the beginning
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

        session.on_begin = lambda roles: begun.append(len(roles))
        session.on_told = told

    made = launch(result, data, fetch=LOSS, checkpoint_every=5, cpus=0.5, prepare=prepare)
    assert len(begun) == 2
    assert "the job goes back to its last cut" in capfd.readouterr().err
    steps = len(ps.simulate(result, data, fetch=LOSS).fetched[0][LOSS[0]])
    for trainer in made.fetched:
        assert len(trainer[LOSS[0]]) == steps
        assert np.isfinite(trainer[LOSS[0]]).all()


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
    count = 12_000
    path = write(tmp_path / "x.parquet", small(count), units=500)
    data = ps.Data(path, batch=8, shuffle=3, columns={"dense": ["a", "b"]})

    def prepare(session: Any) -> None:
        def told(role: str, fields: Mapping[str, Any]) -> None:
            if fields.get("step", 0) >= 10 * len(begun) and len(begun) < 3:
                session.resize(*MACHINES[len(begun)])

        session.on_begin = lambda roles: begun.append(session.hosts.actors.copy())
        session.on_told = told
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


def test_rows_of_a_dataset(nodes: Any, data: ps.Data):
    pytest.importorskip("pandas", reason="Ray's datasets need pandas")
    from pstranspile.ray import DatasetRows

    dataset = ray.data.from_items(small(40), override_num_blocks=2)
    fed = DatasetRows(dataset, batch=8, shuffle=3, columns={"dense": ["a", "b"]})
    expected = ps.simulate(job(1), fed, fetch=LOSS)
    require_equal(launch(job(1), fed, fetch=LOSS, cpus=0.5), expected)


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
from pstranspile.ray import launch
from tests.ray_cluster.nodes import node
from tests.ray_cluster.test_on_a_cluster import job

nodes = Cluster(initialize_head=True, head_node_args={**node(2), "include_dashboard": False})
ray.init(address=nodes.address, logging_level="error", log_to_driver=False)

ended = []

def prepare(session):
    def told(role, fields):
        if session.cuts.source and not ended:
            ended.append(nodes.head_node.kill_all_processes(check_alive=False, allow_graceful=False))

    session.on_told = told

try:
    data = ps.Data(sys.argv[1], batch=8, shuffle=3, columns={"dense": ["a", "b"]})
    launch(job(), data, cpus=0.5, checkpoint=sys.argv[2], checkpoint_every=5, prepare=prepare)
except ps.DiagnosticError as problem:
    print(problem, flush=True)
"""


def test_a_job_whose_head_is_gone_leaves_a_checkpoint_that_goes_on(nodes: Any, data: ps.Data, tmp_path: Path):
    kept, known = str(tmp_path / "kept"), {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
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
        launch(job(20), data, patience=2)
    assert "2 servers and 20 trainers, with 1 CPUs each, ask for 22 CPUs; the cluster has" in str(caught.value)


class Missing(Host):
    """A host on a node where something is not installed."""

    def __init__(self) -> None:
        raise ModuleNotFoundError("No module named 'pyarrow'")


def test_a_host_that_can_not_be_made_says_why(nodes: Any, data: ps.Data):
    def prepare(session: Any) -> None:
        session.hosts._class = ray.remote(Missing)

    with pytest.raises(ps.DiagnosticError, match=r"pserver_0 does not start .*: ModuleNotFoundError: No module named"):
        launch(job(), data, cpus=0.5, prepare=prepare)


def test_mistakes_are_told_as_elsewhere(nodes: Any, data: ps.Data, tmp_path: Path):
    path = write(tmp_path / "bad.jsonl", [*rows(20), {**rows(1)[0], "a": None}])
    with pytest.raises(ps.DiagnosticError, match=r"bad.jsonl:21:1: error\[data-row\]"):
        launch(job(), ps.Data(path, batch=8, columns={"dense": ["a", "b"]}), cpus=0.5)
