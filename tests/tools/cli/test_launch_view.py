"""What `launch` shows of processes on a terminal, where there is a line for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.tools.cli import launch_view, main
from pstranspile.tools.cli.launch_view import PATIENCE, RECENT, Silence, View
from pstranspile.tools.cli.live_board import Pace


class Machine:
    def __init__(self, role: str):
        self.role, self.starts, self.exit_status = role, 1, None
        self.last_reports: dict[str, Any] = {}


class Table:
    """The table of a trainer and a server, at times that a test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now, self.lines = 0.0, [""]
        self.machines = {role: Machine(role) for role in ("pserver_0", "trainer_0")}
        monkeypatch.setattr(launch_view, "is_terminal", lambda _: True)
        monkeypatch.setattr(launch_view, "monotonic", lambda: self.now)
        monkeypatch.setattr(launch_view.Lines, "draw", lambda _, lines: setattr(self, "lines", lines))
        self.view = View(self.machines, ["trainer_0"], 100)

    def told(self, role: str, now: float, **fields: Any) -> None:
        self.now = now
        self.machines[role].last_reports.update(fields)
        self.view.update(self.machines[role], fields)

    def shown(self) -> list[str]:
        self.view.look()
        return self.lines


def test_a_line_tells_how_fast_a_machine_is_and_what_it_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(monkeypatch)
    assert table.shown() == ["pserver_0  starting", "trainer_0  starting"]
    table.told("pserver_0", 0.0, state="serving")
    table.told("trainer_0", 0.0, state="training")
    for step in (1, 2, 3):
        table.told("pserver_0", step / 4, step=step)
        table.told("trainer_0", step / 4, step=step, values={"loss": ["", [0.5], 0.5, 0.5, 0.5]})
    assert table.shown() == [
        "pserver_0  serving   update 3  4 updates/s",
        "trainer_0  training  step 3  4 steps/s  loss 0.5",
    ]
    table.machines["trainer_0"].exit_status = 0
    table.machines["pserver_0"].exit_status = -9
    assert table.shown() == ["pserver_0  failed    update 3", "trainer_0  ended     step 3  loss 0.5"]


def test_a_line_tells_for_whom_a_machine_waits_until_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(monkeypatch)
    table.told("pserver_0", 0.0, state="serving")
    table.told("pserver_0", 2.0, waiting=["..."], waits_for=["trainer_0", "trainer_1"])
    assert table.shown()[0] == "pserver_0  serving   waits for trainer_0, trainer_1"
    table.told("pserver_0", 3.0, step=1)
    assert table.shown()[0] == "pserver_0  serving   update 1"


def test_what_has_been_started_is_told_once_where_no_step_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [0.0], list[str]()
    monkeypatch.setattr(launch_view, "monotonic", lambda: now[0])
    machines = {role: Machine(role) for role in ("pserver_0", "trainer_0")}
    for steps, times in ((0, 1), (1, 0)):
        silence = Silence("2 machines", told.append)
        told.clear()
        if steps:
            machines["trainer_0"].last_reports["step"] = steps
        for second in range(3 * int(PATIENCE)):
            assert bool(told) == (not steps and second >= PATIENCE)
            now[0] += 1.0
            silence.look(machines)
        assert told == ["2 machines"] * times
        now[0] = 0.0


def test_a_launch_of_which_no_step_comes_says_what_it_has_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch_view, "PATIENCE", 0.0)
    np.savez(tmp_path / "data.npz", x=np.ones((1, 2, 1000), "float32"), y=np.ones((1, 2, 20), "float32"))
    program = str(Path(__file__).parents[3] / "examples" / "regression.ir")
    feed, logs = str(tmp_path / "data.npz"), str(tmp_path / "logs")
    options = ["--pservers", "2", "--trainers", "1", "--feed", feed, "--logs", logs]
    assert main(["launch", program, *options]) == 0
    said = f"2 servers and 1 trainer have been started, none has done a step yet; logs in {logs}\n"
    assert capsys.readouterr().err.startswith(f"pstranspile launch: {said}")


def test_the_pace_is_that_of_late() -> None:
    pace = Pace(RECENT)
    assert pace.speed(0.0) is None
    for step in range(100):  # ten seconds at 10 steps/s
        pace.mark(step, step / 10)
    for step in range(100, 200):  # five at 20
        pace.mark(step, 10 + (step - 100) / 20)
    assert pace.speed(14.95) == pytest.approx(20, rel=0.05)
    assert pace.speed(30.0) == pytest.approx(5, rel=0.05)  # none is done any more
    pace.mark(150, 31.0)  # gone back
    assert pace.speed(31.0) is None
