"""What a script is told while it trains: ops that print so often, and handlers of `train_from_dataset`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid.executor import FetchHandler
from pstranspile.fluid.running import watchers
from tests.fluid.running import fresh


class Net:
    """A program that prints what it is fed twice, and a data set of four batches."""

    def __init__(self, folder: Path):
        self.y = fluid.data("y", [None, 1], "float32")
        seen = fluid.layers.Print(self.y, first_n=2, message="seen", print_phase="forward")
        start = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(0.5))
        self.out: Any = fluid.layers.fc(seen, 1, param_attr=start, bias_attr=False)
        self.loss: Any = fluid.layers.mean(self.out)
        fluid.optimizer.SGD(0.5).minimize(self.loss)
        self.exe = fluid.Executor(fluid.CPUPlace())
        self.exe.run(fluid.default_startup_program())
        self.main: Any = fluid.default_main_program()
        Path(folder, "rows").write_text("".join(f"1 {row}\n" for row in range(8)))
        self.data: Any = fluid.DatasetFactory().create_dataset("QueueDataset")
        self.data.set_batch_size(2)
        self.data.set_use_var([self.y])
        self.data.set_filelist([str(folder / "rows")])

    def run(self, program: Any, rows: int, fetched: Any, **options: Any) -> None:
        """Runs a program on so many rows."""
        self.exe.run(program, feed={"y": np.ones((rows, 1), "float32")}, fetch_list=[fetched], **options)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    with fresh():
        yield Net(tmp_path)


def how_often(capsys: pytest.CaptureFixture[str]) -> int:
    return capsys.readouterr().out.count("\tseen\t")


def test_prints_are_counted_anew_in_each_run(net: Net, capsys: pytest.CaptureFixture[str]) -> None:
    for rows in (1, 1, 2, 2, 1):  # other dims are another program to the interpreter
        net.run(net.main, rows, net.loss)
        assert how_often(capsys) == 1


def test_prints_are_counted_over_all_batches_of_a_data_set(net: Net, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        net.exe.train_from_dataset(net.main, net.data)
        assert how_often(capsys) == 2
    net.run(net.main, 1, net.loss)
    assert how_often(capsys) == 1


def test_prepared_programs_go_on_counting(net: Net, capsys: pytest.CaptureFixture[str]) -> None:
    for fetched, wanted in ((net.loss, 1), (net.loss, 1), (net.loss, 0), (net.out, 1), (net.out, 1), (net.out, 0)):
        net.run(net.main, 1, fetched, use_program_cache=True)
        assert how_often(capsys) == wanted
    compiled = fluid.CompiledProgram(net.main)
    for rows, wanted in ((1, 1), (2, 1), (1, 0)):
        net.run(compiled, rows, net.loss)
        assert how_often(capsys) == wanted


class Clock:
    """Time that passes after every second batch; waits for what happens in this time."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.passes, self.waits = threading.Semaphore(0), threading.Semaphore(0)

    def wait(self, stopped: threading.Event, seconds: float) -> bool:
        """Waits until time has passed."""
        self.seconds.append(seconds)
        self.waits.release()
        while not self.passes.acquire(timeout=0.01):
            if stopped.is_set():
                return True
        return stopped.is_set()


class Rows:
    """A data set that lets time pass before every second batch but the first."""

    def __init__(self, data: Any, clock: Clock, monitors: list[watchers.Monitor]):
        self.data, self.clock, self.monitors = data, clock, monitors

    def feed_dicts(self) -> Iterator[Any]:
        for number, fed in enumerate(self.data.feed_dicts()):
            if number and number % 2 == 0:
                self.clock.waits.acquire(timeout=20)
                self.clock.passes.release()
                self.monitors[0].request.wait(20)
            yield fed


@pytest.fixture
def paced(net: Net, monkeypatch: pytest.MonkeyPatch) -> Any:
    clock, monitors = Clock(), list[watchers.Monitor]()
    begin = watchers.Monitor.__enter__

    def noted(self: watchers.Monitor) -> watchers.Monitor:
        monitors.append(self)
        return begin(self)

    monkeypatch.setattr(watchers.Monitor, "wait", staticmethod(clock.wait))
    monkeypatch.setattr(watchers.Monitor, "__enter__", noted)
    return Rows(net.data, clock, monitors)


def test_a_handler_is_told_in_every_period(net: Net, paced: Rows) -> None:
    told: list[Any] = []

    class Mine(FetchHandler):
        def handler(self, res_dict: Any) -> None:
            assert threading.current_thread() is not threading.main_thread()
            told.append(res_dict)

    asked = {"weight": net.main.global_block().var("w"), "loss": net.loss, "other": "nowhere"}
    net.exe.train_from_dataset(net.main, paced, fetch_handler=Mine(asked, period_secs=1.5))
    w = 0.5
    seen: list[tuple[float, float]] = []
    for batch in range(4):
        mean = 2 * batch + 0.5
        seen.append((w - 0.5 * mean, w * mean))
        w -= 0.5 * mean
    assert [(one["weight"].item(), one["loss"].item(), one["other"]) for one in told] == [(*seen[2], None)]
    assert {*paced.clock.seconds} == {2}


def test_what_a_handler_raises_is_raised(net: Net, paced: Rows) -> None:
    class Wrong(FetchHandler):
        def handler(self, res_dict: Any) -> None:
            raise KeyError("auc")

    with pytest.raises(KeyError, match="auc"):
        net.exe.train_from_dataset(net.main, paced, fetch_handler=Wrong({"loss": net.loss}))


def test_nothing_is_told_before_a_period_has_passed(net: Net, capsys: pytest.CaptureFixture[str]) -> None:
    net.exe.train_from_dataset(net.main, net.data, fetch_handler=FetchHandler({"loss": net.loss}))
    assert "loss[0]" not in capsys.readouterr().out
