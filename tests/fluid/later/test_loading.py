"""Servers that load some of the variables of a folder, and modes of writing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
import pstranspile.fluid.paddle as paddle
from pstranspile.fluid.missing import NotHere
from pstranspile.fluid.paddle.distributed.fleet.one_fleet import Fleet, Role, UserDefinedRoleMaker
from tests.fluid.running import fresh

ENDPOINTS = ["127.0.0.1:6174"]


def net(value: float) -> Any:
    start = paddle.nn.initializer.Constant(value)
    x = paddle.static.data("x", [None, 2])
    out = paddle.static.nn.fc(x, 1, weight_attr=paddle.ParamAttr("w", start), bias_attr=paddle.ParamAttr("b", start))
    return paddle.mean(paddle.square(out - 1.0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What one process has written after a step."""
    with fresh():
        loss = net(0.5)
        paddle.optimizer.Adam(0.1).minimize(loss)
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(paddle.static.default_startup_program())
        exe.run(feed={"x": np.ones((2, 2), "float32")}, fetch_list=[loss])
        fluid.io.save_persistables(exe, str(tmp_path))
    return tmp_path


def changed_by(load: Callable[[Fleet], None], optimizer: Any = None) -> set[str]:
    """Which variables of a server are not what its start-up program sets, once it has loaded some."""
    with fresh():
        fleet = Fleet()
        fleet.init(UserDefinedRoleMaker(current_id=0, role=Role.SERVER, worker_num=1, server_endpoints=ENDPOINTS))
        loss = net(0.0)
        fleet.distributed_optimizer(optimizer or paddle.optimizer.Adam(0.1)).minimize(loss)
        load(fleet)
        names = ("w", "b", *(() if optimizer else ("w_moment1_0", "b_moment1_0")))
        held = {name: np.array(fluid.global_scope().find_var(name).get_tensor()) for name in names}
        return {name for name, value in held.items() if value.any()}


def test_servers_load_all_or_what_is_named_with_its_state(folder: Path) -> None:
    of_weight = {"w", "w_moment1_0"}
    assert changed_by(lambda fleet: fleet.init_server()) == set()
    assert changed_by(lambda fleet: fleet.init_server(str(folder))) == {*of_weight, "b", "b_moment1_0"}
    assert changed_by(lambda fleet: fleet.init_server(str(folder), var_names=["w"])) == of_weight
    assert changed_by(lambda fleet: fleet.init_server(str(folder), ["b_moment1_0"])) == {"b_moment1_0"}
    assert changed_by(lambda fleet: fleet.init_server(str(folder), var_names=[])) == set()
    assert changed_by(lambda fleet: fleet.init_server(None, var_names=["w"])) == set()


def test_servers_load_what_a_trainer_has_written_as_a_model(folder: Path, tmp_path_factory: Any) -> None:
    saved = tmp_path_factory.mktemp("saved")
    (saved / "dnn_plugin").mkdir()
    for name in ("w", "b"):
        (saved / "dnn_plugin" / name).write_bytes((folder / name).read_bytes())
    sgd = paddle.optimizer.SGD
    assert changed_by(lambda fleet: fleet.init_server(str(saved)), sgd(0.1)) == {"w", "b"}
    assert changed_by(lambda fleet: fleet.init_server(str(saved), ["b"]), sgd(0.1)) == {"b"}
    (folder / "dnn_plugin").mkdir()
    assert "w_moment1_0" in changed_by(lambda fleet: fleet.init_server(str(folder)))


def test_names_that_servers_do_not_have_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"var_names has 'b_moment_0', which the servers do not keep.*b_moment"):
        changed_by(lambda fleet: fleet.init_server(str(folder), var_names=["w", "b_moment_0"]))
    with pytest.raises(TypeError, match="a list of names, not 'w'"):
        changed_by(lambda fleet: fleet.init_server(str(folder), var_names="w"))


def test_modes_write_all_or_are_refused(tmp_path: Path) -> None:
    with fresh():
        fleet = Fleet()
        fleet.init(UserDefinedRoleMaker(current_id=0, role=Role.SERVER, worker_num=1, server_endpoints=ENDPOINTS))
        exe = paddle.static.Executor(paddle.CPUPlace())
        for mode in (1, 2):
            with pytest.raises(NotHere, match=rf"save_persistables\(mode={mode}\).*0 and 3 write all"):
                fleet.save_persistables(exe, str(tmp_path), mode=mode)
            with pytest.raises(NotHere, match=rf"save_inference_model\(mode={mode}\)"):
                fleet.save_inference_model(exe, str(tmp_path), [], [], mode=mode)
        for wrong in (4, -1, "0", True, None):
            with pytest.raises((ValueError, NotHere), match="mode"):
                fleet.save_persistables(exe, str(tmp_path), mode=wrong)  # pyright: ignore[reportArgumentType]
        assert not [*tmp_path.iterdir()]
        fleet.init()
        fleet.distributed_optimizer(paddle.optimizer.SGD(0.1)).minimize(net(0.5))
        exe.run(paddle.static.default_startup_program())
        fleet.save_persistables(exe, str(tmp_path), mode=3)
        assert {"w", "b"} <= {path.name for path in tmp_path.iterdir()}
