"""Parameters by direction and length: `WeightNormParamAttr`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from tests.fluid.running import fresh

layers: Any = fluid.layers
ROWS = np.random.default_rng(0).random((3, 4), "float32")
START = np.random.default_rng(1).random((4, 5), "float32") - 0.2


def _value(name: str) -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


@pytest.mark.parametrize(("dim", "over"), [(None, None), (0, 1), (1, 0), (-1, 0)])
def test_direction_and_length_are_trained_by_themselves(dim: int | None, over: int | None) -> None:
    with fresh():
        start = fluid.initializer.NumpyArrayInitializer(START)
        attr = fluid.WeightNormParamAttr(dim=dim, name="w", initializer=start)
        out = layers.fc(fluid.data("x", [None, 4]), 5, param_attr=attr, bias_attr=False)
        _, pairs = fluid.optimizer.SGD(0.1).minimize(layers.reduce_sum(out))
        assert [param.name for param, _ in pairs] == ["w_g", "w_v"]
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(fluid.default_startup_program())
        norm = np.sqrt((START**2).sum(over, keepdims=True))
        length = _value("w_g")
        assert np.allclose(length, norm, atol=1e-5)
        made = np.asarray(executor.run(feed={"x": ROWS}, fetch_list=[out])[0])
        assert np.allclose(made, ROWS @ START, atol=1e-4)
        of_weight = np.repeat(ROWS.sum(0)[:, None], 5, 1)
        of_length = (of_weight * START).sum(over, keepdims=True) / norm
        of_direction = (of_weight - of_length * START / norm) * length / norm
        assert np.allclose(_value("w_g"), length - 0.1 * of_length, atol=1e-4)
        assert np.allclose(_value("w_v"), START - 0.1 * of_direction, atol=1e-4)


def test_a_dim_in_the_middle_of_a_filter_has_its_lengths() -> None:
    with fresh():
        layers.conv2d(fluid.data("x", [1, 3, 8, 8]), 4, 3, param_attr=fluid.WeightNormParamAttr(dim=1, name="w"))
        fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
        direction = _value("w_v")
        assert np.allclose(_value("w_g"), np.sqrt((direction**2).sum((0, 2, 3), keepdims=True)), atol=1e-5)
