"""Rows and steps count from 1 in all that is told of them, whatever feeds them."""

from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.tools.cli import main

ROOT = Path(__file__).parents[3]
TEXT = """ir 1
program @main {
  block ^0 {
    temp  %x : f32[-1, 1] feed
    temp  %loss : f32[1]
    mean(X=%x) -> Out=%loss : loss
  }
}
program @startup { block ^0 { } }
"""
LOADER = """
import numpy as np
def loader(trainer, trainers):
    yield {"x": np.ones((4, 1), "f4")}
    yield {"x": np.array([[1], [1], [np.nan], [1]], "f4")}
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(TEXT.replace("{ block ^0 { } }", "{\n  block ^0 {\n  }\n}"))
    return "net.ir"


FED = [
    (["rows.csv", "--batch", "4"], "in row 7"),
    (["arrays.npz"], "in step 2, row 3"),
    (["batches.py:loader"], "in step 2, row 3"),
]
"""Feeds whose third row of the second step holds NaN, and how its place is told."""


@pytest.mark.parametrize(("feed", "place"), FED, ids=lambda value: str(value[0]) if isinstance(value, list) else "")
def test_a_row_is_told_by_its_number(
    program: str, capsys: pytest.CaptureFixture[str], feed: list[str], place: str
) -> None:
    values = np.ones((2, 4, 1), "f4")
    values[1, 2] = np.nan
    np.savez("arrays.npz", x=values)
    Path("rows.csv").write_text("".join(f"{value}\n" for value in ["x", *values.ravel()]))
    Path("batches.py").write_text(LOADER)
    assert main(["run", program, "--feed", *feed, "--fetch", "loss"]) == 0
    told = capsys.readouterr().err
    assert "data-nan" in told
    assert place in told


def test_the_place_of_a_row_that_is_not_there(program: str) -> None:
    Path("rows.csv").write_text("x\n1\n2\n3\n4\n")
    data = ps.Data("rows.csv", batch=2)
    data.feeds([ps.load(program).main])
    assert data.row_of(1, 0) == ("rows.csv", 3)
    with pytest.raises(IndexError, match=r"step 1 has no row 2 \(steps and rows count from 0 here\)"):
        data.row_of(1, 2)
