"""The interface of Fluid's DistributeTranspiler."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import pstranspile.fluid as fluid
from pstranspile.compile import compile
from pstranspile.fluid import DistributeTranspiler, DistributeTranspilerConfig
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.job import Job
from pstranspile.plan.dispatch import Dispatcher, Placeable
from tests.fluid_api.running import fresh
from tests.models import mlp

MODULE = mlp(2, 100)
SERVERS = "a:1,b:2"


class FirstOnly(Dispatcher):
    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        return [self.endpoints[0] for _ in varlist]


def transpiled(config: DistributeTranspilerConfig | None = None, **arguments: object) -> DistributeTranspiler:
    t = DistributeTranspiler(config)
    t.transpile(1, MODULE.main, SERVERS, 2, startup_program=MODULE["startup"], **arguments)  # type: ignore[arg-type]
    return t


def test_any_role_in_any_order() -> None:
    t = transpiled()
    ours = compile(MODULE, Job(SERVERS, 2))
    assert t.get_trainer_program() == ours.trainer(1).main
    assert t.get_pserver_programs("b:2") == (ours.pserver("b:2").main, ours.pserver("b:2").startup)
    assert t.get_trainer_startup_program() == ours.trainer(1).startup
    main = t.get_pserver_program("a:1")
    assert t.get_startup_program("a:1", main) == ours.pserver("a:1").startup
    assert t.get_trainer_program() == ours.trainer(1).main


def test_the_config_is_followed() -> None:
    config = DistributeTranspilerConfig(slice_var_up=False, split_method=FirstOnly)
    plan = transpiled(config).result.plan
    assert {s.endpoint for p in plan.parameters for s in p.slices} == {"a:1"}
    config = DistributeTranspilerConfig()
    config.min_block_size = 100
    assert any(p.is_cut for p in transpiled(config).result.plan.parameters)


def test_mode_from_argument_and_config_must_agree() -> None:
    assert transpiled(sync_mode=False).result.plan.mode == "async"
    assert transpiled(DistributeTranspilerConfig(sync_mode=False)).result.plan.mode == "async"
    with pytest.raises(ValueError, match="sync_mode is True here and False in the config"):
        transpiled(DistributeTranspilerConfig(sync_mode=False), sync_mode=True)


def test_what_fluid_lets_pass_is_refused() -> None:
    t = DistributeTranspiler()
    with pytest.raises(RuntimeError, match="transpile first"):
        t.get_trainer_program()
    with pytest.raises(TypeError, match="startup_program"):
        t.transpile(0, MODULE.main, SERVERS, 2)
    with pytest.raises(DiagnosticError, match="trainer_id"):
        t.transpile(7, MODULE.main, SERVERS, 2, startup_program=MODULE["startup"])
    t = transpiled()
    with pytest.raises(KeyError):
        t.get_pserver_program("c:3")
    with pytest.raises(ValueError, match="not that of the server at a:1"):
        t.get_startup_program("a:1", t.get_pserver_program("b:2"))


def test_ops_of_a_servers_rate_have_their_empty_slots() -> None:
    with fresh():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 4]), 1))
        fluid.optimizer.SGD(fluid.layers.noam_decay(16, 10)).minimize(loss)
        t = DistributeTranspiler()
        t.transpile(0, pservers="a:1", trainers=2)
        (op,) = (op for op in t.get_pserver_program("a:1").blocks[1].ops if op.type == "fill_constant")
        assert sorted(op.input_names) == ["ShapeTensor", "ShapeTensorList", "ValueTensor"]
