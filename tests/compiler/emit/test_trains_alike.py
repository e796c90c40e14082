"""Proof by running: the cluster that the emitted programs make trains like the single machine.

The models are recorded ones with real-valued feeds, among them all those where Fluid's own output is faulty.
"""

from __future__ import annotations

import numpy as np
import pytest

from pstranspile.compiler.compile import compile
from pstranspile.compiler.job import Job
from tests.recorded_fluid import job_names, source
from tests.trained_clusters import Cluster, train_alone

CASES = [
    "adam_beta_tensor",
    "clip_global_norm",
    "clip_norm",
    "clip_value_l2",
    "ema_sgd",
    "fit_a_line_sgd",
    "lookahead_sgd",
    "lr_exponential",
    "lr_noam",
    "lr_piecewise",
    "lr_polynomial_cycle",
    "lr_warmup",
    "model_average_momentum",
    "numpy_init",
    "opt_adadelta_dropped",
    "opt_adamax",
    "opt_ftrl",
    "opt_rmsprop",
    "opt_rmsprop_centered",
    "opt_unsupported_lamb",
    "param_lr",
    "reg_l1",
    "reg_l2",
    "tricky_names",
    "tricky_names_block",
    "two_optimizers",
]
STEPS = 6  # Lookahead interpolates at the fifth


def feeds(case: str) -> list[dict[str, np.ndarray]]:
    main = source(case).main.main_block
    written = {name for op in main.ops for name in op.output_names}
    read = {name for op in main.ops for name in op.input_names}
    inputs = [v for v in main.vars.values() if v.name in read and v.name not in written and not v.persistable]
    random = np.random.RandomState(5)
    return [{v.name: random.uniform(-1, 1, (8, *v.shape[1:])).astype(np.float32) for v in inputs} for _ in range(STEPS)]


def check(case: str, job: Job) -> None:
    module = source(case)
    alone = train_alone(module, feeds(case))
    cluster = Cluster(compile(module, job))
    start = cluster.parameters()
    for feed in feeds(case):
        cluster.step(feed)
    moved = 0.0
    for name, value in cluster.parameters().items():
        want = np.asarray(alone[name])
        way = float(np.abs(want - start[name]).max())
        far = ~np.isclose(value, want, rtol=3e-4, atol=2e-6)
        # An update divided by the gradient's own size turns the rounding of a gradient near zero into a step.
        assert far.mean() <= 1e-4, name
        assert np.abs(value - want).max() <= 0.05 * way + 2e-6, name
        moved = max(moved, way)
    assert moved > 1e-4, "nothing was trained"


@pytest.mark.parametrize("case", CASES)
def test_sliced(case: str) -> None:
    check(case, Job(["a:1", "b:2"], 2, min_block_size=100))


@pytest.mark.parametrize("case", ["clip_norm", "lookahead_sgd", "opt_adamax", "reg_l2"])
@pytest.mark.parametrize("trainers", [1, 4])
def test_other_clusters(case: str, trainers: int) -> None:
    check(case, Job(["a:1", "b:2", "c:3"], trainers, slice_var_up=trainers == 1))


def test_one_trainer_and_one_server_equal_bit_for_bit() -> None:
    case = "fit_a_line_sgd"
    alone = train_alone(source(case), feeds(case))
    cluster = Cluster(compile(source(case), Job(["a:1"], 1)))
    for feed in feeds(case):
        cluster.step(feed)
    for name, value in cluster.parameters().items():
        assert value.tobytes() == np.asarray(alone[name]).tobytes()


def test_every_case_is_recorded() -> None:
    recorded = {name.partition("/")[0] for name in job_names()}
    assert set(CASES) <= recorded
