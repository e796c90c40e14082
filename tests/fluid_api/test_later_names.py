"""The names of the first 2.x versions mean what Fluid's do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pstranspile.fluid as fluid
import pstranspile.fluid.paddle as paddle
from pstranspile.fluid.paddle.distributed import InMemoryDataset, ParallelEnv, get_rank
from pstranspile.fluid.paddle.distributed.fleet.base.role_maker import PaddleCloudRoleMaker, Role, UserDefinedRoleMaker
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import Fleet
from pstranspile.fluid.paddle.distributed.fleet.strategy import DistributedStrategy
from tests.fluid_api.running import SCRIPTS, fresh, printed
from tests.fluid_api.test_clusters import free_ports, launched, numbers

SCRIPT = str(SCRIPTS / "later_names.py")


def alone(folder: Path) -> list[float]:
    return numbers(printed(SCRIPTS / "later_names.py", "sync", str(folder / "alone")))


def with_servers(mode: str, folder: Path) -> list[str]:
    endpoints = ",".join(f"127.0.0.1:{port}" for port in free_ports(1))
    return launched("launch_ps", "--worker_num", "2", "--endpoints", endpoints, SCRIPT, mode, "model", folder=folder)


def test_a_cluster_trains_as_the_script_alone(tmp_path: Path) -> None:
    first, second = with_servers("sync", tmp_path)
    np.testing.assert_allclose((np.array(numbers(first)) + numbers(second)) / 2, alone(tmp_path), rtol=1e-4)
    assert "files ['a', 'b']" in first
    assert "files ['c']" in second
    assert {path.name for path in (tmp_path / "model").iterdir()} >= {"__model__", "w"}


@pytest.mark.parametrize("mode", ["a_sync", "geo"])
def test_trainers_that_do_not_wait_for_each_other_learn(mode: str, tmp_path: Path) -> None:
    rng = np.random.RandomState(4)
    x = [rng.rand(8, 4).astype("float32") for _ in range(8)][-1]
    untrained = (x.sum(axis=1) * 0.9) ** 2
    for index, text in enumerate(with_servers(mode, tmp_path)):
        losses = numbers(text)
        assert len(losses) == 8
        assert losses[-1] < untrained[index::2].mean()


def test_trainers_without_servers_train_as_the_script_alone(tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    first, second = launched(
        "launch", "--nproc_per_node", "2", "--started_port", port, SCRIPT, "collective", "model", folder=tmp_path
    )
    np.testing.assert_allclose((np.array(numbers(first)) + numbers(second)) / 2, alone(tmp_path), rtol=1e-4)


def test_a_strategy_says_what_it_does_not_have() -> None:
    strategy = DistributedStrategy()
    with pytest.raises(AttributeError, match="did you mean a_sync"):
        setattr(strategy, "async", True)
    with pytest.raises(ValueError, match="did you mean k_steps"):
        setattr(strategy, "a_sync_configs", {"k_step": 1})  # noqa: B010
    with pytest.raises(NotImplementedError, match=r"DistributedStrategy\.amp"):
        setattr(strategy, "amp", True)  # noqa: B010
    setattr(strategy, "a_sync", True)  # noqa: B010
    setattr(strategy, "a_sync_configs", {"send_queue_size": 3})  # noqa: B010
    assert (strategy.a_sync_configs["k_steps"], strategy.a_sync_configs["send_queue_size"]) == (0, 3)
    flags = strategy.with_servers().get_trainer_runtime_config().get_communicator_flags()
    assert flags["communicator_send_queue_size"] == "3"


def test_roles_and_what_launchers_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PADDLE_PSERVERS_IP_PORT_LIST", raising=False)
    role = PaddleCloudRoleMaker()
    assert (role.is_first_worker(), role.worker_num(), role.alone) == (True, 1, True)
    endpoints = ["127.0.0.1:1", "127.0.0.1:2"]
    server = UserDefinedRoleMaker(
        current_id=1, role=Role.SERVER, worker_endpoints=endpoints, server_endpoints=endpoints
    )
    assert (server.is_server(), server.worker_num(), server.server_index()) == (True, 2, 1)
    worker = UserDefinedRoleMaker(is_collective=True, current_id=1, worker_endpoints=endpoints)
    fleet = Fleet()
    with pytest.raises(RuntimeError, match=r"fleet\.init"):
        fleet.worker_num()
    fleet.init(worker)
    assert (fleet.worker_index(), fleet.worker_num(), fleet.worker_endpoints(True)) == (1, 2, ",".join(endpoints))
    with pytest.raises(NotImplementedError, match="all_reduce"):
        fleet.util.all_reduce([1])
    monkeypatch.setenv("PADDLE_TRAINER_ID", "3")
    assert (get_rank(), ParallelEnv().rank) == (3, 3)


def test_models_and_data_sets(tmp_path: Path) -> None:
    with fresh():
        x = paddle.static.data("x", [None, 3])
        out = paddle.static.nn.fc(x, size=2, activation="tanh")
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        prefix = str(tmp_path / "net")
        paddle.static.save_inference_model(prefix, [x], [out], exe)
        assert {path.name for path in tmp_path.iterdir()} == {"net.pdmodel", "net.pdiparams"}
        feed = {"x": np.ones((2, 3), "float32")}
        (kept,) = exe.run(feed=feed, fetch_list=[out])
        program, feeds, targets = paddle.static.load_inference_model(prefix, exe)
        np.testing.assert_array_equal(exe.run(program, dict.fromkeys(feeds, feed["x"]), targets)[0], kept)
        data = InMemoryDataset()
        data.init(batch_size=2, use_var=[x], pipe_command="cat")
        assert (data.batch_size, data.use_vars) == (2, [x])
        with pytest.raises(NotImplementedError, match="input_type"):
            data.init(input_type=1)
    with pytest.raises(AttributeError, match=r"paddle\.static\.Programm .* nearest name that is there: Program"):
        _ = paddle.static.Programm
    assert paddle.fluid is fluid
