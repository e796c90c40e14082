"""The link check passes what is right, also where it is unusual."""

from __future__ import annotations

import pytest

from pstranspile import layers as L
from pstranspile.autodiff import SGD, minimize
from pstranspile.compile import compile
from pstranspile.ir.model import Module
from pstranspile.job import Job
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
