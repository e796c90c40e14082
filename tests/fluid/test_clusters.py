"""Scripts of clusters run as processes that talk to each other, and train as the same script does alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from pstranspile.runtime.values.encoding import read_tensor, to_bytes
from tests.fluid import forked
from tests.fluid.running import SCRIPTS, printed
from tests.ports import free_ports

FLUID = os.environ.get("PSTRANSPILE_FLUID", "")


def play(
    commands: Sequence[Sequence[str]], environments: Sequence[dict[str, str]] | None = None, fluid: str = ""
) -> list[str]:
    """What processes print that run scripts at the same time; those whose first argument is in `fluid` run in Fluid."""
    root = str(Path(__file__).parents[2])
    started: list[subprocess.Popen[str]] = []
    for index, command in enumerate(commands):
        own = [FLUID] if fluid and command[1] == fluid else [sys.executable, "-m", "pstranspile.fluid"]
        path = os.pathsep.join((root, *filter(None, [os.environ.get("PYTHONPATH")])))
        environment = {**os.environ, "PYTHONPATH": path, **(environments[index] if environments else {})}
        started.append(
            subprocess.Popen(
                [*own, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    return ends(started, commands, fluid)


def ends(
    started: Sequence[subprocess.Popen[str] | forked.Script], commands: Sequence[Sequence[str]], fluid: str = ""
) -> list[str]:
    """What processes have printed when all of them have ended well."""
    results: list[str] = []
    for process, command in reversed([*zip(started, commands, strict=True)]):
        stopped = fluid == command[1] == "PSERVER"  # Fluid's servers may go on when all trainers have left
        if stopped:
            process.terminate()
        out, errors = process.communicate(timeout=120)
        assert stopped or process.returncode == 0, errors
        results.insert(0, out)
    return results


def numbers(text: str) -> list[float]:
    return [float(line.split()[1]) for line in text.splitlines() if line.startswith(("loss", "w "))]


def cluster(script: str, mode: str, fluid: str = "", *more: str) -> list[list[float]]:
    """What the two trainers of a cluster print."""
    path = str(SCRIPTS / script)
    endpoints = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    roles = [("PSERVER", "0"), ("PSERVER", "1"), ("TRAINER", "0"), ("TRAINER", "1")]
    arguments = more or ("2", mode)
    out = play([[path, role, number, endpoints, *arguments] for role, number in roles], fluid=fluid)
    assert fluid == "PSERVER" or ["served" in text for text in out[:2]] == [True, True]
    return [numbers(text) for text in out[2:]]


def alone(script: str) -> list[float]:
    return numbers(printed(SCRIPTS / script, "LOCAL", "0", "none", "1", "sync"))


def test_a_synchronous_cluster_trains_as_the_script_alone() -> None:
    first, second = cluster("parameter_server.py", "sync")
    np.testing.assert_allclose((np.array(first) + second) / 2, alone("parameter_server.py"), rtol=1e-5)


def test_what_a_cluster_saves_a_cluster_and_a_machine_alone_go_on_from(tmp_path: Path) -> None:
    script, folder = "save_and_go_on.py", str(tmp_path)
    straight = numbers(printed(SCRIPTS / script, "LOCAL", "0", "none", "0", str(tmp_path / "alone")))
    first, second = cluster(script, "sync", "", "0", folder)
    np.testing.assert_allclose((np.array(first) + second) / 2, straight, rtol=1e-4)
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert {"w", "w_velocity_0", "v", "v_velocity_0", "learning_rate_0"} <= names
    for name in ("w", "w_velocity_0"):
        np.testing.assert_allclose(read_tensor(tmp_path / name), read_tensor(tmp_path / "alone" / name), rtol=1e-4)
    first, second = cluster(script, "sync", "", "3", folder)
    np.testing.assert_allclose((np.array(first) + second) / 2, straight[3:], rtol=1e-4)
    again = numbers(printed(SCRIPTS / script, "LOCAL", "0", "none", "3", folder))
    np.testing.assert_allclose(again, straight[3:], rtol=1e-4)


@pytest.mark.skipif(not FLUID, reason="PSTRANSPILE_FLUID does not name the Python of a Fluid")
@pytest.mark.parametrize("role", ["PSERVER", "TRAINER"])
def test_machines_of_fluid_take_part(role: str) -> None:
    first, second = cluster("parameter_server.py", "sync", role)
    np.testing.assert_allclose((np.array(first) + second) / 2, alone("parameter_server.py"), rtol=1e-4)


def launched(launcher: str, *arguments: str, folder: Path) -> list[str]:
    """The logs of the workers that a launcher has started."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", f"pstranspile.fluid.{launcher}", "--log_dir", "logs", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    logs = {path.name: path.read_text() for path in sorted((folder / "logs").iterdir())}
    assert done.returncode == 0, (done.stderr, logs)
    return [text for name, text in logs.items() if name.startswith("workerlog")]


def test_fleet_with_servers_trains_as_one_machine_and_its_rate_decays(tmp_path: Path) -> None:
    endpoints = ",".join(f"127.0.0.1:{port}" for port in free_ports(1))
    first, second = launched(
        "launch_ps",
        *("--worker_num", "2", "--endpoints", endpoints, str(SCRIPTS / "fleet_ps.py"), "sync", "saved"),
        folder=tmp_path,
    )
    rng, w, b = np.random.RandomState(4), np.full((4, 1), 0.1), 0.0
    for step, losses in enumerate(zip(numbers(first), numbers(second), strict=True)):
        x = rng.rand(8, 4)
        error = x @ w + b - x.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(np.mean(losses), np.mean(error**2), rtol=1e-4)
        rate = 0.2 * 0.5 ** (step // 2)
        w, b = w - rate * 2 * x.T @ error / 8, b - rate * 2 * error.mean()
    assert "files ['a', 'b']" in first
    assert "files ['c']" in second
    assert sorted(path.name for path in (tmp_path / "saved" / "model").iterdir()) == ["__model__", "fc_0.b_0", "w"]


@pytest.mark.parametrize("mode", ["async", "half_async"])
def test_fleet_trainers_that_do_not_wait_for_each_other_learn_from_the_servers(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAGS_communicator_thread_pool_size", "7")
    endpoints = ",".join(f"127.0.0.1:{port}" for port in free_ports(1))
    workers = launched(
        "launch_ps",
        *("--worker_num", "2", "--endpoints", endpoints, str(SCRIPTS / "fleet_ps.py"), mode, "saved"),
        folder=tmp_path,
    )
    rng, untrained = np.random.RandomState(4), list[list[float]]()
    for _ in range(6):
        x = rng.rand(8, 4).astype("float32")
        errors = (x.sum(axis=1) * 0.9) ** 2
        untrained.append([errors[0::2].mean(), errors[1::2].mean()])
    saved = {path.name for path in (tmp_path / "saved").iterdir()}
    assert ({"fc_0.b_0_moment_0", "learning_rate_0", "w_moment_0"} <= saved) == (mode == "half_async")
    assert {"w", "fc_0.b_0"} <= saved
    for index, text in enumerate(workers):
        losses = numbers(text)
        assert len(losses) == 6
        assert losses[-1] < 0.99 * untrained[-1][index]
        assert text.count("communicator_thread_pool_size = 7 changes nothing") == 1


def test_fleet_without_servers_trains_as_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_ports(1)[0]
    script = str(SCRIPTS / "fleet_collective.py")
    first, second = launched("launch", "--nproc_per_node", "2", "--started_port", str(port), script, folder=tmp_path)
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:1")
    together = (np.array(numbers(first)) + numbers(second)) / 2
    np.testing.assert_allclose(together, numbers(printed(SCRIPTS / "fleet_collective.py")), rtol=1e-4)


def static_cluster(folder: Path, *arguments: str, fork: bool = True) -> list[str]:
    """What two servers and two trainers of a script of Paddle 2.x print, as forks or as processes that each begin with
    Python.
    """
    ports = free_ports(4)
    servers, trainers = ports[:2], ports[2:]
    common = {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(f"127.0.0.1:{port}" for port in servers),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(f"127.0.0.1:{port}" for port in trainers),
        "PADDLE_TRAINERS_NUM": "2",
        "POD_IP": "127.0.0.1",
    }
    roles = [{"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": str(port)} for port in servers]
    roles += [
        {"TRAINING_ROLE": "TRAINER", "PADDLE_PORT": str(port), "PADDLE_TRAINER_ID": str(number)}
        for number, port in enumerate(trainers)
    ]
    command, environments = [str(SCRIPTS / "static_ps.py"), str(folder), *arguments], [common | role for role in roles]
    if not fork:
        return play([command] * 4, environments)
    with TemporaryDirectory() as work:
        scripts = [
            forked.Script(command, {**os.environ, **environment}, Path(work, str(number)))
            for number, environment in enumerate(environments)
        ]
        return ends(scripts, [command] * 4)


@pytest.mark.parametrize("kind", ["dense", "sparse", "rows", "functional", "layer"])
def test_a_trainer_saves_the_files_of_a_model_as_a_machine_alone(kind: str, tmp_path: Path) -> None:
    """`PREFIX.pdmodel` and `PREFIX.pdiparams` of Paddle 2.x, with what servers hold; it asks no server for rows."""
    out = static_cluster(tmp_path, kind)
    for number in (0, 1):
        assert sorted(path.name for path in (tmp_path / f"of_{number}").iterdir()) == [
            "model.pdiparams",
            "model.pdmodel",
        ]
        assert "lookup_table_v2" in out[2 + number]
        assert "distributed" not in out[2 + number]
        (line,) = (line for line in out[2 + number].splitlines() if line.startswith("differs"))
        assert float(line.split()[1]) < 1e-6  # from what the cluster predicts in its next step


@pytest.mark.parametrize("kind", ["sparse", "functional", "layer"])
def test_sparse_lookups_of_a_cluster_have_a_row_for_every_id(kind: str, tmp_path: Path) -> None:
    for text in static_cluster(tmp_path, kind, "beyond")[2:]:
        (line,) = (line for line in text.splitlines() if line.startswith("losses"))
        assert float(line.split()[2]) < float(line.split()[1])
        assert "moved 8 rows" in text
        assert "differs" in text


@pytest.mark.parametrize("how", ["decay", "lamb", "geo"])
def test_tables_are_as_high_as_declared_where_an_update_reads_all_rows(how: str, tmp_path: Path) -> None:
    """Weight decay and norms read all rows; with geo-SGD trainers hold the whole table."""
    for text in static_cluster(tmp_path, "sparse", how)[2:]:
        (line,) = (line for line in text.splitlines() if line.startswith("differs"))
        assert how == "geo" or float(line.split()[1]) < 1e-6  # with geo-SGD trainers are ahead of the servers
        assert "refused" not in text


def test_processes_of_this_package_need_no_grpc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grpc.py").write_text("raise ModuleNotFoundError('grpc')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert len(numbers(static_cluster(tmp_path, "sparse", "beyond", fork=False)[2])) == 1


def test_servers_begin_with_the_whole_table_that_a_machine_alone_has_written(tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    table = np.arange(200, dtype="float32").reshape(50, 4)
    (tmp_path / "begun" / "emb").write_bytes(to_bytes(table))
    for text in static_cluster(tmp_path, "sparse", "begun")[2:]:
        (line,) = (line for line in text.splitlines() if line.startswith("first"))
        assert line == f"first {table[:8].ravel().tolist()}"


@pytest.mark.parametrize("kind", ["sparse", "rows"])
def test_a_program_cloned_before_minimize_is_told_that_it_asks_no_server(kind: str, tmp_path: Path) -> None:
    for text in static_cluster(tmp_path, kind, "cloned")[2:]:
        assert "servers hold the rows of its table, and this program does not ask them; clone it after minimize" in text
        assert "differs" in text


def test_a_table_without_an_end_does_not_go_into_one_file(tmp_path: Path) -> None:
    for text in static_cluster(tmp_path, "many")[2:]:
        assert "refused emb has a row for every id, and one file of parameters the rows that the script" in text
        assert "1099511627776, of which from 1 to 536870912 can be written" in text
    assert not list(tmp_path.iterdir())
