"""Data that hold more than the program is fed: a warning that names it, once, whatever the data and the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pstranspile.tools.cli import main
from tests.conftest import ROOT
from tests.ports import free_ports

JOB = ["--pservers", "1", "--trainers", "2"]
LOADER = """\
import numpy as np

def batches(trainer, trainers):
    for _ in range(4):
        yield {"y": np.ones((3, 1), "float32"), "id": np.ones(3), "x": np.ones((3, 13), "float32"), "day": np.ones(3)}
"""
COMMANDS = {
    "run": ["run", "net.ir"],
    "cluster": ["run", "net.ir", *JOB],
    "check": ["check", "net.ir", *JOB],
    "report": ["report", "net.ir", *JOB, "-o", "page.html"],
    "launch": ["launch", "net.ir", *JOB],
    "folder": ["launch", "out"],
}
DATA = {
    "data.npz": [],
    "data.csv": ["--batch", "6", "--columns", "x=x*"],
    "data.parquet": ["--batch", "6"],
    "data.arrow": ["--batch", "6"],
    "data.jsonl": ["--batch", "6"],
    "data.multislot": ["--batch", "6", "--names", "id,x,day,y"],
    "data.py:batches": [],
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    monkeypatch.chdir(tmp_path)
    text = (ROOT / "examples" / "linear_regression.ir").read_text()
    Path("net.ir").write_text(text)
    assert main(["compile", "net.ir", *JOB, "-o", "out"]) == 0
    x, y, more = np.ones((4, 6, 13), "float32"), np.ones((4, 6, 1), "float32"), np.ones((4, 6))
    np.savez("data.npz", id=more, x=x, day=more * np.nan, y=y)
    names = ["id", *(f"x{at}" for at in range(13)), "day", "y"]
    Path("data.csv").write_text("\n".join([",".join(names), *[",".join("1" * 16)] * 24]))
    numbers = [1.0] * 24
    table = pyarrow.table({"id": numbers, "x": [[1.0] * 13] * 24, "day": numbers, "y": numbers})
    parquet.write_table(table, "data.parquet")
    feather.write_feather(table, "data.arrow", compression="uncompressed")
    row = f'{{"id": 1, "x": {[1] * 13}, "day": 2, "y": 1}}\n'
    Path("data.jsonl").write_text(row * 24)
    Path("data.multislot").write_text(f"1 7 13 {' '.join('1' * 13)} 1 8 1 1\n" * 24)
    Path("data.py").write_text(LOADER)
    capsys.readouterr()


def told(command: str, data: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    main([*COMMANDS[command], "--feed", data, *DATA[data]])
    err = capsys.readouterr().err
    assert "error" not in err
    assert "data-nan" not in err
    return [line for line in err.splitlines() if "run-feed-unknown" in line]


@pytest.mark.parametrize("data", DATA)
def test_every_kind_of_data(data: str, capsys: pytest.CaptureFixture[str]):
    said = f"{data}: warning[run-feed-unknown]: no input of the program takes id, day: left out"
    assert told("run", data, capsys) == [said]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("data", ["data.npz", "data.csv", "data.py:batches"])
def test_every_command(command: str, data: str, capsys: pytest.CaptureFixture[str]):
    said = f"{data}: warning[run-feed-unknown]: no input of the program takes id, day: left out"
    assert told(command, data, capsys) == [said]


@pytest.mark.parametrize("data", ["data.npz", "data.csv", "data.py:batches"])
def test_a_machine_that_is_started_alone_tells_it_too(data: str, capsys: pytest.CaptureFixture[str]):
    (port,) = free_ports(1)
    assert main(["compile", "net.ir", "--mode", "ddp", "--trainers", f"127.0.0.1:{port}", "-o", "alone"]) == 0
    capsys.readouterr()
    assert main(["start", "alone", "--role", "trainer_0", "--feed", data, *DATA[data]]) == 0
    assert capsys.readouterr().err.count("no input of the program takes id, day: left out") == 1


def test_names_that_are_nearly_those_of_inputs_are_suggested(capsys: pytest.CaptureFixture[str]):
    x, y = np.ones((4, 6, 13), "float32"), np.ones((4, 6, 1), "float32")
    np.savez("data.npz", **{"trainer_0/xx": x, "xx": x, "y": y, "1|words": x, "words2@LENS": y, "words2": y})
    for command in ("run", "cluster", "check", "launch"):
        assert main([*COMMANDS[command], "--feed", "data.npz"]) == 1
        err = capsys.readouterr().err
        assert "no input of the program takes xx, words, words2: left out\nnote: xx; did you mean x?\n" in err
        assert "error[run-feed-missing]: mul: x is an input of the program" in err


def test_arrays_for_a_trainer_that_is_not_there_are_an_error(capsys: pytest.CaptureFixture[str]):
    x, y = np.ones((4, 6, 13), "float32"), np.ones((4, 6, 1), "float32")
    np.savez("data.npz", **{"trainer_7/x": x, "x": x, "y": y})
    assert main([*COMMANDS["cluster"], "--feed", "data.npz"]) == 1
    assert "trainer_7/x is for trainer_7, which is none of 2 trainers" in capsys.readouterr().err
