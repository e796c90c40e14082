"""Distributions: their numbers in Fluid, what is drawn, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid import layers
from tests.fluid.running import fresh


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with fresh():
        yield


def run(*made: Any, **fed: Any) -> list[Any]:
    return fluid.Executor(fluid.CPUPlace()).run(feed=fed, fetch_list=list(made))


def check(got: list[Any], expected: list[Any]) -> None:
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, np.float32(b), rtol=1e-4)


def test_normal() -> None:
    value = fluid.data("value", [1], "float32")
    one, two = layers.Normal(0.5, 2.0), layers.Normal([1.0, 2.0], [1.0, 3.0])
    made = [one.entropy(), two.entropy(), one.log_prob(value), two.log_prob(value), one.kl_divergence(two)]
    expected = [[2.11209], [1.41894, 2.51755], [-1.61709], [-0.96394, -2.11144], [0.93185, 0.25269]]
    check(run(*made, value=np.float32([0.7])), expected)


def test_uniform() -> None:
    value = fluid.data("value", [1], "float32")
    one, two = layers.Uniform(0.5, 2.0), layers.Uniform(np.float32([1.0, 2.0]), [1.5, 3.0])
    with np.errstate(divide="ignore"):
        got = run(one.entropy(), two.entropy(), one.log_prob(value), two.log_prob(value), value=np.float32([0.7]))
    check(got, [[0.40547], [-0.69315, 0.0], [-0.40547], [-np.inf, -np.inf]])


def test_categorical() -> None:
    one, two = layers.Categorical(np.float32([0.6, 0.4, 1.0])), layers.Categorical([0.2, 0.2, -0.5])
    check(run(one.entropy(), two.entropy(), one.kl_divergence(two)), [[1.06633], [1.05416], [0.16404]])


def test_many_dims() -> None:
    one = layers.MultivariateNormalDiag(np.float32([0.3, 0.5]), np.float32([[0.4, 0], [0, 0.5]]))
    two = layers.MultivariateNormalDiag(np.float32([0.2, 0.4]), np.float32([[0.3, 0], [0, 0.4]]))
    check(run(one.entropy(), two.entropy(), one.kl_divergence(two)), [[2.03316], [1.77775], [0.06542]])


def test_what_is_drawn_lies_where_the_distribution_is() -> None:
    spread = layers.Uniform([1.0, 2.0], [3.0, 3.0]).sample([400], seed=3)
    numbers = layers.Uniform(1.0, 3.0).sample([400], seed=3)
    around = layers.Normal(5.0, 0.1).sample([400], seed=3)
    got = run(spread, numbers, around)
    assert [part.shape for part in got] == [(400, 2), (400,), (400,)]
    assert [float(part.min()) // 0.2 * 0.2 for part in got[:2]] == [1.0, 1.0]
    assert got[0][:, 1].min() >= 2
    assert [2.9 < part.max() < 3 for part in got[:2]] == [True, True]
    assert abs(got[2].mean() - 5) < 0.02


def test_parameters_may_be_variables_of_any_batch() -> None:
    low, high = (fluid.data(name, [None, 2], "float32") for name in ("low", "high"))
    one, two = layers.Uniform(low, high), layers.Normal(low, high)
    fed = np.float32([[1, 2], [1, 2], [5, 6]])
    got = run(one.sample([4]), two.sample([4]), one.entropy(), two.entropy(), low=fed, high=fed + 1)
    assert [part.shape for part in got] == [(4, 3, 2), (4, 3, 2), (3, 2), (3, 2)]
    check(got[2:], [np.zeros((3, 2)), [[2.11209, 2.51755], [2.11209, 2.51755], [3.2107, 3.36485]]])


def test_what_is_refused() -> None:
    value = fluid.data("value", [1], "float32")
    with pytest.raises(ValueError, match="all variables, or none"):
        layers.Normal(value, 1.0)
    with pytest.raises(TypeError, match="Normal: scale must be float"):
        layers.Normal(1.0, "1")
    with pytest.raises(TypeError, match="other must be Normal"):
        layers.Normal(1.0, 1.0).kl_divergence(layers.Uniform(1.0, 2.0))
