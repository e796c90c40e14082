"""Ids for which a table has no row: told with their row, left out with the other bad rows, and not counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.tools.cli import main

pytest.importorskip("pyarrow")

NET = """ir 1
program @main {
  block ^0 {
    temp %ids : i64[-1, 1] feed
    temp %y : f32[-1, 2] feed
    param %w : f32[10, 2]
    temp %words : f32[-1, 2]
    temp %d : f32[-1, 2]
    temp %loss : f32[1]
    lookup_table(Ids=%ids, W=%w) -> Out=%words
    elementwise_sub(X=%words, Y=%y) -> Out=%d
    mean(X=%d) -> Out=%loss : loss
  }
}
program @startup {
  block ^0 {
    param %w : f32[10, 2]
    fill_constant() -> Out=%w {shape=[10, 2], dtype=5, value=1.0}
  }
}
"""
JOB = ["--pservers", "1", "--trainers", "2"]
FEED = ["--feed", "e.csv", "--batch", "2", "--columns", "y=y1,y2"]
IDS = (1, 2, -3, 10, 3, 4)

LOADER = """
import numpy as np


def loader(trainer, trainers):
    for step in range(2):
        yield {"ids": np.array([[1], [2], [3 - 4 * step]]), "y": np.ones((3, 2), "f4")}
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(NET)
    Path("e.csv").write_text("ids,y1,y2\n" + "".join(f"{one},1,1\n" for one in IDS))
    Path("ids_of_loader.py").write_text(LOADER)


def told(capfd: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main([*arguments]) == status
    return capfd.readouterr().err.replace(f"{Path.cwd()}/", "")


def test_an_id_is_told_with_its_file_line_step_and_table(capfd: pytest.CaptureFixture[str]):
    err = told(capfd, "run", "net.ir", *FEED, status=1)
    assert "e.csv:4:1: error[data-row]: the row can't be fed: ids holds -3, but the table w has ids from 0 to 9" in err
    assert "e.csv:5:1: error[data-row]: the row can't be fed: ids holds 10, but the table w has ids from 0 to 9" in err
    assert err.count("note: in step 2") == 2
    err = told(capfd, "run", "net.ir", *FEED, *JOB, status=1)
    assert "ids holds 10, but the table w has ids from 0 to 9" in err
    assert "note: on trainer_1, step 1" in err


@pytest.mark.parametrize("verb", ["run", "cluster", "launch"])
def test_such_rows_are_left_out_with_the_other_bad_ones(verb: str, capfd: pytest.CaptureFixture[str]):
    job = [] if verb == "run" else JOB
    err = told(capfd, "run" if verb == "cluster" else verb, "net.ir", *FEED, *job, "--bad-rows", "skip")
    assert [line for line in err.splitlines() if "data-row" in line] == [
        f"e.csv:{line}:1: warning[data-row]: the row is left out: ids holds {one}, but the table w has ids from 0 to 9"
        for line, one in ((4, -3), (5, 10))
    ]


def test_rows_of_ragged_ids_and_of_files_of_columns(capfd: pytest.CaptureFixture[str]):
    import pyarrow
    from pyarrow import parquet

    ragged = NET.replace("%ids : i64[-1, 1]", "%ids : i64[-1, 1] lod=1")
    ragged = ragged.replace("    temp %d", "    temp %p : f32[-1, 2]\n    temp %m : i32[-1, 2]\n    temp %d")
    ragged = ragged.replace("%words : f32[-1, 2]", "%words : f32[-1, 2] lod=1").replace("X=%words", "X=%p")
    pool = '    sequence_pool(X=%words) -> Out=%p, MaxIndex=%m {pooltype="SUM"}\n    elementwise_sub'
    Path("ragged.ir").write_text(ragged.replace("    elementwise_sub", pool))
    columns: dict[str, Any] = {"ids": [[1, 2], [], [3, 11, 4], [-1], [5]], "y": [[1.0, 1.0]] * 5}
    parquet.write_table(pyarrow.table(columns), "e.parquet")
    err = told(capfd, "run", "ragged.ir", "--feed", "e.parquet", "--batch", "5", "--bad-rows", "skip")
    expected = [(3, 11), (4, -1)]
    assert [line for line in err.splitlines() if "data-row" in line] == [
        f"e.parquet: warning[data-row]: row {row} is left out: ids holds {wrong}, but the table w has ids from 0 to 9"
        for row, wrong in expected
    ]


@pytest.mark.parametrize("verb", ["run", "cluster", "check", "launch"])
def test_ids_of_arrays_and_of_batches_are_told_with_their_row(verb: str, capfd: pytest.CaptureFixture[str]):
    np.savez("e.npz", ids=np.array([[[1], [2]], [[4], [12]]]), y=np.ones((2, 2, 2), "float32"))
    job = [] if verb == "run" else JOB
    verb = "run" if verb == "cluster" else verb
    known = "but the table w has ids from 0 to 9"
    err = told(capfd, verb, "net.ir", "--feed", "e.npz", *job, status=1)
    assert f"error[run-feed-mismatch]: lookup_table: Ids holds 12, {known}: row 2 of ids in step 2 of e.npz" in err
    err = told(capfd, verb, "net.ir", "--feed", "ids_of_loader.py:loader", "--steps", "2", *job, status=1)
    assert err.count(f"Ids holds -1, {known}: row 3 of ids in batch 2 of ids_of_loader.py:loader") == 1


def test_ids_that_an_op_makes_are_not_known_before_and_that_is_said(capfd: pytest.CaptureFixture[str]):
    made = NET.replace(
        "    lookup_table(Ids=%ids", "    scale(X=%ids) -> Out=%made {scale=2.0}\n    lookup_table(Ids=%made"
    )
    Path("made.ir").write_text(made.replace("    param %w", "    temp %made : i64[-1, 1]\n    param %w", 1))
    err = told(capfd, "run", "made.ir", *FEED, "--bad-rows", "skip", status=1)
    assert "error[run-op-failed]: lookup_table: Ids holds -6, but W has 10 rows" in err
    assert "note: --bad-rows skip leaves out rows by the ids that an input holds; %made is made by an op" in err
    cast = NET.replace(
        "    lookup_table(Ids=%ids", "    reshape(X=%ids) -> Out=%made {shape=[-1, 1]}\n    lookup_table(Ids=%made"
    )
    Path("made.ir").write_text(cast.replace("    param %w", "    temp %made : i64[-1, 1]\n    param %w", 1))
    err = told(capfd, "run", "made.ir", *FEED, "--bad-rows", "skip")
    assert err.count("is left out: ids holds") == 2


def test_counts_of_ids_leave_out_such_ids_and_say_so(capfd: pytest.CaptureFixture[str]):
    count = ["rows", "--histogram", "net.ir", "-o", "ids.json"]
    warned = "warning[id-counts]: ids holds ids that are not in 0 to 9, which are not counted for %w"
    assert f"e.csv: {warned}: 2, the first (-3) in row 3\n" in told(capfd, *count, *FEED)
    ranges = json.loads(Path("ids.json").read_text())["tables"][0]["ranges"]
    assert [one[0] for one in ranges] == [1, 2, 3, 4]
    shuffled = told(capfd, *count, *FEED, "--shuffle", "1", "--epochs", "2")
    assert f"{warned}: 4, the first (10) in row 4\n" in shuffled
    err = told(capfd, *count, "--feed", "ids_of_loader.py:loader")
    assert f"ids_of_loader.py:loader: {warned}: 1, the first (-1) in step 2, row 3\n" in err
    Path("e.csv").write_text("ids,y1,y2\n1,1,1\n2,1,1\n")
    assert "id-counts" not in told(capfd, *count, *FEED)


def test_padding_is_not_told_of(capfd: pytest.CaptureFixture[str]):
    Path("e.csv").write_text("ids,y1,y2\n9,1,1\n2,1,1\n")
    Path("net.ir").write_text(NET.replace("Out=%words", "Out=%words {padding_idx=9}"))
    assert "ids holds" not in told(capfd, "run", "net.ir", *FEED)
    assert "ids holds" not in told(capfd, "rows", "--histogram", "net.ir", "-o", "ids.json", *FEED)
