"""Shares of a batch with different numbers of rows, or with none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pstranspile as ps
from pstranspile.cluster.machines.feeding import ReportedShares
from pstranspile.cluster.machines.simulate import cluster_of
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Momentum, minimize
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Module
from pstranspile.proof import check
from pstranspile.proof.report import report_text
from pstranspile.proof.values import make_feeds
from pstranspile.runtime.run.batch import select_rows
from pstranspile.runtime.run.seeds import LossRows
from pstranspile.runtime.run.step_feeds import Feeds
from pstranspile.tools.cli import main
from tests.cluster.machines.fuzz import cases, compiled, model
from tests.cluster.machines.test_job_fuzz import SLOW, models


def batches(module: Module, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Made data with so many rows in each step."""
    found: list[dict[str, Any]] = []
    for step, size in enumerate(sizes):
        batch = Feeds(module.main, make_feeds(module.main, 1, max(size, 1), step)).step(0)
        found.append({name: select_rows(value, range(size))[0] for name, value in batch.items()})
    return found


def job(trainers: int, mode: str = "sync") -> ps.Job:
    if mode in ("grad-allreduce", "nccl2", "local-sgd"):
        return ps.Job(trainer_endpoints=tuple(f"t{i}:1" for i in range(trainers)), mode=mode)
    return ps.Job(pservers=2, trainers=trainers, mode=mode, min_block_size=4)


SIZES = (6, 5, 1, 0, 2)


@settings(max_examples=cases(15, 1000), derandomize=True, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_weighted_shares_train_as_one_machine(data: st.DataObject):
    module = data.draw(models())
    trainers = data.draw(st.integers(1, 4))
    feeds = batches(module, data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    done = ps.simulate(ps.compile(module, job(trainers)), feeds, shares="weighted")
    assert all(np.isfinite(value).all() for value in done.parameters.values())
    report = check(module, job(trainers), feeds=feeds, steps=len(feeds), shares="weighted")
    apart = report.different or report.wrong  # a run without any rows shows nothing, and so does not hold
    assert not apart or _sparse(module), report_text(report)


def _sparse(module: Module) -> bool:
    """Whether servers may leave slices of tables alone."""
    return any(op.attrs.get("is_sparse") for op in module.main.main_block.ops)


@pytest.mark.parametrize("mode", ["sync", "fleet-sync", "grad-allreduce", "nccl2"])
def test_weighted_and_equal_shares_in_modes_that_average_gradients(mode: str):
    module = model("dense")
    feeds = batches(module, SIZES)
    weighted = check(module, job(3, mode), feeds=feeds, steps=5, shares="weighted")
    assert weighted.holds, report_text(weighted)
    equal = check(module, job(3, mode), feeds=feeds, steps=5)
    assert not equal.wrong
    assert equal.different
    assert equal.shares.startswith("in step 2 (and in 2 more) the trainers' losses are means over different")


@pytest.mark.parametrize("mode", ["async", "half-async", "geo", "local-sgd"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_other_modes_keep_their_promise(mode: str, kind: str):
    if mode == "local-sgd" and kind == "sparse":
        return
    module = model(kind)
    feeds = batches(module, SIZES)
    report = check(module, job(3, mode), feeds=feeds, steps=5)
    assert report.holds, report_text(report)
    assert not report.shares
    with pytest.raises(DiagnosticError, match="feed-shares"):
        check(module, job(3, mode), feeds=feeds, steps=5, shares="weighted")


def test_a_trainer_without_rows_keeps_what_it_has_learnt_of_rows():
    draft = L.Draft(seed=3)
    hidden = L.batch_norm(L.fc(L.data(draft, "x", [-1, 6]), 8))
    minimize(L.mean(L.square_error_cost(L.fc(hidden, 1), L.data(draft, "y", [-1, 1]))), Momentum(0.1, 0.9))
    module = draft.module()
    result = ps.compile(module, job(2))
    cluster = cluster_of(result, seed=7)
    feeds = batches(module, (4, 1))
    cluster.feed(feeds)
    cluster.run_to(1)
    names = [name for name, var in result.trainer(0).main.main_block.vars.items() if var.persistable and "mean" in name]
    before = {name: np.copy(cluster.trainers[0].scope[name]) for name in names if name in cluster.trainers[0].scope}
    cluster.run_to(2)
    cluster.finish()
    for name, value in before.items():
        np.testing.assert_array_equal(cluster.trainers[0].scope[name], value)
    assert all(np.isfinite(value).all() for value in cluster.parameters().values())


def test_what_has_no_rows_is_none_and_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.chdir(tmp_path)
    module = model("dense")
    feeds = batches(module, (4, 1, 4))
    loss = next(op.output("Out") for op in module.main.main_block.ops if op.type == "mean")
    assert loss is not None
    done = ps.simulate(compiled("dense", 2, 2), feeds, fetch=[loss])
    assert [value is None for value in done.fetched[0][loss]] == [False, True, False]
    (warned,) = done.warnings
    assert warned.code == "feed-shares"
    assert "in step 2 the trainers' losses are means over different numbers of rows: 0, 1" in warned.message
    Path("net.ir").write_text(ps.dumps(module))
    ps.save_feeds("data.npz", feeds)
    command = ["run", "net.ir", "--pservers", "2", "--trainers", "2", "--feed", "data.npz", "--save", "out.npz"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert f"trainer_0 {loss} no rows" in out.splitlines()[1]
    assert "warning[feed-shares]" in err
    with np.load("out.npz") as saved:
        assert {f"trainer_0/step/{step}|{loss}" for step in (1, 3)} <= {*saved.files}
        assert f"trainer_0/step/2|{loss}" not in saved.files
    assert main([*command, "--shares", "weighted"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert main(["run", "net.ir", "--feed", "data.npz", "--shares", "weighted"]) == 1
    assert "--shares is for a cluster" in capsys.readouterr().err


def test_rows_of_sequences_are_counted_where_the_loss_has_a_number_for_each():
    draft = L.Draft(seed=1)
    words = L.embedding(L.data(draft, "words", [-1, 1], "i64", lod_level=1), (10, 4))
    scores = L.fc(words, 3, act="softmax")
    minimize(L.mean(L.cross_entropy(scores, L.data(draft, "tags", [-1, 1], "i64", lod_level=1))), SGD(0.1))
    module = draft.module()
    rows = np.zeros((7, 1), "int64")
    ragged = ps.LoDTensor(rows, [[0, 1, 4, 7]])
    assert LossRows(module.main)({"words": ragged, "tags": ragged}) == 7
    assert LossRows(model("sparse").main)({"ids": ragged, "y": np.zeros((3, 1), "float32")}) == 3
    feeds = [{"words": ragged, "tags": ragged}]
    assert check(module, job(2), feeds=feeds, steps=1, shares="weighted").holds
    assert "different numbers of rows: 1, 6" in check(module, job(2), feeds=feeds, steps=1).shares


@pytest.mark.parametrize("form", ["arrays", "rows"])
def test_launch_tells_of_uneven_shares_as_run_does(form: str, tmp_path: Path, monkeypatch: Any, capsys: Any):
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(ps.dumps(model("dense")))
    feeds = batches(model("dense"), (4, 5, 3, 5, 4))
    ps.save_feeds("data.npz", feeds)
    if form == "rows":
        lines = [",".join(map(repr, range(len(feeds[0]["x"][0]) + 1))) for _ in range(11)]
        Path("data.csv").write_text("\n".join(lines))
        names = ",".join([f"f{i}" for i in range(len(feeds[0]["x"][0]))] + ["y"])
        feed = ["--feed", "data.csv", "--batch", "4", "--names", names, "--columns", "x=f*"]
    else:
        feed = ["--feed", "data.npz"]
    command = ["net.ir", "--pservers", "1", "--trainers", "2", *feed]
    told: list[str] = []
    for verb in ("run", "launch"):
        assert main([verb, *command]) == 0
        told += [line for line in capsys.readouterr().err.splitlines() if "feed-shares" in line]
    assert len(told) == 2
    assert told[0] == told[1]
    assert ("in step 2 (and in 2 more)" if form == "arrays" else "in step 3 the") in told[0]


def test_reported_shares_of_trainers_that_leave_and_come_back():
    def told(*reports: tuple[int, int, int | None]) -> list[str]:
        shares = ReportedShares("servers")
        for trainer, step, rows in reports:
            shares.take(f"trainer_{trainer}", {"step": step} | ({} if rows is None else {"rows": rows}))
        shares.take("pserver_0", {"step": 9})
        return [finding.message.partition(" the trainers'")[0] for finding in shares.warnings()]

    def counts(*reports: tuple[int, int, int | None]) -> str:
        shares = ReportedShares("servers")
        for trainer, step, rows in reports:
            shares.take(f"trainer_{trainer}", {"step": step} | ({} if rows is None else {"rows": rows}))
        return shares.warnings()[0].message.partition("rows: ")[2].partition(";")[0]

    assert told() == []
    assert told((0, 1, 4), (0, 2, None), (1, 1, 4), (1, 2, None)) == []
    assert told((0, 1, 4), (0, 2, None), (1, 1, 4)) == []  # one has left
    assert told((0, 1, 4), (1, 1, 3), (0, 2, None), (1, 2, None)) == ["in step 1 (and in 1 more)"]
    assert told((0, 1, 4), (0, 2, 3), (0, 3, 4), (1, 1, 4), (1, 2, None), (1, 3, None)) == ["in step 2"]
    assert told((0, 1, 4), (0, 2, 3), (0, 2, 4), (1, 1, 4), (1, 2, None)) == []  # a step that is done again
    assert counts((0, 1, 4), (1, 1, 3), (2, 1, 3), (0, 2, 5)) == "4, 3, 3"
    assert counts((0, 1, 4), (1, 1, 4), (2, 1, 4), (0, 2, 5), (1, 2, None)) == "5, 4, left"
