"""The interface of Fluid's GeoSgdTranspiler."""

from __future__ import annotations

import pytest

from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.compiler.plan.plan import vars_info
from pstranspile.fluid import DistributeTranspiler, DistributeTranspilerConfig, GeoSgdTranspiler
from pstranspile.ir.diagnostics import DiagnosticError
from tests.models import mlp

MODULE = mlp(2, 100)
SERVERS = "a:1,b:2"


def transpiled(config: DistributeTranspilerConfig | None = None, **arguments: object) -> GeoSgdTranspiler:
    t = GeoSgdTranspiler(config)
    t.transpile(1, MODULE.main, SERVERS, 2, startup_program=MODULE["startup"], **arguments)  # type: ignore[arg-type]
    return t


def test_any_role_in_any_order() -> None:
    t = transpiled()
    ours = compile(MODULE, Job(SERVERS, 2, mode="geo"))
    assert t.get_trainer_program() == ours.trainer(1).main
    assert t.trainer_startup_program == ours.trainer(1).startup
    assert t.get_pserver_programs("b:2") == (ours.pserver("b:2").main, ours.pserver("b:2").startup)
    main = t.get_pserver_program("a:1")
    assert t.get_startup_program("a:1", main) == ours.pserver("a:1").startup
    told = t._get_vars_info()  # pyright: ignore[reportPrivateUsage] (it is Fluid's name)
    assert told == vars_info(ours.plan.parameters)
    assert list(told["fc_0.b_0"]) == ["var_names", "sections", "epmap", "is_sparse"]


def test_the_config_is_followed_and_left_alone() -> None:
    config = DistributeTranspilerConfig(geo_sgd_need_push_nums=7, min_block_size=100)
    plan = transpiled(config).result.plan
    assert plan.geo is not None
    assert plan.geo.need_push_nums == 7
    assert any(p.is_cut for p in plan.parameters)
    assert not config.geo_sgd_mode


def test_a_config_can_ask_for_it_too() -> None:
    t = DistributeTranspiler(
        DistributeTranspilerConfig(geo_sgd_mode=True, sync_mode=False, runtime_split_send_recv=True)
    )
    t.transpile(1, MODULE.main, SERVERS, 2, startup_program=MODULE["startup"])
    assert t.get_trainer_program() == transpiled().get_trainer_program()


def test_it_is_never_synchronous() -> None:
    with pytest.raises(DiagnosticError, match="sync_mode = true does not go together with"):
        transpiled(sync_mode=True)
