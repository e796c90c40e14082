"""Lookups of one table in one step of an asynchronous cluster, answered before and after another trainer's update."""

from __future__ import annotations

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.proof.replays import replay_of
from pstranspile.proof.training import start_cluster
from pstranspile.proof.workload import CheckInput, Workload

STEPS = 3


def looking_up_twice() -> ps.Module:
    """With and without padding, so that a trainer asks for the rows twice."""
    draft = L.Draft(seed=1)
    ids, attr = L.data(draft, "ids", [-1, 1], "i64"), L.ParamAttr(name="table")
    first = L.embedding(ids, (6, 4), is_sparse=True, param_attr=attr)
    again = L.embedding(ids, (6, 4), is_sparse=True, padding_idx=5, param_attr=attr)
    minimize(L.mean(L.square(L.fc(first, 4) - again)), SGD(0.5))
    return draft.module()


@pytest.mark.parametrize("schedule", range(1, 9))
def test_each_lookup_is_held_to_what_the_server_had_then(schedule: int):
    module = looking_up_twice()
    made = ps.compile(module, ps.Job(pservers=2, trainers=3, mode="async", min_block_size=4))
    workload = Workload(module, None, STEPS)
    ids = np.random.RandomState(0).randint(0, 6, (STEPS, 12, 1)).astype("int64")
    given = CheckInput(module, made, workload, {"ids": ids}, {}, 5)
    cluster = start_cluster(given, schedule)
    replay = replay_of(given, cluster)
    cluster.start()
    start = ps.Scope()
    ps.run(module["startup"], scope=start, seed=5)
    replay.begin(dict(start))
    for step in range(STEPS):
        cluster.run_to(step + 1)
        replay.hold(step)
    assert not replay.problems
