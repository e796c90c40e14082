"""Checkpoints of processes: those of the simulation, and either goes on from the other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.net.parts import values_of
from pstranspile.ir.types import VarKind
from pstranspile.proof.values import make_feeds
from pstranspile.tools.cli import main
from tests.cluster.net.played import compiled

STEPS = 9
PROGRAM = str(Path(__file__).parents[3] / "golden" / "mlp_adam.ir")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The program, its data, and where the straight run has left its results."""
    folder = tmp_path_factory.mktemp("checkpoints")
    np.savez(folder / "data.npz", **make_feeds(ps.load(PROGRAM).main, STEPS, 8, shares=2))
    given = [PROGRAM, "--trainers", "2", "--feed", str(folder / "data.npz")]
    assert main(["run", *given, "--pservers", "2", "--save", str(folder / "straight.npz")]) == 0
    return given


def parameters(path: Path) -> dict[str, Any]:
    with np.load(path) as found:
        return {name: found[name] for name in found.files if name.startswith("param/")}


def require_straight(job: list[str], path: Path) -> None:
    expected, found = parameters(Path(job[-1]).parent / "straight.npz"), parameters(path)
    assert found.keys() == expected.keys()
    assert found
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_the_simulation_goes_on_from_a_cut_of_processes(job: list[str], tmp_path: Path) -> None:
    kept, save = tmp_path / "kept", str(tmp_path / "out.npz")
    assert main(["launch", *job, "--pservers", "2", "--checkpoint", str(kept), "--checkpoint-every", "4"]) == 0
    assert sorted(path.name for path in kept.iterdir()) == ["step_00000008", "step_00000009"]
    cut = str(kept / "step_00000008")
    assert main(["run", *job, "--pservers", "1", "--resume", cut, "--save", save]) == 0
    require_straight(job, tmp_path / "out.npz")


def test_processes_go_on_from_a_checkpoint_of_the_simulation(job: list[str], tmp_path: Path) -> None:
    kept, save = tmp_path / "kept", str(tmp_path / "out.npz")
    assert main(["run", *job, "--pservers", "2", "--steps", "5", "--checkpoint", str(kept)]) == 0
    assert main(["launch", *job, "--pservers", "3", "--resume", str(kept), "--save", save]) == 0
    require_straight(job, tmp_path / "out.npz")


def test_what_can_not_be_kept(job: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *job, "--pservers", "1", "--checkpoint-every", "2"]) == 2
    assert "--checkpoint-every needs --checkpoint" in capsys.readouterr().err


def test_geo_processes_are_saved_before_they_leave(job: list[str], tmp_path: Path) -> None:
    """What the trainer has learnt since the last exchange is in its part; it is exchanged when the trainer leaves."""
    kept, real, again = tmp_path / "kept", tmp_path / "real.npz", tmp_path / "again.npz"
    geo = [*job, "--trainers", "1", "--pservers", "2", "--mode", "geo", "--set", "geo_sgd_need_push_nums=4"]
    assert main(["launch", *geo, "--checkpoint", str(kept), "--save", str(real)]) == 0
    assert [path.name for path in kept.iterdir()] == [f"step_{STEPS:08d}"]
    assert main(["launch", *geo, "--resume", str(kept), "--save", str(again)]) == 0
    found = parameters(again)
    for name, value in parameters(real).items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_folder_does_not_tell_what_to_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", str(tmp_path), "--checkpoint", "x"]) == 2
    assert "--checkpoint and --resume need the program and the job's options" in capsys.readouterr().err


def test_a_reader_is_not_kept(tmp_path: Path) -> None:
    """It is persistable in a trainer's program, but has no form in a file."""
    trainer = compiled(tmp_path, PROGRAM, "--pservers", "1", "--trainers", "1").cluster().trainers[0]
    name = trainer.role.main.parameters()[0].name
    trainer.scope[name] = np.ones(2)
    assert set(values_of(trainer)) == {name}
    reader = trainer.role.main.main_block.vars[name]._replace(kind=VarKind.READER)
    trainer.role.variable = lambda _name: reader
    assert not values_of(trainer)
