"""Large tables whose rows are in files: what is computed is the same, memory is given back, and nothing is left."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.ops.textual import print_module
from pstranspile.runtime.large import table as tables
from pstranspile.runtime.large.forms import arrays_of, rows_from, table_with
from pstranspile.runtime.large.table import LargeTable, rows_on_disk
from pstranspile.tools.cli import main
from tests.runtime.large.test_jobs import RULES, feeds, job, module
from tests.runtime.large.test_table import require_same, table, update

RULES_OF_TABLES = ["", "enter_after=2 shrink_every=5 drop_unseen=3 drop_below=0.1"]


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows move to the front after nearly every update, few at a time."""
    monkeypatch.setattr(tables, "SHARE", 1000)
    monkeypatch.setattr(tables, "_PIECE", 3)


def on_disk(folder: Path, rules: str = "", memory: int | None = None) -> LargeTable:
    with rows_on_disk(folder, memory):
        return table(rules)


def step(random: Any, held: LargeTable) -> LargeTable:
    """Does something to a table that `random` draws; gives the table with which to go on."""
    ids = np.unique(random.integers(0, 60, 12) * 16)
    what = random.integers(0, 12)
    if what == 0:
        return held.copy()
    if what == 1:
        return table_with(rows_from(arrays_of(held.rows())), held)
    if what == 2:
        held.shrink(unseen=5)
    elif what == 3:
        held.remove(ids)
    elif what == 4:
        held.set_rows(ids, random.random((len(ids), *held.dims), "float32"))
    elif what == 5 and random.random() < 0.2:
        held.clear()
    else:
        update(held, *ids.tolist())
    return held


@pytest.mark.parametrize("rules", RULES_OF_TABLES)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("memory", [None, 1])
def test_a_table_in_a_file_is_the_same_to_the_bit(seed: int, rules: str, memory: int | None, tmp_path: Path):
    one, other = table(rules), on_disk(tmp_path, rules, memory)
    for turn in range(80):
        one, other = (step(np.random.default_rng((seed, turn)), held) for held in (one, other))
        asked = np.random.default_rng(turn).integers(0, 1000, 100)
        np.testing.assert_array_equal(one.look_up(asked), other.look_up(asked))
        if turn % 10 == 0:
            require_same(one, other)
    require_same(one, other)
    np.testing.assert_array_equal(one.whole(1), other.whole(1))
    assert other.folder == str(tmp_path)


@pytest.mark.usefixtures("busy")
def test_rows_in_use_come_to_the_front(tmp_path: Path):
    held = on_disk(tmp_path)
    update(held, *range(200))
    hot = list(range(7, 200, 20))
    update(held, *hot)
    assert sorted(held.index.ids_by_place[: len(hot)].tolist()) == hot
    assert held.find(np.arange(200)).tolist() == [
        held.index.ids_by_place.tolist().index(number) for number in range(200)
    ]


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("rules", ["words", RULES])
def test_jobs_train_the_same(rules: str, tmp_path: Path):
    expected = ps.simulate(ps.compile(module(), job(tables=rules)), feeds())
    with rows_on_disk(tmp_path / "made"):
        found = ps.simulate(ps.compile(module(), job(tables=rules)), feeds())
    for name, value in expected.arrays().items():
        np.testing.assert_array_equal(found.arrays()[name], value, err_msg=name)
    held = [value for server in found.cluster.servers for value in server.scope.values_here.values()]
    assert [value.folder for value in held if isinstance(value, LargeTable)] == [str(tmp_path / "made")] * 2


def test_processes_do_the_same_from_their_state_and_checkpoints(tmp_path: Path):
    """A server keeps its state and all write checkpoints; `run` goes on from one."""
    (tmp_path / "net.ir").write_text(print_module(module()))
    np.savez(tmp_path / "feeds.npz", **feeds())
    given = ["net.ir", "--pservers", "2", "--trainers", "2", "--set", "min_block_size=4", "--feed", "feeds.npz"]
    given += ["--set", f"large_tables={RULES}", "--save", "made.npz", "--table-folder", "rows"]
    command = [sys.executable, "-m", "pstranspile"]
    more = ["--checkpoint", "kept", "--checkpoint-every", "4", "--restarts", "1", "--state-every", "1"]
    subprocess.run([*command, "launch", *given, *more], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    expected = ps.simulate(ps.compile(module(), job(tables=RULES)), feeds()).parameters["words"]
    made = np.load(tmp_path / "made.npz")
    np.testing.assert_array_equal(made["param/words"], expected.value)
    np.testing.assert_array_equal(made["param/words@ROWS"], expected.rows)
    resumed = ["--resume", "kept/step_00000008"]
    subprocess.run([*command, "run", *given, *resumed], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    np.testing.assert_array_equal(np.load(tmp_path / "made.npz")["param/words"], expected.value)
    assert list((tmp_path / "rows").iterdir()) == []


BUSY = """
import sys
import numpy as np
from pstranspile.runtime.large.table import rows_on_disk
from pstranspile.runtime.large.table import LargeTable

def memory():
    fields = dict(line.split(":") for line in open("/proc/self/status") if line.startswith("Rss"))
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssFile")) / 1e3

with rows_on_disk(sys.argv[1] or None):
    table = LargeTable(1 << 40, 64, lambda ids: np.ones((len(ids), 64), "float32"))
table.add_state(0.0)
before = memory()
ids = np.random.default_rng(0).permutation(200_000)
for at in range(0, len(ids), 10_000):
    places, _ = table.enter(np.sort(ids[at : at + 10_000]))
    table.put(places, table.take(places))
    table.end_update()
hot = np.arange(0, 200_000, 50)  # of every page some
for _ in range(20):
    places, _ = table.enter(hot)
    table.put(places, table.take(places) + 1)
    table.end_update()
print(memory() - before, flush=True)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is looked at in /proc")
def test_memory_holds_the_rows_in_use(tmp_path: Path):
    """The numbers take 102 MB, those of rows in use 2 MB of it, spread evenly; what is kept beside them 7 MB."""
    used = [
        float(subprocess.run([sys.executable, "-c", BUSY, where], check=True, capture_output=True, text=True).stdout)
        for where in ("", str(tmp_path))
    ]
    assert used[0] > 100
    assert used[1] < 40


LIMITED = """
import sys
import numpy as np
from pstranspile.runtime.large.table import LargeTable, rows_on_disk

MOST = int(sys.argv[2])

def files():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssFile"))
    return int(line.split()[1]) * 1024

ids = np.random.default_rng(1).permutation(60_000)


def total(most, steps, fill):
    # the most bytes of files at any time, and the sum of all rows of a table
    random, highest = np.random.default_rng(0), 0
    with rows_on_disk(sys.argv[1], most):
        table, other = (LargeTable(1 << 40, 64, lambda ids: np.ones((len(ids), 64), "float32")) for _ in range(2))
    for held in (table, other):
        held.add_state(0.0)
        for at in range(0, fill, 20_000):
            places, _ = held.enter(np.sort(ids[at : min(at + 20_000, fill)]))
            held.put(places, held.take(places))
            held.end_update()
            highest = max(highest, files())
    for _ in range(steps):
        for held in (table, other):
            asked = np.unique(np.concatenate([ids[random.integers(0, 1200, 3000)], random.integers(0, 60_000, 150)]))
            held.look_up(asked)
            highest = max(highest, files())
            places, _ = held.enter(asked)
            held.put(places, held.take(places) + 1)
            held.end_update()
            highest = max(highest, files())
    other.rows()
    highest = max(highest, files())
    other.remove(ids[:30_000])
    return max(highest, files()), float(table.look_up(np.arange(60_000)).sum(dtype="float64"))


total(6 << 20, 1, 1000)  # libraries come into memory
before = files()
most, everything = total(MOST, 10, len(ids))
print((most - before) / MOST, everything)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is looked at in /proc")
def test_the_limit_of_memory_holds(tmp_path: Path) -> None:
    """The numbers of two tables take 61 MB: all are in memory, or a tenth, and they are the same."""
    found = [
        subprocess.run(
            [sys.executable, "-c", LIMITED, str(tmp_path), str(most << 20)], check=True, capture_output=True, text=True
        ).stdout.split()
        for most in (1000, 6)
    ]
    assert float(found[1][0]) <= 1.05
    assert float(found[0][0]) * 1000 > 10
    assert len({total for _, total in found}) == 1


def test_a_limit_needs_a_folder_and_a_system_that_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(print_module(module()))
    for verb in (["run", "net.ir"], ["launch", "net.ir", "--pservers", "1"], ["start", "out"]):
        assert main([*verb, "--table-memory", "5"]) == 2
        assert "--table-memory is for rows on disk; give --table-folder" in capsys.readouterr().err
    monkeypatch.setattr(tables, "_PAGES_OF_FILES", "/proc/none")
    with pytest.raises(ps.DiagnosticError, match="table-folder"), rows_on_disk(tmp_path, 1 << 20):
        pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is looked at in /proc")
def test_processes_that_python_starts_have_a_limit_of_memory(tmp_path: Path) -> None:
    compiled, fed = ps.compile(module(), job()), feeds()
    done = ps.launch(compiled, fed, table_folder=tmp_path / "rows", table_memory=1)
    for name, value in ps.simulate(compiled, fed).parameters.items():
        held = done.parameters[name]
        for ours, theirs in zip(*((v if isinstance(v, tuple) else (v,)) for v in (held, value)), strict=True):
            assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes(), name
    with pytest.raises(ValueError, match="needs table_folder"):
        ps.launch(compiled, fed, table_memory=1)
    with pytest.raises(ValueError, match="a number of MB as table_memory"):
        ps.launch(compiled, fed, table_folder=tmp_path, table_memory=0)


def test_processes_that_are_killed_leave_no_files(tmp_path: Path):
    code = BUSY + "sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_and_leaves_the_table_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    held = on_disk(tmp_path)
    update(held, 1, 2, 3)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(ps.DiagnosticError, match="can't hold rows of large tables: No space left on device") as caught:
        held.enter(np.arange(100))
    assert caught.value.diagnostics[0].code == "table-folder"
    assert held.rows().ids.tolist() == [1, 2, 3]
    assert np.isfinite(held.take(np.arange(3))).all()


def test_rows_have_room_where_the_system_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    held = on_disk(tmp_path)
    assert update(held, *range(500)) == list(range(500))
    require_same(held, held.copy())


@pytest.mark.parametrize("verb", ["run", "launch"])
def test_a_folder_that_can_not_be_used_is_refused_in_a_line(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("net.ir").write_text(print_module(module()))
    Path("file").write_text("")
    command = [verb, "net.ir", "--pservers", "1", "--trainers", "1", "--set", "large_tables=words"]
    assert main([*command, "--table-folder", "file/rows"]) == 1
    told = capsys.readouterr().err
    assert "file/rows: error[table-folder]: can't hold rows of large tables: Not a directory" in told
    assert "Traceback" not in told
    assert main([*command, "--table-folder="]) == 2
    assert "--table-folder: the name is empty" in capsys.readouterr().err


def test_a_file_that_can_not_be_made_later_is_told(tmp_path: Path):
    held = on_disk(tmp_path / "rows")
    (tmp_path / "rows").rmdir()
    with pytest.raises(ps.DiagnosticError, match="table-folder"):
        update(held, 1)


def test_files_have_no_names(tmp_path: Path):
    held = on_disk(tmp_path)
    update(held, 1, 2, 3)
    assert len(held) == 3
    assert list(tmp_path.iterdir()) == []
