"""Machines of the real Fluid 1.8.5 and of this package in one cluster: the losses are those of Fluid alone.

Needs Fluid: PSTRANSPILE_FLUID is its Python (3.7, with paddlepaddle 1.8.5). The programs and the expected losses are
recorded; PSTRANSPILE_RECORDINGS may name a folder with more of them, laid out alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.net.fluid_job import ASYNC, FLUID, SERVERS, SYNC, TABLE, TRAINERS, Job, arrays, cases, has_losses

pytestmark = pytest.mark.skipif(not FLUID, reason="PSTRANSPILE_FLUID does not name the Python of a Fluid 1.8.5")

OURS = {
    "servers": SERVERS,
    "trainers": TRAINERS,
    "a trainer": TRAINERS[1:],
    "a server": SERVERS[1:],
    "one of each": (SERVERS[1], TRAINERS[1]),
}
"""Which machines this package plays; the others are Fluid's."""


def models(config: str, recorded: bool = True) -> Iterable[str]:
    return [case for case in cases(config) if has_losses(case) or not recorded] if FLUID else []


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("case", models(SYNC))
def test_step_by_step(case: str, ours: str, tmp_path: Path) -> None:
    losses = Job(case, SYNC, tmp_path, OURS[ours]).run()
    np.testing.assert_allclose(list(losses.values()), arrays(f"{case}/sync.npz")["loss"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", models(TABLE, recorded=False))
def test_a_distributed_table(case: str, tmp_path: Path) -> None:
    found: dict[str, list[list[float]]] = {}
    for ours, roles in {"nothing": (), **OURS}.items():
        work = tmp_path / ours
        work.mkdir()
        found[ours] = list(Job(case, TABLE, work, roles).run().values())
    for ours, losses in found.items():
        np.testing.assert_allclose(losses, found["nothing"], rtol=1e-5, atol=1e-6, err_msg=ours)


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("case", models(ASYNC))
def test_asynchronously_to_the_end(case: str, ours: str, tmp_path: Path) -> None:
    losses = Job(case, ASYNC, tmp_path, OURS[ours]).run()
    assert np.isfinite(list(losses.values())).all()
