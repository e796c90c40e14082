"""What scripts ask of Fleet, of transpiled programs and of the transpiler's settings."""

from __future__ import annotations

from typing import Any

import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.incubate.fleet.base.role_maker import Role, UserDefinedRoleMaker
from pstranspile.fluid.incubate.fleet.parameter_server.distribute_transpiler import (
    DistributedTranspiler,
    TranspilerOptimizer,
)
from tests.fluid_api.running import fresh

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
