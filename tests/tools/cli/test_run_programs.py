"""`pstranspile run --program`: several programs that take turns, on one machine and in a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.tools.cli import main

GAN = str(Path(__file__).parents[3] / "examples" / "gan.ir")
DISTANCE = "mean_3.tmp_0"
CLUSTER = ["--pservers", "2", "--trainers", "2"]
TURNS = ["--program", "@main*2,@generator,evaluation/3"]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    noise = random.normal(size=(6, 8, 4)).astype("float32")
    centre = np.tile(np.float32([2, -1]), (6, 8, 1))
    np.savez("data.npz", noise=noise, real=2 + noise[:, :, :2], centre=centre)


def run(*arguments: str) -> int:
    return main(["run", GAN, "--feed", "data.npz", *arguments])


def saved(name: str) -> dict[str, Any]:
    with np.load(name) as archive:
        return dict(archive)


def test_on_one_machine(capsys: pytest.CaptureFixture[str]):
    assert run(*TURNS, "--save", "out.npz", "--plot", "out.svg") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12  # six of @main, three of each of the others
    assert [line.split()[2].split("/")[0] for line in lines[:3]] == ["main", "main", "generator"]
    assert lines[3] == "step 4/12"
    found = saved("out.npz")
    assert found["main/step/tmp_0"].shape == (6, 1)
    assert found["generator/step/mean_2.tmp_0"].shape == (3, 1)
    assert len([name for name in found if name.startswith("param/")]) == 8


def test_one_trainer_does_the_same():
    assert run(*TURNS, "--fetch", f"evaluation/{DISTANCE}", "--fetch", "main/tmp_0", "--save", "alone.npz") == 0
    options = ["--pservers", "2", "--trainers", "1", "--fetch", DISTANCE, "--fetch", "tmp_0", "--save", "cluster.npz"]
    assert run(*TURNS, *options) == 0
    alone, cluster = saved("alone.npz"), saved("cluster.npz")
    assert sorted(name.removeprefix("trainer_0/") for name in cluster) == sorted(alone)
    for name, value in cluster.items():
        np.testing.assert_array_equal(value, alone[name.removeprefix("trainer_0/")])


def test_in_a_cluster(capsys: pytest.CaptureFixture[str]):
    assert run(*TURNS, *CLUSTER, "--steps", "8", "--chart", "c.txt", "--chart-steps", "3", "--trace", "t.json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in lines if len(line.split()) > 2] == [
        "main/tmp_0", "main/tmp_0", "generator/mean_2.tmp_0", "main/tmp_0", "main/tmp_0", "generator/mean_2.tmp_0",
    ]  # fmt: skip
    chart = Path("c.txt").read_text()
    assert "step 3 of @generator" in chart
    assert " gradients, " in chart
    assert "d_out_w@GRAD" not in chart
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    steps = {event["name"] for event in events if event.get("cat") == "step"}
    assert steps >= {"start-up", "step 1 of @main", "step 3 of @generator"}


@pytest.mark.parametrize("cluster", [[], CLUSTER], ids=["alone", "cluster"])
def test_going_on_from_a_checkpoint(cluster: list[str]):
    assert run(*TURNS, *cluster, "--steps", "6", "--checkpoint", "kept") == 0
    more = ["--pservers", "3", "--trainers", "2"] if cluster else []
    assert run(*TURNS, *more, "--steps", "10", "--resume", "kept", "--save", "resumed.npz") == 0
    assert run(*TURNS, *cluster, "--steps", "10", "--save", "straight.npz") == 0
    resumed, straight = saved("resumed.npz"), saved("straight.npz")
    for name in (name for name in straight if name.startswith("param/")):
        np.testing.assert_array_equal(resumed[name], straight[name])


def test_faults(capsys: pytest.CaptureFixture[str]):
    assert run("--program", "main,generator", *CLUSTER, "--faults", "5", "--steps", "6") == 0
    assert run(*TURNS, *CLUSTER, "--faults", "5") == 1
    assert "error[cluster-scenario]" in (told := capsys.readouterr().err)
    assert "@evaluation updates nothing" in told


def test_initial_values_of_any_program():
    np.savez("init.npz", g_out_b=np.float32([5, 6]))
    assert run("--program", "evaluation", "--init", "init.npz", "--steps", "1", "--save", "alone.npz") == 0
    assert run("--program", "evaluation", "--init", "init.npz", "--steps", "1", *CLUSTER, "--save", "both.npz") == 0
    for name in ("alone.npz", "both.npz"):
        assert saved(name)["param/g_out_b"].tolist() == [5, 6]


def test_arrays_of_trainers():
    """One trainer runs out of batches for @main, and leaves; the other goes on."""
    common = saved("data.npz")
    real, noise = common.pop("real"), common.pop("noise")
    own = {
        f"trainer_{i}/main/{name}": array[: 4 + i, :4]
        for i in (0, 1)
        for name, array in (("real", real), ("noise", noise))
    }
    np.savez("data.npz", **common, **own, **{"generator/noise": noise})
    assert run("--program", "main,generator", *CLUSTER, "--save", "out.npz") == 0
    found = saved("out.npz")
    assert [len(found[f"trainer_{i}/main/step/tmp_0"]) for i in (0, 1)] == [4, 5]
    assert [len(found[f"trainer_{i}/generator/step/mean_2.tmp_0"]) for i in (0, 1)] == [4, 5]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--program", "main,critic"], "error[program-turns]: @critic can't be run in steps"),
        (["--program", ""], "error[program-turns]"),
        (["--program", "main", "--fetch", "nix"], "nix is fetched, but no program that is run declares nix"),
        (["--program", "main", "--fetch", "generator/mean_2.tmp_0"], "error[run-fetch-unknown]"),
        (["--program", "main,generator", "--steps", "99"], "@main is fed 6 times, which is enough for 12 steps"),
        (["--program", "main,generator", "--steps", "99", *CLUSTER], "@main is fed 6 times"),
        (
            ["--program", "main,generator", "--trainers", "a:1,b:1", "--mode", "grad-allreduce"],
            "error[cluster-no-program]: trainer_0 has no program @generator, just @main",
        ),
    ],
)
def test_what_is_refused(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert run(*arguments) == 1
    assert told in capsys.readouterr().err
