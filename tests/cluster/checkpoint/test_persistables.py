"""Fluid's own layout: whole variables without a manifest, cut for any number of servers."""

import os
from pathlib import Path

import numpy as np
import pytest

from pstranspile.cluster.checkpoint.persistables import load_persistables, save_persistables
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.files.variables import load_variables, persistable_names
from pstranspile.runtime.values.encoding import read_combined, read_tensor, write_values
from tests.cluster.checkpoint.jobs import codes, everything, feeds, files, job, machines, model, started

DECAY = "adam with decay"
POWER = "fc_0.w_0_beta1_pow_acc_0"


@pytest.mark.parametrize("filename", [None, "all"])
@pytest.mark.parametrize("servers", [1, 2, 5])
def test_there_and_back(servers: int, filename: str | None, tmp_path: Path):
    cluster = started(job(3, 2, DECAY), 3)
    save_persistables(machines(cluster), job(3, 2, DECAY), tmp_path, filename)
    again = started(job(servers, 2, DECAY))
    load_persistables(machines(again), job(servers, 2, DECAY), tmp_path, filename)
    for trainer in cluster.trainers[1:]:  # in Fluid's layout there is one set of statistics
        for name in ("batch_norm_0.w_1", "batch_norm_0.w_2"):
            trainer.scope[name] = cluster.trainers[0].scope[name]
    for one in feeds(3, 5):
        cluster.step(one)
        again.step(one)
    for name, value in cluster.parameters().items():
        assert again.parameters()[name].tobytes() == value.tobytes(), name


def test_exactly_the_persistables_of_the_source(tmp_path: Path):
    """So that Fluid's `load_persistables` of the single-machine program finds what it looks for."""
    compiled = job(3, 2, DECAY)
    save_persistables(machines(started(compiled, 2)), compiled, tmp_path / "files")
    assert sorted(os.listdir(tmp_path / "files")) == list(persistable_names(model(DECAY).main))
    save_persistables(machines(started(compiled, 2)), compiled, tmp_path, "all")
    names = persistable_names(model(DECAY).main)
    for name, value in read_combined(tmp_path / "all", names).items():
        assert np.array_equal(value, read_tensor(tmp_path / "files" / name)), name
    scope: dict = {}
    load_variables(model(DECAY).main, scope, tmp_path / "files")
    assert float(scope["@LR_DECAY_COUNTER@"][0]) == 1


def test_a_value_of_several_servers_is_written_once(tmp_path: Path):
    """Fluid's file repeats it and can't be read."""
    compiled = job(2, 2)
    cluster = started(compiled, 2)
    holders = [m for m in cluster.servers.values() if POWER in m.scope]
    assert len(holders) == 2
    save_persistables(machines(cluster), compiled, tmp_path)
    value = read_tensor(tmp_path / POWER)
    assert value.shape == (1,)
    assert value.tobytes() == holders[0].scope[POWER].tobytes()


def test_fluids_repeated_value_is_read(tmp_path: Path):
    compiled = job(2, 2)
    save_persistables(machines(started(compiled, 2)), compiled, tmp_path)
    data = (tmp_path / POWER).read_bytes()
    (tmp_path / POWER).write_bytes(data + data[-4:])
    again = started(compiled)
    load_persistables(machines(again), compiled, tmp_path)
    assert {m.scope[POWER].tobytes() for m in again.servers.values() if POWER in m.scope} == {data[-4:]}
    (tmp_path / POWER).write_bytes(data + b"\0\0\0\1")
    with pytest.raises(DiagnosticError) as problem:
        load_persistables(machines(again), compiled, tmp_path)
    assert codes(problem.value) == {"values-rest"}


def test_what_is_wrong_is_told_and_nothing_set(tmp_path: Path):
    compiled = job(2, 2)
    save_persistables(machines(started(compiled, 2)), compiled, tmp_path)
    os.unlink(tmp_path / "fc_0.b_0")
    (tmp_path / "learning_rate_0").write_bytes(bytes(9))
    live = machines(started(compiled))
    before = everything(live)
    with pytest.raises(DiagnosticError) as problem:
        load_persistables(live, compiled, tmp_path)
    assert codes(problem.value) == {"values-unreadable", "values-damaged"}
    assert files(problem.value) == {str(tmp_path / "fc_0.b_0"), str(tmp_path / "learning_rate_0")}
    write_values(tmp_path / "fc_0.b_0", np.zeros(11, "float32"))
    write_values(tmp_path / "learning_rate_0", np.zeros(1, "float64"))
    with pytest.raises(DiagnosticError) as problem:
        load_persistables(live, compiled, tmp_path)
    assert codes(problem.value) == {"checkpoint-variable"}
    assert files(problem.value) == {str(tmp_path / "fc_0.b_0"), str(tmp_path / "learning_rate_0")}
    assert everything(live) == before
