"""What machines keep and are sent where others take part: together it is what a checkpoint gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import CheckpointedRun
from pstranspile.cluster.checkpoint.layout import layout_of
from pstranspile.cluster.checkpoint.runs import Source
from pstranspile.cluster.net.checkpoints import Checkpoints
from pstranspile.cluster.net.parts import MachineState, part_of, read_part
from pstranspile.cluster.ray.cuts import PartialValue, ReusedRange, assemble_part, kept_elements, part_to_send
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adam, minimize


def module() -> ps.Module:
    model = L.Draft(seed=2)
    x, y = L.data(model, "x", [-1, 30]), L.data(model, "y", [-1, 1])
    minimize(L.mean(L.square_error_cost(L.fc(L.fc(x, 40, act="relu"), 1), y)), Adam(0.01))
    return model.module()


def job(servers: int, trainers: int) -> ps.Compiled:
    endpoints = [f"ps{number}:1" for number in range(servers)]
    return ps.compile(module(), ps.Job(pservers=endpoints, trainers=trainers, min_block_size=100))


@pytest.mark.parametrize("change", [(2, 3), (3, 2), (2, 2), (1, 4), (4, 1)])
def test_a_machine_is_sent_what_it_lacks_alone(change: tuple[int, int], tmp_path: Path):
    before, after = job(change[0], 2), job(change[1], 3)
    random = np.random.default_rng(0)
    feeds = {"x": random.normal(size=(3, 6, 30)).astype("f4"), "y": random.normal(size=(3, 6, 1)).astype("f4")}
    done = ps.simulate(before, feeds, run=CheckpointedRun(before, None, str(tmp_path / "kept")).run)
    left = {one.name: dict(part_of(one).values) for one in (*done.cluster.servers, *done.cluster.trainers)}
    files = Checkpoints(after, Source(tmp_path / "kept"), None, None, tmp_path).begin(None)
    layouts = layout_of(before), layout_of(after)
    has = kept_elements(*layouts)
    moved = 0
    for role, file in files.items():
        whole = read_part(file, role)
        part, keeps = part_to_send(whole, has.get(role, {}))
        made = assemble_part(part, keeps, left.get(role, {}))
        assert made.values.keys() == whole.values.keys()
        for name, value in whole.values.items():
            np.testing.assert_array_equal(made.values[name], value, err_msg=f"{name} of {role}")
            assert made.values[name].dtype == value.dtype
        moved += sum(part.values[placed.name].size for placed in own_parts(layouts[1], role))
    assert moved == lacked(*layouts)


def test_what_a_machine_has_not_left_is_missed():
    part, has = MachineState({"w": np.zeros(2, "f4")}, 1), {"w": PartialValue((4,), (ReusedRange(1, 3, "old", 0),))}
    assert list(has["w"].lacking) == [(0, 1), (3, 4)]
    assert assemble_part(part, has, {"old": np.array([5, 6], "f4")}).values["w"].tolist() == [0, 5, 6, 0]
    for left in ({}, {"old": None}, {"old": np.array([5, 6], "i4")}):
        with pytest.raises(LookupError, match="old"):
            assemble_part(part, has, left)


def own_parts(layout, role):
    return [part for placed in layout.variables.values() for part in placed.parts if part.machine == role]


def lacked(before, after) -> int:
    """How many elements servers have not that they are to have, counted one by one."""
    result = 0
    for name, placed in after.variables.items():
        had = {(part.machine, at) for part in before.variables[name].parts for at in elements(part)}
        result += sum((part.machine, at) not in had for part in placed.parts for at in elements(part))
    return result


def elements(part):
    return range(part.offset, part.offset + int(np.prod(part.shape)))
