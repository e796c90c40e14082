"""The link check passes what is right, also where it is unusual."""

from __future__ import annotations

import pytest

from pstranspile.compile import compile
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
