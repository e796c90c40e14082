"""What may not be excused: without a loss that shows it, beyond the thing itself, and what is no training state."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import (
    SGD,
    Adagrad,
    Adam,
    Adamax,
    Exponential,
    Ftrl,
    LarsMomentum,
    Momentum,
    Optimizer,
    RMSProp,
    minimize,
)
from pstranspile.frontends.layers.basic import layer_outputs
from pstranspile.frontends.layers.parameters import create_parameter
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import FrozenMap, Module
from pstranspile.ir.types import DType
from pstranspile.proof import check, compare, workload
from pstranspile.proof.compare import largest_change, same_in_doubles
from pstranspile.proof.report import ADDS_UP, DIFFERENT, ROUNDING, report_text
from pstranspile.proof.workload import metrics_of

checking = importlib.import_module("pstranspile.proof.check")


def job(trainers: int = 2, servers: int = 2) -> ps.Job:
    return ps.Job(pservers=servers, trainers=trainers, min_block_size=40)


def clicks(dropped: float = 0.0) -> Module:
    """A small model of clicks: an embedding, dense features, and the area under the curve."""
    draft = L.Draft(seed=3)
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64", lod_level=1), (50, 8), is_sparse=True)
    joined = L.concat([L.sequence_pool(words, "sum"), L.data(draft, "x", [-1, 5])], axis=1)
    hidden = L.fc(joined, 16, act="relu")
    scores = L.fc(L.dropout(hidden, dropped) if dropped else hidden, 2, act="softmax")
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


@pytest.mark.parametrize(("difference", "alike"), [(0.5e-8, True), (2e-8, False)])
def test_doubles_may_differ_by_next_to_nothing_of_what_was_learnt(difference: float, alike: bool):
    start = np.array([5.0, 5.0])
    learnt = np.array([5.1, 5.0])
    assert same_in_doubles(learnt + np.array([0.0, difference]), learnt, largest_change(learnt, start)) == alike
    assert not same_in_doubles(learnt[:1], learnt, 1.0)
    assert not same_in_doubles(learnt.astype("float32"), learnt, 1.0)
    assert not same_in_doubles(learnt * np.nan, learnt, 1.0)


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
        assert ADDS_UP in report_text(report, every=True)


@pytest.mark.parametrize("shape", [(2, 2), (4, 3)])
def test_a_model_of_clicks_with_dropout_is_proved_equal(shape: tuple[int, int]):
    report = check(clicks(0.4), job(*shape), steps=3)
    assert report.holds, report_text(report)
    assert not report.different


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


def test_a_difference_is_found_however_little_is_learnt():
    """The learning rate is so small that parameters stay within any bound that is not about what was learnt."""
    draft = L.Draft(seed=3)
    hidden = L.batch_norm(L.fc(L.data(draft, "x", [-1, 20]), 30))
    minimize(L.mean(L.square_error_cost(L.fc(hidden, 1), L.data(draft, "y", [-1, 1]))), SGD(1e-5))
    report = check(draft.module(), job(), steps=2)
    assert not report.holds
    assert "fc_1.w_0" in {verdict.name for verdict in report.different if verdict.kind == "parameter"}


def test_what_rounding_alone_moves_is_rounding():
    """What is added to all scores alike changes no softmax: its gradient is rounding, which Adam makes steps of."""
    draft = L.Draft(seed=3)
    scores = L.fc(L.data(draft, "x", [-1, 20]), 4, bias_attr=False)
    shifted = L.elementwise_add(scores, create_parameter(draft, "shift", None, [1], "f32"))
    label = L.data(draft, "label", [-1, 1], "i64")
    minimize(L.mean(L.cross_entropy(L.softmax(shifted), label)), Adam(0.01))
    report = check(draft.module(), job(4, 2), steps=4)
    assert report.holds, report_text(report)
    (shift,) = [verdict for verdict in report.verdicts if verdict.name == "shift.w_0"]
    assert shift.equality == ROUNDING


@pytest.mark.parametrize("mode", ["async", "geo"])
def test_a_layout_is_no_cause(mode: str):
    draft = L.Draft(seed=3)
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64", lod_level=1), (50, 8))
    hidden, _ = L.dynamic_lstm(L.fc(words, 32), 32)
    minimize(L.mean(L.square(L.fc(L.sequence_pool(hidden, "last"), 1))), SGD(0.1))
    report = check(draft.module(), ps.Job(pservers=2, trainers=2, mode=mode, min_block_size=40), steps=2)
    assert report.holds
    assert report.different
    assert not report.causes


def test_servers_that_get_rows_in_every_step_are_no_cause():
    draft = L.Draft(seed=3)
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (8, 8), is_sparse=True)
    hidden = L.batch_norm(L.fc(words, 4))
    minimize(L.mean(L.square(L.fc(hidden, 1))), Momentum(0.1, 0.9))
    report = check(draft.module(), job(), batch=64, steps=2)
    assert report.causes
    assert not [cause for cause in report.causes if cause.op_type == "momentum"]


@pytest.mark.parametrize("optimizer", [Adam(Exponential(0.1, 2, 0.5)), Adamax(0.1)], ids=["adam", "adamax"])
@pytest.mark.parametrize(("rows", "alike"), [((1, 1, 1), True), ((1, 39, 1), False)])
def test_slices_without_rows_are_updated_as_servers_do_it(optimizer: Optimizer, rows: tuple[int, ...], alike: bool):
    """They keep their state, but count powers of beta and work rates out; what is no row of a table makes no wrong."""
    draft = L.Draft(seed=1)
    table = L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (40, 8), is_sparse=True)
    minimize(L.mean(L.square(L.fc(table, 1))), optimizer)
    ids = np.array(rows, "int64").reshape(3, 1, 1)
    report = check(draft.module(), ps.Job(pservers=2, trainers=1, min_block_size=8), feeds={"ids": ids})
    assert not report.wrong, report_text(report)
    assert report.holds == alike
    assert alike or any("leaves its slice alone" in cause.why for cause in report.causes)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("optimizer", "rows", "alike"),
    [
        (Momentum(0.1, 0.9), (1, 1, 1), True),
        *((o, (1, 39, 1), False) for o in (Momentum(0.1, 0.9), RMSProp(0.1))),
        (Ftrl(0.1), (1, 1, 1), False),
    ],
)
def test_slices_left_alone_are_the_cause_in_modes_of_one_trainer(
    optimizer: Optimizer, mode: str, rows: tuple[int, ...], alike: bool
):
    """Ftrl works a parameter out of what it has kept, so that rows change even if they never had a gradient."""
    draft = L.Draft(seed=1)
    table = L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (40, 8), is_sparse=True)
    minimize(L.mean(L.square(L.fc(table, 1))), optimizer)
    ids = np.array(rows, "int64").reshape(3, 1, 1)
    job = ps.Job(pservers=2, trainers=1, mode=mode, min_block_size=8)
    report = check(draft.module(), job, feeds={"ids": ids})
    assert report.promised
    assert report.holds == alike
    assert ["leaves its slice alone" in cause.why for cause in report.causes] == ([] if alike else [True])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_norms_of_slices_are_the_cause_in_modes_of_one_trainer(mode: str):
    job = ps.Job(pservers=2, trainers=1, mode=mode, min_block_size=8)
    draft = L.Draft(seed=1)
    minimize(L.mean(L.square(L.fc(L.data(draft, "x", [-1, 20]), 30))), LarsMomentum(0.1, 0.9))
    report = check(draft.module(), job)
    assert report.promised
    assert not report.holds
    assert {cause.why for cause in report.causes} == {"each server uses the norm of its own slice"}


def lookups(rate: float) -> Module:
    draft = L.Draft(seed=3)
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (50, 8), is_sparse=True)
    minimize(L.mean(L.square_error_cost(L.fc(words, 1), L.data(draft, "y", [-1, 1]))), SGD(rate))
    return draft.module()


@pytest.mark.parametrize("mode", ["sync", "async", "geo", "nccl2"])
def test_what_was_not_learnt_is_told(mode: str):
    jobs = ps.Job(trainers=("a:1", "b:1"), mode=mode) if mode == "nccl2" else ps.Job(2, 2, mode=mode, min_block_size=40)
    feeds = {"ids": np.array([[[1], [2], [3], [3]]] * 2), "y": np.ones((2, 4, 1), "float32")}
    report = check(lookups(0.1), jobs, feeds=feeds, steps=2)
    assert report.holds, report_text(report)
    assert "3 of 50 rows of %embedding_0.w_0 changed; nothing is shown of the others" in report_text(report)
    report = check(lookups(0.0), jobs, feeds=feeds, steps=2)
    assert not report.holds
    assert report.nothing_learnt
    assert "unchanged, so that nothing is shown of their updates: %embedding_0.w_0, %fc_0.b_0" in report_text(report)
    assert report_text(report).startswith("NOTHING LEARNT: no parameter changed, so nothing is shown\n")


def test_what_cannot_be_had_in_double_precision_is_told(monkeypatch: pytest.MonkeyPatch):
    def refused(_: Module, __: int) -> Module:
        raise DiagnosticError([error("check-no-data", "there are no doubles")])

    monkeypatch.setattr(workload, "module_in_doubles", refused)
    report = check(clicks(), job(), steps=2)
    assert report.holds
    assert "not in double precision, so 1e-04 is taken for rounding: there are no doubles" in report_text(report)


@pytest.mark.parametrize("most", [0, 256])
def test_what_is_too_large_for_doubles_is_held_to_its_steps_in_single_precision(
    most: int, monkeypatch: pytest.MonkeyPatch
):
    """Both sides are trained once; the bound is wider, which is said, and what is wrong is found as before."""
    monkeypatch.setattr(checking, "MOST_IN_DOUBLES", most)
    module = clicks()
    report = check(module, job(), steps=3)
    assert report.holds, report_text(report)
    assert ("the program keeps 0 MB" in report_text(report)) == (most == 0)
    made = ps.compile(module, job())
    roles = made.roles()
    server = roles["pserver_0"]
    blocks = list(server.main.blocks)
    at = next(index for index, block in enumerate(blocks) if any(op.type == "adam" for op in block.ops))
    slower = [
        op._replace(attrs=FrozenMap({**op.attrs, "beta1": 0.5})) if op.type == "adam" else op for op in blocks[at].ops
    ]
    blocks[at] = blocks[at]._replace(ops=tuple(slower))
    less = made.with_roles({**roles, "pserver_0": server._replace(main=server.main._replace(blocks=tuple(blocks)))})
    assert less.roles()["pserver_0"].main != server.main
    report = check(module, job(), steps=2, result=less)
    assert report.wrong
    assert not report.holds


def test_large_programs_are_trained_in_double_precision_where_single_precision_leaves_a_doubt(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(checking, "LARGE", 0)
    sound = check(clicks(), job(), steps=2)
    assert sound.holds, report_text(sound)
    assert "1e-04 is taken for rounding: the program keeps 0 MB, more than 0" in report_text(sound)
    monkeypatch.setattr(compare, "ROUGH", 1e-12)
    doubtful = check(clicks(), job(), steps=2)
    assert doubtful.holds, report_text(doubtful)
    assert "not in double precision" not in report_text(doubtful)
    assert "equal within rounding" in report_text(doubtful)


def test_large_programs_are_checked_on_fewer_steps_of_made_data(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checking, "LARGE", 0)
    module = clicks()
    assert check(module, job()).steps == checking.STEPS_OF_LARGE
    assert check(module, job(), steps=4).steps == 4


@pytest.mark.parametrize(("batch", "why"), [(3, "brings no rows"), (4, "brings no rows"), (64, "")])
@pytest.mark.parametrize("optimizer", [Adam(0.01), Adagrad(0.01), Momentum(0.01, 0.9)])
def test_norms_are_no_cause_where_updates_have_none(optimizer: Optimizer, batch: int, why: str):
    """In the steps after one without rows of a slice, what its server counts stays behind: that is no norm."""
    draft = L.Draft(seed=3)
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (60, 8), is_sparse=True)
    minimize(L.mean(L.square_error_cost(L.fc(words, 1), L.data(draft, "y", [-1, 1]))), optimizer)
    report = check(draft.module(), job(2, 4), steps=3, batch=batch, shares="weighted")
    named = [cause.why for cause in report.causes]
    assert all("norm" not in text for text in named), named
    assert bool(report.different) == any(why and why in text for text in named), report_text(report)


def test_a_difference_without_a_cause_is_said_to_have_none():
    report = check(clicks(), job(), steps=1)
    bad = report.verdicts[0]._replace(equality=DIFFERENT, first=1)
    assert "no cause was found" in report_text(report._replace(verdicts=(bad, *report.verdicts[1:])))


def test_uneven_shares_are_the_cause_where_nothing_else_is():
    told = "in step 1 the trainers' losses are means over different numbers of rows: 0, 1"
    report = check(clicks(), job(), steps=1)
    bad = report.verdicts[0]._replace(equality=DIFFERENT, first=1)
    uneven = report._replace(verdicts=(bad, *report.verdicts[1:]), shares=told, uneven=1)
    assert report_text(uneven).count(told) == 1
    assert f"the cause is uneven shares: {told}" in report_text(uneven)
    assert "no cause was found" not in report_text(uneven)
    later = report_text(uneven._replace(uneven=2))  # what differs before can't be because of them
    assert "no cause was found" in later
    assert told in later


def test_a_metric_is_no_cause():
    """What `auc` counts differs on every trainer; nothing that is trained comes of it."""
    draft = L.Draft(seed=3)
    scores = L.fc(L.batch_norm(L.fc(L.data(draft, "x", [-1, 20]), 30)), 2, act="softmax")
    label = L.data(draft, "label", [-1, 1], "i64")
    L.auc(scores, label)
    minimize(L.mean(L.cross_entropy(scores, label)), SGD(0.1))
    report = check(draft.module(), job())
    named = [cause.op_type for cause in report.causes]
    assert named[0] == "batch_norm"
    assert "auc" not in named


@pytest.mark.parametrize("weighted", [True, False])
def test_sums_over_shares_are_named_for_what_they_are(weighted: bool):
    """A mean over weights that are not as many on every trainer; a sum over the batch, of which the mean is taken."""
    draft = L.Draft(seed=3)
    errors = L.square(L.fc(L.data(draft, "x", [-1, 20]), 1))
    if weighted:
        weights = L.data(draft, "weights", [-1, 1])
        loss = L.elementwise_div(L.reduce_sum(L.elementwise_mul(errors, weights)), L.reduce_sum(weights))
    else:
        loss = L.reduce_sum(errors)
    minimize(loss, SGD(0.01))
    batch = np.arange(120, dtype="float32").reshape(1, 6, 20) % 7 / 7
    feeds = {"x": batch, **({"weights": np.arange(1, 7, dtype="float32").reshape(1, 6, 1)} if weighted else {})}
    report = check(draft.module(), job(), feeds=feeds)
    assert not report.holds
    reasons = {cause.why for cause in report.causes if cause.op_type == "reduce_sum"}
    wanted = "tokens or weights that are not as many" if weighted else "of what trainers make of their sums the mean"
    assert any(wanted in reason for reason in reasons), report_text(report)


@pytest.mark.parametrize("mode", ["sync", "async", "geo", "nccl2"])
@pytest.mark.parametrize("seen", [True, False])
def test_programs_that_train_nothing_are_not_called_training(mode: str, seen: bool):
    draft = L.Draft(seed=3)
    scores = L.fc(L.data(draft, "x", [-1, 20]), 4)
    (L.mean if seen else L.shape)(scores)
    jobs = ps.Job(trainers=("a:1", "b:1"), mode=mode) if mode == "nccl2" else ps.Job(2, 2, mode=mode)
    report = check(draft.module(), jobs, steps=2)
    assert report.holds == seen
    shown = "the trainers' results are those of a single machine" if seen else "so nothing is shown"
    assert report_text(report).startswith(f"nothing is trained by what was run; {shown}\n")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_is_no_number_shows_nothing(mode: str):
    """The logarithm of a negative number is NaN on both sides, of which the gradient knows nothing."""
    draft = L.Draft(seed=3)
    scores = L.fc(L.data(draft, "x", [-1, 20]), 1)
    minimize(L.mean(L.log_loss(scores, L.data(draft, "y", [-1, 1]))), SGD(0.1))
    feeds = {"x": np.ones((2, 4, 20), "float32") * [[[1], [-1]] * 2], "y": np.ones((2, 4, 1), "float32")}
    feeds["x"] = feeds["x"].astype("float32")
    report = check(draft.module(), ps.Job(2, 2, mode=mode), feeds=feeds)
    assert report.no_numbers[0] == report.verdicts[0].name
    assert not report.holds
    assert "NaN on a single machine: %mean_0.tmp_0" in report_text(report)
    assert report_text(report).partition("\n")[0].endswith(("so nothing is shown", "after step 1"))


def test_an_op_is_no_cause_of_what_a_sum_over_rows_makes():
    """Gradients of weights are as they must be for it; quotients of even sums are as on the whole."""
    draft = L.Draft(seed=3)
    words = L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (50, 8))
    scores = L.fc(L.concat([words, L.data(draft, "x", [-1, 20])], axis=1), 2)
    label = L.data(draft, "label", [-1, 1], "i64")
    minimize(L.reduce_sum(L.softmax_with_cross_entropy(scores, label)), SGD(0.1))
    report = check(draft.module(), job())
    assert [cause.op_type for cause in report.causes] == ["reduce_sum"]
    draft = L.Draft(seed=3)
    hidden = L.batch_norm(L.fc(L.data(draft, "x", [-1, 20]), 8))
    weights = L.data(draft, "weights", [-1, 1])
    errors = L.elementwise_mul(L.square(L.fc(hidden, 1)), weights)
    minimize(L.elementwise_div(L.reduce_sum(errors), L.reduce_sum(weights)), SGD(0.1))
    rows = np.random.default_rng(3).normal(size=(2, 8, 20)).astype("float32")
    report = check(draft.module(), job(), feeds={"x": rows, "weights": np.ones((2, 8, 1), "float32")})
    assert [cause.op_type for cause in report.causes] == ["batch_norm"]


def test_an_op_is_no_cause_that_makes_more_of_a_small_difference():
    """A mean over the batch moves rows by less than what is taken for rounding; their difference shows it."""
    draft = L.Draft(seed=3)
    hidden = L.fc(L.data(draft, "x", [-1, 20]), 8)
    moved_rows = L.elementwise_add(hidden, L.scale(L.reduce_mean(hidden, dim=[0], keep_dim=True), 1e-4))
    apart = L.scale(L.elementwise_sub(moved_rows, hidden), 1e4)
    minimize(L.mean(L.square(L.fc(apart, 1))), SGD(0.1))
    report = check(draft.module(), job())
    assert not report.holds
    assert "elementwise_sub" not in [cause.op_type for cause in report.causes]


def test_places_in_the_whole_batch_are_not_those_of_a_share():
    """Values that hide a difference are left out by a mask; the ids of what is left are no reason for it."""
    draft = L.Draft(seed=3)
    hidden = L.batch_norm(L.fc(L.data(draft, "x", [-1, 4]), 4))
    wide = L.concat([hidden, L.fill_constant_batch_size_like(hidden, [-1, 1], "f32", -1e30)], axis=1)
    small = L.fill_constant_batch_size_like(wide, [-1, 5], "f32", -1e29)
    chosen = L.reshape(L.gather_nd(wide, L.where(L.less_than(small, wide))), [-1, 4])
    minimize(L.mean(L.square(L.fc(chosen, 1))), SGD(0.1))
    report = check(draft.module(), job(), steps=2, batch=6)
    assert [cause.op_type for cause in report.causes] == ["batch_norm"]


def test_the_largest_of_a_batch_are_others_than_those_of_its_shares():
    """`top_k` along the batch: its gradient reads places in the batch, which a share does not have."""
    draft = L.Draft(seed=3)
    hidden = L.fc(L.data(draft, "x", [-1, 4]), 4)
    along = {"X": L.transpose(hidden, [1, 0])}
    best, _ = layer_outputs("top_k", along, {"Out": DType.FP32, "Indices": DType.INT64}, {"k": 2})
    minimize(L.mean(L.square(best)), SGD(0.1))
    report = check(draft.module(), job(), steps=2, batch=6)
    assert [cause.op_type for cause in report.causes] == ["top_k"]
