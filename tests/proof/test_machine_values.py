"""What machines hold is kept from step to step as whole variables, and large tables as the rows that have changed."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import SGD, minimize
from pstranspile.proof.replay import ChangedRows, changed_rows
from pstranspile.proof.replays import replay_of
from pstranspile.proof.training import SingleMachine, start_cluster
from pstranspile.proof.workload import CheckInput, Workload

ROWS = 1 << 16


def test_just_the_rows_are_kept_that_differ():
    base = np.zeros((ROWS, 20), "float32")
    value = base.copy()
    value[3, 1], value[-1, -1], value[70, 0] = 1, np.nan, -0.0
    kept = changed_rows(value, base)
    assert kept is not None
    assert kept.rows.tolist() == [3, 70, ROWS - 1]
    assert kept.whole().tobytes() == value.tobytes()
    assert not base.any()


def test_what_is_small_or_has_changed_everywhere_is_kept_whole():
    base = np.zeros((ROWS, 20), "float32")
    assert changed_rows(base + 1, base) is None
    assert changed_rows(base.astype("float64"), base) is None
    assert changed_rows(base[:100] + 0, base[:100]) is None
    assert changed_rows(base.reshape(-1) + 0, base.reshape(-1)) is None


def embedding() -> ps.Module:
    draft = L.Draft(seed=1)
    table = L.embedding(L.data(draft, "ids", [-1, 1], "i64"), (ROWS, 20), is_sparse=True)
    minimize(L.mean(L.square(table)), SGD(0.5))
    return draft.module()


@pytest.mark.parametrize("wrong", [None, 5, ROWS - 5])
def test_a_row_that_no_step_concerns_is_held_to_what_it_was(wrong: int | None):
    module = embedding()
    made = ps.compile(module, ps.Job(pservers=2, trainers=2))
    workload = Workload(module, None, 2)
    feeds = {"ids": np.array([[[7], [9], [7], [ROWS - 2]], [[8], [1], [2], [3]]])}
    given = CheckInput(module, made, workload, feeds, {}, 5)
    single, cluster = SingleMachine(given), start_cluster(given)
    replay = replay_of(given, cluster)
    cluster.start()
    replay.begin(single.start)
    for step in range(2):
        cluster.run_to(step + 1)
        if step and wrong is not None:
            slices = [(server, name) for server in cluster.servers for name in server.scope if ".block" in name]
            server, name = slices[wrong // (ROWS // 2)]
            server.scope[name][wrong % (ROWS // 2)] += 1
        replay.hold(step)
    (table,) = [kept for kept in replay.previous_values.wholes.values() if isinstance(kept, ChangedRows)]
    assert table.rows.tolist() == sorted({7, 9, ROWS - 2, 8, 1, 2, 3} | ({wrong} if wrong else set()))
    assert bool(replay.problems) == (wrong is not None)


def test_a_step_of_the_single_machine_forgets_what_nothing_reads_any_more():
    draft = L.Draft(seed=1)
    hidden = L.data(draft, "x", [-1, 1000])
    for _ in range(30):
        hidden = L.relu(L.scale(hidden, 1.5))
    minimize(L.mean(L.fc(hidden, 1)), SGD(0.1))
    module = draft.module()
    feeds = {"x": np.ones((1, 1000, 1000), "float32")}
    made = ps.compile(module, ps.Job(pservers=1, trainers=1))
    single = SingleMachine(CheckInput(module, made, Workload(module, None, 1), feeds, {}, 1))
    tracemalloc.start()
    single.train(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 45 * feeds["x"].nbytes  # forward and backward make 120 such arrays, of which relu's results are read
