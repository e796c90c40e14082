"""`fluid.profiler`: ops that run in a block are measured, shown by types and written as Fluid writes them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile.fluid as fluid
from pstranspile.fluid import profiler
from pstranspile.fluid.proto import Event, Profile
from tests.fluid.running import fresh

OF_A_STEP = Counter(relu=2, scale=1, mean=1)


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    with fresh():
        yield
    profiler.active.clear()


@pytest.fixture
def step() -> Any:
    """A function that runs a program of a few ops, whose runs were prepared before."""
    x = fluid.data("x", [None, 4])
    made = fluid.layers.mean(fluid.layers.scale(fluid.layers.relu(fluid.layers.relu(x)), 2.0))
    executor = fluid.Executor()

    def run() -> float:
        return float(executor.run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[made])[0][0])

    for _ in range(3):
        run()
    return run


def read(path: Path) -> Any:
    result = Profile()
    result.ParseFromString(path.read_bytes())
    return result


def table(text: str) -> dict[str, list[float]]:
    """The rows of a printed table, by op types."""
    rows = [line.split() for line in text.splitlines()[2:]]
    return {op_type: [float(number) for number in numbers] for op_type, *numbers in rows}


def test_a_block_is_measured(step: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with profiler.profiler("CPU", "total", str(tmp_path / "profile")):
        assert [step(), step(), step()] == [2.0] * 3
    assert step() == 2.0
    rows = table(capsys.readouterr().out)
    assert {op_type: row[0] for op_type, row in rows.items()} == {"relu": 6, "scale": 3, "mean": 3}
    assert [row[1] for row in rows.values()] == sorted((row[1] for row in rows.values()), reverse=True)
    assert sum(row[5] for row in rows.values()) == pytest.approx(1, abs=1e-3)
    for count, total, least, most, mean, _ in rows.values():
        assert 0 < least <= mean <= most <= total
        assert total == pytest.approx(mean * count, abs=1e-3)
    found = read(tmp_path / "profile")
    assert Counter(event.name for event in found.events) == {name: 3 * count for name, count in OF_A_STEP.items()}
    ends = [event.end_ns for event in found.events]
    assert found.start_ns <= ends[0] <= ends[-1] <= found.end_ns
    assert ends == sorted(ends)
    assert all(event.start_ns <= event.end_ns and event.type == Event.CPU for event in found.events)


@pytest.mark.parametrize("key", ["calls", "max", "min", "ave", None, "default"])
def test_the_order_of_rows(key: str | None, step: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiler.start_profiler("All", "AllOpDetail")
    step()
    profiler.stop_profiler(key, str(tmp_path / "profile"))
    rows = table(capsys.readouterr().out)
    if key in (None, "default"):
        assert list(rows) == ["relu", "scale", "mean"]
        return
    place = ["calls", "total", "min", "max", "ave"].index(str(key))
    assert [row[place] for row in rows.values()] == sorted((row[place] for row in rows.values()), reverse=True)


def test_measuring_begins_anew(step: Any, tmp_path: Path) -> None:
    profiler.reset_profiler()
    profiler.stop_profiler()
    profiler.start_profiler("CPU")
    step()
    profiler.start_profiler("CPU")  # it has begun
    assert len(profiler.active[0].timed_ops) == 4
    profiler.reset_profiler()
    step()
    profiler.stop_profiler(profile_path=str(tmp_path / "profile"))
    assert len(read(tmp_path / "profile").events) == 4
    assert not profiler.active


def test_no_op_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with profiler.profiler("GPU", profile_path=str(tmp_path / "profile")):
        pass
    assert "no op ran" in capsys.readouterr().out
    assert not read(tmp_path / "profile").events


def test_what_is_wrong_with_calls(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="CPU, GPU or All, not 'TPU'"):
        profiler.start_profiler("TPU")
    with pytest.raises(ValueError, match="Default, OpDetail or AllOpDetail, not 'all'"):
        profiler.start_profiler("CPU", "all")
    assert not profiler.active
    profiler.start_profiler("CPU")
    with pytest.raises(ValueError, match="calls, total, max, min, ave or None, not 'name'"):
        profiler.stop_profiler("name")
    with pytest.warns(UserWarning, match="the profile was not written"):
        profiler.stop_profiler("max", str(tmp_path / "missing" / "profile"))
