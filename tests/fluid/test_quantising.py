"""Programs trained for numbers of a few bits (`contrib.quantize`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.contrib import QuantizeTranspiler
from pstranspile.fluid.contrib.quantize import _original_var_name, quant
from tests.fluid.running import fresh

KINDS = ("abs_max", "range_abs_max", "moving_average_abs_max")
FEED = {"x": np.linspace(-1, 1, 32).reshape(8, 4).astype("float32"), "y": np.arange(8).reshape(8, 1) % 3}


def built(main: fluid.Program, startup: fluid.Program, *, trained: bool) -> Any:
    main.random_seed = startup.random_seed = 1
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 1], "int64")
        hidden = fluid.layers.fc(x, 8, act="relu", bias_attr=False)
        loss = fluid.layers.cross_entropy(fluid.layers.fc(hidden, 3, act="softmax", bias_attr=False), y)
        loss = fluid.layers.mean(loss)
        if trained:
            fluid.optimizer.Adam(0.05).minimize(loss)
    return loss


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_is_trained_frozen_and_made_of_bytes(kind: str):
    main, startup, test = fluid.Program(), fluid.Program(), fluid.Program()
    loss = built(main, startup, trained=True)
    built(test, fluid.Program(), trained=False)
    test = test.clone(for_test=True)
    with fresh():
        transpiler = QuantizeTranspiler(activation_quantize_type=kind)
        transpiler.training_transpile(main, startup)
        transpiler.training_transpile(test, startup)
        place = fluid.CPUPlace()
        executor = fluid.Executor(place)
        executor.run(startup)

        def run(program: fluid.Program) -> float:
            return float(executor.run(program, feed=FEED, fetch_list=[loss.name])[0][0])

        losses = [run(main) for _ in range(6)]
        assert losses[-1] < losses[0]
        before = run(test)
        transpiler.freeze_program(test, place)
        assert run(test) == pytest.approx(before, abs=5e-3)
        ops = [op.type for op in test.global_block().ops if "fake" in op.type]
        assert ops == [f"fake_quantize_{kind}", "fake_dequantize_max_abs"] * 2
        whole = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
        assert (whole == whole.round()).all()
        assert np.abs(whole).max() == 127
        transpiler.convert_to_int8(test, place)
        held = np.array(fluid.global_scope().find_var("fc_0.w_0.int8").get_tensor())
        assert (held.dtype, held.tolist()) == (np.dtype("int8"), whole.tolist())
        assert [name for name in test.global_block().vars if name.startswith("fc_0.w")] == ["fc_0.w_0.int8"]


def test_the_largest_scale_of_a_window_counts():
    with fresh():
        x = fluid.data("x", [None, 1])
        fluid.layers.fc(x, 1, bias_attr=False)
        QuantizeTranspiler(activation_quantize_type="range_abs_max", window_size=2).training_transpile()
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(fluid.default_startup_program())
        values = (4.0, 1.0, 2.0, 3.0, 0.5)
        feeds = [{"x": np.float32([[value]])} for value in values]
        scales = [executor.run(feed=feed, fetch_list=["x.scale"])[0].item() for feed in feeds]
    assert scales == [4.0, 4.0, 2.0, 3.0, 3.0]


def test_what_is_refused():
    with pytest.raises(ValueError, match="'max' is no kind of scale"):
        QuantizeTranspiler(weight_quantize_type="max")
    assert [_original_var_name(name) for name in ("w.quantized.dequantized", "w.scale", "w")] == ["w"] * 3
    assert quant(np.float32([0.5, -1.0]), 1.0, 8).tolist() == [64.0, -127.0]
