"""The command `explain`."""

import json
from pathlib import Path

import pytest

from pstranspile.tools.cli import main

ROOT = Path(__file__).parents[3]
PROGRAM = str(ROOT / "golden" / "mlp_adam.ir")
JOB = ["--pservers", "a:6174,b:6174", "--trainers", "2"]


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = main(["explain", *arguments])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return out


@pytest.fixture
def folder(tmp_path: Path) -> str:
    assert main(["compile", PROGRAM, *JOB, "-o", str(tmp_path)]) == 0
    return str(tmp_path)


@pytest.mark.parametrize(
    "question", [[], ["--op", "3"], ["--role", "pserver_1"], ["--var", "w1"], ["--var", "lr"], ["--line", "60"]]
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_folder_and_its_source_are_told_alike(
    folder: str, question: list[str], form: list[str], capsys: pytest.CaptureFixture[str]
):
    by_source = output(capsys, PROGRAM, *JOB, *question, *form)
    assert output(capsys, folder, *question, *form) == by_source.replace(PROGRAM, "mlp_adam.ir")
    if form:
        assert json.loads(by_source)["kind"] in ("op", "variable", "line", "overview")


def test_an_op_of_the_source_is_quoted(folder: str, capsys: pytest.CaptureFixture[str]):
    listed = output(capsys, folder, "--role", "trainer_0").splitlines()
    at, _, rest = next(line for line in listed if "split-gradient for " in line).strip().partition("  ")
    line = int(rest.rpartition(":")[2])
    told = output(capsys, folder, "--op", at)
    assert f"mlp_adam.ir:{line}\n    {Path(PROGRAM).read_text().splitlines()[line - 1].strip()}\n" in told


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (["--op", "9999"], "@main^0 of trainer_0 has no op 9999"),
        (["--op", "x"], "'x' is not the number of an op"),
        (["--var", "w3"], "there is no variable 'w3'; did you mean w"),
        (["--role", "trainer_9"], "there is no machine 'trainer_9'; did you mean trainer_"),
        (["--op", "1", "--var", "w1"], "not allowed with argument"),
        (["--op", "1", "--line", "60"], "not allowed with argument"),
        (["--line", "1"], "no op comes from line 1 of mlp_adam.ir; the nearest lines with ops are 54, 55"),
        (["--pservers", "2"], "--pservers goes with a program"),
        (["--set", "slice_var_up=false"], "--set goes with a program"),
    ],
)
def test_wrong_usage(folder: str, question: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["explain", folder, *question]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_inputs_that_can_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["explain", str(tmp_path)]) == 1
    assert "error[folder-without-programs]" in capsys.readouterr().err
    assert main(["explain", str(tmp_path / "none")]) == 1
    assert "there is no such file" in capsys.readouterr().err
    assert main(["compile", PROGRAM, *JOB, "-o", str(tmp_path)]) == 0
    (tmp_path / "plan.json").unlink()
    assert main(["explain", str(tmp_path)]) == 1
    assert "error[explain-record]" in capsys.readouterr().err


def test_serialized_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["export", PROGRAM, "--to", "pb", "-o", str(tmp_path)]) == 0
    capsys.readouterr()
    named = [
        str(tmp_path / "main.pb"),
        "--startup",
        str(tmp_path / "startup.pb"),
        "--meta",
        str(tmp_path / "meta.json"),
    ]
    told = output(capsys, *named, *JOB, "--op", "startup#0")
    assert "it is @startup^0#" in told
    assert f", {tmp_path / 'startup.pb'}\n" in told


def test_long_lists_are_cut(capsys: pytest.CaptureFixture[str]):
    asked = [PROGRAM, "--pservers", "a:1,b:2", "--trainers", "2", "--role", "pserver_0", "--op", "0"]
    assert "more (--all shows them)" in output(capsys, *asked)
    assert "(--all shows them)" not in output(capsys, *asked, "--all")
