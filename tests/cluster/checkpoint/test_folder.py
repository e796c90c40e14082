"""A checkpoint appears whole or not at all, wherever its writing ends."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pstranspile.cluster.checkpoint import store as module
from pstranspile.cluster.checkpoint.api import load_checkpoint, save_checkpoint
from pstranspile.cluster.checkpoint.manifest import MANIFEST
from pstranspile.cluster.checkpoint.runs import forget_older, newest, step_folder
from pstranspile.cluster.checkpoint.store import previous_of, read_manifest, write_folder
from pstranspile.ir.diagnostics import DiagnosticError
from tests.cluster.checkpoint.jobs import codes, job, machines, model, started


class Killed(BaseException):
    """Stands for the end of the process."""


def count_calls(monkeypatch: pytest.MonkeyPatch, stop_at: int = -1) -> list[str]:
    """Counts what reaches the file system; the process ends before call number `stop_at`."""
    seen: list[str] = []

    def watched(name: str, real):
        def call(*args, **kwargs):
            if len(seen) == stop_at:
                raise Killed(name)
            seen.append(name)
            return real(*args, **kwargs)

        return call

    for name in ("rename", "fsync", "open"):
        monkeypatch.setattr(module.os, name, watched(name, getattr(os, name)))
    monkeypatch.setattr(module, "exchange", watched("exchange", module.exchange))
    # a killed process does not tidy up either, nor is anything of it collected
    monkeypatch.setattr(module.shutil, "rmtree", watched("rmtree", module.shutil.rmtree))
    monkeypatch.setattr(module.NewFolder, "__exit__", lambda self, *_: LEFT.append(self))
    return seen


LEFT: list[module.NewFolder] = []


@pytest.mark.parametrize("exchanged", [True, False])
def test_killed_at_every_moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, exchanged: bool):
    """After each, the earlier checkpoint or the new one is there, whole."""
    if not exchanged:
        monkeypatch.setattr(module, "exchange", lambda *_: False)
    compiled, cluster = job(2, 2, "sgd"), started(job(2, 2, "sgd"), 1)
    save_checkpoint(machines(cluster), compiled, tmp_path / "rehearsal" / "c", step=0)
    with monkeypatch.context() as patch:
        seen = count_calls(patch)
        save_checkpoint(machines(cluster), compiled, tmp_path / "rehearsal" / "c", step=1)
    total = len(seen)
    assert total > 10
    found: set[int] = set()
    for stop in range(total):
        place = tmp_path / str(stop) / "c"
        save_checkpoint(machines(cluster), compiled, place, step=1)
        with monkeypatch.context() as patch:
            count_calls(patch, stop)
            with pytest.raises(Killed):
                save_checkpoint(machines(cluster), compiled, place, step=2)
        again = machines(started(compiled))
        step = load_checkpoint(again, compiled, place).step
        found.add(step)
        save_checkpoint(machines(cluster), compiled, place, step=3)  # and the next one is not hindered
        assert read_manifest(place).step == 3
        assert not previous_of(place).exists()
    assert found == {1, 2}


def test_disk_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    compiled, cluster = job(2, 2, "sgd"), started(job(2, 2, "sgd"))
    save_checkpoint(machines(cluster), compiled, tmp_path / "c", step=1)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "fsync", full)
        with pytest.raises(DiagnosticError) as problem:
            save_checkpoint(machines(cluster), compiled, tmp_path / "c", step=2)
    assert codes(problem.value) == {"checkpoint-target"}
    assert "No space left" in str(problem.value)
    assert read_manifest(tmp_path / "c").step == 1
    assert sorted(os.listdir(tmp_path)) == ["c"]


def test_the_second_rename_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    compiled, cluster = job(2, 2, "sgd"), started(job(2, 2, "sgd"))
    save_checkpoint(machines(cluster), compiled, tmp_path / "c", step=1)
    real, calls = os.rename, []

    def rename(source, target) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "rename", rename)
        patch.setattr(module, "exchange", lambda *_: False)
        with pytest.raises(DiagnosticError):
            save_checkpoint(machines(cluster), compiled, tmp_path / "c", step=2)
    assert read_manifest(tmp_path / "c").step == 1
    assert sorted(os.listdir(tmp_path)) == ["c"]


def test_other_things_are_not_replaced(tmp_path: Path):
    compiled, cluster = job(2, 2, "sgd"), started(job(2, 2, "sgd"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("everything")
    (tmp_path / "file").write_text("a file")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name in ("mine", "file", "link"):
        with pytest.raises(DiagnosticError) as problem:
            save_checkpoint(machines(cluster), compiled, tmp_path / name)
        assert codes(problem.value) == {"checkpoint-target"}
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "everything"
    assert sorted(os.listdir(tmp_path)) == ["file", "link", "mine"]
    (tmp_path / "empty").mkdir()
    save_checkpoint(machines(cluster), compiled, tmp_path / "empty")
    assert read_manifest(tmp_path / "empty").mode == "sync"


def test_files_before_their_folder_has_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Everything is on disk before the rename, and the rename is on disk at the end."""
    order: list[str] = []
    real_sync, real_rename = os.fsync, os.rename
    monkeypatch.setattr(module.os, "fsync", lambda f: (order.append("sync"), real_sync(f))[1])
    monkeypatch.setattr(module.os, "rename", lambda a, b: (order.append("rename"), real_rename(a, b))[1])
    write_folder(tmp_path / "c", {"a": [b"1"], "deep/b": [b"2", b"3"]})
    assert order == ["sync"] * 4 + ["rename", "sync"]  # two files, two folders
    assert (tmp_path / "c" / "deep" / "b").read_bytes() == b"23"


def test_an_unknown_format(tmp_path: Path):
    with pytest.raises(ValueError, match="not 'pickle'"):
        save_checkpoint(machines(started(job())), job(), tmp_path / "c", format="pickle")  # type: ignore[arg-type]


def test_nothing_to_save_yet(tmp_path: Path):
    compiled = job()
    empty = {name: {} for name in machines(started(compiled))}
    with pytest.raises(DiagnosticError) as problem:
        save_checkpoint(empty, compiled, tmp_path / "c")
    assert codes(problem.value) == {"checkpoint-state"}
    assert len(problem.value.diagnostics) > 20
    assert not os.listdir(tmp_path)
    with pytest.raises(DiagnosticError) as problem:
        save_checkpoint({"machine": {}, "other": {}}, model(), tmp_path / "c")
    assert codes(problem.value) == {"checkpoint-place"}


def test_a_value_that_does_not_fit_its_place(tmp_path: Path):
    cluster = started(job())
    live = machines(cluster)
    live["pserver_1"]["learning_rate_0"] = live["pserver_1"]["learning_rate_0"].astype("float64")
    with pytest.raises(DiagnosticError, match="learning_rate_0 on pserver_1 is float64") as problem:
        save_checkpoint(live, job(), tmp_path / "c")
    assert codes(problem.value) == {"checkpoint-state"}


def test_numbered_checkpoints(tmp_path: Path):
    compiled, live = job(2, 2, "sgd"), machines(started(job(2, 2, "sgd")))
    for step in (1, 2, 3, 12):
        save_checkpoint(live, compiled, step_folder(tmp_path, step), step=step)
    (tmp_path / "step_00000000").mkdir()  # no checkpoint, though it has the name of one
    forget_older(tmp_path, 2)
    assert sorted(os.listdir(tmp_path)) == ["step_00000000", "step_00000003", "step_00000012"]
    assert load_checkpoint(live, compiled, newest(tmp_path)).step == 12


SAVER = """
import sys
from pstranspile.cluster.checkpoint.store import write_folder
from pathlib import Path
while True:
    for letter in (b"a", b"b"):
        files = {f"{n}": [letter] for n in range(3 if letter == b"a" else 5)}
        write_folder(Path(sys.argv[1]), {**files, MANIFEST: [letter]})
        print(flush=True)
"""


def test_killed_processes_leave_nothing_for_long(tmp_path: Path):
    folder = tmp_path / "c"
    for round_ in range(6):
        saver = SAVER.replace("MANIFEST", repr(MANIFEST))
        process = subprocess.Popen([sys.executable, "-c", saver, folder], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(round_ * 0.001)
        process.kill()
        process.communicate()
        (letter,) = {path.read_bytes() for path in folder.iterdir()}
        assert len(os.listdir(folder)) == (4 if letter == b"a" else 6)
    write_folder(folder, {MANIFEST: [b"c"]})
    assert os.listdir(tmp_path) == ["c"]
