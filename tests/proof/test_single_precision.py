"""Programs too large for double precision: what rounding makes of a run is told from real differences all the same."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.compiler.compile import Compiled
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import (
    Adagrad,
    Adam,
    Adamax,
    DecayedAdagrad,
    Ftrl,
    Lamb,
    LarsMomentum,
    Momentum,
    Optimizer,
    RMSProp,
    minimize,
)
from pstranspile.ir.model import FrozenMap, Module, Op
from pstranspile.proof import check
from pstranspile.proof.report import ROUGH, Report, report_text

checking = importlib.import_module("pstranspile.proof.check")


@pytest.fixture(autouse=True)
def too_large(monkeypatch: pytest.MonkeyPatch):
    """Every program keeps more than is trained in double precision."""
    monkeypatch.setattr(checking, "MOST_IN_DOUBLES", 0)
    monkeypatch.setattr(checking, "LARGE", 0)


def job(trainers: int = 4, mode: str = "sync", **settings: object) -> ps.Job:
    if mode != "sync":
        return ps.Job(trainers=tuple(f"t{index}:1" for index in range(trainers)), mode=mode, **settings)
    return ps.Job(pservers=3, trainers=trainers, min_block_size=8, **settings)


def linear(optimizer: Optimizer, *, normed: bool = False, table: bool = False) -> Module:
    """A model whose first row of %w begins with a gradient that is zero but for rounding, on the data of `feeds`."""
    draft = L.Draft(seed=1)
    hidden = L.fc(L.data(draft, "x", [-1, 6]), 8, bias_attr=False, param_attr=L.ParamAttr(name="w"))
    if normed:
        hidden = L.batch_norm(hidden)
    score = L.fc(hidden, 1)
    if table:
        words = L.data(draft, "ids", [-1, 1], "i64")
        score = L.elementwise_add(score, L.fc(L.embedding(words, (40, 8), is_sparse=True), 1))
    minimize(L.mean(L.square_error_cost(score, L.data(draft, "y", [-1, 1]))), optimizer)
    return draft.module()


def feeds(*, table: bool = False) -> dict[str, Any]:
    """Data whose first feature adds up to 0 over a batch, but not where its numbers are rounded."""
    rows = np.full((3, 8, 6), 0.5, "float32")
    rows[:, :, 0] = np.array([0.1, 0.2, -0.3, 0.7, 0.1, -0.2, -0.5, -0.1], "float32")
    ids = np.arange(24).reshape(3, 8, 1) if table else np.zeros((3, 8, 1), "int64")
    return {"x": rows, "y": np.ones((3, 8, 1), "float32"), **({"ids": ids} if table else {})}


def start() -> dict[str, Any]:
    weights = np.random.RandomState(0).rand(6, 8).astype("float32")
    weights[0] = 0
    return {"w": weights}


def checked(module: Module, of: ps.Job | None = None, **options: Any) -> Report:
    return check(module, of or job(), feeds=feeds(), init=start(), **options)


@pytest.mark.parametrize("optimizer", [Adam, Adamax, Adagrad, DecayedAdagrad, Ftrl, Lamb])
def test_whole_steps_made_of_a_rounded_gradient_are_rounding(optimizer: Any):
    """The weights differ by much, although each gradient of a batch is the mean of those of its shares."""
    report = checked(linear(optimizer(0.01)))
    assert max(verdict.worst for verdict in report.verdicts) > ROUGH
    assert report.holds, report_text(report)
    assert report.by_gradients
    assert "what differs by more is rounding, too" in report_text(report)


@pytest.mark.parametrize("trainers", [3, 4])
@pytest.mark.parametrize("mode", ["grad-allreduce", "nccl2", "single-process-multi-thread"])
def test_trainers_that_scale_before_they_add_up_are_held_to_their_own_rounding(mode: str, trainers: int):
    rows = {name: array[:, : 2 * trainers] for name, array in feeds().items()}
    report = check(linear(Adam(0.01)), job(trainers, mode), feeds=rows, init=start())
    assert report.holds, report_text(report)


@pytest.mark.parametrize("optimizer", [Adam(0.01), RMSProp(0.01), Adagrad(0.01), Momentum(0.01, 0.9)])
def test_rows_of_a_table_that_are_touched_once(optimizer: Optimizer):
    """All slices get rows in each step: 40 rows on 3 servers, of which 24 are in the data."""
    data = feeds(table=True)
    data["ids"] = np.array([[[0], [1], [14], [15], [28], [29], [2 + step], [30 + step]] for step in range(3)])
    report = check(linear(optimizer, table=True), job(), feeds=data, init=start())
    assert report.holds, report_text(report)


def changed(module: Module, machine: str, op_type: str, of: ps.Job | None = None, **attributes: object) -> Compiled:
    """A compile in which the ops of a type have other attributes on one machine."""
    made = ps.compile(module, of or job())
    roles = made.roles()
    main, found = roles[machine].main, 0

    def mend(op: Op) -> Op:
        nonlocal found
        found += op.type == op_type
        return op._replace(attrs=FrozenMap({**op.attrs, **attributes})) if op.type == op_type else op

    blocks = tuple(block._replace(ops=tuple(mend(op) for op in block.ops)) for block in main.blocks)
    assert found
    return made.with_roles({**roles, machine: roles[machine]._replace(main=main._replace(blocks=blocks))})


def without_a_trainer(module: Module) -> Compiled:
    """A compile whose first server adds up the gradients of all trainers but the last, and divides by all."""
    made = ps.compile(module, job())
    roles = made.roles()
    server = roles["pserver_0"]

    def mend(op: Op) -> Op:
        names = op.inputs.get("X", ())
        return op._replace(inputs=FrozenMap({"X": names[:-1]})) if op.type == "sum" and len(names) == 4 else op

    blocks = tuple(block._replace(ops=tuple(mend(op) for op in block.ops)) for block in server.main.blocks)
    assert blocks != server.main.blocks
    return made.with_roles({**roles, "pserver_0": server._replace(main=server.main._replace(blocks=blocks))})


def exchanged_slices(module: Module) -> Compiled:
    """A compile whose trainers put the first two slices of %w together in the wrong order."""
    made = ps.compile(module, job())
    roles = dict(made.roles())

    def mend(op: Op) -> Op:
        names = op.inputs.get("X", ())
        if op.type != "concat" or op.output("Out") != "w":
            return op
        return op._replace(inputs=FrozenMap({**op.inputs, "X": (names[1], names[0], *names[2:])}))

    for name, role in roles.items():
        if name.startswith("trainer"):
            block = role.main.main_block
            mended = block._replace(ops=tuple(mend(op) for op in block.ops))
            assert mended.ops != block.ops
            roles[name] = role._replace(main=role.main.with_main_block(mended))
    return made.with_roles(roles)


@pytest.mark.parametrize("optimizer", [Adam(0.01), Momentum(0.01, 0.9), RMSProp(0.01), Adagrad(0.01)])
def test_planted_faults_are_found(optimizer: Optimizer):
    module = linear(optimizer)
    of = optimizer.__class__.__name__
    for what, made in {
        "a wrong scale": changed(module, "pserver_0", "scale", scale=0.5),
        "a scale that is hardly wrong": changed(module, "pserver_0", "scale", scale=0.2501),
        "a missing trainer": without_a_trainer(module),
        "exchanged slices": exchanged_slices(module),
    }.items():
        report = checked(module, result=made)
        assert not report.holds, f"{what}, {of}"
        assert report.wrong or report.different, f"{what}, {of}"


@pytest.mark.parametrize("factor", [0.1, 10])
@pytest.mark.parametrize(
    ("optimizer", "op_type"), [(Adam, "adam"), (RMSProp, "rmsprop"), (Adagrad, "adagrad"), (Adamax, "adamax")]
)
def test_another_epsilon_is_found(optimizer: Any, op_type: str, factor: float):
    module = linear(optimizer(0.01))
    epsilon = next(op.attrs["epsilon"] for op in module.main.main_block.ops if op.type == op_type)
    assert isinstance(epsilon, float)
    for machine in ("pserver_0", "pserver_1", "pserver_2"):
        report = checked(module, result=changed(module, machine, op_type, epsilon=epsilon * factor))
        if machine == "pserver_0":  # which has the row whose gradient is small beside epsilon
            assert not report.holds, report_text(report)


@pytest.mark.parametrize("optimizer", [Adam(0.01), Momentum(0.01, 0.9)])
def test_what_differs_by_its_meaning_stays_different(optimizer: Optimizer):
    rows = {**feeds(), "x": np.random.RandomState(1).rand(3, 8, 6).astype("float32")}
    report = check(linear(optimizer, normed=True), job(), feeds=rows)
    assert report.promised
    assert report.different
    assert report.by_gradients
    assert any(cause.op_type == "batch_norm" for cause in report.causes), report_text(report)


def test_norms_of_slices_stay_different():
    report = checked(linear(LarsMomentum(0.01, 0.9)))
    assert not report.holds
    assert not report.wrong, report_text(report)
    assert [cause.op_type for cause in report.causes] == ["lars_momentum"]
