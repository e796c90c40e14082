"""What scripts ask of Fleet, of transpiled programs and of the transpiler's settings."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.cluster.net.status import SERVING, STATUS
from pstranspile.fluid import compiler, dataset, executor, framework, log_helper
from pstranspile.fluid.incubate.fleet import collective
from pstranspile.fluid.incubate.fleet.base import Role, UserDefinedCollectiveRoleMaker, UserDefinedRoleMaker
from pstranspile.fluid.incubate.fleet.parameter_server import (
    DistributedTranspiler,
    StrategyFactory,
    TranspilerOptimizer,
)
from pstranspile.fluid.machines import PortFile
from pstranspile.fluid.paddle.dataset import cifar, common, imdb, imikolov, mnist, uci_housing
from pstranspile.fluid.transpiler.distribute_transpiler import ServerRuntimeConfig, slice_variable
from tests.fluid.running import SCRIPTS, fresh
from tests.terminal import interrupts

SERVERS = ["127.0.0.1:6174", "127.0.0.1:6175"]


def loss(width: int = 4) -> Any:
    x = fluid.layers.data("x", [width])
    y = fluid.layers.data("y", [1])
    out = fluid.layers.fc(x, size=width, param_attr=fluid.ParamAttr(name="w"))
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(out, size=1), y))


def minimised(fleet: DistributedTranspiler, of: Any, strategy: Any = None) -> None:
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy).minimize(of)


def test_settings_that_exclude_each_other_are_refused() -> None:
    config = fluid.DistributeTranspilerConfig()
    assert config.sync_mode
    with pytest.raises(ValueError, match="exclude each other"):
        config.runtime_split_send_recv = True
    with pytest.raises(ValueError, match="not None"):
        config.sync_mode = None  # type: ignore[assignment]
    config.sync_mode = False
    config.runtime_split_send_recv = True
    with pytest.raises(ValueError, match="set runtime_split_send_recv to False first"):
        config.sync_mode = True


def test_fleet_takes_optimizers_after_init_and_executors_to_save() -> None:
    with fresh():
        fleet, cost = DistributedTranspiler(), loss()
        with pytest.raises(RuntimeError, match=r"fleet\.init"):
            minimised(fleet, cost)
        with pytest.raises(TypeError, match="an optimizer"):
            TranspilerOptimizer("Adam")
        exe = fluid.Executor(fluid.CPUPlace())
        with pytest.raises(TypeError, match="takes an Executor"):
            fleet.save_persistables("exe", "saved")
        with pytest.raises(TypeError, match="takes a Program"):
            fleet.save_persistables(exe, "saved", fluid.CompiledProgram(fluid.default_main_program()))


def test_to_minimise_again_begins_again_from_the_same_program() -> None:
    with fresh():
        fleet, cost = DistributedTranspiler(), loss()
        fleet.init(UserDefinedRoleMaker(0, Role.WORKER, 2, SERVERS))
        minimised(fleet, cost)
        once = [op.type for op in fluid.default_main_program().global_block().ops]
        minimised(fleet, cost)
        assert [op.type for op in fluid.default_main_program().global_block().ops] == once


def test_a_server_may_stop_workers_as_scripts_of_all_roles_do() -> None:
    """A server comes to that line when all trainers have left: nothing is left to do."""
    fleet = DistributedTranspiler()
    with fresh():
        fleet.init(UserDefinedRoleMaker(0, Role.SERVER, 2, SERVERS))
        fleet.stop_worker()


def test_a_server_knows_its_blocks_and_what_each_server_has() -> None:
    with fresh():
        cost = loss(100)
        rate = fluid.layers.piecewise_decay([2, 4], [0.3, 0.2, 0.1])
        fluid.optimizer.Momentum(rate, 0.9).minimize(cost)
        config = fluid.DistributeTranspilerConfig()
        config.min_block_size = 1000
        t = fluid.DistributeTranspiler(config)
        t.transpile(0, pservers=",".join(SERVERS), trainers=2)
        server = t.get_pserver_program(SERVERS[0])
        blocks = server.global_block().ops[-1].all_attrs()["optimize_blocks"]
        assert blocks
        assert all(server.block(block.idx) is block for block in blocks)
        assert server._is_distributed
        overview = server._parameters_on_pservers
        parts = [overview.get_distributed_var_by_origin_and_ep("w", endpoint) for endpoint in SERVERS]
        assert sorted(part.offset for part in parts) == [0, 5000]
        assert sum(part.slice.shape[0] for part in parts) == parts[0].origin.shape[0]
        grouped = overview.get_distributed_vars_by_vtypes(["Param", "Optimizer"], groupby=True)
        assert {"w", "w_velocity_0"} <= set(grouped)
        assert overview.get_distributed_var_by_slice(parts[1].slice.name) is parts[1]
        assert set(overview.overview().splitlines()) > {str(parts[0])}


def test_strategies_say_how_programs_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM", "3")
    sync, asynchronous = StrategyFactory.create_sync_strategy(), StrategyFactory.create_async_strategy()
    geo = StrategyFactory.create_geo_strategy(7)
    assert [s.get_build_strategy().async_mode for s in (sync, asynchronous, geo)] == [True] * 3
    assert [s.get_execute_strategy().use_thread_barrier for s in (sync, asynchronous, geo)] == [True, False, False]
    assert sync.get_execute_strategy().num_threads == 3
    for strategy in (sync, asynchronous):
        strategy.set_trainer_runtime_config({"communicator_send_queue_size": "50"})
    flags = sync.get_trainer_runtime_config().get_communicator_flags()
    assert flags["communicator_send_queue_size"] == "3"
    assert "communicator_independent_recv_thread" not in flags
    flags = asynchronous.get_trainer_runtime_config().get_communicator_flags()
    assert flags["communicator_send_queue_size"] == "50"
    assert "communicator_send_queue_size" not in geo.get_trainer_runtime_config().get_communicator_flags()
    assert "communicator_send_wait_times = 5" in repr(geo.get_trainer_runtime_config())
    server = ServerRuntimeConfig()
    sync.set_server_runtime_config(server)
    assert sync.get_server_runtime_config() is server
    assert sync.get_debug_opt() == {}
    sync.set_debug_opt({"dump_param": ["w"]})
    assert (sync.get_debug_opt()["dump_param"], sync.get_debug_opt()["dump_file_num"]) == (["w"], 16)


def collective_strategy(**settings: object) -> collective.DistributedStrategy:
    made = collective.DistributedStrategy()
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def test_a_collective_strategy_and_its_optimizer_must_not_contradict_each_other() -> None:
    adam = fluid.optimizer.Adam()
    again = fluid.optimizer.RecomputeOptimizer(adam)
    strategy = collective_strategy(forward_recompute=True)
    with pytest.raises(ValueError, match="needs recompute_checkpoints"):
        collective.CollectiveOptimizer(adam, strategy).minimize(None)
    strategy = collective_strategy(forward_recompute=True, recompute_checkpoints=["x"])
    with pytest.raises(ValueError, match="RecomputeOptimizer"):
        collective.CollectiveOptimizer(again, strategy).minimize(None)
    with pytest.raises(ValueError, match="is a list"):
        collective.CollectiveOptimizer(adam, collective_strategy(recompute_checkpoints="x"))
    with fresh():
        mixed = fluid.contrib.mixed_precision.decorate(adam, init_loss_scaling=8.0)
        assert mixed.get_loss_scaling().name == "loss_scaling_0"
    with pytest.raises(ValueError, match="OptimizerWithMixedPrecision"):
        collective.CollectiveOptimizer(mixed, collective_strategy(use_amp=True)).minimize(None)


def test_checkpoints_of_fleet_are_numbered_and_come_back(tmp_path: Path) -> None:
    with fresh():
        fleet, cost = collective.Collective(), loss()
        fleet.init(UserDefinedCollectiveRoleMaker(0, ["127.0.0.1:6170"]))
        fluid.optimizer.SGD(0.1).minimize(cost)
        program = fluid.default_main_program()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        weight = fluid.global_scope().find_var("w").get_tensor()
        kept, folder = np.array(weight), str(tmp_path / "saved")
        assert fleet.load_check_point(exe, folder, 0, program) is None
        for epoch in range(3):
            fleet.save_check_point(exe, folder, collective.TrainStatus(epoch), program)
        weight.set(np.zeros_like(kept), fluid.CPUPlace())
        status = fleet.load_check_point(exe, folder, 0, program)
        assert status == collective.TrainStatus(2)
        assert status is not None
        assert status.next() == 3
        np.testing.assert_array_equal(np.array(fluid.global_scope().find_var("w").get_tensor()), kept)
        fleet.clean_redundant_check_points(folder)
        assert [path.name for path in (tmp_path / "saved").iterdir()] == ["__paddle_fleet_checkpoint__.2"]


def test_slices_are_told_as_fluid_tells_them() -> None:
    with fresh():
        block = fluid.default_main_program().global_block()
        made = [block.create_var(name=name, shape=shape) for name, shape in (("a", [3, 5]), ("b", [10, 4]))]
        assert slice_variable(made, 2, 10) == ["a:0:15", "b:0:20", "b:1:20"]


def test_loggers_and_data_sets_are_found_as_scripts_look_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert log_helper.get_logger("of_a_script", 20, "%(message)s").level == 20
    monkeypatch.setattr(common, "DATA_HOME", str(tmp_path))
    for name in (cifar, imdb, imikolov, mnist, uci_housing):
        with pytest.raises(FileNotFoundError, match="put what"):
            name.fetch()


def test_names_that_are_not_there_can_be_imported_and_fail_when_used() -> None:
    for module in (framework, executor, compiler, dataset):
        assert module.__getattr__
    with pytest.raises(NotImplementedError, match="ParamBase"):
        framework.ParamBase(1)


def test_a_server_with_port_0_listens_somewhere_and_says_where(tmp_path: Path) -> None:
    port = 0
    command = [sys.executable, "-m", "pstranspile.fluid", str(SCRIPTS / "any_port.py")]
    with interrupts(signal.SIG_IGN):  # as in the background of a shell
        server = subprocess.Popen(command)
    with server:
        try:
            flag = Path("/tmp", f"paddle.{server.pid}.port")
            for _ in range(600):
                if flag.exists():
                    port = int(flag.read_text())
                    break
                time.sleep(0.1)
            assert port
            socket.create_connection(("127.0.0.1", port)).close()
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(30) == 128 + signal.SIGINT
    assert not flag.exists()


def test_the_file_with_the_port_is_written_through_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name is known beforehand, and its folder everybody's."""
    monkeypatch.delenv(STATUS, raising=False)
    report, mine = PortFile(), tmp_path / "mine"
    report.path = tmp_path / "paddle.1.port"
    mine.write_text("mine")
    (tmp_path / "paddle.1.part").symlink_to(mine)
    report.path.symlink_to(mine)
    report(state=SERVING, port=7164)
    assert mine.read_text() == "mine"
    assert report.path.read_text() == "7164\n"
    assert not report.path.is_symlink()
    report.path.unlink()
    report.path.mkdir()
    report(state=SERVING, port=7164)
    assert "paddle.1.port: the port is not written there: Is a directory" in capsys.readouterr().err


def test_to_transpile_again_begins_again_from_the_same_program() -> None:
    with fresh():
        fluid.optimizer.SGD(0.1).minimize(loss())
        alone = [op.type for op in fluid.default_main_program().global_block().ops]
        fluid.DistributeTranspiler().transpile(0, pservers=",".join(SERVERS), trainers=2)
        config = fluid.DistributeTranspilerConfig()
        config.mode = "nccl2"
        t = fluid.DistributeTranspiler(config)
        t.transpile(trainer_id=0, trainers=",".join(SERVERS), current_endpoint=SERVERS[0])
        assert [op.type for op in t.get_trainer_program().global_block().ops] == alone
