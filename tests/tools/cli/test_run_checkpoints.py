"""`pstranspile run` that saves as it goes, and goes on from what was saved."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adam, minimize
from pstranspile.ir.diagnostics import DiagnosticError, error
from pstranspile.ir.model import Location
from pstranspile.tools.cli import main
from pstranspile.tools.cli.progress import telling_what_is_kept
from pstranspile.tools.cli.report import CommandFailure

CLUSTERS = {
    "one machine": [],
    "2 servers": ["--pservers", "2", "--trainers", "2", "--set", "min_block_size=4"],
    "3 servers": ["--pservers", "3", "--trainers", "2", "--set", "min_block_size=4"],
}
STEPS = 6


def program(seed: int) -> str:
    draft = L.Draft(seed=seed)
    x, y = L.data(draft, "x", [-1, 6]), L.data(draft, "y", [-1, 1])
    hidden = L.dropout(L.fc(x, 10, act="relu"), 0.4)
    minimize(L.mean(L.square_error_cost(L.fc(hidden, 1), y)), Adam(0.05))
    return ps.dumps(draft.module())


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(program(7))
    Path("unseeded.ir").write_text(program(0))
    random = np.random.default_rng(1)
    x, y = random.normal(size=(STEPS, 8, 6)), random.normal(size=(STEPS, 8, 1))
    np.savez("data.npz", x=x.astype("float32"), y=y.astype("float32"))


def run(*arguments: str, net: str = "net.ir") -> int:
    return main(["run", net, "--feed", "data.npz", *arguments])


def parameters(file: str) -> dict[str, bytes]:
    with np.load(file) as held:
        return {name: held[name].tobytes() for name in held.files if name.startswith("param/")}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("one machine", "one machine"),
        ("2 servers", "3 servers"),
        ("3 servers", "2 servers"),
        ("2 servers", "2 servers"),
    ],
)
def test_stopped_and_gone_on(before: str, after: str):
    assert run(*CLUSTERS[before], "--save", "straight.npz") == 0
    assert run(*CLUSTERS[before], "--steps", "4", "--checkpoint", "kept", "--checkpoint-every", "3") == 0
    assert sorted(os.listdir("kept")) == ["step_00000003", "step_00000004"]
    for place in ("kept", "kept/step_00000003"):
        assert run(*CLUSTERS[after], "--resume", place, "--save", "resumed.npz") == 0
        assert parameters("resumed.npz") == parameters("straight.npz")
    with np.load("resumed.npz") as held:
        steps = [held[name] for name in held.files if "step/" in name]
    assert steps
    assert all(len(values) == 3 for values in steps)


def test_from_a_cluster_to_one_machine():
    assert run(*CLUSTERS["2 servers"], "--steps", "2", "--checkpoint", "kept", "--save", "saved.npz") == 0
    assert run("--resume", "kept", "--steps", "2", "--save", "taken.npz") == 0
    assert parameters("taken.npz") == parameters("saved.npz")


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_seed_that_was_drawn_or_given(cluster: str):
    """A run goes on with the seed it began with."""
    seeded = ["--seed", "5"] if cluster == "one machine" else []
    options = [*CLUSTERS[cluster], *seeded]
    assert run(*options, "--checkpoint", "kept", "--checkpoint-every", "3", "--save", "a.npz", net="unseeded.ir") == 0
    again = [*CLUSTERS[cluster], "--resume", "kept/step_00000003", "--save", "b.npz"]
    assert run(*again, net="unseeded.ir") == 0
    assert parameters("a.npz") == parameters("b.npz")


def test_a_seed_that_is_another(capsys: pytest.CaptureFixture[str]):
    assert run(*CLUSTERS["2 servers"], "--seed", "5", "--steps", "2", "--checkpoint", "kept") == 0
    assert run(*CLUSTERS["2 servers"], "--seed", "6", "--resume", "kept") == 1
    assert "checkpoint-model]: it was run with the seed 5; give the same, so that" in capsys.readouterr().err
    assert run(*CLUSTERS["2 servers"], "--steps", "2", "--checkpoint", "own") == 0
    assert run(*CLUSTERS["2 servers"], "--seed", "6", "--resume", "own") == 1
    assert "it was run with the programs' own seeds; give no other, so that" in capsys.readouterr().err


def test_nothing_left_to_do():
    assert run(*CLUSTERS["2 servers"], "--checkpoint", "kept", "--save", "a.npz") == 0
    assert run(*CLUSTERS["3 servers"], "--resume", "kept", "--save", "b.npz") == 0
    assert parameters("a.npz") == parameters("b.npz")


ROWS = ["--feed", "rows.csv", "--batch", "8", "--columns", "x=x.0,x.1,x.2,x.3,x.4,x.5"]
ARRAYS = ["--feed", "data.npz"]


@pytest.mark.parametrize(
    ("verb", "before", "after", "told"),
    [
        ("run", ROWS, ARRAYS, "it was fed rows, and goes on with arrays"),
        ("run", ARRAYS, ROWS, "it was fed no rows of data, and goes on with rows, from those of its next step on"),
        ("run --pservers 1 --trainers 2", ROWS, ARRAYS, "it was fed rows, and goes on with arrays"),
        ("launch --pservers 1 --trainers 1", ARRAYS, ROWS, "it was fed no rows of data, and goes on with rows"),
        ("run", ROWS, ROWS, ""),
        ("run", ARRAYS, ARRAYS, ""),
    ],
)
def test_data_of_another_kind_is_told(
    verb: str, before: list[str], after: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    with np.load("data.npz") as held:
        columns = {**{f"x.{at}": held["x"][:, :, at].ravel() for at in range(6)}, "y": held["y"].ravel()}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    Path("rows.csv").write_text("\n".join(lines) + "\n")
    name, *job = verb.split()
    assert main([name, "net.ir", *job, *before, "--steps", "3", "--checkpoint", "kept"]) == 0
    assert "whether these are the same data" not in capsys.readouterr().err
    assert main([name, "net.ir", *job, *after, "--steps", "5", "--resume", "kept"]) == 0
    found = capsys.readouterr().err
    assert told in found
    assert ("whether these are the same data is not compared" in found) == bool(told)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_what_is_wrong_is_told(cluster: str, capsys: pytest.CaptureFixture[str]):
    assert run(*CLUSTERS[cluster], "--resume", "nowhere", "--save", "out.npz") == 1
    assert "nowhere: error[checkpoint-manifest]" in capsys.readouterr().err
    assert run(*CLUSTERS[cluster], "--checkpoint", "kept", "--steps", "2") == 0
    capsys.readouterr()
    file = Path("kept/step_00000002/fc_0.w_0")
    file.write_bytes(file.read_bytes()[:-1])
    assert run(*CLUSTERS[cluster], "--resume", "kept", "--save", "out.npz") == 1
    assert f"{file}: error[checkpoint-file]" in capsys.readouterr().err
    Path("net.ir").write_text(program(8))
    assert run(*CLUSTERS[cluster], "--checkpoint", "net.ir", "--steps", "2", "--save", "out.npz") == 1
    assert "checkpoint-target" in capsys.readouterr().err
    assert not Path("out.npz").exists()


def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str]):
    assert run("--checkpoint-every", "2") == 2
    assert "--checkpoint" in capsys.readouterr().err


BUSY = error("checkpoint-busy", "another run is saving its checkpoints here", Location("kept"))
USED = error("checkpoint-run", "it holds checkpoints of an earlier run", Location("kept"))


@pytest.mark.parametrize(
    ("problem", "hint"),
    [
        (DiagnosticError([BUSY]), False),
        (CommandFailure(1, (BUSY,), ()), False),
        (DiagnosticError([USED]), False),
        (ValueError("other"), True),
    ],
    ids=["busy", "busy and told", "of an earlier run", "another error"],
)
def test_a_folder_in_use_is_nothing_to_go_on_from(problem: Exception, hint: bool, capsys: pytest.CaptureFixture[str]):
    """The checkpoints that appear in it are those of the run that uses it."""

    def stopped() -> None:
        with telling_what_is_kept(argparse.Namespace(checkpoint="kept", resume=None)):
            assert run("--steps", "1", "--checkpoint", "kept") == 0
            capsys.readouterr()
            raise problem

    with pytest.raises(type(problem) if hint else CommandFailure):
        stopped()
    assert ("stopped: --resume kept goes on from" in capsys.readouterr().err) == hint


def test_the_options_to_go_on_with_can_be_typed(capsys: pytest.CaptureFixture[str]):
    assert run("--steps", "1", "--checkpoint", "a run's") == 0
    told = capsys.readouterr().err
    given = shlex.split(told.rpartition("go on from with ")[2])
    assert given[:2] == ["--resume", "a run's"]
    assert run("--steps", "2", *given) == 0
