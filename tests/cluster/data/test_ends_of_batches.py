"""What is told of trainers whose batches end before those of others."""

from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.runtime.run.step_feeds import batches_of_rows
from pstranspile.tools.cli import main

LOADER = """
import numpy as np


def loader(trainer, trainers):
    draw = np.random.default_rng(trainer)
    for step in range(BATCHES[trainer]):
        yield {"x": draw.random((4, 13), "f4"), "y": draw.random((4, 1), "f4")}
"""

RANKS = (
    "trainer 1 has no batch in step 3, which the others have: a collective operation of all ranks waits there for it"
)
SERVERS = "trainer 1 has no batch in step 3, which the others have: from there on the servers take the mean of those"


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program, from a folder with the loaders."""
    program = str(Path(__file__).parents[3] / "examples" / "linear_regression.ir")
    for name, batches in {"d": (3, 2), "even": (2, 2), "none": (2, 0)}.items():
        Path(tmp_path, f"{name}.py").write_text(LOADER.replace("BATCHES", repr(batches)))
    monkeypatch.chdir(tmp_path)
    return program


@pytest.mark.parametrize("command", ["run", "launch"])
@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (["--mode", "grad-allreduce"], RANKS),
        (["--pservers", "1"], SERVERS),
        (["--pservers", "1", "--mode", "async"], "which the others have, and which go on without it"),
    ],
    ids=["ranks", "sync", "async"],
)
def test_an_early_end_is_told(
    where: str, command: str, job: list[str], expected: str, capsys: pytest.CaptureFixture[str]
):
    assert main([command, where, *job, "--trainers", "2", "--feed", "d.py:loader"]) == 0
    assert expected in capsys.readouterr().err
    assert main([command, where, *job, "--trainers", "2", "--feed", "d.py:loader", "--steps", "2"]) == 0
    assert "no batch" not in capsys.readouterr().err
    assert main([command, where, *job, "--trainers", "2", "--feed", "even.py:loader"]) == 0
    assert "no batch" not in capsys.readouterr().err


def test_a_check_of_ranks_fails_where_one_would_be_waited_for(where: str, capsys: pytest.CaptureFixture[str]):
    job = ["--mode", "grad-allreduce", "--trainers", "2", "--feed"]
    assert main(["check", where, *job, "d.py:loader"]) == 1
    assert f"WAITS WITHOUT END: {RANKS}" in capsys.readouterr().out
    assert main(["check", where, *job, "even.py:loader"]) == 0
    assert main(["check", where, *job, "d.py:loader", "--steps", "2"]) == 0
    capsys.readouterr()
    assert main(["check", where, *job, "none.py:loader"]) == 1
    assert "error[feed-shares]: trainer 1 has no batch in step 1" in capsys.readouterr().err


def test_a_check_with_servers_compares_the_steps_that_all_have(where: str, capsys: pytest.CaptureFixture[str]):
    assert main(["check", where, "--pservers", "1", "--trainers", "2", "--feed", "d.py:loader"]) == 0
    told = capsys.readouterr().out
    assert "2 of 3 fed steps" in told
    assert SERVERS in told


def test_each_trainer_of_a_check_has_the_rows_of_its_own_batches():
    """A query has three documents: the rows of two inputs are not as many, and each trainer keeps its own."""
    source = Path(__file__).parents[3] / "examples" / "linear_regression.ir"

    class Rows:
        def feeds(self, programs):
            def of(trainer: int):
                rows = trainer + 1
                return lambda step: {"x": np.ones((3 * rows, 2), "f4"), "y": np.ones((rows, 1), "f4")}

            return [of(trainer) for trainer in range(len(programs))], 1

    program = ps.load(str(source)).main
    (batch,) = batches_of_rows(Rows(), program, 2, None, 5)  # pyright: ignore[reportArgumentType]
    assert [batch.share("x", 9, trainer, 2) for trainer in (0, 1)] == [(0, 3), (3, 9)]
    assert [batch.share("y", 3, trainer, 2) for trainer in (0, 1)] == [(0, 1), (1, 3)]


def test_inputs_of_declared_size_that_differ_are_refused_by_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    source = (Path(__file__).parents[3] / "examples" / "linear_regression.ir").read_text()
    Path(tmp_path, "p.ir").write_text(source.replace("[-1, 13]", "[4, 13]"))
    Path(tmp_path, "d.py").write_text(LOADER.replace("BATCHES", "(1, 1)"))
    monkeypatch.chdir(tmp_path)
    assert main(["check", "p.ir", "--pservers", "1", "--trainers", "2", "--feed", "d.py:loader"]) == 1
    assert "step 1: trainers are given different values of %x, which declares how many" in capsys.readouterr().err
