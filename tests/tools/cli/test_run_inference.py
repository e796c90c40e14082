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


def test_what_the_model_was_trained_with_is_left_out_of_its_feed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Fluid's Executor leaves out what a program does not have, with a warning."""
    monkeypatch.chdir(tmp_path)
    Path("saved.ir").write_text(SAVED, encoding="utf-8")
    x = np.arange(18, dtype="float32").reshape(3, 2, 3)
    np.savez("init.npz", w=np.array([[1, 0], [0, 1], [1, 1]], "float32"))
    by_step = {f"{step}|ids": np.ones((2, 1), "int64") for step in (1, 2)}
    words = {"words": np.ones((6, 1), "int64"), "words@LENS": np.ones((3, 2), "int64")}
    np.savez("feed.npz", x=x, label=np.ones((5, 2, 1), "int64"), **by_step, **words)
    assert main(["run", "saved.ir", "--feed", "feed.npz", "--init", "init.npz"]) == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 3
    message = "no input of the program takes label, ids, words: left out"
    assert told.err == f"feed.npz: warning[run-feed-unknown]: {message}\n"
    np.savez("feed.npz", X=x)
    assert main(["run", "saved.ir", "--feed", "feed.npz", "--init", "init.npz"]) == 1
    told = capsys.readouterr()
    assert "error[" in told.err


IMPORTED = """ir 1
program @main {
  block ^0 {
    param %w : f32[3, 2]
    temp %x : f32[-1, 3] feed
    temp %h : f32[-1, 2]
    temp %flat : f32[-1]
    temp %shape : f32[0, -1, 2]
    temp %z : f32[1]
    state %kept : f32[1]
    mul(X=%x, Y=%w) -> Out=%h
    reshape2(X=%h) -> Out=%flat, XShape=%shape {shape=[-1]}
    mean(X=%h) -> Out=%z
    mean(X=%h) -> Out=%kept
  }
}
"""


def test_results_are_shown_where_there_is_no_loss_and_no_fetch_op(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """What no op takes, without what gradients alone need, and what stays."""
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(IMPORTED, encoding="utf-8")
    np.savez("feed.npz", x=np.ones((1, 2, 3), "float32"))
    np.savez("init.npz", w=np.array([[1, 0], [0, 1], [1, 1]], "float32"))
    assert main(["run", "net.ir", "--feed", "feed.npz", "--init", "init.npz", "--save", "out.npz"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (
        "step 1/1  flat f32[4]: 2 2 2 2  z 2\n",
        "out.npz: the fetched values and the final parameters\n",
    )
    with np.load("out.npz") as saved:
        assert {*saved.files} == {"step/flat", "step/z", "param/w"}


@pytest.mark.parametrize(
    ("declared", "fetch", "told"),
    [
        ("param", [], "the final parameters; nothing was fetched, --fetch VAR names what to show and save"),
        ("param", ["--fetch", "w"], "the fetched values and the final parameters"),
        ("state", ["--fetch", "w"], "the fetched values; the program has no parameters"),
        (
            "state",
            [],
            "nothing: the program has no parameters, and nothing was fetched, --fetch VAR names what to show and save",
        ),
    ],
)
def test_what_is_saved_is_what_is_told(
    declared: str,
    fetch: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    filled = "fill_constant -> Out=%w {shape=[1]}"
    Path("net.ir").write_text(f"ir 1\nprogram @main {{\n  block ^0 {{\n{declared} %w : f32[1]\n{filled}\n  }}\n}}\n")
    assert main(["run", "net.ir", "--save", "out.npz", *fetch]) == 0
    assert capsys.readouterr().err == f"out.npz: {told}\n"
