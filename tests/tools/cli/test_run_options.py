"""Options of `run` and `check` for clusters with values that can't be meant: told before anything is computed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pstranspile.tools.cli import main

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "regression.ir")
CLUSTER = ["--pservers", "2", "--trainers", "2"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    rows = np.random.RandomState(0).rand(3, 4, 1000).astype("float32")
    np.savez("data.npz", x=rows, y=rows[:, :, :20])
    return ["run", EXAMPLE, "--feed", "data.npz"]


def refused(arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> str:
    """What is told; nothing has been computed."""
    assert main(arguments) == status
    caught = capsys.readouterr()
    assert caught.out == ""
    return caught.err


@pytest.mark.parametrize("option", ["feed", "init", "faults", "save", "plot", "chart", "checkpoint", "resume"])
def test_empty_names(option: str, data: list[str], capsys: pytest.CaptureFixture[str]):
    given = data[: data.index("--feed")] if option == "feed" else data
    assert f"--{option}: the name is empty" in refused([*given, *CLUSTER, f"--{option}", ""], 2, capsys)
    if option in ("feed", "init", "faults"):
        assert f"--{option}: the name is empty" in refused(["check", EXAMPLE, *CLUSTER, f"--{option}="], 2, capsys)


@pytest.mark.parametrize("cluster", [[], CLUSTER])
def test_checkpoints_that_can_not_be_written(cluster: list[str], data: list[str], capsys: pytest.CaptureFixture[str]):
    for name, reason in (("data.npz", "File exists"), ("data.npz/deeper", "Not a directory")):
        told = refused([*data, *cluster, "--checkpoint", name], 1, capsys)
        assert told.startswith(f"{name}: error[checkpoint-target]: can't be written: {reason}")
    assert main([*data, *cluster, "--checkpoint", "kept"]) == 0
    capsys.readouterr()
    told = refused([*data, *cluster, "--checkpoint", "kept/step_00000003"], 1, capsys)
    assert "kept/step_00000003: error[checkpoint-target]: it is a checkpoint itself" in told


@pytest.mark.parametrize("count", ["0", "-1", "x", "1.5", "²"])
def test_counts(count: str, data: list[str], capsys: pytest.CaptureFixture[str]):
    told = refused([*data, *CLUSTER, f"--steps={count}"], 2, capsys)
    assert f"argument --steps: '{count}' is no whole number of at least 1" in told


def test_steps_of_a_chart(data: list[str], capsys: pytest.CaptureFixture[str]):
    assert "--chart-steps needs --chart" in refused([*data, *CLUSTER, "--chart-steps", "1"], 2, capsys)
    chart = [*data, *CLUSTER, "--chart", "c.txt", "--chart-steps"]
    assert "--chart-steps 4: the run does steps 1 to 3" in refused([*chart, "4"], 1, capsys)
    for shown in ("3-9", "start"):
        assert main([*chart, shown]) == 0
        assert "-->" in Path("c.txt").read_text() or "->" in Path("c.txt").read_text()
    assert main([*data, *CLUSTER, "--steps", "2", "--checkpoint", "kept"]) == 0
    capsys.readouterr()
    chart += ["2", "--resume", "kept"]
    assert "--chart-steps 2: the run does steps 3 to 3" in refused(chart, 1, capsys)


@pytest.mark.parametrize("option", ["faults", "schedule"])
def test_what_is_for_clusters_is_refused_on_one_machine(
    option: str, data: list[str], capsys: pytest.CaptureFixture[str]
):
    assert f"--{option} is for a cluster" in refused([*data, f"--{option}", "0"], 1, capsys)


@pytest.mark.parametrize("cluster", [[], CLUSTER])
@pytest.mark.usefixtures("data")
def test_rounding_does_not_depend_on_the_blas(cluster: list[str], tmp_path: Path):
    """As numpy rounds, it does: a sum of 1,000 products has other last bits with other kernels."""
    found: dict[str, set[bytes]] = {"fluid": set(), "numpy": set()}
    for arithmetic, results in found.items():
        for kernels in ("", "Haswell", "Nehalem"):
            environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
            if kernels:
                environment["OPENBLAS_CORETYPE"] = kernels
            told = ["run", EXAMPLE, "--feed", str(tmp_path / "data.npz"), "--save", str(tmp_path / "out.npz"), *cluster]
            command = [sys.executable, "-m", "pstranspile", *told, "--seed", "3", "--arithmetic", arithmetic]
            subprocess.run(command, check=True, env=environment, capture_output=True, cwd=Path(EXAMPLE).parents[1])
            results.add(Path("out.npz").read_bytes())
    assert len(found["fluid"]) == 1
    assert found["fluid"].isdisjoint(found["numpy"])
