"""The interface of Fluid's collective transpilers, and of DistributeTranspiler in the modes without servers."""

from __future__ import annotations

import pytest

import pstranspile.fluid as fluid
from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.fluid import (
    Collective,
    DistributeTranspiler,
    DistributeTranspilerConfig,
    GradAllReduce,
    LocalSGD,
    SingleProcessMultiThread,
)
from pstranspile.ir.diagnostics import DiagnosticError
from tests.models import mlp

MODULE = mlp(2, 100)
STARTUP = MODULE["startup"]
TRAINERS = ["a:1", "b:2", "c:3"]


@pytest.mark.parametrize(
    ("transpiler", "mode", "rings"),
    [
        (GradAllReduce(), "grad-allreduce", 2),
        (GradAllReduce(3), "grad-allreduce", 3),
        (LocalSGD(), "local-sgd", 2),
        (LocalSGD(nrings=1), "local-sgd", 1),
        (SingleProcessMultiThread(), "single-process-multi-thread", 1),
    ],
)
@pytest.mark.parametrize("endpoints", [TRAINERS, ",".join(TRAINERS)])
def test_programs_of_a_rank(transpiler: Collective, mode: str, rings: int, endpoints: list[str] | str) -> None:
    startup, main = transpiler.transpile(STARTUP, MODULE.main, 1, endpoints, "b:2", wait_port=True)
    ours = compile(MODULE, Job(trainers=TRAINERS, mode=mode, nccl_comm_num=rings)).trainer(1)
    assert (main, startup) == (ours.main, ours.startup)
    assert transpiler.nrings == rings
    in_one_process = mode == "single-process-multi-thread"
    assert (transpiler.result.trainer(2).startup == startup) == in_one_process
    assert main != MODULE.main


@pytest.mark.parametrize(
    ("rank", "current", "message"),
    [
        (-1, "a:1", "rank is -1; there are 3 trainers, numbered from 0"),
        (3, "a:1", "rank is 3; there are 3 trainers"),
        (0, "d:4", "current_endpoint is 'd:4', but trainer 0 is at 'a:1'"),
        (1, "a:1", "current_endpoint is 'a:1', but trainer 1 is at 'b:2'"),
    ],
)
def test_a_rank_and_its_endpoint_agree(rank: int, current: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GradAllReduce().transpile(STARTUP, MODULE.main, rank, TRAINERS, current, wait_port=False)


def test_the_base_class_transpiles_nothing() -> None:
    with pytest.raises(NotImplementedError):
        Collective(1).transpile(STARTUP, MODULE.main, 0, TRAINERS, "a:1", wait_port=False)
    with pytest.raises(RuntimeError, match="call transpile first"):
        _ = LocalSGD().result


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        (DistributeTranspilerConfig(mode="nccl2", nccl_comm_num=2), "nccl2"),
        (DistributeTranspilerConfig(mode="collective", collective_mode="grad_allreduce"), "grad-allreduce"),
        (DistributeTranspilerConfig(mode="collective", collective_mode="local_sgd"), "local-sgd"),
    ],
)
def test_distribute_transpiler_without_servers(config: DistributeTranspilerConfig, mode: str) -> None:
    t = DistributeTranspiler(config)
    t.transpile(1, MODULE.main, trainers="a:1,b:2", startup_program=STARTUP, current_endpoint="b:2")
    ours = compile(MODULE, Job(trainers="a:1,b:2", mode=mode, nccl_comm_num=config.nccl_comm_num)).trainer(1)
    assert t.get_trainer_program() == ours.main
    assert t.get_trainer_startup_program() == ours.startup
    with pytest.raises(KeyError):
        t.get_pserver_program("a:1")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"trainers": 2}, "job-missing"),
        ({"trainers": "a:1,b:2", "pservers": "s:9"}, "job-conflict"),
        ({"trainers": "a:1,b:2", "sync_mode": False}, "job-conflict"),
        ({"trainers": "a:1,b:2", "current_endpoint": "c:3"}, "job-value"),
    ],
)
def test_jobs_that_make_no_sense_are_refused(arguments: dict[str, str | int | bool], code: str) -> None:
    t = DistributeTranspiler(DistributeTranspilerConfig(mode="nccl2"))
    with pytest.raises(DiagnosticError) as refused:
        t.transpile(0, MODULE.main, startup_program=STARTUP, **arguments)  # type: ignore[arg-type]
    assert [d.code for d in refused.value.diagnostics] == [code]


def test_a_current_endpoint_of_another_trainer_is_refused() -> None:
    t = DistributeTranspiler(DistributeTranspilerConfig(mode="nccl2"))
    with pytest.raises(ValueError, match="trainer 0 is at 'a:1'"):
        t.transpile(0, MODULE.main, trainers="a:1,b:2", startup_program=STARTUP, current_endpoint="b:2")


def test_layers_of_rings_declare_the_rows_of_all_trainers() -> None:
    main, ring = fluid.Program(), fluid.layers.collective
    with fluid.program_guard(main, fluid.Program()):
        x = fluid.layers.fill_constant([4, 2], "float32", 1.0)
        made = [ring._c_allreduce(x, reduce_type="max"), ring._c_allgather(x, 2), ring._c_reducescatter(x, 2)]
        assert [var.shape for var in made] == [(4, 2), (8, 2), (2, 2)]
        assert made[0].name == f"{x.name}.c_allreduce_max_0"
        assert ring._broadcast(x, 1) is ring._c_broadcast(ring._c_sync_calc_stream(x)) is ring._c_sync_comm_stream(x, 0)
        assert ring._allreduce(x, reduce_type="min").op.attr("reduce_type") == 3
        with pytest.raises(TypeError, match="reduce_type is one of"):
            ring._c_allreduce(x, reduce_type="mean")
        with pytest.raises(ValueError, match="can't be cut evenly"):
            ring._c_reducescatter(x, 3)
