"""What is said of a file, a folder or a variable that is not there: what is there in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pstranspile.tools.cli import main

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "regression.ir")
OUT = ["--to", "inference", "-o", "out", "--fetch", "loss"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", EXAMPLE, *OUT, "--from", "trained"], "trained: error[run-file-unusable]: "),
        (["export", EXAMPLE, *OUT, "--from", "nowhere/x"], "there is no folder nowhere"),
        (["run", EXAMPLE, "--feed", "feed.npz"], "did you mean feeds.npz?"),
        (["verify", "modle.ir"], "there is no such file; did you mean model.ir?"),
        (["diff", "modle.ir", EXAMPLE], "there is no such file or folder; did you mean model.ir?"),
        (["check", "modle.py:training"], "there is no such file; did you mean model.py?"),
        (["run", EXAMPLE, "--fetch", "zzz"], "declares no such variable; it computes "),
        (["run", EXAMPLE, "--fetch", "lss"], "declares no such variable; did you mean loss?"),
        (["run", EXAMPLE, "--pservers", "2", "--fetch", "zzz"], "; it computes "),
    ],
)
def test_what_is_there_is_named(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trained_values").mkdir()
    for name in ("feeds.npz", "model.ir", "model.py"):
        (tmp_path / name).write_bytes(b"")
    assert main(arguments) in (1, 2)
    told = capsys.readouterr().err
    assert said in told
    if "trained" in arguments:
        assert "did you mean trained_values?" in told
    assert "@GRAD" not in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["launch", EXAMPLE, "--role", "trainer_0"],
            "no option --role; `pstranspile start DIR --role NAME` runs one ma",
        ),
        (
            ["run", EXAMPLE, "--role=trainer_0"],
            "no option --role; `pstranspile start DIR --role NAME` runs one machine",
        ),
        (["check", EXAMPLE, "--job", "job.toml"], "there is no option --job; did you mean --config?"),
        (["run", EXAMPLE, "--data", "d.npz"], "there is no option --data; did you mean --feed?"),
        (["run", EXAMPLE, "--batch_size", "3"], "there is no option --batch_size; did you mean --batch?"),
        (["grad", EXAMPLE, "--learning-rate", "3"], "there is no option --learning-rate; did you mean --lr?"),
    ],
)
def test_options_that_others_have(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_script_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    assert main(["fluid", "trian.py"]) == 2
    assert capfd.readouterr().err == "pstranspile fluid: there is no file trian.py; did you mean train.py?\n"
