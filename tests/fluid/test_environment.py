"""What scripts take from the environment, and names of Fluid's inner objects that they use."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
import pstranspile.fluid.paddle as paddle
from pstranspile.fluid.communicator import Communicator
from pstranspile.fluid.contrib.reader import distributed_batch_reader
from pstranspile.fluid.incubate.fleet.base import PaddleCloudRoleMaker
from pstranspile.fluid.running.flags import seconds
from tests.fluid.running import fresh, known_as_paddle

READERS: dict[str, Callable[[], Any]] = {
    "CPU_NUM": lambda: fluid.cpu_places(),
    "FLAGS_rpc_get_thread_num": lambda: fluid.DistributeTranspilerConfig.defaults(),
    "PADDLE_TRAINER_ID": lambda: paddle.distributed.get_rank(),
    "PADDLE_TRAINERS_NUM": lambda: paddle.distributed.get_world_size(),
    "PSTRANSPILE_PATIENCE": lambda: seconds("PSTRANSPILE_PATIENCE", 120),
}


@pytest.mark.parametrize("text", ["two", "2.5x", "1_0", "٣"])
@pytest.mark.parametrize("name", [name for name in READERS if not name.startswith("FLAGS")])
def test_a_variable_that_is_no_number_is_named_with_what_it_holds(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "PSTRANSPILE_PATIENCE" and text in ("1_0", "٣"):
        pytest.skip("a number of seconds in Python's words")
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=f"the variable {name} of the environment holds '{text}', which is no"):
        READERS[name]()


@pytest.mark.parametrize("name", ["PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID"])
def test_roles_name_the_variable_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "PADDLE_PSERVERS_IP_PORT_LIST": "127.0.0.1:6174",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ID": "0",
        "TRAINING_ROLE": "TRAINER",
    }
    for key, value in {**given, name: "two"}.items():
        monkeypatch.setenv(key, value)
    for read in (PaddleCloudRoleMaker().generate_role, lambda: distributed_batch_reader(lambda: iter(()))):
        with pytest.raises(ValueError, match=f"the variable {name} of the environment holds 'two'"):
            read()
    monkeypatch.delenv(name)
    with pytest.raises(ValueError, match=name):
        PaddleCloudRoleMaker().generate_role()


def test_a_variable_is_declared_in_a_block() -> None:
    with fresh():
        block = fluid.default_main_program().global_block()
        made = fluid.framework.Variable(block, name="x", shape=[-1, 3], dtype="float32", lod_level=1)
        assert (made.shape, made.lod_level, block.var("x").dtype) == ((-1, 3), 1, made.dtype)
        other = fluid.framework.Variable(block, shape=[2], dtype="int64", persistable=True)
        assert other.persistable
        assert block.has_var(other.name)


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, 1.0), ({"batch_size": 4.0, "batch_sum": 8.0, "batch_square": 16.0}, -0.5), ({"batch_square": 4e4}, 0.5)],
)
def test_data_norm_begins_with_what_is_given(given: Any, expected: float) -> None:
    with fresh():
        made = fluid.layers.data_norm(fluid.data("x", [None, 2], "float32"), param_attr=given)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        (value,) = exe.run(feed={"x": np.ones((3, 2), "float32")}, fetch_list=[made])
        assert np.allclose(value, expected)
        assert exe._default_executor is exe
        exe._default_executor.close()
        with pytest.raises(RuntimeError, match="closed"):
            exe.run(feed={"x": np.ones((3, 2), "float32")}, fetch_list=[made])


def test_a_communicator_needs_a_program_only() -> None:
    made = Communicator(fluid.Program())
    made.start()
    assert made.is_running()
    made.stop()
    assert not made.is_running()
    with pytest.raises(ValueError, match="one of DistributedMode"):
        Communicator(fluid.Program(), 17)


def test_modules_of_2x_are_those_of_fluid() -> None:
    with known_as_paddle():
        for name, ours in {
            "paddle.base": fluid,
            "paddle.base.layers": fluid.layers,
            "paddle.distributed.io": fluid.io,
            "paddle.distributed.transpiler": fluid.transpiler,
            "paddle.distributed.transpiler.distribute_transpiler": fluid.transpiler.distribute_transpiler,
        }.items():
            assert import_module(name) is ours
        assert import_module("paddle").base is fluid
        assert import_module("paddle").distributed.io is fluid.io


def test_shorter_numbers_stay_long_and_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    strategy: Any = paddle.distributed.fleet.DistributedStrategy()
    setattr(strategy, "amp", True)  # noqa: B010
    strategy.amp_configs = {"init_loss_scaling": 1024.0, "use_pure_bf16": True}
    setattr(strategy, "fp16_allreduce", True)  # noqa: B010
    told = capsys.readouterr().err
    assert "DistributedStrategy.amp" in told
    assert "float32 where Paddle takes float16 or bfloat16" in told
    assert "DistributedStrategy.fp16_allreduce" in told


def test_the_counts_of_an_area_are_cleared() -> None:
    area = fluid.metrics.Auc("area")
    area.update(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[1], [0]]))
    before = area.eval()
    area.reset()
    area.update(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([[1], [0]]))
    assert (before, area.eval()) == (0.0, 1.0)
