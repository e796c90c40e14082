"""`pstranspile run` with a job: all machines, from files to files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pstranspile.tools.cli import main
from tests.tools.cli.test_run import PROGRAM

ROWS = np.random.RandomState(0).uniform(-1, 1, (4, 18, 3)).astype("float32")


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(PROGRAM)
    np.savez("feed.npz", x=ROWS)
    return "net.ir"


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["run", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def saved(name: str) -> dict[str, np.ndarray]:
    with np.load(name) as archive:
        return {key: archive[key] for key in archive.files}


def test_trains_as_one_machine_does(net: str, capsys: pytest.CaptureFixture[str]):
    assert result(capsys, net, "--feed", "feed.npz", "--save", "one.npz")[0] == 0
    status, out, err = result(
        capsys, net, "--feed", "feed.npz", "--pservers", "2", "--trainers", "3", "--save", "out.npz"
    )
    assert (status, err) == (0, "out.npz: the fetched values and the final parameters\n")
    one, ours = saved("one.npz"), saved("out.npz")
    assert sorted(ours) == ["param/w", *(f"trainer_{i}/step/loss" for i in range(3))]
    np.testing.assert_allclose(ours["param/w"], one["param/w"], rtol=1e-6)
    losses = [ours[f"trainer_{i}/step/loss"] for i in range(3)]
    np.testing.assert_allclose(sum(losses) / 3, one["step/loss"], rtol=1e-5)
    first = out.splitlines()[0]
    assert first.startswith("step 1/4  trainer_0 loss ")
    assert "  trainer_2 loss " in first
    assert len(out.splitlines()) == 4


def test_every_schedule_ends_alike(net: str, capsys: pytest.CaptureFixture[str]):
    for seed in ("1", "2"):
        arguments = ["--pservers", "1", "--trainers", "2", "--schedule", seed, "--save", f"{seed}.npz"]
        assert result(capsys, net, "--feed", "feed.npz", *arguments)[0] == 0
    np.testing.assert_array_equal(saved("1.npz")["param/w"], saved("2.npz")["param/w"])


def test_of_many_trainers_the_range_is_shown(net: str, capsys: pytest.CaptureFixture[str]):
    _, out, _ = result(capsys, net, "--feed", "feed.npz", "--pservers", "1", "--trainers", "9", "--steps", "1")
    assert out.startswith("step 1/1  loss min ")
    assert " mean " in out
    assert " max " in out


def test_a_trainer_with_less_data_leaves(net: str, capsys: pytest.CaptureFixture[str]):
    np.savez("feed.npz", **{"trainer_0/x": ROWS[:, :9], "trainer_1/x": ROWS[:2, 9:]})
    arguments = ["--pservers", "1", "--trainers", "2", "--save", "out.npz"]
    status, out, _ = result(capsys, net, "--feed", "feed.npz", *arguments)
    assert status == 0
    assert saved("out.npz")["trainer_0/step/loss"].shape == (4, 1)
    assert saved("out.npz")["trainer_1/step/loss"].shape == (2, 1)
    assert [line.split()[1] for line in out.splitlines()] == ["1/4", "2/4", "3/4", "4/4"]
    assert "trainer_1" not in out.splitlines()[3]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--steps", "9"], "4 steps are fed, 9 are asked for"),
        (["--fetch", "los"], "did you mean loss?"),
        (["--check-nan"], "error[run-cluster]: --check-nan looks at one machine"),
        (["--init", "feed.npz"], "the program declares no persistable variable x"),
    ],
)
def test_what_is_refused(net: str, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str):
    status, _, err = result(capsys, net, "--feed", "feed.npz", "--pservers", "2", "--trainers", "2", *arguments)
    assert status == 1
    assert told in err


@pytest.mark.parametrize(("rows", "kept"), [(1, []), (3, ["trainer_0/step/1|loss"])])
@pytest.mark.parametrize("verb", ["run", "launch"])
def test_a_step_without_rows_is_left_out_of_the_results(
    verb: str, rows: int, kept: list[str], net: str, capsys: pytest.CaptureFixture[str]
):
    """The results can be started from again: nothing in them is a Python object."""
    if verb == "launch":
        pytest.importorskip("grpc")
    Path("rows.csv").write_text("a,b,c\n" + "1,2,3\n" * rows)
    job = ["--pservers", "1", "--trainers", "2", "--feed", "rows.csv", "--columns", "x=a,b,c", "--batch", "2"]
    assert main([verb, net, *job, "--save", "out.npz"]) == 0
    ours = saved("out.npz")
    assert [name for name in ours if name.startswith("trainer_0/")] == kept
    assert any(name.startswith("trainer_1/step/") for name in ours)
    capsys.readouterr()
    assert result(capsys, net, *job, "--init", "out.npz")[0] == 0


def test_what_was_fetched_is_not_read_to_start_from(net: str, capsys: pytest.CaptureFixture[str]):
    """Results with a value of a step that can't be read still hold parameters."""
    np.savez("old.npz", **{"trainer_0/step/loss": np.array([None]), "param/w": np.ones((3, 1), "float32")})
    assert result(capsys, net, "--feed", "feed.npz", "--init", "old.npz")[0] == 0
    np.savez("broken.npz", **{"param/w": np.array([None])})
    status, _, err = result(capsys, net, "--feed", "feed.npz", "--init", "broken.npz")
    assert status == 1
    assert "the array param/w can't be read" in err
