"""The JSON of a check: the verdict on each variable agrees with its numbers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.tools.cli import main

checking = importlib.import_module("pstranspile.proof.check")

EXAMPLES = Path(__file__).parents[3] / "examples"
JOB = ["--pservers", "2", "--trainers", "2", "--steps", "3"]


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    main(["check", *arguments, "--json"])
    return json.loads(capsys.readouterr().out, parse_constant=refuse)


def require_agreement(made: dict[str, Any]) -> None:
    for verdict in made["verdicts"]:
        differs = verdict["deviation"] is None or verdict["deviation"] > verdict["tolerance"]
        assert differs == (verdict["equality"] == "different"), verdict
        assert (verdict["settled_by"] == "bits") == (verdict["equality"] == "bitwise equal"), verdict


@pytest.mark.parametrize("name", ["ctr_dnn", "regression", "deepfm", "mnist_conv", "gan"])
def test_a_variable_is_different_where_its_deviation_is_above_its_tolerance(
    name: str, capsys: pytest.CaptureFixture[str]
):
    made = report(capsys, str(EXAMPLES / f"{name}.ir"), *JOB)
    require_agreement(made)
    assert {verdict["settled_by"] for verdict in made["verdicts"]} <= {"bits", "double precision"}


@pytest.mark.parametrize("mode", ["async", "geo", "local-sgd"])
def test_where_nothing_is_promised(mode: str, capsys: pytest.CaptureFixture[str]):
    job = JOB if mode != "local-sgd" else JOB[2:]
    made = report(capsys, str(EXAMPLES / "regression.ir"), *job, "--mode", mode)
    require_agreement(made)
    assert made["holds"]
    assert "single precision" in {verdict["settled_by"] for verdict in made["verdicts"]}


@pytest.mark.parametrize(("size", "way"), [(256, "double precision"), (0, "gradients in double precision")])
def test_what_is_different(
    size: int, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checking, "MOST_IN_DOUBLES", size)
    monkeypatch.setattr(checking, "LARGE", min(size, 64))
    draft = L.Draft(seed=1)
    x, y = L.data(draft, "x", [-1, 3]), L.data(draft, "y", [-1, 1])
    prediction = L.fc(x, 1, param_attr=L.ParamAttr(name="w"))
    minimize(L.reduce_sum(L.square_error_cost(prediction, y)), SGD(0.01))
    (tmp_path / "net.ir").write_text(ps.dumps(draft.module()))
    made = report(capsys, str(tmp_path / "net.ir"), *JOB)
    require_agreement(made)
    assert not made["holds"]
    (found,) = (verdict for verdict in made["verdicts"] if verdict["name"] == "w")
    assert (found["equality"], found["settled_by"]) == ("different", way)
    assert main(["check", str(tmp_path / "net.ir"), *JOB]) == 1
    assert f"first after step 1 ({way}: " in capsys.readouterr().out
