"""Programs that save and load are those that Fluid's io makes, without its faults."""

from pathlib import Path

import numpy as np

import pstranspile as ps
from pstranspile.cluster.checkpoint.persistables import load_program, save_persistables, save_program
from pstranspile.ir.attributes import Long
from tests.cluster.checkpoint import recorded
from tests.cluster.checkpoint.jobs import job, machines, started
from tests.trained_clusters import Cluster

POWERS = {"model/fc_0.w_0_beta1_pow_acc_0", "model/fc_0.w_0_beta2_pow_acc_0"}
COUNTER = "model/@LR_DECAY_COUNTER@"


def test_loading_is_fluids():
    compiled = recorded.job()
    for endpoint, name in (("a:6174", "load_a"), ("b:6174", "load_b")):
        ours = recorded.ops_by_variable(load_program(compiled, endpoint, "model"), "load")
        fluids = recorded.ops_by_variable(recorded.program(f"persistables/{name}.pb"), "load")
        assert len(fluids) >= 10
        assert set(ours) - set(fluids) == {COUNTER}  # which Fluid forgets
        for path, op in fluids.items():
            made = ours[path]
            assert made.outputs == op.outputs
            for attr in ("seek", "shape", "file_path"):
                assert made.attrs[attr] == op.attrs[attr]
                assert type(made.attrs[attr]) is type(op.attrs[attr])


def test_fetching_from_servers_is_fluids():
    ours = recorded.ops_by_variable(save_program(recorded.job(), "model"), "recv_save")
    fluids = recorded.ops_by_variable(recorded.program("persistables/save_1.pb"), "recv_save")
    assert set(ours) - set(fluids) == {COUNTER}
    for path, op in fluids.items():
        made = ours[path]
        for attr in ("shape", "slice_shapes", "remote_varnames", "endpoints"):
            # Fluid's repeats a value that several servers have, after a header for one
            kept = 1 if path in POWERS and attr != "shape" else None
            assert tuple(made.attrs[attr]) == tuple(op.attrs[attr])[:kept], (path, attr)
    assert [len(fluids[path].attrs["endpoints"]) for path in sorted(POWERS)] == [2, 2]


def test_what_a_trainer_has_is_saved_as_in_fluid():
    compiled = recorded.job()
    fluids = recorded.ops_by_variable(recorded.program("persistables/save_0.pb"), "save")
    for trainer in (0, 1):
        ours = save_program(compiled, "model", trainer)
        # the trainer's counter is never counted: Fluid saves its first value
        assert set(fluids) - set(recorded.ops_by_variable(ours, "save")) == {COUNTER}
        assert bool(recorded.ops_by_variable(ours, "recv_save")) == (trainer == 0)


def test_elements_are_of_the_variables_type():
    made = recorded.ops_by_variable(save_program(recorded.job(), "model"), "recv_save")[COUNTER]
    assert made.attrs["dtype"] == 3


def test_parameters_of_asynchronous_jobs_come_from_the_servers():
    """The trainer's own may be old."""
    compiled = job(2, 2, "sgd", mode="async")
    made = save_program(compiled, "m")
    assert "m/fc_0.w_0" in recorded.ops_by_variable(made, "recv_save")
    assert "m/batch_norm_0.w_1" in recorded.ops_by_variable(made, "save")


def test_servers_that_loaded_by_program_go_on_bit_for_bit(tmp_path: Path):
    cluster = started(job(2, 2), 3)
    save_persistables(machines(cluster), job(2, 2), tmp_path / "model")
    compiled = job(3, 2)
    again = Cluster(compiled)
    for endpoint, server in again.servers.items():
        ps.run(load_program(compiled, endpoint, "model"), scope=server.scope, folder=tmp_path)
    for trainer in again.trainers:
        again.fetch(trainer, trainer.role.startup)
    for name, value in cluster.parameters().items():
        assert again.parameters()[name].tobytes() == value.tobytes()
    moments = [m.scope["fc_0.w_0_moment1_0"] for m in again.servers.values() if "fc_0.w_0_moment1_0" in m.scope]
    assert sum(np.abs(moment).sum() for moment in moments) > 0


def test_seek_counts_elements():
    made = recorded.ops_by_variable(load_program(recorded.job(), "a:6174", "model"), "load")["model/fc_0.w_0"]
    assert made.attrs["seek"] == Long(10000)
