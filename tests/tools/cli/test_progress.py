"""What commands say while they are at work."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.net.status import displayed_value
from pstranspile.proof import make_feeds
from pstranspile.runtime.run.watchers import plot_bytes
from pstranspile.runtime.values import LoDTensor, SelectedRows
from pstranspile.tools.cli import main, progress
from pstranspile.tools.cli.progress import Status, truncate_line
from tests.terminal import Screen, on_terminal

ROOT = Path(__file__).parents[3]
CTR = str(ROOT / "examples" / "ctr_dnn.ir")
REGRESSION = str(ROOT / "examples" / "regression.ir")


@pytest.fixture
def feed(tmp_path: Path) -> str:
    np.savez(tmp_path / "feed.npz", **make_feeds(ps.load(REGRESSION).main, 3, 12))
    return str(tmp_path / "feed.npz")


def test_progress_on_a_terminal_is_one_line(feed: str):
    screen = on_terminal(100, "run", REGRESSION, "--feed", feed)
    assert not screen.wrapped
    assert re.fullmatch(r"step 3/3  loss \S+  \S+ steps/s\n", screen.text())


@pytest.mark.parametrize("columns", [20, 50, 79])
def test_progress_never_wraps_and_has_a_line_for_each_trainer(feed: str, columns: int):
    fetch = ["--fetch", "w", "--fetch", "b", "--fetch", "loss"]
    screen = on_terminal(columns, "run", REGRESSION, "--pservers", "2", "--trainers", "3", "--feed", feed, *fetch)
    assert not screen.wrapped
    head, *lines, last = screen.text().split("\n")
    assert head.startswith("step 3/3  ")
    assert [line[:11] for line in lines] == [f"  trainer_{index}" for index in range(3)]
    assert columns == 20 or all(re.match(r"  trainer_\d  loss \d", line) for line in lines)
    assert all(line.endswith("…") for line in lines)
    assert last == ""


def test_progress_has_no_more_lines_than_the_terminal(feed: str):
    job = ["--pservers", "2", "--trainers", "6", "--fetch", "w"]
    screen = on_terminal(60, "run", REGRESSION, *job, "--feed", feed, rows=4)
    assert len(screen.text().split("\n")) == 4  # three, and the one that comes next


def test_a_terminal_that_can_only_print_gets_a_line_for_each_step(feed: str):
    screen = on_terminal(80, "run", REGRESSION, "--feed", feed, TERM="dumb")
    assert [line.partition("  ")[0] for line in screen.text().split("\n")] == ["step 1/3", "step 2/3", "step 3/3", ""]


def test_a_check_says_what_it_does_and_leaves_nothing_of_it():
    options = ["check", REGRESSION, "--pservers", "2", "--trainers", "2", "--schedules", "2"]
    code = f"from pstranspile.tools.cli import main, progress; progress.PATIENCE = progress.OFTEN = 0; main({options})"
    mine, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    written = b""
    try:
        while data := os.read(mine, 4096):
            written += data
    except OSError:
        pass
    assert process.wait() == 0
    told = written.decode()
    for line in ("check: both sides: step 1/5", "check: held to the source: step 5/5", "check: orders of events 2/2"):
        assert line in told
    screen = Screen(80)
    screen.write(told)
    assert screen.text() == ""
    assert not screen.wrapped


def test_a_compile_counts_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    seen: list[str] = []
    monkeypatch.setattr(Status, "__call__", lambda self, what, done, of: seen.append(f"{what} {done}/{of}"))
    assert main(["compile", REGRESSION, "--pservers", "2", "--trainers", "3", "-o", str(tmp_path / "out")]) == 0
    kinds = [("programs of trainers", 3), ("programs of servers", 2), ("texts of machines", 5)]
    assert seen == [f"{what} {done}/{of}" for what, of in kinds for done in range(1, of + 1)]


def test_only_a_terminal_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PATIENCE", 0)
    assert main(["check", REGRESSION, "--pservers", "2", "--trainers", "2", "--steps", "1"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("line", "columns", "told"),
    [
        ("loss 0.25", 9, "loss 0.25"),
        ("loss 0.25", 8, "loss 0.…"),
        ("字字字", 5, "字字…"),
        ("字字字", 6, "字字字"),
        ("e\u0301a", 2, "e\u0301a"),
        ("a\x1b[2Jb", 9, "a?[2Jb"),
        ("ab", 1, "…"),
    ],
)
def test_cutting(line: str, columns: int, told: str):
    assert truncate_line(line, columns) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.float32([[0.25]]), "0.25"),
        (np.arange(6, dtype="int64").reshape(2, 3), "i64[2, 3] min 0 mean 2.5 max 5"),
        (np.array([True, False]), "bool[2]: 1 0"),
        (np.zeros((0, 3), "float32"), "f32[0, 3]"),
        (np.float32([np.inf, -np.inf, 0]), "f32[3]: inf -inf 0"),
        (np.float32([np.inf, -np.inf] * 8), "f32[16] min -inf mean nan max inf"),
        (LoDTensor(np.ones((3, 1), "float32"), [[0, 1, 3]]), "f32[3, 1] in 2 sequences: 1 1 1"),
        (SelectedRows(np.array([4]), np.float32([[1, 3]]), 9), "1 rows of 9, f32[1, 2]: 1 3"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_shown_of_a_value(value: object, told: str):
    assert str(displayed_value(value)) == told


def test_a_fetched_tensor_is_shown(feed: str, capsys: pytest.CaptureFixture[str]):
    assert main(["run", REGRESSION, "--feed", feed, "--fetch", "w"]) == 0
    assert "step 1/3  w f32[1000, 20] min -0." in capsys.readouterr().out
    job = ["--pservers", "2", "--trainers", "12", "--mode", "async"]
    assert main(["run", REGRESSION, "--feed", feed, "--fetch", "w", "--fetch", "loss", *job]) == 0
    assert re.match(
        r"step 1/3  w f32\[1000, 20\] min -0\S+ mean \S+ max \S+  loss min \S+ mean \S+ max \S+\n",
        capsys.readouterr().out,
    )


# Plots


def test_a_plot_that_cannot_be_drawn_is_refused_before_the_first_step(
    feed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    options = ["run", REGRESSION, "--feed", feed, "--plot", str(tmp_path / "x.svg")]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for job in ([], ["--pservers", "2", "--trainers", "2"]):
        assert main([*options, *job]) == 1
        told = capsys.readouterr()
        assert "error[run-plot-impossible]: drawing needs matplotlib: pip install '.[plot]'" in told.err
        assert told.out == ""
    monkeypatch.undo()
    (tmp_path / "forward.ir").write_text("ir 1\nprogram @main {\n  block ^0 {\n  }\n}\n")
    assert main(["run", str(tmp_path / "forward.ir"), "--plot", str(tmp_path / "x.svg")]) == 1
    told = capsys.readouterr()
    assert "nothing to draw: the program has no loss, and nothing is fetched (--fetch)" in told.err
    assert told.out == ""


def test_a_plot_has_a_title_and_the_numbers_of_its_steps(feed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: list[tuple[dict[str, list[int]], str]] = []
    monkeypatch.setattr(
        sys.modules["pstranspile.runtime.run.watchers"],
        "plot_bytes",
        lambda curves, kind, title: drawn.append(({name: list(c[0]) for name, c in curves.items()}, title)) or b"",
    )
    plot, kept = ["--plot", str(tmp_path / "x.svg")], str(tmp_path / "kept")
    assert main(["run", REGRESSION, "--feed", feed, "--steps", "1", "--checkpoint", kept]) == 0
    assert main(["run", REGRESSION, "--feed", feed, "--resume", kept, *plot]) == 0
    (tmp_path / "trouble.txt").write_text("leave trainer_1 step 3\n")
    job = ["--pservers", "2", "--trainers", "2", "--faults", str(tmp_path / "trouble.txt")]
    assert main(["run", REGRESSION, "--feed", feed, *job, *plot]) == 0
    assert drawn == [
        ({"loss": [2, 3]}, "regression.ir"),
        ({"trainer_0 loss": [1, 2, 3], "trainer_1 loss": [1, 2]}, "regression.ir, mode sync, 2 trainers, 2 servers"),
    ]


def test_the_title_is_drawn():
    picture = plot_bytes({"loss": ([3, 4], [np.float32([1]), np.float32([2])])}, "svg", "net.ir, $5")
    assert b"net.ir, $5" in picture
