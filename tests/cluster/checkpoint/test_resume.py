"""A job that was stopped and loaded again goes on bit for bit as if it had not been, on any number of servers."""

from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import load_checkpoint, save_checkpoint
from pstranspile.cluster.checkpoint.layout import layout_of
from tests.cluster.checkpoint.jobs import OPTIMIZERS, feeds, job, machines, model, spoil, started

STEPS = 10


def final(cluster) -> dict[str, bytes]:
    """Parameters, and what each trainer has for itself."""
    found = {name: value.tobytes() for name, value in cluster.parameters().items()}
    for trainer in cluster.trainers:
        for name in ("batch_norm_0.w_1", "batch_norm_0.w_2"):
            found[f"{name} on {trainer.role.name}"] = trainer.scope[name].tobytes()
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_stopped_after_every_step(optimizer: str, tmp_path: Path):
    straight = started(job(2, 2, optimizer))
    for step, one in enumerate(feeds(0, STEPS)):
        save_checkpoint(machines(straight), job(2, 2, optimizer), tmp_path / str(step), step=step)
        straight.step(one)
    want = final(straight)
    statistics = [want[f"batch_norm_0.w_1 on trainer_{i}"] for i in (0, 1)]
    assert statistics[0] != statistics[1], "the trainers have nothing of their own"
    for step in range(STEPS):
        servers = (1, 3, 5, 2)[step % 4]
        again = started(job(servers, 2, optimizer))
        spoil(machines(again), layout_of(job(servers, 2, optimizer)))
        resumed = load_checkpoint(machines(again), job(servers, 2, optimizer), tmp_path / str(step))
        assert resumed.step == step
        for one in feeds(step, STEPS):
            again.step(one)
        assert final(again) == want, f"stopped after {step} steps, went on with {servers} servers"


@pytest.mark.parametrize("options", [{"slice_var_up": False}, {"split_method": "HashName", "min_block_size": 60}])
def test_other_placements(options: dict, tmp_path: Path):
    straight = started(job(2, 2, "momentum"), 3)
    save_checkpoint(machines(straight), job(2, 2, "momentum"), tmp_path / "c", step=3)
    again = started(job(3, 2, "momentum", **options))
    spoil(machines(again), layout_of(job(3, 2, "momentum", **options)))
    load_checkpoint(machines(again), job(3, 2, "momentum", **options), tmp_path / "c")
    for one in feeds(3, 5):
        straight.step(one)
        again.step(one)
    assert final(again) == final(straight)


def test_from_a_cluster_to_one_machine_and_back(tmp_path: Path):
    module, cluster = model("adam"), started(job(3, 2), 4)
    save_checkpoint(machines(cluster), job(3, 2), tmp_path / "c", step=4)
    alone = ps.Scope()
    ps.run(module["startup"], scope=alone)
    assert load_checkpoint(alone, module, tmp_path / "c").step == 4
    assert alone["fc_0.w_0"].tobytes() == cluster.parameters()["fc_0.w_0"].tobytes()
    assert float(alone["fc_0.w_0_beta1_pow_acc_0"][0]) == pytest.approx(0.9**5)
    save_checkpoint(alone, module, tmp_path / "alone", step=4)
    again = started(job(2, 3))
    load_checkpoint(machines(again), job(2, 3), tmp_path / "alone")
    for trainer in again.trainers:
        assert trainer.scope["batch_norm_0.w_1"].tobytes() == alone["batch_norm_0.w_1"].tobytes()
    assert again.parameters()["fc_1.w_0"].tobytes() == cluster.parameters()["fc_1.w_0"].tobytes()


def test_more_trainers_start_from_the_first_trainers_values(tmp_path: Path):
    cluster = started(job(2, 2), 3)
    save_checkpoint(machines(cluster), job(2, 2), tmp_path / "c", step=3)
    more = started(job(2, 4))
    load_checkpoint(machines(more), job(2, 4), tmp_path / "c")
    name = "batch_norm_0.w_2"
    held = [trainer.scope[name].tobytes() for trainer in more.trainers]
    assert held[:2] == [trainer.scope[name].tobytes() for trainer in cluster.trainers]
    assert held[2:] == [held[0], held[0]]


def test_state_of_the_learning_rate_is_kept(tmp_path: Path):
    """Fluid loses the counter, and starts the schedule again."""
    cluster = started(job(2, 2, "adam with decay"), 4)
    save_checkpoint(machines(cluster), job(2, 2, "adam with decay"), tmp_path / "c", step=4)
    again = started(job(3, 2, "adam with decay"))
    load_checkpoint(machines(again), job(3, 2, "adam with decay"), tmp_path / "c")
    assert {int(m.scope["@LR_DECAY_COUNTER@"][0]) for m in again.servers.values()} == {3}
    again.step(feeds(4, 5)[0])
    assert {int(m.scope["@LR_DECAY_COUNTER@"][0]) for m in again.servers.values()} == {4}


@pytest.mark.parametrize("form", ["files", "combined", "safetensors"])
def test_every_format(form, tmp_path: Path):
    cluster = started(job(3, 2, "adam with decay"), 2)
    save_checkpoint(machines(cluster), job(3, 2, "adam with decay"), tmp_path / "c", format=form, step=2)
    again = started(job(2, 2, "adam with decay"))
    load_checkpoint(machines(again), job(2, 2, "adam with decay"), tmp_path / "c")
    for one in feeds(2, 4):
        cluster.step(one)
        again.step(one)
    assert final(again) == final(cluster)


def test_loading_shares_no_memory(tmp_path: Path):
    cluster = started(job(2, 2), 1)
    save_checkpoint(machines(cluster), job(2, 2), tmp_path / "c")
    again = {name: {} for name in machines(cluster)}
    load_checkpoint(again, job(2, 2), tmp_path / "c")
    arrays = [value for values in again.values() for value in values.values()]
    assert len(arrays) > 20
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
