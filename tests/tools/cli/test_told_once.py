"""A finding is told once: where it keeps a job from being compiled, as an error and not also as a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pstranspile.tools.cli import main
from tests.conftest import ROOT

JOB = ["--pservers", "2", "--trainers", "2"]
VERBS = {
    "check": ["--steps", "1"],
    "compile": [],
    "launch": [],
    "run": [],
    "report": ["-o", "report.html"],
    "explain": [],
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "golden" / "distributed_table.ir").read_text()
    changed = text.replace("%row : f32[-1, 2]", "%row : i32[-1, 2]")
    assert changed != text
    Path("net.ir").write_text(changed)


@pytest.mark.parametrize("verb", VERBS)
def test_a_type_mismatch_that_keeps_the_job_from_being_compiled(verb: str, capsys: pytest.CaptureFixture[str]):
    assert main([verb, "net.ir", *JOB, *VERBS[verb]]) == 1
    told = re.findall(r"^(\S+): (?:warning|error)\[(\S+)\]: (.*)$", capsys.readouterr().err, re.M)
    assert len(told) == len(set(told)) > 0
    assert "type-mismatch" in {code for _, code, _ in told}


def test_warnings_of_a_job_that_is_compiled_stay(capsys: pytest.CaptureFixture[str]):
    text = (ROOT / "examples" / "regression.ir").read_text()
    Path("net.ir").write_text(text.replace("%loss@GRAD : f32", "%loss@GRAD : f64"))
    for arguments in (["plan", *JOB], ["compile", *JOB], ["run"]):
        main([arguments[0], "net.ir", *arguments[1:]])
        assert capsys.readouterr().err.count("warning[type-mismatch]") == 1


@pytest.mark.parametrize("name", ["w", "lr"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_initial_value(verb: str, name: str, capsys: pytest.CaptureFixture[str]):
    lines = (ROOT / "examples" / "regression.ir").read_text().splitlines()
    kept = [
        line for line in lines if not line.lstrip().startswith(("fill_", "uniform_")) or f"Out=%{name} " not in line
    ]
    assert len(kept) == len(lines) - 1
    Path("net.ir").write_text("\n".join(kept))
    assert main([verb, "net.ir", *JOB, *VERBS[verb]]) == 1
    told = re.findall(r"(\w+)\[(\S+)\]: .*no op of @startup", capsys.readouterr().err)
    assert told == [("error", "not-initialised")]


@pytest.mark.parametrize("to", ["inference", "onnx"])
@pytest.mark.parametrize("name", ["loss", "lost"])
def test_a_name_that_is_given_twice_to_export(to: str, name: str, capsys: pytest.CaptureFixture[str]):
    net = str(ROOT / "examples" / "regression.ir")
    assert main(["export", net, "--to", to, "--fetch", name, "--fetch", name, "-o", "model"]) == 1
    assert capsys.readouterr().err.count("error[inference-program]") == 1


def test_a_name_that_is_given_twice_to_grad(capsys: pytest.CaptureFixture[str]):
    net = str(ROOT / "tests" / "data" / "forward.ir")
    assert main(["grad", net, "--loss", "loss", "--optimizer", "sgd", "--parameters", "w_0,w_0"]) == 1
    assert capsys.readouterr().err.count("error[") == 1


def test_a_code_that_is_given_twice_to_allow(capsys: pytest.CaptureFixture[str]):
    assert main(["verify", "net.ir", "--allow", "none", "--allow", "none"]) == 2
    assert capsys.readouterr().err.count("error[job-value]") == 1
