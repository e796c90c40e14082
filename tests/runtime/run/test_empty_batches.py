"""A batch may have no rows: a trainer's share of little data, or sequences that were all filtered out."""

from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.fluid.arithmetic import fluid_arithmetic
from pstranspile.proof import make_feeds
from pstranspile.runtime.run.step_feeds import LENGTHS
from pstranspile.runtime.values import LoDTensor

EXAMPLES = Path(__file__).parents[3] / "examples"
NETS = ("mnist_mlp", "mnist_conv", "ctr_dnn", "deepfm", "simnet_bow", "transformer_encoder", "word2vec")


@pytest.mark.parametrize("arithmetic", ["fluid", "numpy"])
@pytest.mark.parametrize("name", NETS)
def test_a_step_without_rows(name: str, arithmetic: str):
    module = ps.load(EXAMPLES / f"{name}.ir")
    given = make_feeds(module.main, 1, 2)
    feed = {}
    for key, array in given.items():
        ragged = key + LENGTHS in given
        nothing = np.zeros((0, *array.shape[1 if ragged else 2 :]), array.dtype)
        if not key.endswith(LENGTHS):
            feed[key] = LoDTensor(nothing, [[0]]) if ragged else nothing
    scope = ps.Scope()
    ps.run(module["startup"], scope=scope)
    dims = {name: np.shape(scope[name]) for name in scope}
    with fluid_arithmetic(arithmetic == "fluid"):
        ps.run(module.main, feed=feed, scope=scope)
    assert {name: np.shape(scope[name]) for name in dims} == dims
