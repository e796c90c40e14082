"""The work and the memory of a step: as they are measured in a run."""

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, Adam, minimize
from pstranspile.compiler.cost.steps import MOST_LEVELS, SEQUENCE, step_cost
from pstranspile.ops.work import calls_of
from pstranspile.runtime.run.step_feeds import inputs_of
from pstranspile.runtime.values import LoDTensor

EXAMPLES = Path(__file__).parents[3] / "examples"


def batch_of(program: ps.Program, rows: int) -> dict[str, Any]:
    """A batch of so many rows."""
    draw = np.random.default_rng(0)
    result: dict[str, Any] = {}
    for name in sorted(inputs_of(program)):
        var = program.main_block.vars[name]
        dims = (rows, *var.shape[1:])
        whole = var.dtype is not None and var.dtype.text.startswith("i")
        result[name] = draw.integers(0, 2, dims) if whole else draw.normal(size=dims).astype("float32")
    return result


def measured_peak(module: ps.Module, rows: int) -> int:
    """The most bytes that a step allocates at one time, with those of its batch."""
    batch, scope = batch_of(module.main, rows), ps.Scope()
    ps.run(module["startup"], scope=scope)
    for _ in range(3):
        ps.run(module.main, feed=batch, scope=scope)
    gc.collect()
    tracemalloc.start()
    try:
        ps.run(module.main, feed=batch, scope=scope)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        ps.run(module.main, feed=batch, scope=scope)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    return peak + sum(array.nbytes for array in batch.values())


@pytest.mark.parametrize(
    ("name", "rows", "within"),
    [
        ("mnist_mlp", 64, 0.01),
        ("mnist_mlp", 1024, 0.01),
        ("linear_regression", 1024, 0.05),
        ("deepfm", 256, 0.05),
        ("transformer_encoder", 64, 0.05),
    ],
)
def test_the_peak_is_what_a_run_allocates(name: str, rows: int, within: float):
    module = ps.load(EXAMPLES / f"{name}.ir")
    assert step_cost(module.main, rows).peak == pytest.approx(measured_peak(module, rows), rel=within)


def test_operations_grow_with_rows_and_updates_do_not():
    main = ps.load(EXAMPLES / "mnist_mlp.ir").main
    one, two = step_cost(main, 100), step_cost(main, 200)
    updates = sum(op.operations for op in one.ops if op.type == "adam")
    assert updates == sum(op.operations for op in two.ops if op.type == "adam")
    assert two.operations - updates == pytest.approx(2 * (one.operations - updates), rel=1e-3)
    assert one.held == two.held


def looking_up(*, sparse: bool, optimizer: Any) -> ps.Module:
    model = L.Draft(seed=1)
    row = L.embedding(L.data(model, "word", [-1, 3, 1], "int64"), [10_000, 8], is_sparse=sparse)
    minimize(L.mean(row), optimizer)
    return model.module()


def test_a_sparse_gradient_has_a_row_for_each_id():
    dense, sparse = (step_cost(looking_up(sparse=s, optimizer=SGD(0.1)).main, 20) for s in (False, True))
    assert {op.type: op.operations for op in dense.ops}["sgd"] == 2 * 10_000 * 8
    assert {op.type: op.operations for op in sparse.ops}["sgd"] == 2 * 20 * 3 * 8
    assert dense.held == sparse.held
    assert sparse.peak < dense.peak / 10


@pytest.mark.parametrize(("lazy", "rows"), [(True, 20 * 3), (False, 10_000)])
def test_an_update_that_is_not_lazy_changes_all_rows(lazy: bool, rows: int):
    cost = step_cost(looking_up(sparse=True, optimizer=Adam(0.1, lazy_mode=lazy)).main, 20)
    (update,) = (op for op in cost.ops if op.type == "adam")
    assert update.touched >= 6 * 4 * 8 * rows


def test_open_dims_are_those_of_an_example():
    model = L.Draft(seed=1)
    L.reduce_sum(L.data(model, "x", [-1, -1, 4]), dim=[1])
    main = model.module().main
    assert step_cost(main, 5).operations == 5 * 4
    assert step_cost(main, 5, example={"x": np.zeros((2, 7, 4))}).operations == 5 * 7 * 4


def test_the_same_program_costs_the_same():
    main = ps.load(EXAMPLES / "deepfm.ir").main
    assert step_cost(main, 64) == step_cost(main, 64)


def running(depth: int) -> ps.Module:
    """Blocks of which each is run by two ops of the one around it."""
    run = "conditional_block(Cond=%c, Input=[]) -> Out=[], Scope=%s {{sub_block=^{}, is_scalar_condition=true}}"
    lines = ["ir 1", "program @main {", "block ^0 {", "temp %c : bool[1]", "temp %s : step_scopes", "temp %z : f32[8]"]
    lines += ["fill_constant -> Out=%z {shape=[8], value=1.0}", "less_equal(X=%z, Y=%z) -> Out=%c"]
    for number in range(1, depth + 1):
        lines += [run.format(number), f"block ^{number} {{"]
    lines.append("scale(X=%z) -> Out=%z {scale=2.0}")
    for number in range(depth, 0, -1):
        lines += ["}", run.format(number)]
    return ps.loads("\n".join([*lines, "}", "}", ""]))


def test_a_block_that_several_ops_run_counts_for_each_and_is_looked_at_once():
    once, none = step_cost(running(1).main, 1), step_cost(running(0).main, 1)
    work, moved = (once[at] - none[at] for at in (0, 1))
    assert (work, moved) != (0, 0)
    for depth in (2, 3, 60):
        found = step_cost(running(depth).main, 1)
        assert found.loops == 2 * depth
        assert [op.block for op in found.ops].count(depth) == 1
        assert found.operations - none.operations + work == work * 2**depth
        assert found.touched - none.touched + moved == moved * 2**depth
        assert max(found.levels) == found.peak
        assert len(found.levels) < 2 * MOST_LEVELS


def test_a_recurrent_op_makes_calls_for_each_step_of_the_longest_sequence():
    model = L.Draft(seed=1)
    hidden, _ = L.dynamic_lstm(L.data(model, "x", [-1, 16], lod_level=1), 16)
    loss = L.mean(L.fc(L.sequence_pool(hidden, "last"), 1))
    minimize(loss, SGD(0.1))
    main = model.module().main
    for lengths in ([2, 4], [5, 1], [3, 3]):
        offsets = [0, lengths[0], sum(lengths)]
        example = {"x": LoDTensor(np.zeros((6, 16), "float32"), [offsets])}
        found = step_cost(main, 6, example=example).ops
        assert [op.calls for op in found if op.family == "recurrent"] == [
            calls_of("lstm", max(lengths)),
            calls_of("lstm_grad", max(lengths)),
        ]
        (product,) = [op for op in found if op.type == "mul"]
        assert product.operations == 2 * len(lengths) * 4  # a row for each sequence
    assert max(op.calls for op in step_cost(main, 100).ops) == calls_of("lstm_grad", SEQUENCE)
    assert {op.calls for op in found if op.family != "recurrent"} == {1}
    assert calls_of("lstm", 10) - calls_of("lstm", 9) > calls_of("gru", 10) - calls_of("gru", 9) > 0


def test_each_input_has_sequences_of_its_own():
    """Two inputs of sequences, as most models of clicks have them, and one of two levels."""
    model = L.Draft(seed=1)
    words, tags = (L.data(model, name, [-1, 4], lod_level=1) for name in ("words", "tags"))
    L.relu(L.concat([L.sequence_pool(each, "sum") for each in (words, tags)], axis=1))
    texts = L.data(model, "texts", [-1, 4], lod_level=2)
    L.sigmoid(L.sequence_pool(texts, "sum"))
    example = {
        "words": LoDTensor(np.zeros((5, 4), "float32"), [[0, 2, 5]]),
        "tags": LoDTensor(np.zeros((3, 4), "float32"), [[0, 0, 3]]),
        "texts": LoDTensor(np.zeros((6, 4), "float32"), [[0, 1, 3], [0, 2, 4, 6]]),
    }
    found = {op.type: op.operations for op in step_cost(model.module().main, 6, example=example).ops}
    assert found["relu"] == 2 * 8  # two sequences of both
    assert found["sigmoid"] == 3 * 4  # three sequences of the inner level


def test_inputs_have_as_many_rows_for_a_row_of_the_batch_as_in_the_example():
    model = L.Draft(seed=1)
    L.relu(L.data(model, "x", [-1, 2]))
    L.relu(L.data(model, "y", [-1, 2]))
    example = {"x": np.zeros((8, 2), "float32"), "y": np.zeros((2, 2), "float32")}
    assert [op.operations for op in step_cost(model.module().main, 16, example=example).ops] == [32, 8]


def test_the_windows_of_a_convolution_are_touched():
    """They are copied for the result, and for each gradient that is made."""

    def touched(op: str, window: int, groups: int = 1) -> float:
        model = L.Draft(seed=1)
        image = L.data(model, "x", [-1, 4, 8, 8])
        minimize(L.mean(L.conv2d(image, 4, window, groups=groups, bias_attr=False)), SGD(0.1))
        (found,) = [each for each in step_cost(model.module().main, 3).ops if each.type == op]
        return found.touched

    numbers = 3 * 4 * 6 * 6
    seen = 3 * 4 * 8 * 8 + numbers + 4 * 4 * 3 * 3
    assert touched("conv2d", 3) == 4 * (seen + 2 * numbers * 9)
    assert touched("conv2d", 3, groups=4) == 4 * (seen - 3 * 4 * 3 * 3 + 2 * numbers * 9)


def test_families_of_ops():
    model = L.Draft(seed=1)
    x, label = L.data(model, "x", [-1, 4, 8, 8]), L.data(model, "label", [-1, 1], "int64")
    pooled = L.pool2d(L.relu(L.conv2d(x, 2, 3)), 2)
    minimize(L.mean(L.cross_entropy(L.fc(pooled, 3, act="softmax"), label)), SGD(0.1))
    found = {op.type: op.family for op in step_cost(model.module().main, 3).ops}
    assert {name: found[name] for name in ("conv2d", "pool2d", "pool2d_grad", "relu", "softmax", "cross_entropy2")} == {
        "conv2d": "convolutions",
        "pool2d": "pools",
        "pool2d_grad": "pools",
        "relu": "elementwise",
        "softmax": "passes",
        "cross_entropy2": "passes",
    }


def test_an_op_that_writes_over_its_input_takes_no_memory_of_its_own():
    model = L.Draft(seed=1)
    hidden = L.data(model, "x", [-1, 8])
    for _ in range(3):
        hidden = L.fc(hidden, 64, act="relu")
    minimize(L.mean(hidden), SGD(0.0))
    module = model.module()
    assert step_cost(module.main, 512).peak == pytest.approx(measured_peak(module, 512), rel=0.01)
