"""Jobs with large tables: as with whole ones, in the simulation, in `check`, over checkpoints, and as processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.checkpoint.api import CheckpointedRun
from pstranspile.cluster.checkpoint.row_files import export_rows, load_rows, save_rows
from pstranspile.cluster.net import state
from pstranspile.frontends import layers as L
from pstranspile.frontends.autodiff import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    DecayedAdagrad,
    Ftrl,
    LarsMomentum,
    Momentum,
    RMSProp,
    minimize,
)
from pstranspile.ops.textual import print_module
from pstranspile.proof.check import check
from pstranspile.runtime.large.table import LargeTable, tables_on_threads
from pstranspile.tools.cli import main

RULES = "words enter_after=2 enter_chance=0.7 shrink_every=4 drop_unseen=2 drop_below=0.3"


def module(optimizer: Any = None, height: int = 12, *, sparse: bool = True) -> Any:
    model = L.Draft(seed=3)
    word, y = L.data(model, "word", [-1, 1], "i64"), L.data(model, "y", [-1, 1])
    row = L.embedding(word, (height, 4), is_sparse=sparse, param_attr="words")
    minimize(L.mean(L.square_error_cost(L.fc(row, 1), y)), optimizer or Adagrad(0.1))
    return model.module()


def feeds(height: int = 12, steps: int = 10) -> dict[str, Any]:
    random = np.random.default_rng(0)
    word = random.integers(0, height, (steps, 8, 1))
    return {"word": word, "y": random.random((steps, 8, 1), "float32")}


def job(servers: int = 2, tables: str = "words", **settings: Any) -> ps.Job:
    return ps.Job(pservers=servers, trainers=2, min_block_size=4, large_tables=tables, **settings)


def words_of(made: Any, height: int = 12) -> Any:
    rows = made.parameters["words"]
    whole = np.zeros((height, 4), "float32")
    whole[rows.rows] = rows.value
    return whole


def test_a_large_table_trains_as_a_whole_one():
    whole = ps.simulate(ps.compile(module(), job(tables="")), feeds())
    large = ps.simulate(ps.compile(module(), job()), feeds())
    np.testing.assert_array_equal(words_of(large), whole.parameters["words"])
    np.testing.assert_array_equal(large.parameters["fc_0.w_0"], whole.parameters["fc_0.w_0"])
    assert large.arrays()["param/words@ROWS"].tolist() == list(range(12))


def test_a_table_may_be_far_larger_than_any_memory():
    height = 1 << 50
    made = ps.simulate(ps.compile(module(height=height), job(3)), feeds(height))
    rows = made.parameters["words"]
    assert sorted(set(feeds(height)["word"].reshape(-1).tolist())) == rows.rows.tolist()
    assert rows.value.shape == (len(rows.rows), 4)


FAMILY = [
    SGD(0.1),
    Momentum(0.1, 0.9),
    Adagrad(0.1),
    Adam(0.1),
    Adam(0.1, lazy_mode=True),
    Adam(0.1, epsilon=0.01, later=True),
    Adam(0.1, epsilon=0.01, lazy_mode=True, later=True),
    Adamax(0.1),
    DecayedAdagrad(0.1),
    Adadelta(0.1),
    Adadelta(0.1, later=True),
    RMSProp(0.1, centered=True),
    Ftrl(0.1),
]


@pytest.mark.parametrize("optimizer", FAMILY, ids=lambda each: type(each).__name__)
def test_any_optimizer_does_to_a_row_what_it_does_to_a_table(optimizer: Any):
    fed = feeds(4)
    fed["word"][:] = np.arange(8).reshape(8, 1) % 4  # every step has all rows, as the whole table is updated whole
    whole = ps.simulate(ps.compile(module(optimizer, 4), job(1, "")), fed)
    large = ps.simulate(ps.compile(module(optimizer, 4), job(1)), fed)
    np.testing.assert_array_equal(words_of(large, 4), whole.parameters["words"])


@pytest.mark.parametrize("tables", ["words", RULES])
def test_check_knows_large_tables(tables: str):
    report = check(module(), job(tables=tables), feeds=feeds(), schedules=2)
    assert not report.different
    assert not report.wrong
    assert not report.schedule_differs


def test_tables_grow_in_every_mode_whose_servers_update():
    for mode in ("async", "half-async", "fleet-sync"):
        made = ps.simulate(ps.compile(module(), job(mode=mode)), feeds())
        assert made.parameters["words"].rows.tolist() == list(range(12)), mode


def test_a_checkpoint_is_loaded_into_any_number_of_servers(tmp_path: Path):
    fed, kept = feeds(), str(tmp_path / "kept")
    expected = ps.simulate(ps.compile(module(), job(tables=RULES)), fed)
    first = ps.compile(module(), job(tables=RULES))
    ps.simulate(first, fed, 5, run=CheckpointedRun(first, None, kept).run)
    for servers in (1, 3):
        then = ps.compile(module(), job(servers, tables=RULES))
        after = CheckpointedRun(then, kept, None)
        made = ps.simulate(then, fed, 10, run=after.run, seed=after.seed)
        for name, value in expected.arrays().items():
            np.testing.assert_array_equal(made.arrays()[name], value, err_msg=f"{name}, {servers} servers")


def test_rows_are_saved_and_loaded_by_themselves(tmp_path: Path):
    result, fed = ps.compile(module(), job()), feeds()
    cluster = ps.Cluster(result.roles(), distributed_vars=result.distributed_vars)
    cluster.feed(fed)
    cluster.run_to(4)
    all_rows, more, serving = (str(tmp_path / name) for name in ("all", "more", "serving"))
    assert save_rows(cluster, result, "words", all_rows) == len(np.unique(fed["word"][:4]))
    cluster.run_to(5)
    changed = save_rows(cluster, result, "words", more, rows="changed")
    assert changed == len(np.unique(fed["word"][4]))
    save_rows(cluster, result, "words", serving, rows="serving")
    want = cluster.parameters()["words"]
    np.testing.assert_array_equal(np.load(Path(serving, "values.npy")), want.value)
    other = ps.compile(module(), job(3))
    machines = ps.simulate(other, fed, 1).cluster
    for folder in (all_rows, more):
        load_rows(machines, other, "words", folder)
    np.testing.assert_array_equal(machines.parameters()["words"].value, want.value)
    load_rows(machines, other, "words", serving)
    np.testing.assert_array_equal(machines.parameters()["words"].rows, want.rows)
    with pytest.raises(ps.DiagnosticError, match="the job has no large table fc_0"):
        save_rows(machines, other, "fc_0.w_0", str(tmp_path / "none"))
    kept = machines.parameters()["words"]
    ids, numbers, seen = (np.load(Path(more, f"{name}.npy")) for name in ("ids", "numbers", "seen"))
    damaged = [
        *(("ids", held) for held in (ids[::-1], np.full_like(ids, ids[0]), ids.astype("f8"), ids[:, None])),
        *(("numbers", held) for held in (numbers.astype("f8"), numbers.view("i4"), numbers.astype(">f4"))),
        *(("seen", held) for held in (seen.view("f4"), seen[:, None], seen[:-1])),
        ("left", np.array([0.5])),
    ]
    for name, held in damaged:
        copy = Path(shutil.copytree(more, tmp_path / "damaged", dirs_exist_ok=True))
        np.save(copy / f"{name}.npy", held)
        with pytest.raises(ps.DiagnosticError, match="checkpoint-table"):
            load_rows(machines, other, "words", str(copy))
    Path(more, "ids.npy").unlink()
    os.mkfifo(Path(more, "ids.npy"))
    with pytest.raises(ps.DiagnosticError, match="pipe or a device"):
        load_rows(machines, other, "words", more)
    np.testing.assert_array_equal(machines.parameters()["words"].value, kept.value)
    Path(more, "ids.npy").unlink()
    Path(more, "ids.npy").write_bytes(b"no file of numpy's")
    with pytest.raises(ps.DiagnosticError, match="checkpoint-table"):
        load_rows(machines, other, "words", more)


def test_rows_of_a_checkpoint_are_those_of_its_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rules = "words shrink_every=3 drop_unseen=1"
    result, fed, kept = ps.compile(module(), job(tables=rules)), feeds(), str(tmp_path / "kept")
    run = CheckpointedRun(result, None, kept, 3).run
    machines = ps.simulate(result, fed, 6, run=run).cluster
    expected = str(tmp_path / "expected")
    for rows, option in (("all", []), ("serving", ["--serving"])):
        made = str(tmp_path / rows)
        count = save_rows(machines, result, "words", expected, rows=rows)  # pyright: ignore[reportArgumentType]
        assert main(["rows", kept, "words", *option, "-o", made]) == 0
        assert capsys.readouterr().out == f"{count} rows of words\n"
        assert {file.name: file.read_bytes() for file in Path(made).iterdir()} == {
            file.name: file.read_bytes() for file in Path(expected).iterdir()
        }
        shutil.rmtree(expected)
    before, changed = (str(tmp_path / name) for name in ("before", "changed"))
    assert main(["rows", f"{kept}/step_00000003", "words", "-o", before]) == 0
    assert main(["rows", kept, "words", "--since", f"{kept}/step_00000003", "-o", changed]) == 0
    assert set(np.load(f"{changed}/ids.npy")) == {*np.unique(fed["word"][3:6])} & {*np.load(f"{tmp_path}/all/ids.npy")}
    assert len(np.load(f"{changed}/left.npy"))
    other = ps.compile(module(), job(3, tables=rules))
    there = ps.simulate(other, fed, 1).cluster
    for folder in (before, changed):
        load_rows(there, other, "words", folder)
    want, made = (of.parameters()["words"] for of in (machines, there))
    old = ~np.isin(made.rows, want.rows)  # of its own first step
    np.testing.assert_array_equal(made.value[~old], want.value)


def test_rows_that_a_checkpoint_has_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    result, kept = ps.compile(module(), job()), str(tmp_path / "kept")
    ps.simulate(result, feeds(), 1, run=CheckpointedRun(result, None, kept).run)
    assert main(["rows", kept, "fc_0.w_0", "-o", str(tmp_path / "x")]) == 1
    assert "it has no large table fc_0.w_0; its large tables: words" in capsys.readouterr().err
    assert main(["rows", str(tmp_path / "none"), "words", "-o", str(tmp_path / "x")]) == 1
    with pytest.raises(ValueError, match="'changed' since a checkpoint"):
        export_rows(kept, "words", tmp_path / "x", rows="changed")


def test_a_checkpoint_of_a_large_table_is_none_of_a_whole_one(tmp_path: Path):
    kept = tmp_path / "kept"
    result = ps.compile(module(), job())
    ps.simulate(result, feeds(), 3, run=CheckpointedRun(result, None, str(kept)).run)
    whole = ps.compile(module(), job(tables=""))
    with pytest.raises(ps.DiagnosticError, match="it is a checkpoint of another program"):
        ps.simulate(whole, feeds(), 5, run=CheckpointedRun(whole, str(kept), None).run)


@pytest.mark.parametrize(
    ("made", "tables", "reason"),
    [
        (module(), "word", "large_tables names word, which no program updates"),
        (module(sparse=False), "words", "%words can't be a large table: its gradient %words@GRAD is dense"),
        (module(LarsMomentum(0.1, 0.9)), "words", "lars_momentum takes the norm of the whole table"),
    ],
)
def test_what_can_be_no_large_table(made: Any, tables: str, reason: str):
    with pytest.raises(ps.DiagnosticError, match=reason):
        ps.compile(made, job(tables=tables))


def test_mistakes_of_the_job_are_told():
    with pytest.raises(ps.DiagnosticError, match="large_tables: words: enter_after is 0"):
        job(tables="words enter_after=0")
    with pytest.raises(ps.DiagnosticError, match="large_tables names words twice"):
        job(tables="words,words enter_after=2")


def test_processes_do_what_the_simulation_does(tmp_path: Path):
    (tmp_path / "net.ir").write_text(print_module(module()))
    np.savez(tmp_path / "feeds.npz", **feeds())
    command = [sys.executable, "-m", "pstranspile", "launch", "net.ir", "--pservers", "2", "--trainers", "2"]
    command += ["--set", "min_block_size=4", "--set", f"large_tables={RULES}", "--feed", "feeds.npz"]
    command += ["--save", "made.npz", "--checkpoint", "kept", "--checkpoint-every", "4"]
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    expected = ps.simulate(ps.compile(module(), job(tables=RULES)), feeds()).parameters
    made = np.load(tmp_path / "made.npz")
    np.testing.assert_array_equal(made["param/words"], expected["words"].value)
    np.testing.assert_array_equal(made["param/words@ROWS"], expected["words"].rows)
    then = ps.compile(module(), job(1, tables=RULES))
    after = CheckpointedRun(then, str(tmp_path / "kept" / "step_00000008"), None)
    resumed = ps.simulate(then, feeds(), 10, run=after.run, seed=after.seed)
    np.testing.assert_array_equal(resumed.parameters["words"].value, expected["words"].value)


def test_servers_keep_their_state_without_copies_of_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("grpc")
    from tests.cluster.net.played import compiled, play

    (tmp_path / "net.ir").write_text(print_module(module()))
    given = ["--pservers", "1", "--trainers", "2", "--set", "large_tables=words"]
    folder = compiled(tmp_path / "job", str(tmp_path / "net.ir"), *given)
    written: list[bool] = []
    write = state.write_snapshot

    def spy(path: Path, server: str, snapshot: Any) -> None:
        written.append(isinstance(snapshot.values["words"], LargeTable))
        write(path, server, snapshot)

    monkeypatch.setattr(state, "write_snapshot", spy)
    found = play(folder, feeds(), 10, state=(tmp_path, 1), fetch=[])
    expected = ps.simulate(folder.roles, feeds(), 10, seed=1)
    np.testing.assert_array_equal(found.parameters["words"].value, expected.parameters["words"].value)
    assert len(written) > 2
    assert all(written)


@pytest.mark.parametrize(
    "optimizer",
    [Adagrad(0.1), Adam(0.1), Momentum(0.1, 0.9), Ftrl(0.1), RMSProp(0.1)],
    ids=lambda each: type(each).__name__,
)
def test_tables_on_several_threads_train_to_the_same_bits(optimizer: Any) -> None:
    model = L.Draft(seed=3)
    y = L.data(model, "y", [-1, 1])
    names = ["a", "b", "c"]
    rows = [
        L.embedding(L.data(model, name, [-1, 1], "i64"), (1 << 30, 4), is_sparse=True, param_attr=f"{name}_words")
        for name in names
    ]
    minimize(L.mean(L.square_error_cost(L.fc(L.concat(rows, axis=1), 1), y)), optimizer)
    compiled = ps.compile(model.module(), job(tables="a_words, b_words, c_words enter_after=2"))
    random = np.random.default_rng(0)
    fed = {"y": random.random((6, 8, 1), "float32"), **{name: random.integers(0, 30, (6, 8, 1)) for name in names}}

    def made(threads: int) -> dict[str, bytes]:
        with tables_on_threads(threads):
            run = ps.simulate(compiled, fed)
        return {
            name: b"".join(np.asarray(part).tobytes() for part in (value if isinstance(value, tuple) else (value,)))
            for name, value in run.parameters.items()
        }

    assert made(2) == made(1)
