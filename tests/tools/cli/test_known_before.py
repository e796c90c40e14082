"""What can be known of data before processes start is told before they do, and does not wait for other machines."""

from __future__ import annotations

import json
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from pstranspile.cluster.net import supervisor
from pstranspile.tools.cli import main
from tests.conftest import ROOT

JOB = ["--pservers", "2", "--trainers", "2"]
NET = str(ROOT / "examples" / "regression.ir")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compile", NET, *JOB, "-o", "out"]) == 0
    capsys.readouterr()


def started(*_arguments: object, **_options: object) -> None:
    """Stands in for the start of a process, which no test here comes to."""
    raise AssertionError("a process is started")


def written(form: str, x: int) -> None:
    """Rows with `x` columns for the 1000 numbers of x and 20 for y."""
    names = [*(f"f{at}" for at in range(x)), *(f"y{at}" for at in range(20))]
    if form == "csv":
        Path("rows.csv").write_text("\n".join([",".join(names), *[",".join(["1.0"] * len(names))] * 8]))
    elif form == "jsonl":
        Path("rows.jsonl").write_text("\n".join([json.dumps(dict.fromkeys(names, 1.0))] * 8))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import feather, parquet

        table = pyarrow.table({name: np.ones(8, "float32") for name in names})
        if form == "parquet":
            parquet.write_table(table, "rows.parquet")
        else:
            feather.write_feather(table, "rows.arrow")


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("what", [["launch", "out"], ["launch", NET, *JOB], ["run", NET], ["run", NET, *JOB]])
def test_columns_of_another_width(
    form: str, what: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(supervisor.subprocess, "Popen", started)
    written(form, 999)
    rows = ["--feed", f"rows.{form}", "--batch", "4", "--columns", "x=f*", "--columns", "y=y*"]
    assert main([*what, *rows]) == 1
    told = capsys.readouterr().err
    columns = "f0, f1, f2, f3, f4, f5, f6, f7 and 991 more"
    others = "y0, y1, y2, y3, y4, y5, y6, y7 and 12 more"
    said = f"x takes 1000 numbers, its columns have 999: {columns}; others in the file are {others}"
    assert told == f"rows.{form}: error[data-column]: {said}\n"


def test_all_widths_that_are_wrong_are_told(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("pyarrow")
    written("csv", 3)
    assert main(["run", NET, "--feed", "rows.csv", "--batch", "4", "--columns", "x=f*", "--columns", "y=f*"]) == 1
    told = capsys.readouterr().err
    assert "x takes 1000 numbers, its columns have 3: f0, f1, f2; others in the file are y0, y1" in told
    assert "y takes 20 numbers, its columns have 3" in told


def test_a_trainer_that_is_fed_nothing_does_not_wait(capsys: pytest.CaptureFixture[str]):
    begun = monotonic()
    assert main(["start", "out", "--role", "trainer_0"]) == 1
    assert monotonic() - begun < 30  # of the 60 seconds that it would wait for a server
    told = capsys.readouterr().err
    assert "error[run-feed-missing]: mul: x is an input of the program" in told
    assert "--feed FILE.npz gives the inputs of all steps" in told


def test_a_trainer_that_is_fed_one_input_of_two_does_not_wait(capsys: pytest.CaptureFixture[str]):
    np.savez("x.npz", x=np.ones((2, 4, 1000), "float32"))
    assert main(["start", "out", "--role", "trainer_1", "--feed", "x.npz"]) == 1
    assert "y is an input of the program" in capsys.readouterr().err


def test_a_trainer_that_is_fed_what_is_its_own_waits_for_its_servers(capsys: pytest.CaptureFixture[str]):
    x = np.ones((2, 4, 1000), "float32")
    np.savez("own.npz", **{"trainer_1/x": x, "trainer_1/y": x[:, :, :20]})
    command = ["start", "out", "--feed", "own.npz", "--patience", "0.2", "--role"]
    assert main([*command, "trainer_1"]) == 1
    assert "nobody answers for 0.2 seconds" in capsys.readouterr().err
    assert main([*command, "trainer_0"]) == 1
    assert "x is an input of the program" in capsys.readouterr().err
