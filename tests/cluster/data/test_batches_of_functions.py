"""What is told of the batches that a function gives: numbers that are no numbers."""

import re
from pathlib import Path

import pytest

from pstranspile.tools.cli import main

LOADER = """
import numpy as np


def loader(trainer, trainers):
    for step in range(3):
        x, y = np.ones((4, 13), "f4"), np.ones((4, 1), "f4")
        if step and trainer == trainers - 1:
            x[4 - step, 5] = np.nan
        yield {"x": x, "y": y}
"""


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program, from a folder with the loader."""
    program = str(Path(__file__).parents[3] / "examples" / "linear_regression.ir")
    Path(tmp_path, "d.py").write_text(LOADER)
    monkeypatch.chdir(tmp_path)
    return program


def told(err: str) -> list[str]:
    return [line for line in err.splitlines() if "data-nan" in line]


def test_nan_is_told_once_with_its_step_and_row(where: str, capsys: pytest.CaptureFixture[str]):
    assert main(["run", where, "--feed", "d.py:loader", "--steps", "3"]) == 0
    assert told(capsys.readouterr().err) == ["d.py:loader: warning[data-nan]: x is NaN in step 2, row 4"]


@pytest.mark.parametrize("command", ["run", "launch"])
def test_nan_is_told_with_the_trainer_whose_batch_it_is(where: str, command: str, capsys: pytest.CaptureFixture[str]):
    job = ["--pservers", "1", "--trainers", "2", "--feed", "d.py:loader", "--steps", "3"]
    assert main([command, where, *job]) == 0
    expected = "d.py:loader: warning[data-nan]: x is NaN in step 2, row 4 of the batch of trainer 1"
    assert [re.sub(r"^.*(?=d\.py)", "", line) for line in told(capsys.readouterr().err)] == [expected]


def test_batches_that_are_all_numbers_are_not_told_of(where: str, capsys: pytest.CaptureFixture[str]):
    assert main(["run", where, "--feed", "d.py:loader", "--steps", "1"]) == 0
    assert told(capsys.readouterr().err) == []
