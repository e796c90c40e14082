"""Drawn models, jobs and orders of events: clusters train as one machine does, and never hang."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pstranspile as ps
from pstranspile.compiler.job import Job
from pstranspile.compiler.job.modes import Promise, mode_names, settings_of
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import L2, SGD, Adagrad, Adam, Exponential, Momentum, Optimizer, Piecewise, minimize
from pstranspile.ir.model import Module
from pstranspile.proof import check
from pstranspile.proof.report import report_text
from pstranspile.proof.values import make_feeds
from tests.cluster.machines.fuzz import NIGHTLY, cases, compiled, feeds

TOGETHER = [mode for mode in mode_names() if settings_of(mode).promise is Promise.ALWAYS]
MODES = (*(("sync", "fleet-sync") * 2), "nccl2", "grad-allreduce", "async", "half-async", "geo", "local-sgd")
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@st.composite
def optimizers(draw: st.DrawFn) -> Optimizer:
    """Optimizers that work element by element."""
    rate: Any = draw(
        st.sampled_from(
            [0.05, Exponential(0.05, 2, 0.5), Exponential(0.05, 3, 0.5, True), Piecewise((2,), (0.05, 0.01))]
        )
    )
    make = draw(
        st.sampled_from(
            [
                SGD,
                SGD,
                Adam,
                Adagrad,
                lambda rate, **more: Momentum(rate, 0.9, use_nesterov=draw(st.booleans()), **more),
            ]
        )
    )
    return make(rate, regularizer=draw(st.sampled_from([None, None, L2(0.01)])))


@st.composite
def models(draw: st.DrawFn, tables: bool = True) -> Module:
    """A stack of layers on dense inputs, tables, or both; its loss is a mean over rows."""
    draft = L.Draft(seed=draw(st.integers(1, 2**20)))
    parts: list[Any] = []
    kinds = draw(st.lists(st.sampled_from(["dense", "words", "ids"] if tables else ["dense"]), min_size=1, max_size=3))
    for number, kind in enumerate(kinds):
        if kind == "dense":
            parts.append(L.data(draft, f"x{number}", [-1, draw(st.integers(1, 12))]))
            continue
        size = draw(st.integers(2, 40)), draw(st.integers(1, 6))
        sparse = draw(st.booleans())
        if kind == "ids":
            ids = L.data(draft, f"ids{number}", [-1, 1], "i64")
            parts.append(L.embedding(ids, size, is_sparse=sparse))
        else:
            ids = L.data(draft, f"words{number}", [-1, 1], "i64", lod_level=1)
            pooling = draw(st.sampled_from(["sum", "average", "last"]))
            parts.append(L.sequence_pool(L.embedding(ids, size, is_sparse=sparse), pooling))
    hidden = parts[0] if len(parts) == 1 else L.concat(parts, axis=1)
    for _ in range(draw(st.integers(0, 3))):
        bias = draw(st.sampled_from([None, False]))
        hidden = L.fc(
            hidden,
            draw(st.integers(1, 16)),
            act=draw(st.sampled_from([None, "tanh", "sigmoid", "relu"])),
            bias_attr=bias,
        )
    if draw(st.booleans()):
        classes = draw(st.integers(2, 5))
        loss = L.cross_entropy(L.fc(hidden, classes, act="softmax"), L.data(draft, "label", [-1, 1], "i64"))
    else:
        loss = L.square_error_cost(L.fc(hidden, 1), L.data(draft, "y", [-1, 1]))
    minimize(L.mean(loss), draw(optimizers()))
    return draft.module()


@st.composite
def jobs(draw: st.DrawFn, mode: str) -> Job:
    trainers = draw(st.integers(1, 4))
    if mode in ("nccl2", "grad-allreduce", "local-sgd"):
        return ps.Job(trainer_endpoints=tuple(f"t{i}:1" for i in range(max(trainers, 2))), mode=mode)
    settings: dict[str, Any] = {
        "min_block_size": draw(st.integers(1, 60)),
        "slice_var_up": draw(st.booleans()),
        "split_method": draw(st.sampled_from(["RoundRobin", "HashName"])),
    }
    if mode == "geo":
        settings["geo_sgd_need_push_nums"] = draw(st.integers(1, 4))
    if mode == "async":
        settings["runtime_split_send_recv"] = draw(st.booleans())
    return ps.Job(pservers=draw(st.integers(1, 4)), trainers=trainers, mode=mode, **settings)


@settings(
    max_examples=cases(30, 2000), derandomize=not NIGHTLY, deadline=None, suppress_health_check=SLOW, print_blob=True
)
@given(data=st.data())
def test_drawn_jobs_train_alike_and_end(data: st.DataObject):
    mode = data.draw(st.sampled_from(MODES))
    module = data.draw(models(tables=mode not in ("nccl2", "grad-allreduce", "local-sgd")))
    job = data.draw(jobs(mode))
    steps, schedule = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 2**32))
    result = ps.compile(module, job)
    report = check(module, job, steps=steps, result=result)
    if report.different and report.promised:  # by the meaning of an op, which must be named for what differs first
        first = {item.name for item in report.different if item.first == report.different[0].first}
        named = first & {cause.variable for cause in report.causes}
        assert named, report_text(report)
    else:
        assert report.holds, report_text(report)
    given_feeds = make_feeds(module.main, steps, 2 * job.trainers, 1)
    one, other = (ps.simulate(result, given_feeds, schedule=order, seed=1) for order in (None, schedule))
    assert all(server.ended for server in other.cluster.servers)
    for name, value in one.parameters.items():
        if mode in TOGETHER:
            np.testing.assert_array_equal(other.parameters[name], value)
        assert np.isfinite(other.parameters[name]).all()


@pytest.mark.parametrize("mode", ["sync", "fleet-sync", "grad-allreduce"])
@pytest.mark.parametrize("kind", ["dense", "adam", "sparse", "embedding"])
def test_no_schedule_changes_what_synchronous_training_ends_with(kind: str, mode: str):
    if mode == "grad-allreduce" and kind in ("sparse", "embedding"):
        kind = "dense"
    result = compiled(kind, 3, 2, mode)
    want = ps.simulate(result, feeds(kind, 3, 4)).parameters
    for schedule in range(cases(10, 200)):
        found = ps.simulate(result, feeds(kind, 3, 4), schedule=schedule).parameters
        for name, value in want.items():
            np.testing.assert_array_equal(found[name], value)
