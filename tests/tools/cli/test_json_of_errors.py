"""With `--json`, stdout holds a JSON document also where the input has errors: the findings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pstranspile.tools.cli import VERBS, main
from pstranspile.tools.cli.common import Parser
from tests.conftest import ROOT

JOB = ["--pservers", "2", "--trainers", "2"]
OF_INPUTS: dict[str, list[str]] = {
    "check": JOB,
    "plan": JOB,
    "explain": JOB,
    "diff": ["net.ir"],
    "verify": [],
}
"""The verbs with `--json` that read programs, and what else they need."""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "examples" / "regression.ir", "net.ir")
    text = Path("net.ir").read_text()
    Path("wrong.ir").write_text(text.replace("Y=%w)", "Y=%weight)"))
    Path("broken.ir").write_text(text.replace("mul(X", "mul((X"))
    Path("net.plan").write_text("plan 1\n")


def test_every_verb_with_json_is_here(monkeypatch: pytest.MonkeyPatch):
    found: set[str] = set()

    def parse_args(parser: Parser, *_: object) -> None:
        if any("--json" in action.option_strings for action in parser._actions):
            found.add(parser.prog.split()[-1])
        raise SystemExit(0)

    with monkeypatch.context() as patch:
        patch.setattr(Parser, "parse_args", parse_args)
        for verb in sorted({*VERBS} - {"fluid"}):  # whose `--json` is of `--compat`, which tells of all in its document
            main([verb])
    assert found == {*OF_INPUTS}


def findings(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    held = json.loads(capsys.readouterr().out)
    assert list(held) == ["version", "errors", "warnings", "findings"]
    assert held["errors"] + held["warnings"] == len(held["findings"])
    assert held["errors"] >= 1
    return held["findings"]


@pytest.mark.parametrize("verb", OF_INPUTS)
def test_of_an_input_that_can_not_be_read(verb: str, capsys: pytest.CaptureFixture[str]):
    for name, line in (("broken.ir", 23), ("none.ir", None)):
        assert main([verb, name, *OF_INPUTS[verb], "--json"]) == (2 if verb == "diff" else 1)
        first = findings(capsys)[0]
        assert (first["file"], first["line"]) == (name, line)


@pytest.mark.parametrize("verb", sorted(OF_INPUTS.keys() - {"diff"}))
def test_of_an_input_that_is_not_well_formed(verb: str, capsys: pytest.CaptureFixture[str]):
    assert main([verb, "wrong.ir", *OF_INPUTS[verb], "--json"]) == 1
    (first, *_) = findings(capsys)
    assert (first["file"], first["line"], first["column"], first["end_column"]) == ("wrong.ir", 23, 17, 24)
    assert main(["diff", "wrong.ir", "wrong.ir", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 0


@pytest.mark.parametrize("verb", ["check", "plan", "explain"])
def test_of_a_job_and_of_a_plan(verb: str, capsys: pytest.CaptureFixture[str]):
    assert main([verb, "net.ir", "--pservers", "2", "--set", "slices=3", "--json"]) == 2
    assert findings(capsys)[0]["code"] == "job-unknown-key"
    assert main([verb, "net.ir", *JOB, "--plan", "net.plan", "--json"]) == 1
    assert {finding["code"] for finding in findings(capsys)} == {"plan-mismatch"}


@pytest.mark.parametrize("verb", ["check", "plan", "explain", "verify"])
def test_of_a_code_that_is_none(verb: str, capsys: pytest.CaptureFixture[str]):
    assert main([verb, "net.ir", *OF_INPUTS[verb], "--allow", "nonsense", "--json"]) == 2
    assert findings(capsys)[0]["code"] == "job-value"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--var", "nope"], "there is no variable 'nope'"),
        (["--op", "999"], "@main^0 of trainer_0 has no op 999"),
        (["--op", "none"], "'none' is not the number of an op"),
        (["--role", "trainer_9"], "there is no machine 'trainer_9'"),
    ],
)
def test_of_what_is_asked_for_and_is_not_there(options: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert main(["explain", "net.ir", *JOB, *options, "--json"]) == 2
    told = capsys.readouterr()
    held = json.loads(told.out)
    (found,) = held["findings"]
    assert (held["errors"], found["code"]) == (1, "usage")
    assert found["message"].startswith(says)
    assert found["message"] in told.err


@pytest.mark.parametrize("verb", OF_INPUTS)
def test_of_options_that_are_none_or_wrong(verb: str, capsys: pytest.CaptureFixture[str]):
    for wrong in (["--nonsense"], [], ["net.ir", "--startup"]):
        assert main([verb, *wrong, "--json"]) == 2
        assert findings(capsys)[0]["code"] == "usage"
    assert main([verb, "--nonsense"]) == 2
    assert capsys.readouterr().out == ""


def test_of_a_folder_without_a_plan(capsys: pytest.CaptureFixture[str]):
    Path("out").mkdir()
    assert main(["explain", "out", "--json"]) == 1
    findings(capsys)


def test_findings_stand_on_stderr_too_where_no_json_is_asked_for(capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "wrong.ir", *JOB]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "wrong.ir:23:17: error[" in told.err
    assert main(["plan", "wrong.ir", *JOB, "--json"]) == 1
    assert capsys.readouterr().err == told.err
