import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pstranspile.ir.diagnostics import Diagnostic, DiagnosticError
from pstranspile.ir.model import Location
from pstranspile.runtime.files import outputs
from pstranspile.runtime.files.outputs import require_writable, work_folder, write_output, write_outputs

ROOT = Path(__file__).parents[1]


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def refused(folder, files) -> Diagnostic:
    with pytest.raises(DiagnosticError) as raised:
        write_outputs(folder, files)
    return raised.value.diagnostics[0]


PLAN = {"plan.json": b"{}"}
JOB = {"mode": "sync", "pservers": ["a:1"], "trainers": 1, "distributed_vars": []}
COMPILED = {"plan.json": json.dumps({"version": 1, "source": "sha256:0", **JOB}).encode()}
"""The plan of a folder that a command takes for one that `compile` has written."""


def test_folders_are_made(tmp_path):
    write_outputs(tmp_path / "a" / "b", {"x.ir": b"1", "y.ir": b"2"})
    assert content(tmp_path) == {"a/b/x.ir": b"1", "a/b/y.ir": b"2"}
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["x.ir", "y.ir"]


def test_files_are_replaced_and_others_stay(tmp_path):
    (tmp_path / "x.ir").write_bytes(b"old")
    (tmp_path / "notes.txt").write_bytes(b"mine")
    write_outputs(tmp_path, {"x.ir": b"new"})
    assert content(tmp_path) == {"notes.txt": b"mine", "x.ir": b"new"}


def test_roles_of_a_bigger_cluster_are_removed(tmp_path):
    stale = ["trainer_0.ir", "trainer_12.ir", "pserver_3.main.pb", "pserver_3.startup.pb"]
    mine = ["trainer_a.ir", "trainer_01.ir", "pserver_1.ir.bak", "my_trainer_1.ir", "trainer_1.txt", "trainer_1.pb"]
    for name in (*stale, *mine):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "trainer_7.ir").mkdir()
    (tmp_path / "trainer_8.ir").symlink_to(tmp_path / "trainer_a.ir")
    kept = {name: name.encode() for name in mine} | {"trainer_8.ir": b"trainer_a.ir"}

    write_outputs(tmp_path, {"main.pb": b""})  # not a compile: nothing is stale
    assert len(content(tmp_path)) == len(stale) + len(kept) + 1
    write_outputs(tmp_path, {**PLAN, "trainer_1.ir": b"1"})  # no compile was here before: these are not ours
    assert len(content(tmp_path)) == len(stale) + len(kept) + 3
    write_outputs(tmp_path, {**PLAN, "trainer_0.ir": b"0"})
    assert content(tmp_path) == {**kept, **PLAN, "main.pb": b"", "trainer_0.ir": b"0"}
    assert (tmp_path / "trainer_7.ir").is_dir()


def test_names_must_be_plain(tmp_path):
    for name in ("", ".", "..", "a/b", "/etc/x", "a\0b"):
        assert refused(tmp_path / "new", {"ok.ir": b"", name: b""}).code == "output-name"
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below" / "it"):
        found = refused(folder, {"x.ir": b""})
        assert found.code == "output-unwritable"
        assert "a file where a folder is needed" in found.message
    assert content(tmp_path) == {"file": b"x"}


def test_a_folder_in_the_way(tmp_path):
    (tmp_path / "x.ir").mkdir()
    found = refused(tmp_path, {"a.ir": b"", "x.ir": b""})
    assert found.code == "output-unwritable"
    assert found.location is not None
    assert found.location.file == str(tmp_path / "x.ir")
    assert os.listdir(tmp_path) == ["x.ir"]


@pytest.mark.parametrize("call", range(4))
def test_a_full_disk_changes_nothing(tmp_path, monkeypatch, call):
    folder = tmp_path / "out"
    write_outputs(folder, {**PLAN, "trainer_0.ir": b"old", "trainer_1.ir": b"old"})
    before = content(tmp_path)
    real, calls = Path.write_bytes, []

    def write_bytes(self, data):
        calls.append(self)
        if len(calls) > call:
            real(self, data[:1])
            raise OSError(28, "No space left on device", str(self))
        return real(self, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    new = {"plan.json": b"[]", "trainer_0.ir": b"new", "trainer_1.ir": b"new", "pserver_0.ir": b"new"}
    found = refused(folder, new)
    assert "No space left on device" in found.message
    assert found.location == Location(str(folder))  # no temporary name
    assert content(tmp_path) == before
    assert sorted(os.listdir(folder)) == ["plan.json", "trainer_0.ir", "trainer_1.ir"]
    found = refused(tmp_path / "other" / "folder", new)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("call", range(3))
@pytest.mark.parametrize("failure", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_a_failing_rename_is_undone(tmp_path, monkeypatch, call, failure):
    write_outputs(tmp_path, {**PLAN, "trainer_0.ir": b"old"})
    before = content(tmp_path)
    real, calls = os.rename, []

    def rename(source, target):
        calls.append(target)
        if len(calls) == call + 1:
            raise failure
        real(source, target)

    monkeypatch.setattr("pstranspile.runtime.files.outputs.os.rename", rename)
    monkeypatch.setattr("pstranspile.runtime.files.outputs.exchange", lambda *_: False)
    with pytest.raises((DiagnosticError, KeyboardInterrupt)):
        write_outputs(tmp_path, {"plan.json": b"[]", "pserver_0.ir": b"new"})
    assert content(tmp_path) == before


def test_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    def denied(self, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", denied)
    found = refused(tmp_path, {"x.ir": b""})
    assert (found.code, found.location) == ("output-unwritable", Location(str(tmp_path)))
    assert "Permission denied" in found.message


def test_what_a_killed_process_left_is_removed(tmp_path):
    for folder in (tmp_path, tmp_path / "out"):
        (folder / f".pstranspile-{os.getpid()}-0" / "new").mkdir(parents=True)
        (folder / f".pstranspile-{os.getpid()}-0" / "new" / "x.ir").write_bytes(b"half")
    (tmp_path / "out" / "folder").mkdir()  # so that it is written in place
    write_outputs(tmp_path / "out", {"x.ir": b"1"})
    write_outputs(tmp_path / "other", {"x.ir": b"1"})
    assert content(tmp_path) == {"out/x.ir": b"1", "other/x.ir": b"1"}
    assert sorted(os.listdir(tmp_path)) == ["other", "out"]


def test_the_folder_of_another_run_is_left_alone(tmp_path):
    with work_folder(tmp_path, ".pstranspile-") as work:
        (work / "new").mkdir()
        write_outputs(tmp_path / "out", {"x.ir": b"1"})
        write_outputs(tmp_path, {"x.ir": b"2"})
        assert (work / "new").is_dir()
    assert sorted(os.listdir(tmp_path)) == ["out", "x.ir"]


def test_the_folder_keeps_what_else_it_holds(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    write_outputs(folder, {**PLAN, "trainer_0.ir": b"old"})
    (folder / "notes.txt").write_bytes(b"mine")
    (folder / "link").symlink_to("notes.txt")
    folder.chmod(0o750)
    before = os.stat(folder / "notes.txt")
    monkeypatch.setattr("pstranspile.runtime.files.outputs._write_in_place", None)  # it is exchanged
    write_outputs(folder, {**PLAN, "trainer_0.ir": b"new", "pserver_0.ir": b"new"})
    write_outputs(folder, {**PLAN, "trainer_0.ir": b"newer"})
    assert sorted(os.listdir(folder)) == ["link", "notes.txt", "plan.json", "trainer_0.ir"]
    assert os.path.samestat(before, os.stat(folder / "notes.txt"))
    assert (folder / "link").is_symlink()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("case", ["current", "link", "with a folder"])
def test_a_folder_that_somebody_is_in_stays_the_same_one(tmp_path, monkeypatch, case):
    folder = tmp_path / "out"
    write_outputs(folder, {**PLAN, "trainer_0.ir": b"old"})
    named = folder
    if case == "current":
        monkeypatch.chdir(folder)
        named = Path(".")
    elif case == "link":
        named = tmp_path / "link"
        named.symlink_to(folder)
    else:
        (folder / "below").mkdir()
    before = os.stat(folder)
    write_outputs(named, {**PLAN, "trainer_0.ir": b"new"})
    assert (folder / "trainer_0.ir").read_bytes() == b"new"
    assert case == "link" or os.path.samestat(before, os.stat(folder))
    assert named.is_symlink() == (case == "link")


WRITER = """
import sys
from pstranspile.runtime.files.outputs import write_outputs
letters = sys.argv[2]
while True:
    for letter in letters:
        roles = {f"trainer_{i}.ir": letter.encode() * 1000 for i in range(20 if letter == "a" else 30)}
        write_outputs(sys.argv[1], {"plan.json": letter.encode(), **roles})
        print(letter, flush=True)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_killed_at_any_moment(tmp_path, end):
    """The set of one run is there, whole; the next run removes what is left."""
    folder, seen = tmp_path / "out", set()
    for round_ in range(12):
        process = subprocess.Popen([sys.executable, "-c", WRITER, folder, "ab"], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(1 + round_ % 3):
            process.stdout.readline()
        time.sleep(round_ * 0.0007)
        process.send_signal(end)
        process.communicate()
        held = content(folder)
        (letter,) = {data[:1] for data in held.values()}
        assert len(held) == (21 if letter == b"a" else 31)
        seen.add(letter)
    assert seen == {b"a", b"b"}
    write_outputs(folder, {**PLAN, "trainer_0.ir": b"c"})
    assert os.listdir(tmp_path) == ["out"]
    assert content(folder) == {**PLAN, "trainer_0.ir": b"c"}


def test_several_runs_at_once(tmp_path):
    folder = tmp_path / "out"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, folder, letter], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for letter in "ab"
    ]
    for _ in range(60):
        for process in writers:
            assert process.stdout is not None
            assert process.stdout.readline()
    for process in writers:
        assert process.poll() is None
        process.kill()
        assert process.communicate()[1] == b""
    assert len({data[:1] for data in content(folder).values()}) == 1


def test_told_to_end(tmp_path):
    """The command takes away what it has begun to write."""
    script = "from pstranspile.runtime.files import outputs\nimport os, signal\nreal = outputs.os.rename\n"
    script += "outputs.exchange = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
    script += "import sys\nfrom pstranspile.__main__ import main\nsys.exit(main())"
    write_outputs(tmp_path / "out", {**COMPILED, "trainer_0.ir": b"ir 1\n"})
    job = ["compile", str(ROOT / "examples" / "regression.ir"), "--pservers", "2", "-o", str(tmp_path / "out")]
    ended = subprocess.run([sys.executable, "-c", script, *job], capture_output=True, text=True)
    told = f"interrupted: {tmp_path / 'out'} was not written\n"
    assert (ended.returncode, ended.stderr) == (143, told)
    assert os.listdir(tmp_path) == ["out"]
    assert content(tmp_path / "out") == {**COMPILED, "trainer_0.ir": b"ir 1\n"}


def test_one_file(tmp_path):
    write_output(tmp_path / "new" / "prog.ir", b"1")
    assert content(tmp_path) == {"new/prog.ir": b"1"}
    target, link = tmp_path / "target.ir", tmp_path / "link.ir"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_output(link, b"new")
    assert (link.is_symlink(), target.read_bytes()) == (True, b"new")
    with pytest.raises(DiagnosticError):
        write_output(tmp_path / "new", b"")
    with pytest.raises(DiagnosticError):
        write_output("a\0b", b"")


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_output(pipe, b"data")
    reader.join()
    assert received == [b"data"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["o.npz", "made/o.npz"])
def test_a_folder_that_takes_no_files_is_known_before_the_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also where rights allow them, as in a file system of the kernel's; nothing is left of the attempt."""
    require_writable(tmp_path / name)
    assert list(tmp_path.iterdir()) == []

    def refused(**options: object) -> object:
        assert options == {"dir": tmp_path}
        raise PermissionError(errno.EPERM, "Operation not permitted", str(tmp_path / "tmpx"))

    monkeypatch.setattr(outputs, "TemporaryFile", refused)
    with pytest.raises(DiagnosticError) as caught:
        require_writable(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: error[output-unwritable]: can't be written")


def test_a_full_disk_is_told_of_the_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(outputs, "_write", full)
    with pytest.raises(DiagnosticError) as found:
        write_output(tmp_path / "out.npz", b"x")
    assert str(found.value).startswith(f"{tmp_path / 'out.npz'}: error[output-unwritable]: can't be written: No space")
    assert not os.listdir(tmp_path)
