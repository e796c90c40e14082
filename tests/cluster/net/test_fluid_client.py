"""Trainers on servers that know nothing but Fluid's service: they train as the simulation does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines.simulate import Simulated, simulate
from pstranspile.cluster.net.job import JobFolder
from pstranspile.cluster.net.terms import PeerRefused
from pstranspile.ir.model import FrozenMap, Role
from tests.cluster.machines.recorded import arrays, files, loss_of, roles
from tests.cluster.net.fluid_job import made_feeds
from tests.cluster.net.played import compiled, play, proxies

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")
STEPS = 4


class Case:
    """A recorded job, with inputs."""

    def __init__(self, name: str):
        self.case = name.partition("/")[0]
        found = {role: Role(role, one.main, one.startup, FrozenMap({})) for role, one in roles(name).items()}
        self.job = JobFolder(found, "job", 100)
        known = f"{self.case}/feeds.npz" in files()
        about = json.loads(files()[f"{self.case}/case.json"])
        self.feeds = arrays(self.case, "feeds") if known else made_feeds(about)
        self.options: dict[str, Any] = {"fetch": [loss_of(self.case)], "seed": 5}
        if known:
            self.options["init"] = arrays(self.case, "init")

    def played(self) -> Simulated:
        with proxies() as through:
            return play(self.job, self.feeds, STEPS, through=through, fluid=True, **self.options)

    def simulated(self) -> Simulated:
        return simulate(self.job.roles, self.feeds, STEPS, **self.options)


@pytest.mark.parametrize(
    "name",
    [
        "fit_a_line_sgd/sync_2x2",
        "fit_a_line_sgd/fleet_sync_2x2",
        "lr_exponential/sync_2x2",
        "word2vec_sparse_sgd/sync_2x2",
        "dist_table_sgd/repaired_table_sync_2x2",
    ],
)
def test_as_the_simulation(name: str) -> None:
    case = Case(name)
    found, expected = case.played().arrays(), case.simulated().arrays()
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)


@pytest.mark.parametrize(
    "name", ["lr_exponential/async_2x2", "word2vec_sparse_sgd/rt_async_2x2", "dist_table_sgd/repaired_table_async_2x2"]
)
def test_asynchronously_to_the_end(name: str) -> None:
    played = Case(name).played()
    for losses in played.fetched:
        ((_, values),) = losses.items()
        assert len(values) == STEPS
        assert np.isfinite(values).all()
    assert {server.updates for server in played.cluster.servers} != {0}


def test_what_servers_of_fluid_can_not_do(tmp_path: Path) -> None:
    feeds = {"x": np.zeros((1, 4, 1000), "float32"), "y": np.zeros((1, 4, 20), "float32")}
    job = compiled(tmp_path, PROGRAM, "--pservers", "1", "--trainers", "1", "--mode", "geo")
    with (
        proxies() as through,
        pytest.raises(PeerRefused, match="a server of Fluid: servers of Fluid can't take part in a"),
    ):
        play(job, feeds, 1, through=through, fluid=True)
