"""Several slices of one parameter on one server: each keeps a count of its own, so training is as with one slice."""

from pathlib import Path

import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import load_checkpoint, save_checkpoint
from pstranspile.cluster.checkpoint.layout import layout_of
from tests.cluster.checkpoint.jobs import feeds, job, machines, spoil, started

CROWDED = {"split_method": "HashName", "min_block_size": 4}


@pytest.mark.parametrize("optimizer", ["adam", "adam with decay", "momentum", "ftrl"])
def test_trains_as_with_one_slice(optimizer: str):
    crowded = job(2, 2, optimizer, **CROWDED)
    servers = [s.endpoint for p in crowded.plan.parameters for s in p.slices if p.name == "fc_0.w_0"]
    assert len(set(servers)) < len(servers), "no server has two slices"
    want, found = started(job(1, 2, optimizer), 5).parameters(), started(crowded, 5).parameters()
    for name, value in want.items():
        assert found[name].tobytes() == value.tobytes(), name


def test_saved_and_loaded(tmp_path: Path):
    """Into other servers, and from other servers."""
    for before, after in ((CROWDED, {}), ({}, CROWDED)):
        cluster = started(job(2, 2, "adam", **before), 3)
        save_checkpoint(machines(cluster), job(2, 2, "adam", **before), tmp_path / "c")
        again = started(job(2, 2, "adam", **after))
        spoil(machines(again), layout_of(job(2, 2, "adam", **after)))
        load_checkpoint(machines(again), job(2, 2, "adam", **after), tmp_path / "c")
        for one in feeds(3, 5):
            cluster.step(one)
            again.step(one)
        for name, value in cluster.parameters().items():
            assert again.parameters()[name].tobytes() == value.tobytes(), name


def test_every_slice_has_its_own_count():
    layout = layout_of(job(2, 2, "adam", **CROWDED))
    power = layout.variables["fc_0.w_0_beta1_pow_acc_0"]
    names = {part.name for part in power.holders}
    assert names == {f"fc_0.w_0_beta1_pow_acc_0.block{k}" for k in (0, 1)}
    assert power.shape == (1,)
    assert isinstance(ps.dumps(job(2, 2, "adam", **CROWDED).pserver("ps0:6174").module), str)
