"""Ops carry the device that a script asks for; all run on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import pstranspile.fluid as fluid
from tests.fluid_api.running import fresh


def test_ops_and_their_gradients_name_their_device() -> None:
    with fresh():
        x = fluid.layers.data("x", [2])
        with fluid.device_guard("gpu"):
            hidden = fluid.layers.fc(x, 3)
            with fluid.device_guard():
                loss = fluid.layers.mean(hidden)
        fluid.optimizer.SGD(0.1).minimize(loss)
        devices = {op.type: op.attr("op_device") for op in fluid.default_main_program().global_block().ops}
        assert devices["mul"] == devices["mul_grad"] == devices["sgd"] == "gpu"
        assert devices["mean"] == devices["mean_grad"] == ""
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        assert np.isfinite(exe.run(feed={"x": np.ones((1, 2), "float32")}, fetch_list=[loss])[0]).all()


def test_what_a_device_means_nothing_to_is_told() -> None:
    with fresh(), fluid.device_guard("cpu"):
        with pytest.warns(UserWarning, match="device_guard.*fill_constant"):
            number = fluid.layers.fill_constant([1], "float32", 1.0, force_cpu=True)
        with pytest.warns(UserWarning, match="device_guard.*less_than"):
            smaller = fluid.layers.less_than(number, number, force_cpu=False)
        with pytest.warns(UserWarning, match="while"), fluid.layers.While(smaller).block():
            fluid.layers.less_than(number, number, cond=smaller)
    with pytest.raises(ValueError, match="tpu"), fluid.device_guard("tpu"):
        pass


def test_a_comparison_keeps_where_it_is_made() -> None:
    with fresh():
        number = fluid.layers.fill_constant([1], "float32", 1.0)
        fluid.layers.less_than(number, number, force_cpu=True)
        assert fluid.default_main_program().global_block().ops[-1].attr("force_cpu") is True


def test_what_is_fed_is_marked_as_in_a_program_with_the_same_variables_only() -> None:
    with fresh():
        fluid.layers.data("x", [2])
        whole = fluid.default_main_program()
        copy = whole.clone()
        copy._copy_data_info_from(whole)
        assert copy.global_block().var("x").is_data
        with pytest.raises(ValueError, match="no variable x"):
            copy._copy_data_info_from(fluid.Program())
