"""Functions of a script as ops: `layers.py_func`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from tests.fluid.running import fresh

layers: Any = fluid.layers


def _written(name: str, shape: list[int]) -> Any:
    return fluid.default_main_program().current_block().create_var(name=name, dtype="float32", shape=shape)


def test_a_function_and_its_gradient_are_those_of_the_layer() -> None:
    feed = {"x": np.random.default_rng(0).random((3, 2), "float32")}
    learnt: list[list[float]] = []
    for own in (False, True):
        with fresh():
            hidden = layers.fc(fluid.data("x", [None, 2]), 2, param_attr=fluid.initializer.Constant(0.3))
            if own:
                out = _written("out", [-1, 2])
                layers.py_func(np.tanh, hidden, out, lambda y, dy: np.array(dy) * (1 - np.array(y) ** 2), hidden)
            else:
                out = layers.tanh(hidden)
            loss = layers.mean(out)
            fluid.optimizer.SGD(1.0).minimize(loss)
            executor = fluid.Executor(fluid.CPUPlace())
            executor.run(fluid.default_startup_program())
            learnt.append([np.asarray(executor.run(feed=feed, fetch_list=[loss])[0]).item() for _ in range(4)])
    assert np.allclose(*learnt, atol=1e-6)
    assert learnt[1][3] < learnt[1][0]


def test_functions_take_none_or_several_and_see_sequences() -> None:
    with fresh():
        seen: list[Any] = []
        x = layers.data("x", [1], lod_level=1)
        made, first, twice = (_written(name, [-1, 1]) for name in ("made", "first", "twice"))
        layers.py_func(lambda: np.full((1, 1), 7, "float32"), None, made)
        layers.py_func(lambda a, b: (np.array(b), 2 * np.array(a)), [x, made], [first, twice])
        layers.py_func(lambda a: seen.append(a.recursive_sequence_lengths()), x, None)
        fed = fluid.create_lod_tensor(np.ones((3, 1), "float32"), [[1, 2]], fluid.CPUPlace())
        got = fluid.Executor(fluid.CPUPlace()).run(feed={"x": fed}, fetch_list=[first, twice], return_numpy=False)
        assert [np.array(item).ravel().tolist() for item in got] == [[7], [2, 2, 2]]
        assert seen == [[[1, 2]]]


def test_what_a_function_is_given_is_checked() -> None:
    with fresh():
        x, out = fluid.data("x", [None, 1]), _written("out", [-1, 1])
        with pytest.raises(TypeError, match="func must be a function, not int"):
            layers.py_func(3, x, out)
        with pytest.raises(ValueError, match="x can't be skipped, it is neither in x nor in out"):
            layers.py_func(np.tanh, out, _written("other", [-1, 1]), np.tanh, x)
        layers.py_func(lambda a: (a, a), x, out)
        with pytest.raises(fluid.core.EnforceNotMet, match="the function gives 2 values, the op writes 1"):
            fluid.Executor(fluid.CPUPlace()).run(feed={"x": np.ones((1, 1), "float32")}, fetch_list=[out])
