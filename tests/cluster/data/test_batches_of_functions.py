"""What is told of the batches that a function gives: values that don't fit, and numbers that are no numbers."""

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


MORE = """

def apart(trainer, trainers):
    for step in range(3):
        yield {"x": np.ones((8, 13), "f4"), "y": np.ones((8 if step == 0 else 1, 1), "f4")}


def wide(trainer, trainers):
    yield {"x": np.ones((4, 13), "f8"), "y": np.ones((4, 1), "f4")}


def lists(trainer, trainers):
    yield {"x": [[1] * 13] * 4, "y": [[1.0]] * 4}


def empty(trainer, trainers):
    for rows in (4, 0, 4, 0):
        x = np.ones((rows, 13), "f4")
        if rows:
            x[-1] = -np.inf
        yield {"x": x, "y": np.ones((rows, 1), "f4")}


def uneven(trainer, trainers):
    yield {"x": [[1] * 13] * 4, "y": [[1.0], [1.0, 2.0]]}
"""


@pytest.fixture
def more(where: str) -> str:
    """The program, from a folder with more loaders."""
    Path("more.py").write_text(LOADER + MORE)
    return where


JOB = ["--pservers", "1", "--trainers", "2"]


@pytest.mark.parametrize("command", ["run", "cluster", "check", "launch"])
def test_rows_that_differ_name_the_loader_and_the_batch(more: str, command: str, capfd: pytest.CaptureFixture[str]):
    verb, job = ("run" if command == "cluster" else command), [] if command == "run" else JOB
    assert main([verb, more, *job, "--feed", "more.py:apart", "--steps", "3"]) == 1
    err = capfd.readouterr().err
    assert err.count("x has 8 rows and y has 1 in batch 2 of more.py:apart, which it takes side by side") == 1
    assert f"{more}:24:5: error[run-feed-mismatch]: elementwise_sub: x has 8 rows" in err


@pytest.mark.parametrize("command", ["run", "cluster", "check", "launch"])
def test_a_value_of_another_type_names_the_loader_the_batch_and_the_input(
    more: str, command: str, capfd: pytest.CaptureFixture[str]
):
    verb, job = ("run" if command == "cluster" else command), [] if command == "run" else JOB
    assert main([verb, more, *job, "--feed", "more.py:wide", "--steps", "1"]) == 1
    told = "x is declared f32[-1, 13], but in batch 1 of more.py:wide is fed f64[4, 13]"
    err = capfd.readouterr().err
    assert f"{more}:5:5: error[run-feed-mismatch]: {told}; convert it with .astype('float32')" in err
    assert err.count(told) == 1


def test_lists_of_numbers_are_taken_as_they_are_declared(more: str, capsys: pytest.CaptureFixture[str]):
    assert main(["run", more, "--feed", "more.py:lists", "--steps", "1"]) == 0
    assert main(["run", more, "--feed", "more.py:uneven", "--steps", "1"]) == 1
    assert "batch 1 of more.py:uneven is fed a list whose rows are not alike" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "cluster", "launch"])
def test_infinity_and_batches_without_rows_are_told_once(
    more: str, command: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
):
    verb, job = ("run" if command == "cluster" else command), [] if command == "run" else JOB
    assert main([verb, more, *job, "--feed", "more.py:empty", "--steps", "4"]) == 0
    of = "" if command == "run" else " of trainer 0"
    rows = f"row 4{of.replace(' of', ' of the batch of')}"
    found = [line.replace(f"{tmp_path}/", "") for line in capfd.readouterr().err.splitlines() if "data-" in line]
    assert found == [
        f"more.py:empty: warning[data-infinite]: x is infinite in step 1, {rows}",
        f"more.py:empty: warning[data-empty]: the batch{of} in step 2 has no rows, so it trains nothing",
    ]
