"""Servers that keep their state in files, and are started again from them and from nothing else."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines.injection import ServerFaults
from pstranspile.cluster.machines.message import SEND, Message
from pstranspile.cluster.machines.scenario import parse_scenario
from pstranspile.cluster.machines.snapshots import Snapshot, read_snapshot, write_snapshot
from pstranspile.cluster.machines.synchronous import Round
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.proof.faults import UpdateLedger
from pstranspile.runtime.large.table import LargeTable
from pstranspile.runtime.values import LoDTensor, SelectedRows
from tests.cluster.machines.faulty import STEPS, WITH_SERVERS, cluster, ended, equal

NAME = "pserver_0.kept"


def same(one: Any, other: Any) -> bool:
    """Equal in type and, bit for bit, in content."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_whatever_a_server_keeps_comes_back(tmp_path: Path):
    random = np.random.default_rng(0)
    rows = SelectedRows(np.array([5, 1]), random.normal(size=(4, 3)).astype("float32"), 30)
    ragged = LoDTensor(random.normal(size=(3, 2)), [[0, 1, 3]])
    message = Message(SEND, "trainer_0", "pserver_0", 0, 3, 17, "w@GRAD", rows, -1)
    kept = Snapshot(
        {"w": np.array([[-0.0, np.nan]], "float32"), "n": np.array(7), "t": rows, "l": ragged, "e": np.empty((0, 3))},
        {"live": {2, 0}, "sending": True, "queue": deque([1, 2]), "nothing": None,
         "round": Round({"g": ragged}, {"g": 1}, {}, {1: ("main", 4), 0: (None, 3)}, {0}, [message])},
        {0: 3}, {"trainer_0": 17}, {"trainer_0": 4},
    )  # fmt: skip
    write_snapshot(tmp_path / "deep" / NAME, "pserver_0", kept)
    assert same(read_snapshot(tmp_path / "deep" / NAME, "pserver_0"), kept)


def test_what_has_no_form_in_a_file_is_an_error(tmp_path: Path):
    with pytest.raises(TypeError, match="a server keeps object"):
        write_snapshot(tmp_path / NAME, "pserver_0", Snapshot({"x": object()}, {}, {}, {}, {}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("schedule", [None, 2])
@pytest.mark.parametrize("kind", ["adam", "sparse", "embedding"])
@pytest.mark.parametrize("keep", [1, 2])
def test_updates_are_made_anew_from_files(kind: str, schedule: int | None, keep: int, tmp_path: Path):
    scenario = (
        f"keep {keep} in {tmp_path}\ndelay 0.3 1..20\ndrop 0.2\n"
        "crash pserver_0 step 2 after 3 restart 30\ncrash pserver_1 step 4 restart 5\ncrash pserver_0 step 5 restart 9"
    )
    found = cluster("sync", scenario, schedule, kind)
    ledger = UpdateLedger(found)
    assert equal(ended(found), ended(cluster("sync", kind=kind)))
    assert ledger.problems() == []
    assert found.injector is not None
    assert sum("started again" in told for _, told in found.injector.log) == 3
    assert sorted(file.name for file in tmp_path.iterdir()) == [NAME, "pserver_1.kept"]


@pytest.mark.parametrize("mode", WITH_SERVERS)
def test_in_every_mode_files_do_what_memory_does(mode: str, tmp_path: Path):
    crashes = "crash pserver_0 step 3 after 1 restart 20\ncrash pserver_1 step 4 restart 40\nduplicate 0.3"
    in_memory = cluster(mode, f"keep 2\n{crashes}", 1)
    in_files = cluster(mode, f"keep 2 in {tmp_path}\n{crashes}", 1)
    assert equal(ended(in_files), ended(in_memory))
    assert in_files.injector is not None
    assert in_memory.injector is not None
    assert in_files.injector.log == in_memory.injector.log


def damaged(data: bytes, how: str) -> bytes:
    if how == "empty":
        return b""
    if how == "cut":
        return data[: len(data) * 2 // 3]
    if how == "longer":
        return data + b"\0"
    if how == "another":
        return b"\x89PNG" + data
    place = int(how) * (len(data) - 1) // 9  # a byte of every region
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize("how", ["empty", "cut", "longer", "another", *map(str, range(10))])
def test_damaged_files_are_refused(how: str, tmp_path: Path):
    file = tmp_path / NAME
    write_snapshot(file, "pserver_0", Snapshot({"w": np.ones((20, 3))}, {"live": {0}}, {0: 1}, {"trainer_0": 3}, {}))
    file.write_bytes(damaged(file.read_bytes(), how))
    with pytest.raises(DiagnosticError, match=r"pserver_0.kept: error\[cluster-kept\]: is (damaged|no state)"):
        read_snapshot(file, "pserver_0")


def test_a_server_is_not_started_from_a_bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file that goes away, and one of another server, while the server is down."""

    def run(spoil: Any) -> str:
        crash = ServerFaults._crash

        def crashing(self: ServerFaults) -> None:
            crash(self)
            spoil()

        with monkeypatch.context() as patch:
            patch.setattr(ServerFaults, "_crash", crashing)
            with pytest.raises(DiagnosticError) as caught:
                ended(cluster("sync", f"keep 1 in {tmp_path}\ncrash pserver_0 step 3 restart 9\n"
                              "crash pserver_1 step 6 restart 9"))  # fmt: skip
        (finding,) = caught.value.diagnostics
        assert finding.code == "cluster-kept"
        assert finding.location is not None
        assert finding.location.file == str(tmp_path / NAME)
        return finding.message

    assert run((tmp_path / NAME).unlink) == "can't be read: No such file or directory"
    assert run(lambda: (tmp_path / NAME).write_bytes((tmp_path / "pserver_1.kept").read_bytes())) == (
        "is the state of pserver_1, not of pserver_0"
    )


def test_a_folder_that_can_not_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiagnosticError, match="file"):
        ended(cluster("sync", f"keep 1 in {tmp_path / 'file'}\ncrash pserver_0 step 2 restart 9"))


def test_nothing_is_written_where_no_server_is_started_again(tmp_path: Path):
    ended(cluster("sync", f"keep 1 in {tmp_path}\ndrop 0.1"))
    assert not list(tmp_path.iterdir())


def test_the_line_of_a_scenario():
    scenario = parse_scenario("keep 3 in some/where")
    assert (scenario.keep, scenario.folder) == (3, "some/where")
    assert parse_scenario(str(scenario)) == scenario
    for text in ("keep 3 at x", "keep 3 in", "keep in x", "keep"):
        with pytest.raises(DiagnosticError, match="cluster-scenario"):
            parse_scenario(text)
    assert STEPS > 5


@pytest.mark.parametrize("what", ["file", "link", "link to nothing", "pipe", "folder"])
@pytest.mark.parametrize("large", [False, True])
def test_only_a_state_is_replaced(what: str, large: bool, tmp_path: Path):
    """A link would have another file overwritten, a pipe would be waited for."""
    victim, path = tmp_path / "mine", tmp_path / "kept" / NAME
    victim.write_bytes(b"precious")
    path.parent.mkdir()
    table = LargeTable(1000, 4, lambda ids: np.zeros((len(ids), 4), "float32"))
    kept = Snapshot({"t": table if large else np.zeros(3)}, {}, {}, {}, {})
    write_snapshot(path, "pserver_0", kept)
    (path.parent / f".{NAME}.part").symlink_to(victim)
    write_snapshot(path, "pserver_0", kept)
    path.unlink()
    if what == "file":
        path.write_bytes(b"precious")
    elif what == "link":
        path.symlink_to(victim)
    elif what == "link to nothing":
        path.symlink_to(tmp_path / "nothing")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    told = "it is there, and is no state of a server" if what == "file" else "is a link, a pipe or a folder; a state is"
    with pytest.raises(DiagnosticError, match=f"output-foreign.*{told}"):
        write_snapshot(path, "pserver_0", kept)
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "nothing").exists()
    assert what not in ("file", "link") or path.read_bytes() == b"precious"
