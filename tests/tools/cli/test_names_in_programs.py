"""Names of variables in options that a program does not have: told with the program's file and the nearest name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pstranspile.tools.cli import main
from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
UNKNOWN = "is fetched, but the program declares no such variable; did you mean mean_0.tmp_0?"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("linear_regression", "forward"):
        Path(f"{name}.ir").write_bytes((EXAMPLES / f"{name}.ir").read_bytes())
    np.savez("d.npz", x=np.ones((1, 2, 13), "float32"), y=np.ones((1, 2, 1), "float32"))


@pytest.mark.parametrize(
    "command", [["run"], ["run", "--pservers", "1", "--trainers", "1"], ["launch", "--pservers", "1"]]
)
def test_fetch(command: list[str], capsys: pytest.CaptureFixture[str]):
    given = [command[0], "linear_regression.ir", *command[1:], "--feed", "d.npz", "--fetch", "mean_0.tmp"]
    assert main(given) == 1
    assert f"linear_regression.ir: error[run-fetch-unknown]: mean_0.tmp {UNKNOWN}" in capsys.readouterr().err


def test_fetch_of_a_serialized_program(capsys: pytest.CaptureFixture[str]):
    assert main(["export", "linear_regression.ir", "--to", "pb", "-o", "out"]) == 0
    capsys.readouterr()
    assert main(["run", "out/main.pb", "--startup", "out/startup.pb", "--feed", "d.npz", "--fetch", "mean_0.tmp"]) == 1
    assert f"out/main.pb: error[run-fetch-unknown]: mean_0.tmp {UNKNOWN}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--loss", "mean_0.tmp"], "error[loss-unknown]: no op of block 0 writes the loss %mean_0.tmp; did you mean"),
        (["--loss", "nothing"], "error[loss-unknown]: no op of block 0 writes the loss %nothing; they write %fc_0"),
        (["--loss", "mean_0.tmp_0", "--parameters", "fc_0.w_9"], "error[training-name-unknown]: %fc_0.w_9 is not a"),
        (["--loss", "mean_0.tmp_0", "--no-grad", "fc_0.w_9"], "error[training-name-unknown]: %fc_0.w_9 is not declar"),
    ],
)  # fmt: skip
def test_names_of_grad(options: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["grad", "forward.ir", "--optimizer", "sgd", *options]) == 1
    assert capsys.readouterr().err.startswith(f"forward.ir: {told}")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--fetch", "fc_1.tmp_9"], "fc_1.tmp_9 is to be a target, but the program declares no such variable; did you"),
        ([], "the program has no fetch op; --fetch names what a model shall compute"),
    ],
)
def test_names_of_export(options: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["export", "forward.ir", "--to", "inference", "-o", "model", *options]) == 1
    assert capsys.readouterr().err.startswith(f"forward.ir: error[inference-program]: {told}")
