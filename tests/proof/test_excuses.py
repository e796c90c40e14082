"""What may not be excused: without a loss that shows it, beyond the thing itself, and what is no training state."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pstranspile as ps
from pstranspile import layers as L
from pstranspile.autodiff import SGD, Adam, minimize
from pstranspile.ir.model import Module
from pstranspile.proof import check
from pstranspile.proof.compare import Allowed, excused, verdict
from pstranspile.proof.course import metrics_of
from pstranspile.proof.report import ADDS_UP, DIFFERENT, ROUNDING, report_text


def job(trainers: int = 2, servers: int = 2) -> ps.Job:
    return ps.Job(pservers=servers, trainers=trainers, min_block_size=40)


def clicks() -> Module:
    """A small model of clicks: an embedding, dense features, and the area under the curve."""
    draft = L.Draft(seed=3)
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64", lod_level=1), (50, 8), is_sparse=True)
    joined = L.concat([L.sequence_pool(words, "sum"), L.data(draft, "x", [-1, 5])], axis=1)
    scores = L.fc(L.fc(joined, 16, act="relu"), 2, act="softmax")
    label = L.data(draft, "label", [-1, 1], "i64")
    L.auc(scores, label)
    minimize(L.mean(L.cross_entropy(scores, label)), Adam(0.01))
    return draft.module()


def without_the_mark() -> Module:
    draft = L.Draft(seed=3)
    hidden = L.batch_norm(L.fc(L.data(draft, "x", [-1, 20]), 30, bias_attr=False))
    minimize(L.mean(L.square(L.fc(hidden, 1, bias_attr=False))), SGD(0.1))
    return ps.loads(re.sub(r" : loss\b", "", ps.dumps(draft.module())))


def test_a_loss_that_is_not_known_excuses_nothing():
    report = check(without_the_mark(), job())
    assert not report.holds, report_text(report)


@pytest.mark.parametrize(("difference", "allowed"), [(0.009, True), (0.011, False)])
def test_noise_excuses_no_more_than_a_tenth_of_what_was_learnt(difference: float, allowed: bool):
    start = np.array([5.0, 5.0], "float32")
    learnt = np.array([5.1, 5.0], "float32")
    ours = learnt + np.array([0.0, difference], "float32")
    assert excused(ours, learnt, start) == allowed
    assert excused(ours, learnt, None), "beside the value itself it is little"
    found = verdict("w", "parameter", Allowed(1e-6, 10.0), [ours], [learnt], start=start)
    assert found.equality == (ROUNDING if allowed else DIFFERENT)
    assert not excused(ours[:1], learnt, start)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (4, 3)])
def test_counters_of_metrics_are_no_training_state(shape: tuple[int, int]):
    module = clicks()
    counters = {name for name in metrics_of(module.main) if name.startswith("_generated_var")}
    assert len(counters) == 4
    report = check(module, job(*shape), steps=3)
    assert report.holds, report_text(report)
    metrics = {verdict.name: verdict for verdict in report.verdicts if verdict.kind == "metric"}
    assert metrics.keys() == counters
    if shape[0] > 1:
        assert ADDS_UP in {verdict.equality for verdict in metrics.values()}
        assert ADDS_UP in report_text(report)


def test_what_training_reads_is_no_metric():
    draft = L.Draft(seed=3)
    hidden = L.batch_norm(L.fc(L.data(draft, "x", [-1, 20]), 30))
    minimize(L.mean(L.square(hidden)), Adam(0.01))
    assert not metrics_of(draft.module().main)


def test_causes_are_found_among_what_ops_keep_for_themselves():
    """The order of ragged sequences, and arrays of what belongs to each step, are looked past."""
    draft = L.Draft(seed=3)
    x = L.data(draft, "x", [-1, 4], lod_level=1)
    table = draft.temporary("table", x.dtype)
    draft.op("lod_rank_table", {"X": x}, {"Out": table})
    hidden = L.batch_norm(L.fc(x, 6))
    minimize(L.mean(L.square(L.fc(hidden, 1))), SGD(0.1))
    report = check(draft.module(), job())
    assert [cause.op_type for cause in report.causes][:1] == ["batch_norm"]
