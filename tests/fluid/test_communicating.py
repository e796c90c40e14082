"""Settings of communicators and servers: followed, named on stderr, or refused."""

from __future__ import annotations

import pytest

import pstranspile.fluid as fluid
from pstranspile.cluster.machines.communicator import Settings
from pstranspile.compiler.job import Job
from pstranspile.fluid import communicator as communicating
from pstranspile.fluid.communicator import Communicator, DistributedMode, communicator_settings, default_flags
from pstranspile.fluid.incubate.fleet.parameter_server import (
    ServerRuntimeConfig,
    StrategyFactory,
)
from pstranspile.fluid.missing import NotHere
from tests.fluid.running import fresh

ASYNC = Job("a:1", 2, sync_mode=False, runtime_split_send_recv=True)
HALF = Job("a:1", 2, sync_mode=False, runtime_split_send_recv=True, half_async=True)


@pytest.fixture(autouse=True)
def _nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communicating, "_WARNED", set[str]())
    monkeypatch.delenv("CPU_NUM", raising=False)


def test_asynchronous_trainers_follow_their_queues(capsys: pytest.CaptureFixture[str]) -> None:
    assert communicator_settings(default_flags(), ASYNC) == Settings()
    given = {
        "communicator_send_queue_size": 5,
        "communicator_max_merge_var_num": "3",
        "communicator_is_sgd_optimizer": False,
    }
    assert communicator_settings(given, ASYNC) == Settings(3, 5, False)
    assert capsys.readouterr().err == ""


def test_the_environment_gives_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FLAGS_communicator_send_queue_size", "4")
    monkeypatch.setenv("FLAGS_communicator_fake_rpc", "1")
    strategy = StrategyFactory.create_async_strategy()
    strategy.set_trainer_runtime_config({"communicator_max_merge_var_num": "2"})
    flags = strategy.get_trainer_runtime_config().get_communicator_flags()
    assert communicator_settings(flags, ASYNC) == Settings(2, 4)
    assert "FLAGS_communicator_fake_rpc = 1 changes nothing" in capsys.readouterr().err
    with pytest.raises(ValueError, match="did you mean communicator_send_queue_size"):
        strategy.set_trainer_runtime_config({"communicator_send_queue_sise": "2"})


def test_what_changes_nothing_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert communicator_settings({"communicator_send_queue_size": 9, "rpc_deadline": 5}, HALF) == Settings()
    named = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in named] == ["rpc_deadline", "communicator_send_queue_size"]
    servers = ServerRuntimeConfig()
    servers.warn_unused()
    assert capsys.readouterr().err == ""
    vars(servers)["_rpc_get_thread_num"] = 3
    servers.warn_unused()
    assert "_rpc_get_thread_num = 3 changes nothing" in capsys.readouterr().err


def test_what_would_change_results_is_refused() -> None:
    fewest = {"communicator_min_send_grad_num_before_recv": 20}
    with pytest.raises(NotHere, match="min_send_grad_num_before_recv = 20"):
        communicator_settings(fewest, ASYNC)
    assert communicator_settings({**fewest, "communicator_independent_recv_thread": 0}, ASYNC) == Settings()
    with pytest.raises(ValueError, match="at least 1, not '0'"):
        communicator_settings({"communicator_send_queue_size": "0"}, ASYNC)


def test_a_communicator_belongs_to_the_mode_of_its_program() -> None:
    with fresh():
        x = fluid.layers.data(name="x", shape=[4], dtype="float32")
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(fluid.layers.fc(x, size=1)))
        config = fluid.DistributeTranspilerConfig()
        config.sync_mode, config.runtime_split_send_recv = False, True
        t = fluid.DistributeTranspiler(config)
        t.transpile(0, pservers="127.0.0.1:6174", trainers=2)
        program = t.get_trainer_program()
        with pytest.raises(ValueError, match="the mode is GEO, and the program is transpiled for ASYNC"):
            Communicator(program, DistributedMode.GEO)
        Communicator(program, DistributedMode.ASYNC, envs={"communicator_send_queue_size": "7", "trainer_id": "0"})
        (trainer, _) = program.machine.cluster(fluid.global_scope().core).trainers
        assert trainer.communicator.settings == Settings(send_queue_size=7)


def test_a_strategy_may_have_the_script_feed_the_gradient_of_the_loss() -> None:
    strategy = StrategyFactory.create_sync_strategy()
    strategy.set_build_strategy({"gradient_scale_strategy": 2})
    assert strategy.get_build_strategy().is_fed_first_gradient
