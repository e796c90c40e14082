"""`launch` trains what was traced on processes: as the simulation does, bit by bit, and with the weights back."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pstranspile as ps  # noqa: E402
from pstranspile.cluster.data.loader import DatasetBatches, LoaderRows  # noqa: E402
from pstranspile.cluster.pytorch import launch  # noqa: E402
from tests.frontends.torch.launched import Rows, batches, clicks, killing, loader, metric  # noqa: E402
from tests.frontends.torch.trained import assert_trained, simulated  # noqa: E402

ROOT = Path(__file__).parents[3]


def test_processes_train_as_the_simulation_does_and_the_weights_come_back(tmp_path: Path):
    """In two parts, of which the second goes on from the checkpoint of the first."""
    model, training = clicks()
    expected = simulated(training, loader)
    before = training.state
    launch(training, loader, steps=3, checkpoint=tmp_path / "kept", logs=tmp_path / "logs")
    assert any((training.state[name] != before[name]).any() for name in before)
    done = launch(training, loader, resume=tmp_path / "kept")
    assert_trained(training, done, expected, since=3)
    assert str(done).startswith("Launched: 2 trainers, ")
    training.write_back(model)
    other = clicks()[0]
    with torch.no_grad():
        for name, tensor in other.named_parameters():
            tensor.copy_(torch.from_numpy(expected[1][name]).reshape(tensor.shape))
    assert metric(model) == metric(other)


def test_a_trainer_that_is_killed_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("KILLED", str(tmp_path / "mark"))
    _, training = clicks()
    steps: dict[str, int] = {}

    def note(role: str, said: Mapping[str, Any]) -> None:
        steps.update({role: said["step"]} if role.startswith("trainer") and "step" in said else {})

    launch(training, killing, restarts=1, mode="async", on_report=note)
    assert (tmp_path / "mark").exists()
    assert "pstranspile launch: trainer_1 has ended by SIGKILL, and is started again (1 of 1)" in capfd.readouterr().err
    assert steps == {"trainer_0": 5, "trainer_1": 5}


def test_a_trainer_that_is_killed_ends_the_job_and_the_training_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KILLED", str(tmp_path / "mark"))
    _, training = clicks()
    before = training.state
    with pytest.raises(ps.DiagnosticError, match=r"error\[launch-ended\]: trainer_1 has ended by SIGKILL"):
        launch(training, killing)
    for name, value in training.state.items():
        np.testing.assert_array_equal(value, before[name])


SCRIPT = """
import numpy as np
import pstranspile.torch as pt
from tests.frontends.torch.launched import Rows, clicks

class Own(Rows):
    "Rows of a class that the script defines."

def main():
    training = clicks()[1]
    pt.launch(training, Own(), batch=8)
    np.savez("trained.npz", **training.state)

{guard}main()
"""


def run_script(folder: Path, guard: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT.format(guard=guard))
    command = [sys.executable, "script.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_a_script_launches_with_a_dataset_of_its_own(tmp_path: Path):
    done = run_script(tmp_path, 'if __name__ == "__main__":\n    ')
    assert done.returncode == 0, done.stderr
    training = clicks()[1]
    _, expected = simulated(training, loader)
    with np.load(tmp_path / "trained.npz") as state:
        for name, value in expected.items():
            np.testing.assert_array_equal(state[name].reshape(value.shape), value, name)


def test_a_script_whose_machines_would_launch_again_is_told_so(tmp_path: Path):
    done = run_script(tmp_path, "")
    assert done.returncode != 0
    assert "error[launch-again]: a job is launched while its own machines import the file" in done.stderr


def test_rows_of_a_dataset_are_dealt_as_batches_are():
    made = [list(DatasetBatches(Rows(), batch=8)(rank, 2)) for rank in range(2)]
    for rank, mine in enumerate(made):
        for ours, theirs in zip(mine, loader(rank, 2), strict=True):
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(one, other.numpy())
    uneven = DatasetBatches([{"x": float(at)} for at in range(8)], batch=5, epochs=2)
    assert [[batch["x"].tolist() for batch in uneven(rank, 2)] for rank in range(2)] == [
        [[0, 1], [5], [0, 1], [5]],
        [[2, 3, 4], [6, 7], [2, 3, 4], [6, 7]],
    ]
    rows = LoaderRows(DatasetBatches([{"x": float(at)} for at in range(9)], batch=4))
    rows.feeds([ps.Program()] * 2)
    assert "the last 1 row of each epoch is fewer than the 2 trainers, and left out" in rows.warnings()[0].message
    rows.feeds([ps.Program()])
    assert rows.warnings() == []
    shuffled = DatasetBatches(range(6), batch=6, epochs=2, shuffle=1)
    drawn = [batch[0].tolist() for batch in shuffled(0, 1)]
    assert [sorted(rows) for rows in drawn] == [[0, 1, 2, 3, 4, 5]] * 2
    assert drawn[0] != drawn[1]
    assert drawn == [batch[0].tolist() for batch in shuffled(0, 1)]
    with pytest.raises(ps.DiagnosticError, match=r"can't be shuffled"):
        DatasetBatches(iter(()), batch=2, shuffle=1)
    with pytest.raises(ps.DiagnosticError, match=r"rows of list make no batch: .*str is no number"):
        list(DatasetBatches(["a", "b"], batch=2)(0, 1))


def test_what_other_processes_cannot_be_given_is_refused():
    _, training = clicks()
    lock = threading.Lock()

    def held(rank: int, trainers: int) -> Any:
        with lock:
            return list(loader(rank, trainers))

    told = r"test_launch\.py:\d+: error\[data-carried\]: what is fed can't be given to other processes: .*lock"
    with pytest.raises(ps.DiagnosticError, match=told):
        launch(training, held)


def failing(rank: int, trainers: int) -> Any:
    raise KeyError(rank)


def test_errors_of_a_loader_are_at_its_line():
    _, training = clicks()
    line = failing.__code__.co_firstlineno
    with pytest.raises(ps.DiagnosticError, match=rf"test_launch\.py:{line + 1}:5: error\[input-python\]: KeyError: 0"):
        launch(training, failing)
    with pytest.raises(ps.DiagnosticError, match=r"error\[data-source\]: a batch of 1 values"):
        launch(training, lambda rank, trainers: [batch[0] for batch in batches()])
    with pytest.raises(ps.DiagnosticError, match=r"test_launch\.py:\d+: error\[data-source\]: it gives no batches"):
        launch(training, lambda rank, trainers: [])


@pytest.mark.parametrize(
    ("fed", "options", "told"),
    [
        (loader, {"batch": 8}, "batch is about a dataset, or files of rows; a function has its own batches"),
        ([1, 2], {}, "a dataset gives rows; batch says how many of them a step takes"),
        (loader, {"on": "mars"}, 'on is "local", "ray" or "ray://HOST:PORT", not \'mars\''),
        (loader, {"cpus": 1.0}, "cpus is for machines on Ray, not on='local'"),
        (loader, {"on": "ray", "logs": "x"}, "logs is for processes on this host, not on='ray'"),
        (loader, {"trainers": (1, 2)}, "trainers: jobs that grow and shrink run on Ray"),
        (loader, {"checkpoint_every": 2}, "checkpoint_every needs checkpoint"),
    ],
)
def test_options_that_do_not_go_together(fed: Any, options: dict[str, Any], told: str):
    with pytest.raises(ValueError, match="^" + re.escape(told)):
        launch(clicks()[1], fed, **options)


def test_a_loader_of_torch_is_refused():
    with pytest.raises(TypeError, match="a DataLoader draws its own batches in every process; give its dataset"):
        launch(clicks()[1], torch.utils.data.DataLoader(Rows(), batch_size=4))
