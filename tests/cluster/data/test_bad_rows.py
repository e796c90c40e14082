"""Rows that can't be fed are refused, or left out and counted, with their file and place."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.data import text_files as lines
from pstranspile.tools.cli import main
from tests.cluster.data.tables import clicks, data, rows, write

pytest.importorskip("pyarrow", reason="files of columns are read by pyarrow")

BAD = {
    "csv": ("9.0,1 x,0,0", "9.0,1,0", ",1,0,0", "9.0,1,z,0"),
    "jsonl": ('{"click": 9', '{"click": 9, "ids": [1, null], "a": 1, "b": 1}', '{"ids": [1], "a": 1, "b": 1}'),
    "multislot": ("1 1 2 0 0 1", "1 1 2 0 0 1 9 9", "1 x 2 0 0 1 9", "1 1 1 0 1 9", "0 2 0 0 1 9", "1 1 2 0 z 1 9"),
}


def damaged(path: Path) -> tuple[list[int], str]:
    """A file with bad lines between good ones: their numbers, and its name."""
    lines = Path(write(path, rows(30))).read_text().splitlines()
    numbers: list[int] = []
    for place, line in enumerate(BAD[path.suffix[1:]]):
        numbers.append(4 * place + 6)
        lines.insert(numbers[-1] - 1, line)
    path.write_text("\n".join(lines) + "\n")
    return numbers, str(path)


@pytest.mark.parametrize("kind", BAD)
def test_they_are_left_out_of_their_batch(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lines, "BLOCK", 200)
    numbers, path = damaged(tmp_path / f"x.{kind}")
    source = data(path, bad_rows="skip")
    fed = clicks(source, trainers=2)
    assert sorted(row for step in fed for share in step for row in share) == list(map(float, range(30)))
    assert [row.line for row in source.bad] == numbers
    told = source.warnings()
    assert [str(warning.location).rpartition(":")[0] for warning in told] == [f"{path}:{line}" for line in numbers]
    assert told[0].message.startswith("the row is left out: ")


@pytest.mark.parametrize("kind", BAD)
def test_they_end_the_run_when_they_are_reached(kind: str, tmp_path: Path):
    _, path = damaged(tmp_path / f"x.{kind}")
    source = data(path, batch=2)
    clicks(source, steps=range(2))
    with pytest.raises(ps.DiagnosticError) as caught:
        clicks(source, steps=range(3))
    assert re.match(rf"{re.escape(path)}:6:[0-9]+: error\[data-row\]: the row can't be fed: ", str(caught.value))


@pytest.mark.parametrize(
    ("line", "culprit"),
    [
        ("9.0,1 2,0,x", "b"),
        ("x,1 2,0,0", "click"),
        ("9.0,1 2.5,0,0", "ids"),
        ("9.0,99999999999999999999 1,0,0", "ids"),
    ],
)
def test_a_unit_of_bad_rows_alone_names_the_column_at_fault(
    line: str, culprit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lines, "BLOCK", 1)  # so that each line is a unit
    path = tmp_path / "x.csv"
    path.write_text(f"click,ids,a,b\n{line}\n1.0,1 2,0,0\n")
    with pytest.raises(ps.DiagnosticError) as caught:
        clicks(data(str(path)))
    column = line.index("x" if "x" in line else "2.5" if "2.5" in line else "999") + 1
    assert f"{path}:2:{column}: error[data-row]: the row can't be fed: {culprit}: " in str(caught.value)
    source = data(str(path), bad_rows="skip")
    assert clicks(source) == [[[1.0]]]
    assert [row.line for row in source.bad] == [2]


def test_rows_of_columns(tmp_path: Path):
    given = rows(20)
    given[3]["a"] = None
    given[7]["ids"] = None
    given[11]["ids"] = [1, None]
    source = data(write(tmp_path / "x.parquet", given), bad_rows="skip", shuffle=1)
    fed = clicks(source, trainers=3)
    assert sorted(row for step in fed for share in step for row in share) == [
        n for n in range(20) if n not in (3, 7, 11)
    ]
    assert [(row.number, row.reason) for row in source.bad] == [
        (4, "a has no value"),
        (8, "ids has no value"),
        (12, "a value in the list of ids is missing"),
    ]


def test_lists_of_another_size(tmp_path: Path):
    given = [{**row, "d": [1.0, 2.0]} for row in rows(6)]
    given[2]["d"] = [1.0]
    path = write(tmp_path / "x.parquet", given)
    source = data(path, columns={"dense": "d"}, bad_rows="skip")
    assert clicks(source) == [[[0, 1, 3, 4, 5]]]
    assert source.bad[0].reason == "d has 1 numbers, dense takes 2"


def test_a_step_of_bad_rows_alone_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Its values would be means over no rows."""
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("click,dnn_data,lr_data\n1,1 2,3\nx,2,4\n1,5,6\n0,9,9\n")
    Path("good.csv").write_text("click,dnn_data,lr_data\n1,1 2,3\n1,5,6\n0,9,9\n")
    model = str(Path(__file__).parents[3] / "examples" / "ctr_dnn.ir")
    command = ["run", model, "--batch", "1", "--fetch", "mean_0.tmp_0"]
    assert main([*command, "--feed", "rows.csv", "--bad-rows", "skip", "--save", "skipped.npz"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.partition("mean_0.tmp_0 ")[2] for line in shown if "step 2/4" in line] == ["no rows"]
    assert main([*command, "--feed", "good.csv", "--save", "good.npz"]) == 0
    with np.load("skipped.npz") as skipped, np.load("good.npz") as good:
        names = [name for name in good.files if name.startswith("param/")]
        assert names == [name for name in skipped.files if name.startswith("param/")]
        for name in names:
            assert np.array_equal(skipped[name], good[name]), name


NET = """ir 1
program @main {
  block ^0 {
    temp %x : f32[-1, 1] feed
    param %w : f32[1, 1]
    temp %p : f32[-1, 1]
    temp %loss : f32[1]
    mul(X=%x, Y=%w) -> Out=%p
    mean(X=%p) -> Out=%loss : loss
  }
}
program @startup {
  block ^0 {
    param %w : f32[1, 1]
    fill_constant() -> Out=%w {shape=[1, 1], dtype=5, value=1.0}
  }
}
"""


def _told(capfd: pytest.CaptureFixture[str], path: Path, bad: range | tuple[int, ...], *arguments: str) -> str:
    (path / "net.ir").write_text(NET)
    lines = ["x", *("a" if row in bad else str(row) for row in range(1, 41))]
    (path / "x.csv").write_text("\n".join(lines) + "\n")
    command, *more = arguments
    assert main([command, str(path / "net.ir"), "--feed", str(path / "x.csv"), *more]) == 1
    return capfd.readouterr().err


def test_more_bad_rows_than_are_shown_are_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    err = _told(capfd, tmp_path, range(3, 18), "run", "--batch", "20")
    assert "x.csv:4:1: error[data-row]: the row can't be fed" in err
    assert "note: and 9 more findings error[data-row]" in err
    assert "error[data-row]: and 5 more rows of the batch can't be fed\n" in err
    err = _told(capfd, tmp_path, range(3, 13), "run", "--batch", "20")
    assert "note: and 9 more findings error[data-row]" in err
    assert "of the batch" not in err


@pytest.mark.parametrize("command", ["run", "check"])
def test_those_of_all_trainers_in_a_step_are_told(command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    job = ("--pservers", "1", "--trainers", "2", "--batch", "10")
    err = _told(capfd, tmp_path, (2, 7, 23), command, *job)
    notes = [line for line in err.splitlines() if "error[data-row]" in line or line.strip().startswith("note: on ")]
    assert [note.partition("x.csv:")[2][:2] or note.strip() for note in notes] == [
        "3:",
        "note: on trainer_0, step 1",
        "24",
        "note: on trainer_1, step 1",
    ]
