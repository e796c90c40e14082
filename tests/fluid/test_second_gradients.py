"""Gradients of gradients: the ops and names of Fluid 1.8.5, and numbers that are those of central differences."""

from __future__ import annotations

import numpy as np
import pytest

import pstranspile.fluid as fluid
from tests.fluid.running import fresh

layers = fluid.layers


def data(name: str, *dims: int) -> fluid.Variable:
    var = fluid.data(name, list(dims), "float32")
    var.stop_gradient = False
    return var


def written(op: fluid.Operator) -> str:
    return f"{op.type} {' '.join(op.input_arg_names)} -> {' '.join(op.output_arg_names)}"


def test_a_second_call_names_what_is_there_already_as_fluid_does() -> None:
    with fresh():
        x = data("x", 3, 4)
        hidden = layers.fc(x, 2, bias_attr=False)
        first, second = layers.reduce_mean(layers.square(hidden)), layers.mean(layers.relu(hidden))
        assert [var.name for var in fluid.gradients(first, [x])] == ["x@GRAD"]
        assert [var.name for var in fluid.gradients(second, [x])] == ["grad/grad/x@GRAD"]
        copy = fluid.default_main_program().clone().global_block()
        (again,) = fluid.gradients(copy.var(first.name), [copy.var("x")])
        assert again.name == "grad/grad/grad/x@GRAD"


def test_a_penalty_on_a_gradient_is_trained() -> None:
    with fresh():
        x = data("x", 3, 4)
        hidden = layers.fc(x, 2, bias_attr=False, param_attr=fluid.ParamAttr(name="w"))
        loss = layers.reduce_mean(layers.square(hidden))
        (slope,) = fluid.gradients(loss, [x])
        penalty = layers.reduce_mean(layers.square(layers.reduce_sum(layers.square(slope), dim=1) - 1.0))
        total = layers.mean(layers.square(layers.relu(hidden))) + penalty
        ((_, gradient),) = fluid.backward.append_backward(total)
        assert gradient.name == "grad/grad/w@GRAD"
        ops = [written(op) for op in fluid.default_main_program().global_block().ops]
        at = ops.index("fill_zeros_like w -> w@GRAD@GRAD")
        made = set(ops[at + 1].split())
        assert made > {"mul_grad_grad", "x@GRAD@GRAD", "w@GRAD@GRAD", "fc_0.tmp_0@GRAD", "fc_0.tmp_0@GRAD@GRAD"}
        assert made > {"grad/grad/x@GRAD@RENAME@block0@0", "grad/grad/w@GRAD@RENAME@block0@0"}
        executor = fluid.Executor()
        executor.run(fluid.default_startup_program())
        feed = {"x": np.random.RandomState(1).rand(3, 4).astype("float32")}
        (found,) = executor.run(feed=feed, fetch_list=[gradient])
        held = fluid.global_scope().find_var("w").get_tensor()
        start = np.array(held)

        def at_point(moved: np.ndarray) -> float:
            held.set(moved.astype("float32"), fluid.CPUPlace())
            return float(executor.run(feed=feed, fetch_list=[total])[0][0])

        for place in np.ndindex(start.shape):
            step = np.zeros_like(start)
            step[place] = 1e-2
            expected = (at_point(start + step) - at_point(start - step)) / 2e-2
            assert found[place] == pytest.approx(expected, rel=2e-2, abs=2e-3)


def test_a_gradient_without_a_second_one_is_refused_where_it_stands_on_the_way() -> None:
    with fresh():
        x = data("x", 3, 4)
        out = layers.fc(x, 1, act="tanh", bias_attr=False)
        (slope,) = fluid.gradients(out, [x])
        with pytest.raises(
            fluid.core.EnforceNotMet, match=r"gradients.py:\d+: error\[not-differentiable\]: tanh_grad: "
        ):
            fluid.gradients(slope, [x])
        with pytest.raises(
            fluid.core.EnforceNotMet, match=r"tanh_grad: the gradient of tanh_grad .* would count as zero"
        ):
            fluid.optimizer.SGD(0.1).minimize(layers.reduce_mean(layers.square(slope)))


def test_a_mean_on_the_way_to_a_first_gradient_is_no_hindrance() -> None:
    with fresh():
        x = data("x", 3, 4)
        (slope,) = fluid.gradients(layers.mean(layers.square(x)), [x])
        (twice,) = fluid.gradients(slope, [x])
        (found,) = fluid.Executor().run(feed={"x": np.ones((3, 4), "float32")}, fetch_list=[twice])
        np.testing.assert_allclose(found, np.full((3, 4), 2 / 12), rtol=1e-6)


def test_one_of_two_first_gradients_is_enough() -> None:
    with fresh():
        x, y = data("x", 2, 3), data("y", 3, 2)
        (slope,) = fluid.gradients(layers.mul(x, y), [x])
        (of_y,) = fluid.gradients(slope, [y])
        feed = {"x": np.ones((2, 3), "float32"), "y": np.ones((3, 2), "float32")}
        (found,) = fluid.Executor().run(feed=feed, fetch_list=[of_y])
        np.testing.assert_allclose(found, np.full((3, 2), 2.0))
