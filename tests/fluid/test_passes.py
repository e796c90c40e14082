"""Passes of a BuildStrategy are honoured or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from tests.fluid.running import fresh

layers: Any = fluid.layers


def _merging(repeats: int) -> fluid.BuildStrategy:
    strategy = fluid.BuildStrategy()
    merging = strategy._finalize_strategy_and_create_passes().insert_pass(0, "multi_batch_merge_pass")
    merging.set("num_repeats", repeats)
    assert merging.type() == "multi_batch_merge_pass"
    return strategy


def _losses(repeats: int, *, dropout: bool = False) -> list[float]:
    rows = np.arange(8, dtype="float32").reshape(4, 2) / 8
    with fresh():
        out = layers.fc(fluid.data("x", [-1, 2]), 1, param_attr=fluid.initializer.Constant(0.5))
        loss = layers.mean(layers.square(layers.dropout(out, 0.5) if dropout else out))
        fluid.optimizer.SGD(0.1).minimize(loss)
        executor = fluid.Executor()
        executor.run(fluid.default_startup_program())
        main = fluid.CompiledProgram(fluid.default_main_program())
        compiled = main.with_data_parallel(loss.name, build_strategy=_merging(repeats), places=[fluid.CPUPlace()])
        return [float(executor.run(compiled, {"x": rows}, [loss])[0][0]) for _ in range(3)]


def test_merged_batches_of_the_same_rows_are_one_batch() -> None:
    assert _losses(3) == _losses(1)


def test_merged_batches_that_would_differ_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="multi_batch_merge_pass with dropout"):
        _losses(2, dropout=True)
    assert len(_losses(1, dropout=True)) == 3


def test_other_passes_are_refused() -> None:
    passes = fluid.BuildStrategy()._finalize_strategy_and_create_passes()
    with pytest.raises(NotImplementedError, match="the pass fuse_bn_act_pass"):
        passes.append_pass("fuse_bn_act_pass")
    merging = passes.append_pass("multi_batch_merge_pass")
    with pytest.raises(NotImplementedError, match="it has num_repeats"):
        merging.set("size", 1)
    assert passes.all_passes() == [merging]
    passes.remove_pass(0)
    assert passes.all_passes() == []


def test_a_strategy_lists_what_it_fuses_and_draws_the_program(tmp_path: Path) -> None:
    strategy = fluid.BuildStrategy()
    setattr(strategy, "fuse_elewise_add_act_ops", True)  # noqa: B010
    passes = strategy._finalize_strategy_and_create_passes()
    drawing = passes.append_pass("graph_viz_pass")
    drawing.set("graph_viz_path", str(tmp_path / "main.dot"))
    assert strategy._finalize_strategy_and_create_passes() is passes
    assert [each.type() for each in passes.all_passes()] == ["fuse_elewise_add_act_pass", "graph_viz_pass"]
    with fresh():
        loss = layers.mean(fluid.data("x", [-1, 2]))
        compiled = fluid.CompiledProgram(fluid.default_main_program(), strategy).with_data_parallel(loss.name)
        fluid.Executor().run(compiled, {"x": np.ones((2, 2), "float32")})
    assert "mean" in (tmp_path / "main.dot").read_text()
