"""Functions that give batches and don't do as they should: each is told with its line, and prints stay off stdout."""

import json
from pathlib import Path

import pytest

from pstranspile.tools.cli import main

LOADERS = """
import os
import sys

import numpy as np


def batch():
    return {"x": np.ones((4, 13), "f4"), "y": np.ones((4, 1), "f4")}


def short(trainer, trainers):
    for _ in range(3):
        yield batch()


def none(trainer, trainers):
    yield batch()
    yield None
    yield batch()


def masked(trainer, trainers):
    held = batch()
    yield {**held, "x": np.ma.masked_less(held["x"], 2)}


def prints(trainer, trainers):
    print("HELLO")
    for step in range(2):
        print("HELLO", step)
        yield batch()


class Odd(BaseException):
    pass


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def odd(trainer, trainers):
    yield batch()
    raise Odd("not as others")


def silent(trainer, trainers):
    yield batch()
    raise Silent


def asks(trainer, trainers):
    yield batch()
    input("more? ")
    yield batch()


def leaves(trainer, trainers):
    yield batch()
    if trainer:
        os._exit(0)
    yield batch()


def ends(trainer, trainers):
    yield batch()
    sys.exit(0)
"""

FAILING = {
    "none": "d.py:none: error[data-source]: it gives None as a batch",
    "masked": "d.py:masked: error[data-source]: x has masked elements",
    "odd": "d.py:46:5: error[input-python]: Odd: not as others",
    "silent": "d.py:51:5: error[input-python]: Silent",
    "ends": "d.py:69:5: error[input-python]: it ends the process (status 0)\n",
}
"""What is told of each function."""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program, from a folder with the functions."""
    Path(tmp_path, "d.py").write_text(LOADERS)
    monkeypatch.chdir(tmp_path)
    return str(Path(__file__).parents[3] / "examples" / "linear_regression.ir")


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("job", [[], ["--pservers", "1", "--trainers", "2"]], ids=["single", "cluster"])
def test_a_failure_is_told_with_its_line(program: str, name: str, job: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["run", program, *job, "--feed", f"d.py:{name}", "--steps", "3"]) == 1
    err = capsys.readouterr().err
    assert FAILING[name] in err
    assert "__main__" not in err


def test_what_a_function_prints_leaves_documents_whole(program: str, capsys: pytest.CaptureFixture[str]):
    job = ["--pservers", "1", "--trainers", "2", "--feed", "d.py:prints"]
    assert main(["check", program, *job, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["steps"] == 2
    assert "HELLO 1" in err


@pytest.mark.parametrize("command", ["run", "launch", "check"])
def test_fewer_batches_than_steps_are_an_error(program: str, command: str, capsys: pytest.CaptureFixture[str]):
    job = [command, program, "--pservers", "1", "--trainers", "2", "--feed", "d.py:short"]
    assert main([*job, "--steps", "6"]) == 1
    assert "error[run-file-unusable]: d.py:short gives batches for 3 steps; 6 are asked for" in capsys.readouterr().err
    assert main([*job, "--steps", "3"]) == 0


def test_one_machine_counts_the_steps_that_are_asked_for(program: str, capsys: pytest.CaptureFixture[str]):
    assert main(["run", program, "--feed", "d.py:short", "--steps", "6"]) == 1
    assert "d.py:short gives batches for 3 steps; 6 are asked for\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "launch"])
def test_a_checkpoint_names_the_steps_that_were_done(program: str, command: str, capsys: pytest.CaptureFixture[str]):
    job = [command, program, "--pservers", "1", "--trainers", "2", "--feed", "d.py:short"]
    main([*job, "--steps", "6", "--checkpoint", "kept"])
    assert not Path("kept", "step_00000006").exists()
    assert main([*job, "--steps", "3", "--checkpoint", "other"]) == 0
    capsys.readouterr()
    assert main([*job, "--steps", "5", "--resume", "other"]) == 1
    assert "d.py:short gives batches for 3 steps; 5 are asked for" in capsys.readouterr().err


def test_a_process_has_nothing_on_stdin(program: str, capsys: pytest.CaptureFixture[str]):
    job = ["--pservers", "1", "--trainers", "2", "--feed", "d.py:asks", "--steps", "2"]
    assert main(["launch", program, *job]) == 1
    assert "d.py:56:5: error[input-python]: EOFError" in capsys.readouterr().err


def test_a_process_that_ends_before_its_part_is_done_is_named(program: str, capsys: pytest.CaptureFixture[str]):
    """It ends with status 0, as one that is done: the others would wait until it is given up."""
    job = ["--pservers", "1", "--trainers", "2", "--feed", "d.py:leaves", "--steps", "2"]
    assert main(["launch", program, *job]) == 1
    err = capsys.readouterr().err
    assert "error[launch-ended]: trainer_1 has ended with status 0" in err
    assert "given up" not in err
