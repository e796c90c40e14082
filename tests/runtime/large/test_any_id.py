"""Tables that have a row for every id of 64 bits: no two ids share one, on any number of servers."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import CheckpointedRun
from pstranspile.cluster.checkpoint.row_files import export_rows, load_rows, save_rows
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import Adagrad, Momentum, minimize
from pstranspile.ir.table_rules import most_rows
from pstranspile.ops.textual import print_module
from pstranspile.runtime.kernels.random import ScatteredRows, stream_key, uniform
from pstranspile.runtime.large.table import beside, lie_within
from pstranspile.runtime.values import SelectedRows

HEIGHT = most_rows(4)
EDGES = [0, 1, HEIGHT - 1, HEIGHT, HEIGHT + 1, 1 << 62, (1 << 63) - 1, -1, -2, -(1 << 62), -(1 << 63)]
RULES = "words enter_after=2 enter_chance=0.7 shrink_every=4 drop_unseen=2 drop_below=0.3"


def module(optimizer: Any = None, height: int = HEIGHT) -> Any:
    model = L.Draft(seed=3)
    word, y = L.data(model, "word", [-1, 1], "i64"), L.data(model, "y", [-1, 1])
    row = L.embedding(word, (height, 4), is_sparse=True, param_attr="words")
    minimize(L.mean(L.square_error_cost(L.fc(row, 1), y)), optimizer or Adagrad(0.1))
    return model.module()


def feeds(steps: int = 10) -> dict[str, Any]:
    random = np.random.default_rng(0)
    pool = np.concatenate([EDGES, random.integers(-(1 << 63), (1 << 63) - 1, 10)])
    return {"word": random.choice(pool, (steps, 8, 1)), "y": random.random((steps, 8, 1), "float32")}


def job(servers: int = 2, tables: str = "words", **settings: Any) -> ps.Job:
    return ps.Job(pservers=servers, trainers=2, min_block_size=4, large_tables=tables, **settings)


def require_same(made: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(made.rows, wanted.rows)
    np.testing.assert_array_equal(made.value, wanted.value)


@pytest.mark.parametrize("width", [1, 3, 4, 7, 64])
def test_every_id_begins_with_numbers_of_its_own(width: int):
    key = stream_key(7, "table")
    far = [sign * (1 << bit) + more for bit in range(55, 63) for sign in (1, -1) for more in (-1, 0, 1)]
    ids = np.unique(np.array([*EDGES, *far]))
    drawn = uniform(ScatteredRows(key, 0, ids, width), 0, ids.size * width).reshape(-1, width)
    assert len(np.unique(drawn, axis=0)) == len(ids)
    for one, row in zip(ids, drawn, strict=True):
        np.testing.assert_array_equal(uniform(ScatteredRows(key, 0, np.array([one]), width), 0, width), row)
        if 0 <= int(one) * width < 1 << 62:
            np.testing.assert_array_equal(uniform(key, int(one) * width, width), row)


def test_a_row_across_the_64th_bit_follows_what_comes_before():
    key, width = stream_key(7, "table"), 3
    last = (1 << 64) // width  # its elements begin below 2^64 and end beyond
    ids = np.array([last - 1, last], np.uint64).view(np.int64)
    drawn = ScatteredRows(key, 0, ids, width).words().reshape(2, width)
    # the same elements as rows of one, of which none is beyond
    near = np.array([(last - 1) * width + at for at in range(4)], np.uint64).view(np.int64)
    np.testing.assert_array_equal(ScatteredRows(key, 0, near, 1).words(), [*drawn[0], drawn[1][0]])


@pytest.mark.parametrize("width", [1, 2, 3, 16, 1000])
def test_ids_are_spread_over_servers_and_each_has_one(width: int):
    rows, servers = most_rows(width), 3
    starts = [rows * number // servers for number in range(servers + 1)]
    for ids in (np.arange(3000), np.arange(-(1 << 63), -(1 << 63) + 3000), np.arange(3000) << 40):
        parts = [lie_within(ids, width, a, b - a) for a, b in pairwise(starts)]
        np.testing.assert_array_equal(np.sum(parts, axis=0), 1)
        assert min(int(part.sum()) for part in parts) > 800
    assert 0 <= int(beside(np.array(EDGES), width).min()) <= int(beside(np.array(EDGES), width).max()) < rows


@pytest.mark.parametrize("optimizer", [None, Momentum(0.1, 0.9)], ids=["adagrad", "momentum"])
@pytest.mark.parametrize("tables", ["words", RULES])
def test_any_number_of_servers_trains_the_same_rows(tables: str, optimizer: Any):
    fed = feeds()
    made = [ps.simulate(ps.compile(module(optimizer), job(n, tables)), fed).parameters["words"] for n in (1, 2, 3)]
    assert made[0].height == HEIGHT
    assert (tables == RULES) or made[0].rows.tolist() == sorted(set(fed["word"].reshape(-1).tolist()))
    for other in made[1:]:
        require_same(other, made[0])


def test_every_mode_whose_servers_update_has_all_rows():
    fed = feeds()
    for mode in ("async", "half-async", "fleet-sync"):
        made = ps.simulate(ps.compile(module(), job(mode=mode)), fed)
        assert made.parameters["words"].rows.tolist() == sorted(set(fed["word"].reshape(-1).tolist())), mode


def test_a_checkpoint_is_loaded_into_any_number_of_servers(tmp_path: Path):
    fed, kept = feeds(), str(tmp_path / "kept")
    first = ps.compile(module(), job(tables=RULES))
    expected = ps.simulate(first, fed)
    ps.simulate(first, fed, 5, run=CheckpointedRun(first, None, kept).run)
    for servers in (1, 3):
        then = ps.compile(module(), job(servers, tables=RULES))
        after = CheckpointedRun(then, kept, None)
        made = ps.simulate(then, fed, 10, run=after.run, seed=after.seed)
        for name, value in expected.arrays().items():
            np.testing.assert_array_equal(made.arrays()[name], value, err_msg=f"{name}, {servers} servers")


def test_rows_are_saved_and_loaded_by_themselves(tmp_path: Path):
    result, fed, kept = ps.compile(module(), job()), feeds(), str(tmp_path / "kept")
    made = ps.simulate(result, fed, 5, run=CheckpointedRun(result, None, kept).run)
    want = made.parameters["words"]
    folders = [str(tmp_path / name) for name in ("all", "exported", "serving")]
    save_rows(made.cluster, result, "words", folders[0])
    export_rows(kept, "words", folders[1])
    save_rows(made.cluster, result, "words", folders[2], rows="serving")
    for folder in folders:
        np.testing.assert_array_equal(np.load(Path(folder, "ids.npy")), want.rows)
        other = ps.compile(module(), job(3))
        machines = ps.simulate(other, fed, 1).cluster
        load_rows(machines, other, "words", folder)
        require_same(machines.parameters()["words"], want)


def test_processes_do_what_the_simulation_does(tmp_path: Path):
    (tmp_path / "net.ir").write_text(print_module(module()))
    np.savez(tmp_path / "feeds.npz", **feeds())
    command = [sys.executable, "-m", "pstranspile", "launch", "net.ir", "--pservers", "2", "--trainers", "2"]
    command += ["--set", "min_block_size=4", "--set", f"large_tables={RULES}", "--feed", "feeds.npz"]
    command += ["--save", "made.npz", "--checkpoint", "kept", "--checkpoint-every", "4"]
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    expected = ps.simulate(ps.compile(module(), job(tables=RULES)), feeds()).parameters["words"]
    made = np.load(tmp_path / "made.npz")
    require_same(SelectedRows(made["param/words@ROWS"], made["param/words"], HEIGHT), expected)
    then = ps.compile(module(), job(1, tables=RULES))
    after = CheckpointedRun(then, str(tmp_path / "kept" / "step_00000008"), None)
    require_same(ps.simulate(then, feeds(), 10, run=after.run, seed=after.seed).parameters["words"], expected)


def test_other_tables_have_no_more_ids_than_they_say():
    with pytest.raises(ps.DiagnosticError, match="Ids holds"):
        ps.simulate(ps.compile(module(height=HEIGHT - 1), job()), feeds())
