"""What a job of a traced model trains: simulated, and held to what was launched."""

from typing import Any

import numpy as np

import pstranspile as ps
from pstranspile.cluster.checkpoint.inference import whole_values
from pstranspile.cluster.data.loader import LoaderRows
from pstranspile.frontends.torch.training import Training


def simulated(training: Training, fed: Any, **job: Any) -> tuple[Any, dict[str, Any]]:
    """What a simulated cluster fetches, and its variables."""
    compiled = ps.compile(training.module, ps.Job(pservers=2, trainers=2, **job))
    done = ps.simulate(compiled, LoaderRows(fed, training.inputs), fetch=[training.loss])
    return done, whole_values(done.cluster, compiled)


def assert_trained(training: Training, done: Any, expected: tuple[Any, dict[str, Any]], since: int = 0) -> None:
    """Both have the same losses from a step on, and the same variables, bit by bit."""
    for ours, theirs in zip(done.fetched, expected[0].fetched, strict=True):
        np.testing.assert_array_equal(ours[training.loss], theirs[training.loss][since:])
    state = training.state
    assert {"table.weight", "out.bias"} < {*expected[1]} <= {*state}
    for name, value in expected[1].items():
        np.testing.assert_array_equal(state[name].reshape(value.shape), value, name)
