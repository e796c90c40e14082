"""One vocabulary for two arithmetics: numpy's by default, wherever a program is run."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.fluid import arithmetic as fluid
from pstranspile.fluid.arithmetic import fluid_arithmetic
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adam, Lamb, minimize
from pstranspile.ir.types import DType
from pstranspile.runtime import arithmetic
from pstranspile.runtime.arithmetic import numpy as plain
from pstranspile.tools.cli import main

EXAMPLE = Path(__file__).parents[3] / "examples" / "regression.ir"
WORDS = sorted(
    name for name, value in vars(plain).items() if value is getattr(vars(arithmetic).get(name), "__wrapped__", 0)
)


def test_every_word_is_known_in_both():
    assert len(WORDS) > 25
    for name in WORDS:
        expected, found = (inspect.signature(getattr(module, name)).parameters for module in (plain, fluid))
        assert [*found] == [*expected], name


@pytest.mark.parametrize("cluster", [[], ["--pservers", "2"]])
def test_the_command_and_python_do_not_disagree(cluster: list[str], tmp_path: Path):
    x = np.random.RandomState(0).rand(4, 9, 1000).astype("float32")
    np.savez(tmp_path / "data.npz", x=x, y=x[:, :, :20])
    told = ["run", str(EXAMPLE), "--feed", str(tmp_path / "data.npz"), "--save", str(tmp_path / "out.npz"), *cluster]
    assert main([*told, "--seed", "3"]) == 0
    module, scope = ps.load(EXAMPLE), ps.Scope()
    assert module.startup is not None
    ps.run(module.startup, scope=scope, seed=3)
    for rows in x:
        ps.run(module.main, feed={"x": rows, "y": rows[:, :20]}, scope=scope, seed=3)
    with np.load(tmp_path / "out.npz") as saved:
        for name in ("w", "b"):
            assert saved[f"param/{name}"].tobytes() == scope[name].tobytes()


def trained(optimizer: Any, dtype: DType) -> dict[str, bytes]:
    """The parameters after three steps."""
    model = L.Draft(seed=1)
    x = L.data(model, "x", [-1, 5], dtype=dtype)
    minimize(L.mean(L.square(L.fc(L.fc(x, 7, act="tanh"), 3))), optimizer)
    module, scope = model.module(), ps.Scope()
    assert module.startup is not None
    ps.run(module.startup, scope=scope)
    feed = np.random.RandomState(0).rand(6, 5).astype("float64" if dtype is DType.FP64 else "float32")
    for _ in range(3):
        ps.run(module.main, feed={"x": feed}, scope=scope)
    return {name: scope[name].tobytes() for name in ("fc_0.w_0", "fc_1.w_0")}


@pytest.mark.parametrize("optimizer", [Adam(0.1), Lamb(0.1)])
@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP64])
def test_numbers_of_f64_are_not_rounded_to_f32(optimizer: Any, dtype: DType):
    """The step size too is calculated in the element type of the parameter."""
    expected = trained(optimizer, dtype)
    with fluid_arithmetic():
        found = trained(optimizer, dtype)
    assert (found == expected) is (dtype is DType.FP64)


@pytest.mark.parametrize(("groups", "count", "m", "n", "k"), [(1, 4, 64, 72, 1), (2, 3, 40, 36, 2), (2, 3, 4, 5, 30)])
def test_products_of_few_columns_are_made_together(groups: int, count: int, m: int, n: int, k: int):
    """Those of many filters with images of few pixels are one product, also those for the filters' gradient."""
    draw = np.random.default_rng(0).random
    a, b, filters = draw((count, groups, m, k)), draw((count, groups, n, k)), draw((groups, m, n))
    np.testing.assert_allclose(plain.sum_of_products(a, b), np.einsum("cgmk,cgnk->gmn", a, b))
    np.testing.assert_allclose(plain.matmul(filters, b), np.matmul(filters, b))
    np.testing.assert_allclose(plain.matmul(filters, a, transpose_a=True), np.matmul(filters.swapaxes(1, 2), a))
    assert plain.matmul(filters, b[:0]).shape == (0, groups, m, k)
    assert not plain.sum_of_products(a[:0], b[:0]).any()
