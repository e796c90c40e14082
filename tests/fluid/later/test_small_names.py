"""Small names of 2.x and of older versions: what they are, and what they make."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
import pstranspile.fluid.paddle as paddle
from pstranspile.fluid.missing import NotHere
from tests.fluid.later.computing import computed
from tests.fluid.running import fresh, known_as_paddle

F: Any = paddle.nn.functional
STARTS: Any = paddle.nn.initializer
IMAGES = np.random.RandomState(0).randn(2, 3, 4, 4).astype("float32")


def by(mean: Any, variance: Any) -> Any:
    return (IMAGES - mean) / np.sqrt(variance + 1e-5) * 3 + 1


OF_BATCH = IMAGES.mean((0, 2, 3), keepdims=True), IMAGES.var((0, 2, 3), keepdims=True)


@pytest.mark.parametrize(
    ("options", "expected", "moves"),
    [
        ({}, by(0.5, 2.0), False),
        ({"training": True}, by(*OF_BATCH), True),
        ({"training": True, "use_global_stats": True}, by(0.5, 2.0), False),
        ({"use_global_stats": False}, by(*OF_BATCH), True),
    ],
)
def test_batches_are_normalised_with_means_of_the_script(options: Any, expected: Any, moves: bool) -> None:
    with fresh():
        starts = {"m": 0.5, "v": 2.0, "w": 3.0, "b": 1.0}
        made = [
            fluid.layers.create_parameter([3], "float32", key, None, False, STARTS.Constant(starts[key]))
            for key in "mvwb"
        ]
        x = paddle.static.data("x", [-1, 3, 4, 4])
        out = F.batch_norm(x, *made, momentum=0.8, **options)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        (got,) = exe.run(feed={"x": IMAGES}, fetch_list=[out])
        mean = fluid.io.get_parameter_value_by_name("m", exe)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    np.testing.assert_allclose(mean, 0.4 + 0.2 * OF_BATCH[0].ravel() if moves else [0.5] * 3, rtol=1e-5)


def test_glu_takes_one_half_by_the_other() -> None:
    x = np.arange(8, dtype="float32").reshape(4, 2) / 4
    (got,), _ = computed(partial(F.glu, axis=1), x)
    np.testing.assert_allclose(got, x[:, :1] / (1 + np.exp(-x[:, 1:])), rtol=1e-6)


def test_parameters_start_as_the_global_initializers_say_where_their_attributes_do_not() -> None:
    def make(x: Any) -> Any:
        h = fluid.layers.fc(x, 2, param_attr=STARTS.Constant(5.0))
        h = fluid.layers.batch_norm(fluid.layers.fc(h, 2))
        STARTS.set_global_initializer(None)
        return fluid.layers.fc(h, 2)

    STARTS.set_global_initializer(STARTS.Constant(3.0), STARTS.Constant(4.0))
    try:
        _, held = computed(make, np.ones((2, 3), "float32"))
    finally:
        STARTS.set_global_initializer(None)
    assert {name: set(value.ravel()) for name, value in held.items() if name != "fc_2.w_0"} == {
        "fc_0.w_0": {5.0},
        "fc_0.b_0": {4.0},
        "fc_1.w_0": {3.0},
        "fc_1.b_0": {4.0},
        "fc_2.b_0": {0.0},
        "batch_norm_0.w_0": {3.0},
        "batch_norm_0.b_0": {4.0},
        "batch_norm_0.w_1": {0.0},
        "batch_norm_0.w_2": {1.0},
    }
    assert len(set(held["fc_2.w_0"].ravel())) == 4
    with pytest.raises(TypeError, match="takes initializers, not a value of type float"):
        STARTS.set_global_initializer(3.0)


def test_modules_within_modules_have_the_names_of_these() -> None:
    with known_as_paddle():
        parts = {
            "metric.metrics": "Accuracy",
            "nn.functional.loss": "cross_entropy",
            "nn.functional.norm": "layer_norm",
            "nn.layer.transformer": "MultiHeadAttention",
            "nn.layer.norm": "BatchNorm2D",
            "vision.transforms.transforms": "Compose",
        }
        for name, held in parts.items():
            above = import_module(
                f"paddle.{name.partition('.layer')[0] if 'layer' in name else name.rpartition('.')[0]}"
            )
            assert getattr(import_module(f"paddle.{name}"), held) is getattr(above, held)
        assert import_module("paddle").nn.functional.loss.mse_loss is F.mse_loss
        assert callable(F.normalize)


def test_older_and_later_names_are_those_of_fluid() -> None:
    clip, first = fluid.clip, fluid.initializer
    assert clip.ClipGradByGlobalNorm is clip.GradientClipByGlobalNorm is paddle.nn.ClipGradByGlobalNorm
    assert (clip.ClipGradByNorm, clip.ClipGradByValue) == (clip.GradientClipByNorm, clip.GradientClipByValue)
    assert (STARTS.MSRA, STARTS.Xavier) == (first.MSRA, first.Xavier)
    assert not fluid.core.is_compiled_with_xpu()
    with pytest.raises(NotHere, match="BoxPSDataset is not part of"):
        fluid.DatasetFactory().create_dataset("BoxPSDataset")


def test_a_helper_of_layers_makes_parameters() -> None:
    base = import_module("pstranspile.fluid.layer_helper").LayerHelperBase
    assert issubclass(fluid.layer_helper.LayerHelper, base)
    with fresh():
        helper = base("mine", "fc")
        weight = helper.create_parameter(fluid.ParamAttr(), [2, 3], "float32")
        bias = helper.create_parameter(None, [3], "float32", is_bias=True)
        assert (helper.layer_type, weight.name, bias.name) == ("fc", "mine.w_0", "mine.b_0")
        assert helper.to_variable(weight) is weight
        with pytest.raises(TypeError, match="not a value of type int"):
            helper.to_variable(3)


def test_a_program_for_inference_computes_the_targets_alone() -> None:
    with fresh():
        out = fluid.layers.dropout(fluid.layers.fc(fluid.data("x", [None, 3]), 2), 0.5)
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(out))
        ops = fluid.io.get_inference_program([out]).global_block().ops
    assert [op.type for op in ops] == ["mul", "elementwise_add", "dropout"]
    assert ops[-1].attr("is_test")


@pytest.mark.parametrize(("fed", "after"), [([0.01], 0.99125), ([0.01, 0.02], 0.96875)])
def test_the_gradient_of_the_loss_is_fed_where_the_script_scales_it(fed: list[float], after: float) -> None:
    """Weights are those of Fluid 1.8.5."""
    with fresh():
        start = fluid.ParamAttr("w", fluid.initializer.Constant(1.0))
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 1]), 4, param_attr=start))
        fluid.optimizer.SGD(1.0).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        strategy: Any = fluid.BuildStrategy()
        strategy.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.Customized
        assert strategy.gradient_scale_strategy == 2
        program = fluid.CompiledProgram(fluid.default_main_program())
        program.with_data_parallel(loss.name, strategy, places=fluid.cpu_places(len(fed)))
        held = {"x": np.arange(8, dtype="float32")[:, None], f"{loss.name}@GRAD": np.array(fed, "float32")}
        (made,) = exe.run(program, held, [f"{loss.name}@GRAD"])
        np.testing.assert_array_equal(made, held[f"{loss.name}@GRAD"])
        np.testing.assert_allclose(fluid.io.get_parameter_value_by_name("w", exe), [[after] * 4], rtol=1e-6)


@pytest.mark.parametrize(("devices", "after"), [(1, 0.392), (2, 0.284)])
def test_gradients_of_devices_are_added_up_where_the_script_asks_for_it(devices: int, after: float) -> None:
    """Weights are those of Fluid 1.8.5."""
    with fresh():
        start = fluid.ParamAttr("w", fluid.initializer.Constant(0.5))
        loss = fluid.layers.mean(
            fluid.layers.square(fluid.layers.fc(fluid.data("x", [None, 3]), 1, param_attr=start, bias_attr=False))
        )
        fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        strategy: Any = fluid.BuildStrategy()
        strategy.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.One
        program = fluid.CompiledProgram(fluid.default_main_program())
        program.with_data_parallel(loss.name, strategy, places=fluid.cpu_places(devices))
        exe.run(program, {"x": np.arange(12, dtype="float32").reshape(4, 3) / 10}, [loss])
        assert fluid.io.get_parameter_value_by_name("w", exe)[0] == pytest.approx(after, rel=1e-6)


@pytest.mark.parametrize(("scale", "factor"), [("CoeffNumDevice", 0.5), ("One", 1.0)])
@pytest.mark.parametrize("outer", ["", "added", "divided", "averaged"])
def test_a_loss_that_adds_up_rows_counts_on_each_device(scale: str, factor: float, outer: str) -> None:
    """As in Fluid, gradients are added up over the devices, each the part of as many as there are or a whole."""
    rows = np.arange(12, dtype="float32").reshape(4, 3) / 10
    with fresh():
        start = fluid.ParamAttr("w", fluid.initializer.Constant(0.5))
        x = fluid.data("x", [None, 3])
        loss = fluid.layers.reduce_sum(fluid.layers.square(fluid.layers.fc(x, 1, param_attr=start, bias_attr=False)))
        if outer == "added":
            loss = loss + 0.0 * fluid.layers.mean(x)
        elif outer == "divided":
            loss = loss / 1.0
        elif outer == "averaged":
            loss = fluid.layers.mean(loss)
        fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        strategy: Any = fluid.BuildStrategy()
        strategy.gradient_scale_strategy = getattr(fluid.BuildStrategy.GradientScaleStrategy, scale)
        program = fluid.CompiledProgram(fluid.default_main_program())
        program.with_data_parallel(loss.name, strategy, places=fluid.cpu_places(2))
        exe.run(program, {"x": rows}, [loss])
        exact = rows.astype("float64")
        after = 0.5 - 0.1 * factor * (2 * exact.sum(1) * 0.5) @ exact
        rounding = 2 * np.finfo("float32").eps * 0.5  # of numbers of 0.5, of which little is left
        np.testing.assert_allclose(fluid.io.get_parameter_value_by_name("w", exe)[:, 0], after, rtol=0, atol=rounding)


def test_a_trainer_of_a_cluster_may_be_fed_the_gradient_of_the_loss() -> None:
    with fresh():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 1]), 4))
        fluid.optimizer.SGD(1.0).minimize(loss)
        transpiler = fluid.DistributeTranspiler()
        transpiler.transpile(0, pservers="127.0.0.1:6174", trainers=2)
        program = transpiler.get_trainer_program()
        strategy: Any = fluid.BuildStrategy()
        strategy.gradient_scale_strategy = fluid.BuildStrategy.GradientScaleStrategy.Customized
        compiled = fluid.CompiledProgram(program).with_data_parallel(loss.name, strategy)
    kept = [op.type for op in compiled.inner_program.global_block().ops]
    assert kept == [op.type for op in program.global_block().ops if op.type != "fill_constant"]
    assert compiled.inner_program.machine is program.machine
