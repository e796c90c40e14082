"""`pstranspile run` of programs that were cut down and saved for inference, with `feed` and `fetch` ops."""

from pathlib import Path

import numpy as np
import pytest

from pstranspile.tools.cli import main

SAVED = """ir 1
program @main {
  block ^0 {
    state %feed : feed_list
    state %fetch : fetch_list
    state %w : f32[3, 2]
    temp %x : f32[-1, 3] feed
    temp %y : f32[-1, 2]
    temp %z : f32[1]
    feed(X=%feed) -> Out=%x {col=0}
    mul(X=%x, Y=%w) -> Out=%y
    mean(X=%y) -> Out=%z
    fetch(X=%z) -> Out=%fetch {col=1}
    fetch(X=%y) -> Out=%fetch {col=0}
  }
}
"""


def test_every_step_shows_what_the_fetch_ops_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("saved.ir").write_text(SAVED, encoding="utf-8")
    x = np.arange(18, dtype="float32").reshape(3, 2, 3)
    w = np.array([[1, 0], [0, 1], [1, 1]], "float32")
    np.savez("feed.npz", x=x)
    np.savez("init.npz", w=w)
    assert main(["run", "saved.ir", "--feed", "feed.npz", "--init", "init.npz", "--save", "out.npz"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "step 1/3  y f32[2, 2]: 2 3 8 9  z 5.5",
        "step 2/3  y f32[2, 2]: 14 15 20 21  z 17.5",
        "step 3/3  y f32[2, 2]: 26 27 32 33  z 29.5",
    ]
    with np.load("out.npz") as saved:
        assert np.array_equal(saved["step/y"], x @ w)
        assert saved["step/z"].shape == (3, 1)
