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
from pstranspile.compiler.cost.steps import step_cost
from pstranspile.runtime.run.step_feeds import inputs_of

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
