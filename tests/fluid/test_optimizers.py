"""Optimizers of Fluid's interface: what scripts ask of them beside training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from tests.fluid.running import fresh


def _loss(**attributes: Any) -> Any:
    block = fluid.default_main_program().global_block()
    weight = block.create_parameter(name="w", shape=[4, 3], dtype="float32", **attributes)
    return fluid.layers.mean(fluid.layers.matmul(fluid.layers.fill_constant([2, 4], "float32", 1.0), weight))


def test_updates_come_with_what_computes_their_rates() -> None:
    with fresh():
        made, pairs = fluid.optimizer.SGD(0.1).minimize(_loss(optimize_attr={"learning_rate": 2.0}))
        assert [op.type for op in made] == ["scale", "sgd"]
        assert [(param.name, grad.name) for param, grad in pairs] == [("w", "w@GRAD")]


def test_states_are_found_by_what_they_hold() -> None:
    with fresh():
        loss = _loss()
        adam = fluid.optimizer.Adam(name="mine")
        assert adam.get_opti_var_name_list() == []
        adam.minimize(loss)
        weight = fluid.default_main_program().global_block().var("w")
        moment = adam._get_accumulator(adam._moment1_acc_str, weight)
        assert (moment.name, moment.shape) == ("w_mine_moment1_0", (4, 3))
        assert moment.name in adam.get_opti_var_name_list()


def test_a_clip_is_an_object_of_a_clips_class() -> None:
    with pytest.raises(TypeError, match="grad_clip is a GradientClipByNorm or one of its like, not a float"):
        fluid.optimizer.SGD(0.1, grad_clip=0.5)


def test_clips_and_decays_can_be_appended_by_themselves() -> None:
    with fresh():
        loss = _loss(regularizer=fluid.regularizer.L2Decay(0.5))
        pairs = fluid.backward.append_backward(loss)
        param, grad = pairs[0]
        assert str(param.regularizer) == "L2Decay, regularization_coeff=0.500000"
        clipped = fluid.clip.GradientClipByNorm(1.0, need_clip=lambda held: held.name == "w")(
            [(param, grad), (grad, None)]
        )
        assert [held.name for held, _ in clipped] == ["w"]
        assert clipped[0][1].op.type == "clip_by_norm"
        decayed = fluid.regularizer.append_regularization_ops(clipped)
        assert decayed[0][1].op.type == "sum"


def test_a_block_fills_a_parameter_once_and_half_precision_by_a_cast() -> None:
    with fresh():
        program = fluid.Program()
        program.random_seed = 9
        for _ in range(2):
            program.global_block().create_parameter(
                name="w", shape=[4, 3], dtype="float16", initializer=fluid.initializer.Xavier()
            )
        made = program.global_block().ops
        assert [op.type for op in made] == ["uniform_random", "cast"]
        assert made[0].output("Out") == ["xavier_init.w.tmp_0"]
        assert (made[0].attr("seed"), made[0].attr("dtype")) == (9, fluid.core.VarDesc.VarType.FP32)
        assert fluid.default_startup_program().global_block().ops == []


def test_a_whole_program_can_be_saved_with_its_parameters(tmp_path: Path) -> None:
    with fresh():
        fluid.optimizer.SGD(0.1).minimize(_loss())
        executor = fluid.Executor(fluid.CPUPlace())
        weight = np.ones((4, 3), "float32")
        fluid.global_scope().var("w").get_tensor().set(weight, None)
        fluid.global_scope().var("learning_rate_0").get_tensor().set(np.ones(1, "float32"), None)
        files = {"model_filename": "model", "params_filename": "params"}
        fluid.io.save_inference_model(str(tmp_path), [], [], executor, export_for_deployment=False, **files)
        kept = fluid.Program.parse_from_string((tmp_path / "model.main_program").read_bytes())
        assert [op.type for op in kept.global_block().ops][-1] == "sgd"
        assert (tmp_path / "params").stat().st_size > weight.nbytes


def _fetched(*wanted: Any, feed: Any) -> list[Any]:
    return fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=list(wanted))


def test_gradients_of_several_targets_with_respect_to_any_variable() -> None:
    with fresh():
        layers: Any = fluid.layers
        x = fluid.data("x", [2, 2])
        y, apart = fluid.data("y", [2, 2]), fluid.data("z", [2, 2])
        for var in (x, y, apart):
            var.stop_gradient = False
        square, product = layers.square(x), x * y
        made = fluid.gradients([square, product], [x, y, apart], [None, y])
        assert made[2] is None
        feed = {"x": np.full((2, 2), 3, "float32"), "y": np.full((2, 2), 5, "float32")}
        of_x, of_y = _fetched(made[0], made[1], feed=feed)
        assert of_x.ravel().tolist() == [2 * 3 + 5 * 5] * 4
        assert of_y.ravel().tolist() == [3 * 5] * 4
        with pytest.raises(ValueError, match="there are 1 targets and 2 target_gradients"):
            fluid.gradients(square, x, [y, y])


def test_second_gradients_are_refused_where_there_are_none() -> None:
    with fresh():
        layers: Any = fluid.layers
        x = fluid.data("x", [2, 2])
        x.stop_gradient = False
        (first,) = fluid.gradients(layers.softmax(x), x)
        with pytest.raises(NotImplementedError, match="the gradient of softmax_grad is not part"):
            fluid.gradients(first, x)


def test_recomputing_keeps_the_updates_and_loads_no_state() -> None:
    with fresh():
        recomputing = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
        loss = _loss()
        recomputing._set_checkpoints([loss])
        made, _ = recomputing.minimize(loss)
        assert [op.type for op in made] == ["sgd"]
        with pytest.raises(NotImplementedError, match="load function is not supported"):
            recomputing.load({})


def test_lamb_has_its_short_name() -> None:
    assert fluid.optimizer.Lamb is fluid.optimizer.LambOptimizer


def test_the_decay_of_a_moving_average_rises_with_the_steps() -> None:
    with fresh():
        x = fluid.data("x", [None, 2], "float32")
        loss = fluid.layers.mean(fluid.layers.fc(x, 1, param_attr="w", bias_attr=False))
        fluid.optimizer.SGD(0.1).minimize(loss)
        steps = fluid.layers.cast(fluid.layers.autoincreased_step_counter(), "float32")
        average = fluid.optimizer.ExponentialMovingAverage(0.3, thres_steps=steps)
        average.update()
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(fluid.default_startup_program())
        decay = "scheduled_ema_decay_rate"
        fed = {"x": np.ones((2, 2), "float32")}
        got = [float(executor.run(feed=fed, fetch_list=[decay])[0].item()) for _ in range(5)]
        np.testing.assert_allclose(got, [2 / 11, 3 / 12, 0.3, 0.3, 0.3], rtol=1e-6)


@pytest.mark.parametrize("d_model", [0.01, 64])
def test_the_rate_of_the_transformer_takes_any_size_above_zero(d_model: float) -> None:
    layers: Any = fluid.layers
    with fresh():
        rate = layers.noam_decay(d_model, 200, 2.0)
        executor = fluid.Executor()
        executor.run(fluid.default_startup_program())
        made = [float(executor.run(fetch_list=[rate])[0][0]) for _ in range(2)]
        assert made == pytest.approx([2.0 * d_model**-0.5 * step * 200**-1.5 for step in (1, 2)])
        with pytest.raises(ValueError, match="d_model of a schedule is 0, it must be above 0"):
            layers.noam_decay(0, 200)


def test_averages_leave_out_what_a_script_says() -> None:
    with fresh():
        x = fluid.data("x", [None, 2])
        left = fluid.ParamAttr(name="left", do_model_average=False)
        made = fluid.layers.fc(x, 2, param_attr=left, bias_attr=fluid.WeightNormParamAttr(name="normal"))
        made = fluid.layers.batch_norm(
            made, moving_mean_name="mean", param_attr="w", bias_attr="b", do_model_average_for_mean_and_var=False
        )
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(made))
        block = fluid.default_main_program().global_block()
        assert [block.var(name).do_model_average for name in ("left", "normal_g", "mean", "w")] == [False] * 3 + [True]
        block.var("w").do_model_average = False
        fluid.optimizer.ExponentialMovingAverage(0.9)
        assert [name for name in block.vars if name.endswith("_ema_0")] == ["b_ema_0"]
        assert not fluid.default_main_program().clone().global_block().var("left").do_model_average
