"""A server of Fluid's trainers that is killed goes on where it was: nothing is lost or taken twice."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.net.other_systems import GONE, Entry, Journal
from pstranspile.fluid.net.message import BATCH_BARRIER_NAME, FETCH_BARRIER_NAME
from pstranspile.ir.diagnostics import DiagnosticError
from tests.cluster.net.test_fluid_service import GRADIENT, Served, Trainer, named, starts, step, value_of_rate


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    server = Served(tmp_path, "--fluid", "--state", str(tmp_path / "kept"), mode=getattr(request, "param", "sync"))
    yield server
    server.end()


def test_in_the_middle_of_a_step(served: Served) -> None:
    """One trainer waits for parameters, and asks again; the first that the other one says is who it is not."""
    one, other = Trainer(served.address, 0), Trainer(served.address, 1)
    with ThreadPoolExecutor(2) as pool:
        before = next(iter(pool.map(starts, (one, other))))
        list(pool.map(step, (one, other), (GRADIENT, GRADIENT)))
        rate = value_of_rate(served, one)
        for trainer in (one, other):
            trainer.send(f"b@GRAD.trainer_{trainer.index}", np.zeros(20, "float32"))
            trainer.send(f"w@GRAD.trainer_{trainer.index}", GRADIENT * (1 + trainer.index))
        other.barrier("SendVariable", BATCH_BARRIER_NAME)
        served.kill()
        one.barrier("SendVariable", BATCH_BARRIER_NAME)  # which does not say whose it is
        after = [pool.submit(trainer.get, "w") for trainer in (one, other)]
        assert (after[0].result() == after[1].result()).all()
        np.testing.assert_allclose(before - after[0].result(), rate * 2.5 * GRADIENT, rtol=1e-4, atol=1e-7)
        served.kill()
        for trainer in (one, other):
            trainer.barrier("GetVariable", FETCH_BARRIER_NAME)
        last = list(pool.map(step, (one, other), (GRADIENT, GRADIENT)))
        np.testing.assert_allclose(before - last[0], rate * 3.5 * GRADIENT, rtol=1e-4, atol=1e-7)
    for trainer in (one, other):
        trainer.complete()
    assert served.process.wait(30) == 0
    assert not list(served.state.iterdir())


@pytest.mark.parametrize("served", ["async"], indirect=True)
def test_a_call_that_is_repeated_is_taken_once(served: Served) -> None:
    """Whoever has not got the answer to a call makes it again, on another connection."""
    one, other = Trainer(served.address, 0), Trainer(served.address, 1)
    before = starts(one)
    starts(other)
    rate = value_of_rate(served, one)
    one.send("w@GRAD", GRADIENT)
    one.channel.close()
    one = Trainer(served.address, 0)
    one.send("w@GRAD", GRADIENT)
    served.kill()
    one.send("w@GRAD", GRADIENT)
    np.testing.assert_allclose(before - one.get("w"), rate * GRADIENT, rtol=1e-4, atol=1e-7)
    one.send("w@GRAD", GRADIENT)
    other.send("w@GRAD", GRADIENT)
    np.testing.assert_allclose(before - one.get("w"), rate * 3 * GRADIENT, rtol=1e-4, atol=1e-7)
    for trainer in (one, other):
        trainer.complete()
    served.kill()
    assert served.process.wait(30) == 0


def test_a_trainer_that_was_given_up_stays_so(served: Served) -> None:
    one, other = Trainer(served.address, 0), Trainer(served.address, 1)
    with ThreadPoolExecutor(2) as pool:
        before = next(iter(pool.map(starts, (one, other))))
    for name, value in (("b@GRAD.trainer_0", np.zeros(20, "float32")), ("w@GRAD.trainer_0", GRADIENT)):
        one.send(name, value)
    one.barrier("SendVariable", BATCH_BARRIER_NAME)
    call = one.channel.unary_unary("/sendrecv.SendRecvService/GetVariable").future(named("w", out_varname="w"))
    assert one.status("GetVariable", named("nothing")) == "NOT_FOUND"
    assert not call.done()
    one.channel.close()
    after = step(other, GRADIENT)  # made of what both sent, as one had reported
    np.testing.assert_allclose(before - after, value_of_rate(served, other) * GRADIENT, rtol=1e-4, atol=1e-7)
    step(other, GRADIENT)  # made when one has not called again for a while
    served.kill()
    step(other, GRADIENT)
    other.complete()
    assert served.process.wait(30) == 0


class Written:
    """A journal in a folder, with two calls, and a third one in the file after."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.calls = [Entry("SendVariable", 1, b"abc"), Entry("GetVariable", 0, b""), Entry(GONE, 1, b"")]
        journal = Journal(str(folder), "pserver_0")
        self.first = journal.begin_file()
        for number, call in enumerate(self.calls):
            if number == 2:
                journal.begin_file()
            journal.add(*call, check_sum(call))
        journal.close()

    def file(self, number: int) -> Path:
        return self.folder / f"pserver_0.calls.{number}"

    def read(self) -> list[Entry]:
        return list(Journal(str(self.folder), "pserver_0").read(self.first))


def check_sum(call: Entry) -> int:
    return zlib.crc32(call.data)


def test_calls_on_disk(tmp_path: Path) -> None:
    written = Written(tmp_path)
    assert written.read() == written.calls
    whole = written.file(0).read_bytes()
    written.file(0).write_bytes(whole[:-3])  # it was being written, so nobody has got an answer
    assert written.read() == [written.calls[0], written.calls[2]]
    for damaged in (whole.replace(b"abc", b"abd"), b"x" + whole[1:], whole.replace(b"call", b"\0\0\0\0")):
        written.file(0).write_bytes(damaged)
        with pytest.raises(DiagnosticError, match="is damaged"):
            written.read()
    written.file(0).rename(written.folder / "pserver_0.calls.0.lost")
    with pytest.raises(DiagnosticError, match="is missing, with calls of Fluid's trainers that were answered"):
        written.read()
    journal = Journal(str(tmp_path), "pserver_0")
    assert journal.begin_file() == 2
    journal.end()
    assert not list(tmp_path.iterdir())


def test_what_is_no_file_of_calls(tmp_path: Path) -> None:
    """A pipe would be waited for, and a call of a million million bytes has no memory."""
    written = Written(tmp_path)
    whole = written.file(0).read_bytes()
    written.file(0).unlink()
    os.mkfifo(written.file(0))
    with pytest.raises(DiagnosticError, match=r"pserver_0\.calls\.0: .*it is a pipe or a device"):
        written.read()
    written.file(0).unlink()
    written.file(0).mkdir()
    with pytest.raises(DiagnosticError, match="Is a directory"):
        written.read()
    Journal(str(tmp_path), "pserver_0").forget(9)
    assert written.file(0).is_dir()
    written.file(0).rmdir()
    head = struct.pack("<4sIQII", b"call", 0, 1 << 40, 0, 1)
    written.file(0).write_bytes(head + struct.pack("<I", zlib.crc32(head)))
    os.truncate(written.file(0), 1 << 41)
    written.file(1).write_bytes(whole)
    with pytest.raises(DiagnosticError, match="is damaged: a call has 1099511627776 bytes"):
        written.read()


def test_a_full_disk_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was answered and could not be written down must not be missed silently."""

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    journal = Journal(str(tmp_path), "pserver_0")
    first = journal.begin_file()
    monkeypatch.setattr("os.writev", full)
    journal.add("SendVariable", 0, b"abc", 1)
    journal.add("SendVariable", 0, b"abc", 1)
    assert journal.problem
    assert journal.call_bytes
    monkeypatch.undo()
    with pytest.raises(DiagnosticError, match="is missing"):
        list(journal.read(first))
    second = journal.begin_file()
    journal.add("SendVariable", 0, b"abc", 891568578)
    assert not journal.problem
    assert list(journal.read(second)) == [Entry("SendVariable", 0, b"abc")]
    journal.forget(second)
    assert [path.name for path in tmp_path.iterdir()] == [f"pserver_0.calls.{second}"]


def test_a_folder_that_can_not_be_changed_is_marked_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes on, as on a full disk; who continues from the folder is told that calls are missing."""

    def denied(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    opened = os.open
    journal = Journal(str(tmp_path), "pserver_0")
    first = journal.begin_file()
    journal.add("SendVariable", 0, b"abc", 891568578)
    with monkeypatch.context() as folder:
        folder.setattr(Path, "rename", denied)
        folder.setattr(Path, "unlink", denied)
        folder.setattr("os.open", lambda path, flags, *mode: denied() if flags & os.O_CREAT else opened(path, flags))
        journal.begin_file()
        journal.add("SendVariable", 0, b"abc", 891568578)
        journal.forget(9)
        assert journal.problem == "Permission denied"
    with pytest.raises(DiagnosticError, match="lacks calls of Fluid's trainers that were answered"):
        list(journal.read(first))
    second = journal.begin_file()
    assert not journal.problem
    assert not list(journal.read(second))
