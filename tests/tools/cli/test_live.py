"""A job that is watched at work: what the board knows, and what of it is seen on a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines.network import WaitReason
from pstranspile.cluster.net.process import ActivityReports
from pstranspile.cluster.net.status import StatusPipe
from pstranspile.proof import make_feeds
from pstranspile.tools.cli import live_board, main
from pstranspile.tools.cli.live_board import BARS, Board, sparkline
from tests.terminal import on_terminal

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")
JOB = [PROGRAM, "--pservers", "2", "--trainers", "2"]
needs_rich = pytest.mark.skipif(live_board.find_spec("rich") is None, reason="the extra `live` is optional")


@pytest.fixture
def feed(tmp_path: Path) -> str:
    np.savez(tmp_path / "feed.npz", **make_feeds(ps.load(PROGRAM).main, 40, 12))
    return str(tmp_path / "feed.npz")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def board_at_work() -> tuple[Board, Clock]:
    """Two trainers and a server that waits for the second."""
    clock = Clock()
    board = Board(10, clock)
    board.begin(["trainer_0", "trainer_1", "pserver_0"])
    for step in (1, 2, 3):
        clock.now = float(step)
        for trainer in ("trainer_0", "trainer_1"):
            if (trainer, step) != ("trainer_1", 3):
                board.update(trainer, {"state": "training", "step": step, "values": {"loss": ["", [1.0 / step]]}})
        board.update("pserver_0", {"step": step, "messages": 40 * step})
    board.update("pserver_0", {"waits": {"what": "send barriers of step 3", "missing": {"trainer_1": 0.8}}})
    return board, clock


def test_a_board_knows_steps_messages_and_who_waits_for_whom():
    board, clock = board_at_work()
    assert board.head() == "step 2/10  1.0 steps/s  40 messages/s  0:03"
    (first, second, server), left_out = board.rows(10)
    assert left_out == 0
    assert (first.state, first.step, first.waits) == ("training", "step 3", "")
    assert first.curves == (("loss", (1.0, 0.5, 1 / 3), 1 / 3),)
    assert second.step == "step 2"
    assert (server.step, server.messages) == ("update 3", 40.0)
    assert server.waits == "trainer_1 80%: send barriers of step 3"
    assert board.awaited_machines() == "trainer_1 by 1"
    clock.now = 60.0  # nothing is told for a long time
    assert board.rows(10)[0][2].messages == 0


def test_a_machine_that_begins_anew_is_counted_anew_and_its_steps_are_drawn_once():
    board, clock = board_at_work()
    clock.now = 3.5
    board.update("pserver_0", {"messages": 5})
    board.update("trainer_0", {"step": 2, "values": {"loss": ["", [9.0]]}})
    rows, _ = board.rows(10)
    assert rows[2].messages == 0
    assert rows[0].curves[0][1] == (1.0, 0.5, 1 / 3)


def test_of_many_machines_those_that_train_are_shown():
    board = Board(1)
    board.begin([f"pserver_{n}" for n in range(100)] + ["trainer_0"])
    rows, left_out = board.rows(4)
    assert rows[0].name == "trainer_0"
    assert (len(rows), left_out) == (4, 97)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], ""),
        ([0.5, 0.5], "▁▁"),
        ([0, 7], "▁█"),
        ([*range(8)], BARS),
        ([*range(16)], BARS),
        ([0, float("nan"), 1], "▁ █"),
        ([float("inf")], " "),
    ],
)
def test_curves(numbers: list[float], expected: str):
    assert sparkline(numbers, 8) == expected


class Site:
    """As much of a process's site as is watched."""

    def __init__(self) -> None:
        self.now = Clock()
        self.listener: Any = None
        self.missing: tuple[str, ...] = ()
        self.local_names: frozenset[str] = frozenset()
        self.cluster = None

    def waiting(self) -> list[WaitReason]:
        return [WaitReason("pserver_0", None, "send barriers", self.missing)]

    def wait(self, seconds: float, *missing: str) -> None:
        self.missing = missing
        self.listener.pausing()
        self.now.now += seconds
        self.listener.resumed()


def test_a_process_tells_for_whom_it_has_waited_and_for_which_share_of_the_time():
    site, tell = Site(), StatusPipe()
    site.listener = ActivityReports(site, tell)  # pyright: ignore[reportArgumentType]
    site.wait(0.1, "trainer_0", "trainer_1")
    assert tell.last_reports == {}
    site.wait(0.1, "trainer_1")
    site.now.now += 0.1  # it computes
    site.wait(0.1, "trainer_1")
    assert tell.last_reports["waits"] == {"what": "send barriers", "missing": {"trainer_0": 0.25, "trainer_1": 0.75}}
    assert tell.last_reports["messages"] == 0
    site.now.now += 1
    site.wait(0.01, "trainer_0")
    assert tell.last_reports["waits"] == {}


@needs_rich
@pytest.mark.parametrize("verb", ["run", "launch"])
def test_a_cluster_is_seen_at_work(feed: str, verb: str):
    pytest.importorskip("grpc")
    for _ in range(8):  # a run may be over before anybody is seen to send or to wait
        screen = on_terminal(120, verb, *JOB, "--feed", feed, "--live")
        waited = "".join(re.findall(r"waited for: (.*)", screen.written))
        if "trainer_" in waited and "messages/s  0:" in screen.text():
            break
    assert not screen.wrapped
    head, names, *rows = screen.text().rstrip().split("\n")
    assert re.fullmatch(r"step 40/40  \S+ steps/s  \d+ messages/s  0:\d\d", head)
    assert names.split() == ["machine", "step", "messages/s", "fetched", "waits", "for"]
    assert [row.split()[0] for row in rows] == ["trainer_0", "trainer_1", "pserver_0", "pserver_1"]
    assert re.search(rf"step 40 +\d+  loss [{BARS}]{{24}} \d", rows[0])
    assert re.search(r"update 40 +\d+$", rows[2])
    assert "trainer_" in waited


@needs_rich
def test_one_machine_and_a_check_are_seen_at_work(feed: str):
    screen = on_terminal(100, "run", PROGRAM, "--feed", feed, "--live")
    assert re.search(rf"this machine +step 40 .*loss [{BARS}]{{24}} \d", screen.text())
    screen = on_terminal(160, "check", *JOB, "--steps", "2", "--live")
    assert not screen.wrapped
    assert re.search(r"^trainer_1 +step 2 ", screen.text(), re.MULTILINE)
    assert "\nthe cluster trains as the single machine does\n" in screen.text()


@needs_rich
def test_a_small_terminal(feed: str):
    job = [PROGRAM, "--pservers", "4", "--trainers", "6"]
    screen = on_terminal(60, "run", *job, "--feed", feed, "--live", rows=10)
    assert not screen.wrapped
    assert len(screen.rows) <= 10
    assert re.search(r"^trainer_0 +step 40 +\d+ +loss [▁-█]{6}", screen.text(), re.MULTILINE)
    assert "and 5 more machines" in screen.text()


@needs_rich
def test_what_is_waited_for_is_cut_off_before_what_is_fetched():
    from rich.console import Console

    board, _ = board_at_work()
    board.update(
        "trainer_0", {"waits": {"what": "answers to recv: b, w", "missing": {"pserver_0": 0.4, "pserver_1": 0.3}}}
    )
    console = Console(width=90, height=20, file=io.StringIO())
    console.print(live_board.picture(board, console))
    assert isinstance(console.file, io.StringIO)
    (line,) = [line for line in console.file.getvalue().split("\n") if line.startswith("trainer_0")]
    assert "loss █▃▁ 0.33333  pserver_0 40%" in line
    assert len(line) <= 90


def test_it_needs_a_terminal_and_the_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    for verb in ("run", "check", "launch"):
        assert main([verb, *JOB, "--live"]) == 2
        said = capsys.readouterr().err
        assert "--live" in said
    monkeypatch.setattr(live_board, "find_spec", lambda name: None)
    assert main(["check", *JOB, "--live"]) == 2
    assert "pip install '.[live]'" in capsys.readouterr().err
