"""Gradients of Fluid's interface: callbacks, clips of single gradients, losses in branches, rates that warm up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from tests.fluid.running import fresh

layers: Any = fluid.layers


def _run(*wanted: Any, feed: Any = None) -> list[np.ndarray]:
    return [np.asarray(item) for item in fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=list(wanted))]


def _started() -> None:
    fluid.default_startup_program().random_seed = 3
    fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())


def test_the_gradient_of_a_value_is_clipped_where_it_asks_for_it() -> None:
    with fresh():
        x = fluid.data("x", [None, 2])
        hidden = layers.fc(x, 2)
        loss = layers.reduce_sum(layers.square(hidden))
        hidden._set_error_clip(fluid.clip.ErrorClipByValue(max=0.5))
        pairs = fluid.backward.append_backward(loss, callbacks=[fluid.clip.error_clip_callback])
        assert [param.name for param, _ in pairs] == ["fc_0.w_0", "fc_0.b_0"]
        _started()
        gradient, bias = _run("fc_0.tmp_1@GRAD", "fc_0.b_0@GRAD", feed={"x": np.full((3, 2), 9, "float32")})
        assert set(np.abs(gradient).ravel()) == {0.5}
        assert np.allclose(bias, gradient.sum(0))


def test_callbacks_see_every_op_of_the_backward_part() -> None:
    with fresh():
        loss = layers.mean(layers.fc(fluid.data("x", [None, 2]), 1))
        seen: list[tuple[str, list[str]]] = []
        fluid.backward.append_backward(
            loss, callbacks=[lambda block, context: seen.append((block.ops[-1].type, sorted(context.values())))]
        )
        kinds = [kind for kind, _ in seen]
        assert kinds == ["fill_constant", "mean_grad", "elementwise_add_grad", "mul_grad"]
        assert seen[-1][1] == ["fc_0.w_0"]
        with pytest.raises(TypeError, match="callbacks are a list of functions"):
            fluid.backward.append_backward(loss, callbacks=print)


def test_lists_of_variables_hold_variables_and_names() -> None:
    with fresh():
        loss = layers.mean(layers.fc(fluid.data("x", [None, 2]), 1))
        with pytest.raises(TypeError, match="parameter_list is a list or a tuple or a set, not a str"):
            fluid.backward.append_backward(loss, "fc_0.w_0")
        with pytest.raises(TypeError, match="no_grad_set holds variables and names, not a int"):
            fluid.backward.append_backward(loss, no_grad_set={3})
        with pytest.raises(TypeError, match="gradients: targets must be Variable, not str"):
            fluid.gradients(loss.name, loss)


def test_a_rate_may_warm_up_to_a_rate_that_ops_compute() -> None:
    with fresh():
        rate = layers.linear_lr_warmup(layers.piecewise_decay([4], [1.0, 0.5]), 2, 0.0, 1.0)
        _started()
        assert [_run(rate)[0].item() for _ in range(6)] == [0.0, 0.5, 1.0, 1.0, 0.5, 0.5]
        with pytest.raises(TypeError, match="linear_lr_warmup: learning_rate must be Variable or float, not str"):
            layers.linear_lr_warmup("fast", 2, 0.0, 1.0)


def test_what_a_program_takes_is_told_in_its_unit() -> None:
    with fresh():
        layers.fc(fluid.data("x", [None, 2]), 256, bias_attr=False)
        assert fluid.contrib.memory_usage(fluid.default_main_program(), 4) == (4 * 1.05, 4 * 1.1, "KB")
        with pytest.raises(ValueError, match="at least one row"):
            fluid.contrib.memory_usage(fluid.default_main_program(), 0)


def _branches(clip: Any = None) -> Any:
    """A loss of a net that begins before two branches, of which each goes on and trains in its own way."""
    x, y, which = fluid.data("x", [None, 4]), fluid.data("y", [None, 1]), fluid.data("which", [1], "int64")
    hidden = layers.fc(x, 3, act="tanh", param_attr="shared")

    def trained(name: str, optimizer: Any) -> Any:
        outputs = [layers.fc(hidden, 1, param_attr=name) for _ in range(2)]
        loss = layers.mean(layers.square_error_cost(outputs[0] + outputs[1], y))
        optimizer.minimize(loss)
        return loss

    return layers.cond(
        layers.equal(which, layers.fill_constant([1], "int64", 1)),
        lambda: trained("first", fluid.optimizer.Adam(0.1, grad_clip=clip)),
        lambda: trained("second", fluid.optimizer.SGD(0.1)),
    )


@pytest.mark.parametrize("clip", [None, fluid.clip.GradientClipByGlobalNorm(1.0)])
def test_a_branch_trains_what_leads_to_its_loss(clip: Any) -> None:
    rows = np.random.default_rng(0).random((8, 4), "float32")
    with fresh():
        loss = _branches(clip)
        _started()
        scope = fluid.global_scope()
        for which, trained, kept in ((0, "second", "first"), (1, "first", "second")):
            feed = {"x": rows, "y": rows.sum(1, keepdims=True), "which": np.array([which])}
            names = (trained, "shared", kept)
            before = [np.array(scope.find_var(name).get_tensor()) for name in names]
            losses = [_run(loss, feed=feed)[0].item() for _ in range(10)]
            after = [np.array(scope.find_var(name).get_tensor()) for name in names]
            changed = [not np.array_equal(old, new) for old, new in zip(before, after, strict=True)]
            assert changed == [True, True, False]
            assert losses[-1] < losses[0] / 2


def test_a_step_of_a_branch_is_that_of_the_net_by_itself() -> None:
    rows = np.random.default_rng(1).random((8, 4), "float32")
    feed = {"x": rows, "y": rows.sum(1, keepdims=True)}
    shared: list[np.ndarray] = []
    for in_branch in (True, False):
        with fresh():
            fluid.default_startup_program().random_seed = 5
            x, y, yes = fluid.data("x", [None, 4]), fluid.data("y", [None, 1]), layers.fill_constant([1], "bool", True)
            hidden = layers.fc(layers.fc(x, 3, param_attr="shared"), 1)
            loss = layers.mean(layers.square_error_cost(hidden, y))

            def train(loss: Any = loss) -> None:
                fluid.optimizer.SGD(0.1).minimize(loss)

            layers.cond(yes, train) if in_branch else train()
            _started()
            _run(loss, feed=feed)
            shared.append(np.array(fluid.global_scope().find_var("shared").get_tensor()))
    assert np.array_equal(*shared)


def test_a_copy_for_tests_trains_in_no_branch() -> None:
    rows = np.random.default_rng(1).random((8, 4), "float32")
    with fresh():
        loss = _branches()
        tested = fluid.default_main_program().clone(for_test=True)
        kinds = {op.type for block in tested.blocks for op in block.ops}
        assert not {kind for kind in kinds if kind.endswith("_grad") or kind in ("adam", "sgd")}
        assert not [name for name in tested.global_block().vars if "moment" in name or "learning_rate" in name]
        _started()
        feed = {"x": rows, "y": rows.sum(1, keepdims=True), "which": np.array([1])}
        executor = fluid.Executor(fluid.CPUPlace())
        losses = [executor.run(tested, feed=feed, fetch_list=[loss])[0].item() for _ in range(2)]
        assert losses == [_run(loss, feed=feed)[0].item()] * 2


def test_a_loss_without_parameters_trains_nothing() -> None:
    with fresh():
        x = fluid.data("x", [None, 1])
        loss = layers.mean(x)
        assert fluid.optimizer.Adam(0.1).minimize(loss) == ([], [])
        assert _run(loss, feed={"x": np.ones((2, 1), "float32")})[0].item() == 1


def test_scripts_ask_which_ops_lead_to_a_loss() -> None:
    with fresh():
        x = fluid.data("x", [None, 2])
        hidden, aside = layers.fc(x, 3), layers.fc(x, 4)
        loss = layers.mean(layers.reshape(hidden, [-1, 1]))
        block, tools = fluid.default_main_program().global_block(), fluid.backward
        stopped = tools._get_stop_gradients_(fluid.default_main_program())
        assert "x@GRAD" in stopped[0]
        assert tools._strip_grad_suffix_("x@GRAD") == "x"
        path = tools._find_op_path_(block, [loss], [], {"x"})
        assert [op.type for op in path] == ["mul", "elementwise_add", "reshape2", "mean"]
        assert [op.type for op in tools._find_op_path_(block, [loss], [hidden], set())] == ["reshape2", "mean"]
        assert tools._find_no_grad_vars(block, path, [loss], {"x"}) == set(path[2].output("XShape"))
        assert aside.name not in {name for op in path for name in op.output_arg_names}


def test_minimize_clips_the_gradient_of_a_value_that_asks_for_it_and_not_the_terms_of_its_sum() -> None:
    with fresh():
        hidden = layers.fc(fluid.data("x", [None, 2]), 2)
        hidden._set_error_clip(fluid.clip.ErrorClipByValue(max=0.5))
        fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.square(hidden) + layers.exp(hidden)))
        ops = fluid.default_main_program().global_block().ops
        clips = [op for op in ops if op.type == "clip"]
        assert [op.output("Out") for op in clips] == [[f"{hidden.name}@GRAD"]]
        assert ops[ops.index(clips[0]) - 1].type == "sum"
        assert "op_device" not in clips[0].attr_names


def test_second_gradients_have_dims_where_something_adds_up() -> None:
    with fresh():
        x, w = layers.data("x", [2, 3], append_batch_size=False, stop_gradient=False), layers.data("w", [3, 4], False)
        w.stop_gradient = False
        (once,) = fluid.gradients(layers.mul(x, w), [w])
        (again,) = fluid.gradients(once, [x])
        dims = fluid.default_main_program().global_block().vars
        assert again.shape == (2, 3)
        assert {name: dims[name].dtype for name in dims if name.endswith("_shape")} == {
            "mul_0.tmp_0_shape": fluid.core.VarDesc.VarType.BOOL,
            "w@GRAD_shape": fluid.core.VarDesc.VarType.BOOL,
        }


def test_the_rate_is_of_the_elements_of_the_loss() -> None:
    with fresh():
        loss = layers.mean(layers.fc(fluid.data("x", [None, 2], "float64"), 1))
        optimizer = fluid.optimizer.Adam(0.1)
        optimizer.minimize(loss)
        assert optimizer._global_learning_rate().dtype == fluid.core.VarDesc.VarType.FP64


def test_a_branch_that_trains_has_its_gradients_and_updates_in_a_block_of_their_own() -> None:
    """Blocks, ops and slots as Fluid 1.8.5 makes them."""
    with fresh():
        x, chosen = fluid.data("x", [2, 3]), fluid.data("chosen", [1], "bool")
        hidden = layers.fc(x, 1, param_attr=fluid.ParamAttr("w", fluid.initializer.Constant(1.0)), bias_attr=False)

        def train() -> None:
            fluid.optimizer.SGD(0.5).minimize(layers.mean(layers.scale(hidden, 2.0) + hidden))

        layers.cond(chosen, train, lambda: None)
        main = fluid.default_main_program()
        assert [[op.type for op in block.ops] for block in main.blocks] == [
            ["mul", "conditional_block", "conditional_block_grad", "logical_not", "conditional_block"],
            ["scale", "elementwise_add", "mean"],
            ["fill_constant", "mean_grad", "elementwise_add_grad", "scale", "sum", "mul_grad", "sgd"],
            [],
        ]
        assert [(block.parent_idx, block.forward_block_idx) for block in main.blocks[1:3]] == [(0, -1), (0, 1)]
        tests = main.clone(for_test=True)
        assert [[op.type for op in block.ops] for block in tests.blocks] == [
            ["mul", "conditional_block", "logical_not", "conditional_block"],
            ["scale", "elementwise_add", "mean"],
            [],
        ]
        op = main.global_block().ops[2]
        assert (op.input("Input"), op.output("Input@GRAD")) == (
            [hidden.name, "x", "w", "learning_rate_0"],
            [f"{hidden.name}@GRAD", "x@GRAD", "w@GRAD", "learning_rate_0@GRAD"],
        )
        _started()
        after = [_run("w", feed={"x": np.ones((2, 3), "float32"), "chosen": np.array([on])})[0] for on in (False, True)]
        assert [np.unique(value).tolist() for value in after] == [[1.0], [-0.5]]


def test_a_loop_that_trains_does_so_in_each_turn() -> None:
    with fresh():
        weight = layers.create_parameter([1], "float32", "w", default_initializer=fluid.initializer.Constant(1.0))
        turn, most = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
        goes_on = layers.less_than(turn, most)
        with layers.While(goes_on).block():
            fluid.optimizer.SGD(0.5).minimize(layers.square(weight))
            layers.less_than(layers.increment(turn), most, cond=goes_on)
        _started()
        assert _run("w")[0].tolist() == [0.0]


def test_a_branch_that_trains_cuts_its_gradients_where_it_has_them() -> None:
    with fresh():
        x = fluid.data("x", [1, 1])
        shared = layers.fc(x, 1, param_attr=fluid.ParamAttr("w", fluid.initializer.Constant(1.0)), bias_attr=False)
        outside = layers.scale(shared, 3.0)

        def train() -> None:
            cut = fluid.clip.GradientClipByGlobalNorm(1.0)
            fluid.optimizer.SGD(1.0, grad_clip=cut).minimize(layers.reduce_sum(shared + outside))

        layers.cond(layers.reduce_sum(x) > 0.0, train, lambda: None)
        _started()
        weight, gradient = _run("w", "w", feed={"x": np.full((1, 1), 2.0, "float32")})
        assert weight.tolist() == gradient.tolist() == [[0.0]]


def test_two_losses_with_loops_have_gradients_each() -> None:
    """As in Fluid 1.8.5, where a second loss has the same ops as the first."""
    with fresh():
        counts: list[list[str]] = []
        for name in ("first", "second"):
            weight = layers.create_parameter([2], "float32", name, default_initializer=fluid.initializer.Constant(1.0))
            turn, most = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
            goes_on, held = layers.less_than(turn, most), layers.array_write(weight, turn)
            with layers.While(goes_on).block():
                layers.increment(turn)
                layers.array_write(layers.scale(weight, 2.0), turn, held)
                layers.less_than(turn, most, cond=goes_on)
            loss = layers.mean(layers.tensor_array_to_tensor(held, axis=0, use_stack=True)[0])
            fluid.optimizer.SGD(1.0).minimize(loss, parameter_list=[name])
            counts.append([op.type for op in fluid.default_main_program().global_block().ops][sum(map(len, counts)) :])
        assert counts[0] == counts[1]
        _started()
        assert [value.tolist() for value in _run("first", "second")] == [[0.125] * 2] * 2
