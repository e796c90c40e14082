"""Optimizers whose programs compute in float16 where that is precise enough (`contrib.mixed_precision`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.contrib import mixed_precision as fp16_utils
from tests.fluid.running import fresh

layers = fluid.layers


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with fresh():
        yield


def classifier() -> Any:
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1], "int64")
    hidden = layers.batch_norm(layers.fc(x, 8, act="relu"))
    return layers.mean(layers.softmax_with_cross_entropy(layers.fc(hidden, 3), y))


def test_ops_compute_in_float16_as_their_lists_say():
    loss = classifier()
    program = fluid.default_main_program()
    fp16_utils.rewrite_program(program, fluid.contrib.mixed_precision.AutoMixedPrecisionLists())
    block = program.global_block()
    assert [op.type for op in block.ops] == [
        *("cast", "cast", "mul", "cast", "elementwise_add", "relu", "batch_norm"),
        *("cast", "mul", "cast", "elementwise_add", "cast", "softmax_with_cross_entropy", "mean"),
    ]
    half = sorted(name for name, var in block.vars.items() if var.dtype == fluid.core.VarDesc.VarType.FP16)
    assert half == [
        *("batch_norm_0.tmp_2", "fc_0.b_0.cast_fp16", "fc_0.tmp_0", "fc_0.tmp_1", "fc_0.tmp_2", "fc_0.w_0.cast_fp16"),
        *("fc_1.b_0.cast_fp16", "fc_1.tmp_0", "fc_1.tmp_1", "fc_1.w_0.cast_fp16", "x.cast_fp16"),
    ]
    assert block.vars["batch_norm_0.w_0"].dtype == loss.dtype == fluid.core.VarDesc.VarType.FP32


def trained(optimizer: Any, steps: int, scale: float = 1.0) -> list[tuple[float, float]]:
    """Losses, and what they were multiplied by, of steps whose inputs are multiplied by `scale`."""
    loss = classifier()
    mixed = fluid.contrib.mixed_precision.decorate(optimizer, init_loss_scaling=8.0, incr_every_n_steps=2)
    mixed.minimize(loss)
    assert mixed.get_scaled_loss().shape == (1,)
    random, executor = np.random.RandomState(0), fluid.Executor(fluid.CPUPlace())
    feed = {"x": scale * random.randn(8, 4).astype("float32"), "y": random.randint(0, 3, (8, 1))}
    executor.run(fluid.default_startup_program())
    fetched = (executor.run(feed=feed, fetch_list=[loss, mixed.get_loss_scaling()]) for _ in range(steps))
    return [(float(value[0]), float(scaling[0])) for value, scaling in fetched]


def test_a_scaled_loss_is_trained_and_its_scale_grows():
    found = trained(fluid.optimizer.Adam(0.01), 6)
    assert [scaling for _, scaling in found] == [8.0, 8.0, 16.0, 16.0, 16.0, 32.0]
    assert found[-1][0] < found[0][0]


def test_gradients_that_are_not_finite_change_no_parameter_and_shrink_the_scale():
    with np.errstate(all="ignore"):
        found = trained(fluid.optimizer.SGD(fluid.layers.fill_constant([1], "float32", 0.1)), 3, scale=1e6)
    assert [scaling for _, scaling in found] == pytest.approx([8.0, 8.0, 6.4])
    assert np.isfinite(np.array(fluid.global_scope().find_var("fc_1.w_0").get_tensor())).all()


def test_casts_of_gradients_come_last_and_name_what_machines_exchange():
    fluid.contrib.mixed_precision.decorate(fluid.optimizer.SGD(0.1), use_dynamic_loss_scaling=False).minimize(
        classifier()
    )
    ops = fluid.default_main_program().global_block().ops
    roles = fluid.core.op_proto_and_checker_maker.OpRole
    last = max(at for at, op in enumerate(ops) if int(op.attr("op_role")) == int(roles.Backward))
    casts = [op.output("Out")[0] for op in ops[last + 1 :] if op.type == "cast"]
    assert casts == ["fc_0.w_0@GRAD", "fc_0.b_0@GRAD", "fc_1.w_0@GRAD", "fc_1.b_0@GRAD"]
    exchanged = [op.attr("op_role_var") for op in ops[: last + 1] if op.type == "mul_grad"]
    assert exchanged == [["fc_1.w_0", "fc_1.w_0.cast_fp16@GRAD"], ["fc_0.w_0", "fc_0.w_0.cast_fp16@GRAD"]]


def test_ops_that_write_and_read_a_variable_are_found():
    x = fluid.data("x", [3])
    y = layers.abs(x)
    z = layers.abs(y)
    block = fluid.default_main_program().global_block()
    first, second = block.ops
    assert fp16_utils.find_true_post_op(block.ops, first, y.name) == [second]
    assert fp16_utils.find_true_post_op(block.ops, second, z.name) is None
    assert fp16_utils.find_true_prev_op(block.ops, second, y.name) is first
    assert fp16_utils.find_true_prev_op(block.ops, first, y.name) is None
    assert fp16_utils.find_op_index(block.desc, None) == -1
    layers.assign(x, y)
    layers.assign(y, x)
    with pytest.raises(ValueError, match="2 ops before this one write"):
        fp16_utils.find_true_prev_op(block.ops, block.ops[-1], y.name)
