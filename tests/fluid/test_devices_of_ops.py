"""Ops carry the device that a script asks for, and programs run as if on several; all run on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.runtime.run import prepared
from tests.fluid.running import fresh


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


def test_the_part_of_each_device_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept from run to run is that of the whole program before each step, also where a device has its own."""
    interpreted: list[object] = []
    interpret = prepared.interpret
    monkeypatch.setattr(prepared, "interpret", lambda *given: interpreted.append(given) or interpret(*given))
    with fresh():
        x = fluid.data("x", [None, 2])
        count = fluid.layers.create_global_var([1], 0.0, "float32", persistable=True)
        fluid.layers.increment(count)
        total = fluid.layers.reduce_sum(fluid.layers.elementwise_mul(x, count))
        program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=fluid.cpu_places(2))
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        interpreted.clear()
        rows = np.array([[1, 2], [3, 4]], "float32")
        got = [exe.run(program, {"x": rows}, [total])[0].tolist() for _ in range(4)]
        assert got == [[3, 7], [6, 14], [9, 21], [12, 28]]
        assert len(interpreted) == 3
