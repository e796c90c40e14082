"""Gradients of large tables that stay rows give bitwise what dense ones give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pstranspile import loads
from pstranspile.fluid.arithmetic import fluid_arithmetic
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import L2, SGD, Adagrad, Adam, minimize
from pstranspile.ir.model import Program
from pstranspile.ir.types import DType
from pstranspile.runtime.kernels.math.elementwise import OVER_TERM
from pstranspile.runtime.run.frame import Execution, interpret
from pstranspile.runtime.run.prepared import Prepared, prepare, run
from pstranspile.runtime.run.scope import Scope
from tests.runtime.run.feeding import same

FEED = {"a": np.array([[3], [3999], [3], [0]]), "b": np.array([[7], [3], [3], [3]])}


def program(optimizer: Any, *, rows: int = 5000, lookups: str = "ab") -> tuple[Program, str, Scope]:
    model = L.Draft(seed=1)
    ids = [L.data(model, name, [-1, 1], dtype=DType.INT64) for name in lookups]
    found = [L.embedding(each, (rows, 8), param_attr=L.ParamAttr("table"), padding_idx=0) for each in ids]
    loss = L.mean(L.fc(L.concat(found, axis=1), 2, act="tanh"))
    minimize(loss, optimizer)
    module, scope = model.module(), Scope()
    run(module["startup"], scope=scope)
    return module.main, loss.name, scope


def steps_alike(main: Program, plain: Scope, fetches: tuple[str, ...], names: str = "ab") -> Prepared:
    """Takes some steps in both ways, compares what they give, and gives the fast one."""
    fast, feed = Scope(), {name: FEED[name] for name in names}
    fast.update(plain)
    execution, prepared = Execution(main, plain), Prepared(Execution(main, fast), tuple(names), fetches)
    for _ in range(3):
        want, got = interpret(execution, feed, fetches), prepared.step(feed)
        assert all(same(got[name], want[name]) for name in fetches)
        assert [name for name in plain if not same(plain[name], fast[name])] == []
    assert prepared.source is not None
    return prepared


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1), Adam(0.1)], ids=["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("lookups", ["a", "ab"])
@pytest.mark.parametrize("rows", [5000, 20000])
def test_rows_give_what_dense_gradients_give(optimizer: Any, lookups: str, rows: int):
    main, loss, scope = program(optimizer, lookups=lookups, rows=rows)
    before = scope["table"].copy()
    source = steps_alike(main, scope, (loss,), lookups).source
    assert source is not None
    assert len(source.as_rows) == (3 if lookups == "ab" else 1)
    changed = (scope["table"] != before).any(axis=1)
    assert np.flatnonzero(changed).tolist() == ([3, 7, 3999] if lookups == "ab" else [3, 3999])


@pytest.mark.parametrize("rows", [5000, 20000])
def test_a_step_without_any_row_still_decays_the_moments(rows: int, monkeypatch: pytest.MonkeyPatch):
    main, loss, scope = program(Adam(0.1), lookups="a", rows=rows)
    steps_alike(main, scope, (loss,), "a")
    monkeypatch.setitem(FEED, "a", np.zeros((4, 1), "int64"))  # nothing but the padding
    moment = next(name for name in scope if name.startswith("table_moment1"))
    before = scope[moment].copy()
    assert before[3].all()
    assert len(steps_alike(main, scope, (loss,), "a").source.as_rows) == 1  # pyright: ignore
    assert (np.abs(scope[moment][3]) < np.abs(before[3])).all()


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1)], ids=["sgd", "adagrad"])
@pytest.mark.parametrize("counts", [(1, 1), (1, 120), (120, 1), (120, 120)])
def test_in_a_smaller_table_the_rows_are_few(optimizer: Any, counts: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    """Of 4,000 rows, the 600 ids of five examples give a dense gradient, whatever the other lookup gives."""
    model = L.Draft(seed=1)
    found: list[Any] = []
    for name, count in zip("ab", counts, strict=True):
        ids = L.data(model, name, [-1, count, 1], dtype=DType.INT64)
        found.append(L.reduce_sum(L.embedding(ids, (4000, 8), param_attr=L.ParamAttr("table")), dim=[1]))
        monkeypatch.setitem(FEED, name, np.random.default_rng(count).integers(0, count + 2, (5, count, 1)))
    loss = L.mean(L.fc(L.concat(found, axis=1), 2, act="tanh"))
    minimize(loss, optimizer)
    module, scope = model.module(), Scope()
    run(module["startup"], scope=scope)
    source = steps_alike(module.main, scope, (loss.name,)).source
    assert source is not None
    assert len(source.as_rows) == 3


@pytest.mark.parametrize("optimizer", [SGD, Adagrad])
@pytest.mark.parametrize("rate", [float("inf"), float("nan"), -0.1])
@pytest.mark.parametrize("rows", [4000, 20000])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_rate_that_changes_rows_without_a_gradient_changes_them(optimizer: Any, rate: float, rows: int):
    main, loss, scope = program(optimizer(0.1), rows=rows)
    scope["table"][5] = -0.0
    scope["learning_rate_0"] = np.array([rate], "float32")
    steps_alike(main, scope, (loss,))


@pytest.mark.parametrize(("optimizer", "merges"), [(Adagrad(0.1), False), (Adam(0.1), False), (SGD(0.1), True)])
@pytest.mark.parametrize("rows", [4000, 20000])
def test_repeated_rows_are_merged_once(optimizer: Any, merges: bool, rows: int):
    """An optimizer that merges them itself gives the same numbers for a gradient in which they still repeat."""
    model = L.Draft(seed=1)
    ids = L.data(model, "a", [-1, 1], dtype=DType.INT64)
    found = L.embedding(ids, (rows, 8), is_sparse=True, merge_rows=True, param_attr=L.ParamAttr("table"))
    loss = L.mean(L.fc(found, 2, act="tanh"))
    minimize(loss, optimizer)
    module, scope = model.module(), Scope()
    run(module["startup"], scope=scope)
    source = steps_alike(module.main, scope, (loss.name,), "a").source
    assert source is not None
    (lookup,) = (bound.op for bound in source.bound if bound.op.type == "lookup_table_grad")
    assert lookup.attrs["merge_rows"] is merges
    with fluid_arithmetic():
        steps_alike(module.main, scope, (loss.name,), "a")
    seen = steps_alike(module.main, scope, (loss.name, "table@GRAD"), "a").source
    assert seen is not None
    assert seen.unmerged == frozenset()


def test_they_are_dense_where_somebody_sees_the_zeros(monkeypatch: pytest.MonkeyPatch):
    main, loss, scope = program(SGD(0.1))
    assert steps_alike(main, scope, (loss, "table@GRAD")).source.as_rows == frozenset()  # pyright: ignore
    for optimizer in (Adam(0.1, regularizer=L2(0.1)), SGD(0.1, regularizer=L2(0.1)), Adagrad(0.1, epsilon=0.0)):
        main, loss, scope = program(optimizer)
        assert steps_alike(main, scope, (loss,)).source.as_rows == frozenset()  # pyright: ignore
    main, loss, scope = program(Adam(0.1), rows=4000)  # 32,000 elements
    assert steps_alike(main, scope, (loss,)).source.as_rows == frozenset()  # pyright: ignore
    monkeypatch.setitem(FEED, "a", FEED["a"] % 1000)
    main, loss, scope = program(SGD(0.1), rows=1000)  # 8,000 elements
    assert steps_alike(main, scope, (loss,)).source.as_rows == frozenset()  # pyright: ignore


def test_fluids_arithmetic_may_be_chosen_for_a_prepared_program():
    main, loss, scope = program(Adagrad(0.1))
    with fluid_arithmetic():
        steps_alike(main, scope, (loss,))


DECAYED = """\
ir 1
program @main {
  block ^0 {
    param %table : f32[5, 2]
    temp %ids : i64[-1] feed
    temp %grad : f32[-1, 2] feed
    temp %found : rows f32[5, 2]
    temp %decay : f32[5, 2]
    temp %total : f32[5, 2]
    temp %other : f32[5, 2]
    lookup_table_v2_grad(W=%table, Ids=%ids, Out@GRAD=%grad) -> W@GRAD=%found { is_sparse=true }
    ?
  }
}
"""


@pytest.mark.parametrize(
    ("ops", "fetch", "over"),
    [
        ("scale(X=%table) -> Out=%decay { scale=0.5 }\n sum(X=[%found, %decay]) -> Out=%total", ["total"], True),
        ("scale(X=%table) -> Out=%total { scale=0.5 }\n sum(X=[%total, %found]) -> Out=%total", ["total"], True),
        (
            "scale(X=%table) -> Out=%decay { scale=0.5 }\n sum(X=[%found, %decay]) -> Out=%total",
            ["total", "decay"],
            False,
        ),
        (
            "scale(X=%table) -> Out=%decay { scale=0.5 }\n sum(X=[%found, %decay]) -> Out=%total\n"
            "scale(X=%decay) -> Out=%other",
            ["total", "other"],
            False,
        ),
        ("sum(X=[%found, %table]) -> Out=%total", ["total"], False),
        ("scale(X=%table) -> Out=%decay\n sum(X=[%decay, %decay, %found]) -> Out=%total", ["total"], False),
        ("scale(X=%table) -> Out=%decay\n sum(X=[%table, %decay, %found]) -> Out=%total", ["total"], True),
        ("sign(X=%table) -> Out=%decay\n sum(X=[%found, %decay]) -> Out=%total", ["total"], True),
        (
            "sign(X=%table) -> Out=%decay\n scale(X=%decay) -> Out=%decay { scale=0.5 }\n"
            "sum(X=[%found, %decay]) -> Out=%total",
            ["total"],
            True,
        ),
    ],
)
def test_rows_are_added_to_a_term_that_nobody_else_reads(ops: str, fetch: list[str], over: bool):
    main = loads(DECAYED.replace("?", ops)).main
    table = np.arange(-4, 6, dtype="float32").reshape(5, 2)
    feed = {"ids": np.array([3, 1, 3]), "grad": np.array([[1, 2], [3, 4], [5, 6]], "float32")}
    scope, plain = Scope(), Scope()
    scope["table"] = plain["table"] = table
    prepared = prepare(main, list(feed), fetch, scope)
    want = interpret(Execution(main, plain), feed, fetch)
    for _ in range(2):
        got = prepared.step(feed)
        assert all(same(got[name], want[name]) for name in fetch)
    assert same(scope["table"], table)
    assert prepared.source is not None
    assert any(OVER_TERM in bound.op.attrs for bound in prepared.source.bound) == over
