"""Checks of modules with several programs, which take turns on both sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, Adam, minimize
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.ir.model import Module
from pstranspile.proof import check, make_feeds
from pstranspile.proof.report import BITWISE, DIFFERENT, report_text
from pstranspile.tools.cli import main
from tests.compiler.emit.several import DISCRIMINATOR, GENERATOR, adversarial, joined, two_tasks, with_evaluation

TURNS = "main*2,generator"


def job(trainers: int = 2, mode: str = "sync", **settings: object) -> ps.Job:
    return ps.Job(pservers=2, trainers=trainers, mode=mode, min_block_size=1000, **settings)


def sgd() -> Module:
    return adversarial(SGD(0.1), SGD(0.1))


@pytest.mark.parametrize("make", [sgd, adversarial], ids=["sgd", "adam"])
@pytest.mark.parametrize("mode", ["sync", "fleet-sync"])
@pytest.mark.parametrize("trainers", [1, 3])
def test_both_sides_are_equal(make: Any, mode: str, trainers: int):
    report = check(make(), job(trainers, mode), steps=7, programs=TURNS, schedules=3)
    assert report.holds, report_text(report)
    names = {verdict.name for verdict in report.verdicts}
    assert names >= {*DISCRIMINATOR, *GENERATOR}
    losses = [verdict.name for verdict in report.verdicts if verdict.kind == "loss"]
    assert [name.partition("/")[0] for name in losses] == ["main", "generator"]
    if trainers == 1:
        assert {verdict.equality for verdict in report.verdicts} == {BITWISE}


def test_fifty_schedules_end_alike():
    report = check(sgd(), job(), steps=4, programs=TURNS, schedules=50)
    assert report.holds
    assert (report.schedules, report.schedule_differs) == (50, ())
    assert "50 schedules end bitwise equal" in report_text(report)


@pytest.mark.parametrize("mode", ["async", "half-async"])
def test_gradients_of_all_programs_are_counted(mode: str):
    report = check(two_tasks([SGD(0.1), SGD(0.1)]), job(2, mode), steps=6, programs="main,second")
    assert report.holds, report_text(report)
    assert report.applied is not None
    slices = 3 + 2 + 2  # the encoder's weights in two, its bias, and weights and bias of a task
    assert report.applied.sent == report.applied.applied == 6 * 2 * (slices - 2)
    single = check(sgd(), job(1, mode), steps=6, programs=TURNS)
    assert single.holds
    assert {verdict.equality for verdict in single.verdicts} == {BITWISE}


@pytest.mark.parametrize("trainers", [1, 2])
def test_what_an_evaluation_gives_is_compared(trainers: int):
    report = check(with_evaluation(), job(trainers), steps=6, programs="main*2,evaluation", batch=64)
    assert report.holds, report_text(report)
    (result,) = (verdict for verdict in report.verdicts if verdict.kind == "result")
    assert result.name.startswith("evaluation/")
    assert result.equality == BITWISE or trainers > 1


def test_an_op_of_any_program_is_named_as_the_cause():
    plain = L.Draft(seed=1)
    minimize(L.mean(L.square_error_cost(L.fc(L.data(plain, "x", [-1, 20]), 1), L.data(plain, "y", [-1, 1]))), SGD(0.1))
    normed = plain.sibling()
    hidden = L.batch_norm(L.fc(L.data(normed, "x", [-1, 20]), 30))
    minimize(L.mean(L.square_error_cost(L.fc(hidden, 1), L.data(normed, "y", [-1, 1]))), SGD(0.1))
    module = joined(main=plain.module(), second=normed.module())
    report = check(module, job(), steps=4, programs="main,second")
    assert not report.holds
    assert [cause.op_type for cause in report.causes[:1]] == ["batch_norm"]
    assert report.different[0].first == 2
    losses = {verdict.name.partition("/")[0]: verdict for verdict in report.verdicts if verdict.kind == "loss"}
    assert losses["main"].equality != DIFFERENT
    assert losses["second"].first == 2


def test_programs_that_are_not_run_are_told():
    report = check(sgd(), job(), steps=2)
    assert report.holds
    assert report.not_run == ("generator",)
    assert "not run: @generator (--program says what is)" in report_text(report)
    assert not check(sgd(), job(), steps=3, programs=TURNS).not_run


def test_given_data():
    module = sgd()
    feeds = {f"main/{name}": array for name, array in make_feeds(module.main, 2, 8).items()}
    feeds |= make_feeds(module["generator"], 1, 8, seed=3)
    assert check(module, job(), feeds=feeds, steps=3, programs=TURNS).holds
    with pytest.raises(DiagnosticError, match="@main is fed 2 times, which is enough for 3 steps; 4 are asked for"):
        check(module, job(), feeds=feeds, steps=4, programs=TURNS)
    odd = {**feeds, "noise": feeds["noise"][:, :7]}
    assert "different numbers of rows: 3, 4" in check(module, job(), feeds=odd, steps=3, programs=TURNS).shares
    assert check(module, job(), feeds=odd, steps=3, programs=TURNS, shares="weighted").holds


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("gan.ir").write_text(ps.dumps(adversarial(SGD(0.1), Adam(0.01))))
    return "gan.ir"


def test_the_command(net: str, capsys: pytest.CaptureFixture[str]):
    arguments = ["check", net, "--pservers", "2", "--trainers", "2", "--steps", "3", "--schedules", "2"]
    assert main([*arguments, "--program", f"@{TURNS}"]) == 0
    told = capsys.readouterr().out
    assert "\nmode sync, 2 trainers, 2 servers, 3 steps of @main*2,generator\n" in told
    assert told.startswith("the cluster trains as the single machine does\n")
    assert main([*arguments, "--program", TURNS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["programs"], found["not_run"], found["holds"]) == (TURNS, [], True)
    assert main([*arguments, "--program", "main,critic"]) == 1
    assert "error[program-turns]: @critic can't be run in steps" in capsys.readouterr().err


def test_the_command_with_initial_values(net: str):
    np.savez("init.npz", g0_w=np.full((8, 160), 0.01, "float32"))
    arguments = ["--pservers", "2", "--trainers", "1", "--steps", "3", "--program", TURNS, "--init", "init.npz"]
    assert main(["check", net, *arguments]) == 0
