"""The link check passes what is right, also where it is unusual."""

from __future__ import annotations

import pytest

from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.frontends.loading import loads
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Module
from tests import training

JOBS = [
    Job(trainers="a:1,b:2", mode="grad-allreduce", nccl_comm_num=2),
    Job(trainers="a:1,b:2,c:3", mode="local-sgd"),
    Job(trainers="a:1,b:2", mode="single-process-multi-thread"),
    Job(trainers="a:1,b:2", mode="nccl2"),
]


@pytest.mark.parametrize("case", training.CASES)
def test_recorded_models_compile_in_the_modes_without_servers(case: str) -> None:
    """Ops that finish several gradients, clips, decay and loops among them; compiling links."""
    module = training.recorded(case)
    for job in JOBS:
        assert len(compile(module, job).roles()) == job.trainers


def joining() -> Module:
    """A net that concatenates whole parameters itself, and then writes the result again in place."""
    model = L.Draft(seed=1)
    x, y = L.data(model, "x", [-1, 1200], "f32"), L.data(model, "y", [-1, 1], "f32")
    parts = [L.create_parameter(model, "part", f"part_{n}", [n, 1], "f32") for n in (400, 800)]
    both = L.concat(parts, axis=0)
    model.op("scale", {"X": [both.name]}, {"Out": [both.name]}, {"scale": 0.5})
    hidden = L.fc(x, 50, param_attr="w")
    minimize(L.mean(L.square_error_cost(L.matmul(x, both) + L.fc(hidden, 1), y)), SGD(0.1))
    return model.module()


@pytest.mark.parametrize("mode", ["sync", "async", "half-async", "geo"])
def test_a_concat_of_the_net_is_no_join_of_slices(mode: str) -> None:
    compiled = compile(joining(), Job(pservers="a:1,b:2", trainers=2, mode=mode))
    for role, programs in compiled.roles().items():
        assert any(op.type == "concat" for op in programs.main.main_block.ops) or not role.startswith("trainer")


STATISTICS = """
ir 1
program @main {
  block ^0 {
    param %size : f32[3]
    param %sum : f32[3]
    param %square : f32[3]
    state %rate : f32[1]
    temp %x : f32[-1, 3] feed
    temp %y : f32[-1, 3]
    temp %means : f32[3]
    temp %scales : f32[3]
    temp %loss : f32[1]
    temp %loss@GRAD : f32[1]
    temp %y@GRAD : f32[-1, 3]
    temp %size@GRAD : f32[3]
    temp %sum@GRAD : f32[3]
    temp %square@GRAD : f32[3]
    data_norm(X=%x, BatchSize=%size, BatchSum=%sum, BatchSquareSum=%square) -> Y=%y, Means=%means, Scales=%scales
    mean(X=%y) -> Out=%loss : forward|loss
    fill_constant -> Out=%loss@GRAD {shape=[1], dtype=5, value=1.0} : backward|loss
    mean_grad(X=%y, Out@GRAD=%loss@GRAD) -> X@GRAD=%y@GRAD : backward
    data_norm_grad(X=%x, Y@GRAD=%y@GRAD, Means=%means, Scales=%scales) -> BatchSize=%size, BatchSum=%sum, \
BatchSquareSum=%square, BatchSize@GRAD=%size@GRAD, BatchSum@GRAD=%sum@GRAD, BatchSquareSum@GRAD=%square@GRAD \
{sync_stats=SYNC} : backward(%size, %size@GRAD, %sum, %sum@GRAD, %square, %square@GRAD)
    sgd(Param=%size, Grad=%size@GRAD, LearningRate=%rate) -> ParamOut=%size : optimize(%size, %size@GRAD)
    sgd(Param=%sum, Grad=%sum@GRAD, LearningRate=%rate) -> ParamOut=%sum : optimize(%sum, %sum@GRAD)
    sgd(Param=%square, Grad=%square@GRAD, LearningRate=%rate) -> ParamOut=%square : optimize(%square, %square@GRAD)
  }
}
program @startup {
  block ^0 {
    param %size : f32[3]
    param %sum : f32[3]
    param %square : f32[3]
    state %rate : f32[1]
    fill_constant -> Out=%size {shape=[3], dtype=5, value=10000.0}
    fill_constant -> Out=%sum {shape=[3], dtype=5}
    fill_constant -> Out=%square {shape=[3], dtype=5, value=10000.0}
    fill_constant -> Out=%rate {shape=[1], dtype=5, value=0.1}
  }
}
""".lstrip()


def test_data_norm_names_its_statistics_as_outputs_but_changes_them_only_with_sync_stats() -> None:
    job = Job(pservers="a:1,b:2", trainers=2)
    assert len(compile(loads(STATISTICS.replace("SYNC", "false")), job).roles()) == 4
    with pytest.raises(DiagnosticError, match="parameter-overwritten"):
        compile(loads(STATISTICS.replace("SYNC", "true")), job)
