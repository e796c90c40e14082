"""A PyTorch model that was traced is trained on Ray as by the simulation, and its weights come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from pstranspile.cluster.pytorch import launch
from pstranspile.tools.cli import main
from tests.cluster.ray_cluster.jobs import PATIENCE, require_nodes
from tests.frontends.torch.launched import Rows, clicks, loader
from tests.frontends.torch.trained import assert_trained, simulated

EXAMPLE = Path(__file__).parents[3] / "examples" / "masked_loss.py"


def test_actors_train_as_the_simulation_does(nodes: Any):
    require_nodes(nodes)
    training = clicks()[1]
    expected = simulated(training, loader)
    assert_trained(training, launch(training, loader, on="ray", cpus=0.5, patience=PATIENCE), expected)


def test_a_job_that_grows_gives_its_weights_back(nodes: Any):
    require_nodes(nodes)
    training = clicks()[1]
    before = training.state
    options: dict[str, Any] = {"batch": 8, "on": "ray", "cpus": 0.5, "patience": PATIENCE}
    done = launch(training, Rows(), **options, trainers=(2, 2), pservers=(1, 1))
    assert len(done.fetched[0][training.loss]) == 5
    assert all((training.state[name] != before[name]).any() for name in training.names)


def test_the_command_goes_on_from_a_checkpoint_of_a_traced_model(nodes: Any, tmp_path: Path):
    """The values that come with the model are not those to go on with, which the checkpoint has."""
    require_nodes(nodes)
    job = [f"{EXAMPLE}:by_rows", "--pservers", "1", "--trainers", "2", "--feed", f"{EXAMPLE}:loader"]
    on_ray = ["launch", *job, "--on", "ray", "--cpus", "0.5"]
    assert main([*on_ray, "--steps", "2", "--checkpoint", str(tmp_path / "kept")]) == 0
    assert main([*on_ray, "--resume", str(tmp_path / "kept"), "--save", str(tmp_path / "ray.npz")]) == 0
    assert main(["run", *job, "--save", str(tmp_path / "run.npz")]) == 0
    with np.load(tmp_path / "ray.npz") as made, np.load(tmp_path / "run.npz") as expected:
        for name in (name for name in expected if name.startswith("param/")):
            np.testing.assert_array_equal(made[name], expected[name])
