"""The interface of Fluid's DistributeTranspiler."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext

import pytest

import pstranspile.fluid as fluid
from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.make import Placeable
from pstranspile.fluid import DistributeTranspiler, DistributeTranspilerConfig
from pstranspile.fluid.transpiler.distribute_transpiler import HashName, PSDispatcher, RoundRobin
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import MAIN, STARTUP, Module
from tests.fluid.running import fresh
from tests.models import mlp

MODULE = mlp(2, 100)
SERVERS = "a:1,b:2"


class FirstOnly(PSDispatcher):
    def dispatch(self, varlist: Sequence[Placeable]) -> Sequence[str]:
        self.reset()
        return [self._eps[self._step] for _ in varlist]


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


def test_a_dispatcher_is_a_class_as_scripts_ask_for_its_bases() -> None:
    config = DistributeTranspilerConfig()
    assert config.split_method is None
    assert transpiled(config).config.split_method is RoundRobin
    assert RoundRobin.__bases__ == (PSDispatcher,)
    config.split_method = HashName
    assert transpiled(config).config.job_settings() == {"split_method": "HashName"}


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


@pytest.mark.parametrize(
    ("served", "outside", "message"),
    [
        (True, False, r"a loss is minimised in block \^2 of @main, whose gradients no other machine is sent"),
        (False, False, r"a loss is minimised in block \^2 of @main"),
        (True, True, r"%fc_0\.b_0 is updated in block \^1 of @main; servers run the updates of the main block"),
        (False, True, ""),
    ],
)
def test_training_in_a_branch_is_refused(served: bool, outside: bool, message: str) -> None:
    with fresh():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 4]), 1))
        optimizer = fluid.optimizer.SGD(0.1)
        pairs = optimizer.backward(loss) if outside else []

        def train() -> None:
            if outside:
                optimizer.apply_gradients(pairs)
            else:
                optimizer.minimize(loss)

        fluid.layers.cond(fluid.layers.less_than(loss, fluid.layers.ones([1], "float32")), train, None)
        module = Module(
            {MAIN: fluid.default_main_program().freeze(), STARTUP: fluid.default_startup_program().freeze()}
        )
    job = (
        Job(pservers="a:1", trainers=2)
        if served
        else Job(mode="collective", collective_mode="grad_allreduce", trainers="a:1,b:2")
    )
    with pytest.raises(DiagnosticError, match=message) if message else nullcontext():
        compile(module, job)


@pytest.mark.parametrize(
    ("layers", "sparse", "settings", "draws"),
    [
        (1, False, {}, 4),
        (3, False, {}, 8),
        (2, True, {}, 8),
        (2, False, {"sync_mode": False}, 6),
        (1, True, {"sync_mode": False, "half_async": True, "runtime_split_send_recv": True}, 6),
        (2, False, {"slice_var_up": False}, 6),
    ],
)
def test_transpile_draws_as_many_random_numbers_as_fluid(
    layers: int, sparse: bool, settings: dict[str, bool], draws: int
) -> None:
    """The numbers are those of Fluid 1.8.5; its later steps draw none."""
    with fresh():
        ids, hidden = fluid.data("ids", [None, 1], "int64"), fluid.data("x", [None, 4], "float32")
        for _ in range(layers):
            hidden = fluid.layers.fc(hidden, 4)
        for name in ("one", "two") if sparse else ():
            hidden = hidden + fluid.layers.embedding(ids, [40, 4], is_sparse=True, param_attr=name)
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(hidden))
        config = fluid.DistributeTranspilerConfig()
        for name, value in settings.items():
            setattr(config, name, value)
        transpiler = fluid.DistributeTranspiler(config)
        before = random.getstate()
        try:
            random.seed(5)
            transpiler.transpile(0, pservers="a:1,b:1", trainers=2, sync_mode=settings.get("sync_mode", True))
            transpiler.get_trainer_program(wait_port=False)
            transpiler.get_startup_program("a:1", transpiler.get_pserver_program("a:1"))
            after = random.getstate()
            random.seed(5)
            for _ in range(draws):
                random.random()
            assert after == random.getstate()
        finally:
            random.setstate(before)
