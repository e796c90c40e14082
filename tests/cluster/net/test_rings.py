"""Trainers without servers as processes: one of them is killed, stopped or started again while they sum values."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

import pstranspile as ps
from pstranspile.cluster.machines.message import COLLECTIVE, COMPLETE, PIECE, STATEMENT, TOTAL, Message
from pstranspile.cluster.machines.rings import NEVER, Piece, Ring, Statement, Total
from pstranspile.cluster.machines.rings import RingContribution as Contribution
from pstranspile.cluster.machines.simulate import cluster_of, simulate
from pstranspile.cluster.net import checks
from pstranspile.cluster.net.job import JobFolder, load_job_folder
from pstranspile.cluster.net.site import LocalMachines
from pstranspile.cluster.net.supervisor import Ports
from pstranspile.cluster.net.terms import MOST_HELD, PeerRefused
from pstranspile.cluster.net.wire import WireError
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.runtime.values import SelectedRows
from pstranspile.tools.cli import main
from tests.cluster.net.wrong import Beside

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")
SCRIPT = str(Path(__file__).parent / "paced.py")
ROLES = ("trainer_0", "trainer_1", "trainer_2")
STEPS, LEASE = 60, 1.5
PART = Contribution("c_allreduce_sum", 0, True, "f32[1000, 20]", np.ones(10000, "float32"))
SUM = Total(1, (0, 0), "w@GRAD", NEVER, (0, 1), np.ones(10000, "float32"))


class Company:
    """Three trainers on this host, whose steps take half a second until they are released."""

    def __init__(self, folder: Path):
        self.folder, self.ports = folder, Ports(3)
        x = np.random.RandomState(1).rand(STEPS, 6, 1000).astype("float32")
        np.savez(folder / "data.npz", x=x, y=x[:, :, :20])
        job = ["--mode", "grad-allreduce", "--trainers", ",".join(self.ports.addresses), "-o", str(folder / "job")]
        assert main(["compile", PROGRAM, *job]) == 0
        self.hold = folder / "hold"
        self.hold.touch()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.pipes: dict[str, IO[str]] = {}
        for role in ROLES:
            self.start(role)

    def start(self, role: str) -> None:
        reading, writing = os.pipe()
        command = [sys.executable, SCRIPT, str(self.hold), "start", str(self.folder / "job")]
        command += ["--role", role, "--feed", str(self.folder / "data.npz"), "--lease", str(LEASE), "--patience", "120"]
        command += ["--save", str(self.folder / f"{role}.npz")]
        told = {**os.environ, "PSTRANSPILE_STATUS": str(writing), "OMP_NUM_THREADS": "1"}
        self.processes[role] = subprocess.Popen(
            command, env=told, pass_fds=[writing], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        os.close(writing)
        self.pipes[role] = os.fdopen(reading)

    def wait_for(self, role: str, step: int) -> None:
        """Until a trainer has done so many steps."""
        for line in self.pipes[role]:
            if json.loads(line).get("step", -1) >= step:
                return
        raise AssertionError(f"{role} has ended: {self.processes[role].communicate()[1]}")

    def end(self, role: str) -> tuple[int, str]:
        """How a process ends, and what it says."""
        told = self.processes[role].communicate(timeout=240)[1]
        return self.processes[role].returncode, told

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        for pipe in self.pipes.values():
            pipe.close()
        self.ports.close()

    def assert_all_done(self, but: str) -> None:
        """The others have done all steps, and hold the same parameters to the bit."""
        self.hold.unlink()
        others = [role for role in ROLES if role != but]
        ends = {role: self.end(role) for role in others}
        for role, (status, told) in ends.items():
            lines = [line for line in told.splitlines() if "is not let in: the others" not in line]
            assert (status, len(lines)) == (0, 2), told
            assert lines[0].startswith(f"{role}: goes on without {but}: ")
            assert lines[1] == f"{self.folder / f'{role}.npz'}: the fetched values and the final parameters"
        one, other = (np.load(self.folder / f"{role}.npz") for role in others)
        assert len(one["step/loss"]) == STEPS
        for name in ("param/w", "param/b"):
            np.testing.assert_array_equal(one[name], other[name])


@pytest.fixture
def company(tmp_path: Path) -> Iterator[Company]:
    found = Company(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("victim", ROLES)
def test_the_others_go_on_without_a_trainer_that_is_killed(victim: str, company: Company) -> None:
    """Whichever it is; and a process that takes its place is told that it can't take part again."""
    company.wait_for(victim, 2)
    company.processes[victim].kill()
    company.end(victim)
    company.pipes[victim].close()
    company.start(victim)
    status, told = company.end(victim)
    assert (status, told.count("go on without")) == (1, 1), told
    assert f"{victim}, which can't take part again in a job without servers" in told
    company.assert_all_done(but=victim)


@pytest.mark.parametrize("victim", ["trainer_0"])
def test_a_trainer_that_was_stopped_for_too_long_is_told_so(victim: str, company: Company) -> None:
    company.wait_for(victim, 2)
    company.processes[victim].send_signal(signal.SIGSTOP)
    time.sleep(LEASE + 2)
    company.processes[victim].send_signal(signal.SIGCONT)
    status, told = company.end(victim)
    assert status == 1
    assert "given up" in told
    company.assert_all_done(but=victim)


def test_a_trainer_that_ends_with_an_error_is_not_waited_for(company: Company) -> None:
    """It says so itself: nobody has to wait for a lease."""
    company.wait_for("trainer_1", 2)
    company.processes["trainer_1"].send_signal(signal.SIGTERM)
    assert company.end("trainer_1")[0] == -signal.SIGTERM or company.processes["trainer_1"].returncode > 0
    company.assert_all_done(but="trainer_1")


@pytest.mark.parametrize(
    ("kind", "payload", "fits"),
    [
        (PIECE, Piece(1, (0, 0), "w@GRAD", NEVER, PART), True),
        (PIECE, Piece(7, (0, 0), "w@GRAD", NEVER, PART), False),
        (PIECE, Piece(1, (0, 0), "unknown", NEVER, PART), False),
        (PIECE, np.ones(3), False),
        (PIECE, Piece(1, (0, 0), "w@GRAD", (0, 0), PART), False),
        (TOTAL, SUM, True),
        (TOTAL, SUM._replace(segment=0), False),  # which trainer_0 sums itself
        (TOTAL, SUM._replace(key=(0, 1)), False),
        (TOTAL, SUM._replace(key=(-1, 0)), False),  # of which nothing is open
        (TOTAL, SUM._replace(floor=(0, 0)), False),
        (TOTAL, SUM._replace(value=SUM.value[:-1]), False),
        (TOTAL, PART, False),
        (STATEMENT, Statement(0, NEVER, ()), True),
        (STATEMENT, Statement(1, (0, 0), (SUM,)), True),
        (STATEMENT, Statement(1, (1 << 60, 0), ()), False),  # parts up to there would count as summed
        (STATEMENT, Statement(1, NEVER, (SUM,)), False),
        (STATEMENT, Statement(0, (0, 0), (SUM,)), False),
        (STATEMENT, Statement(1, (0, 0), (SUM._replace(value=SUM.value[:-1]),)), False),
        (STATEMENT, Statement(0, NEVER, (Total(0, (0, 0), "unknown", NEVER, (0,), None),)), False),
        (COLLECTIVE, PART, False),
        (COMPLETE, None, True),
    ],
)
def test_what_another_trainer_may_say(kind: str, payload: object, fits: bool) -> None:
    job = ps.Job(trainers=["a:1", "b:1"], mode="grad-allreduce")
    compiled = ps.compile(ps.load(PROGRAM), job)
    part = LocalMachines(cluster_of(compiled), "trainer_0", lambda peer, messages: None)
    given = PART._replace(value=np.ones((1000, 20), "float32"))
    own = Message(COLLECTIVE, "trainer_0", "trainer_0/ring_0", 0, 0, 1, "w@GRAD", given, 0)
    part.cluster.rings["trainer_0/ring_0"].receive(own)
    message = Message(kind, "trainer_1/ring_0", "trainer_0/ring_0", 1, 0, 1, "w@GRAD", payload, -1)
    with nullcontext() if fits else pytest.raises(WireError, match="trainer_1 may not send this to trainer_0/ring_0"):
        part.require_allowed(part.peers["trainer_1"], message)


def test_who_does_not_come_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ports = Ports(2)
    job, fed = str(tmp_path / "job"), ["--feed", str(tmp_path / "fed.npz")]
    np.savez(fed[1], x=np.zeros((1, 8, 1000), "f4"), y=np.zeros((1, 8, 20), "f4"))
    assert main(["compile", PROGRAM, "--mode", "nccl2", "--trainers", ",".join(ports.addresses), "-o", job]) == 0
    assert main(["start", job, "--role", "trainer_0", "--patience", "0.3", *fed]) == 1
    assert "trainer_0: not come for 0.3 seconds: trainer_1" in capsys.readouterr().err
    assert main(["start", job, "--role", "trainer_1", "--patience", "0.3", *fed]) == 1
    assert f"nobody answers for 0.3 seconds: trainer_0 at {ports.addresses[0]}" in capsys.readouterr().err
    ports.close()


# values whose dims depend on what is fed


class Exchanged:
    """Three trainers, each a thread, that also sum what they are fed, which is declared with the dims `declared`."""

    def __init__(self, folder: Path, declared: str, rows: int, feed: Any = None):
        compiled = str(folder / "job")
        endpoints = ",".join(f"127.0.0.1:{port}" for port in (6170, 6171, 6172))
        assert main(["compile", PROGRAM, "--mode", "grad-allreduce", "--trainers", endpoints, "-o", compiled]) == 0
        for role in ROLES:
            file = folder / "job" / f"{role}.ir"
            text = file.read_text().replace("    temp  %x :", f"    temp  %z : f32[{declared}]\n    temp  %x :", 1)
            ops = [
                f"{name}(X=%z) -> Out=%z" for name in ("c_sync_calc_stream", "c_allreduce_sum", "c_sync_comm_stream")
            ]
            ops = ["assign(X=%x) -> Out=%z", *ops]
            file.write_text(text.replace("    mul(X=%x", "".join(f"    {op}\n" for op in ops) + "    mul(X=%x", 1))
        loaded = load_job_folder(compiled)
        x = np.random.RandomState(0).rand(3, rows, 1000).astype("float32")
        self.feeds = {"x": x, "y": x[:, :, :20].copy()}
        self.job = JobFolder(loaded.roles, "job", 0)
        self.beside = Beside(self.job, feed or self.feeds, 3, "")


@pytest.mark.parametrize("rows", [9, 48])
@pytest.mark.parametrize("declared", ["8, 1000", "-1, 1000"])
def test_sums_have_the_dims_of_what_is_fed(declared: str, rows: int, tmp_path: Path) -> None:
    """Small ones, and those that are cut; whatever was declared for one size of batch."""
    exchanged = Exchanged(tmp_path, declared, rows)
    assert all(checks.most_sent(cluster) > MOST_HELD for cluster in exchanged.beside.clusters.values())
    found = exchanged.beside.end()
    expected = simulate(exchanged.job.roles, exchanged.feeds, 3, ["loss"], seed=1).fetched
    assert found == {
        f"trainer_{number}": [loss.item() for loss in fetched["loss"]] for number, fetched in enumerate(expected)
    }


def changed(**fields: Any) -> Callable[[Any], Any]:
    return lambda said: said._replace(part=said.part._replace(**fields))


def shorter(said: Any) -> Any:
    if isinstance(said, Total):
        return said._replace(value=said.value[:-1])
    return changed(value=said.part.value[:-1])(said)


ROWS = SelectedRows(np.array([1]), np.ones((1, 1000), "float32"), 9)
LIES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a part of other dims": (PIECE, shorter),
    "a part of other dims and form": (PIECE, lambda said: changed(form="f32[1]")(shorter(said))),
    "a part of another form": (PIECE, changed(form="\x1b[2J")),
    "a part of rows": (PIECE, changed(value=ROWS)),
    "a part that is no average": (PIECE, changed(averages=True)),
    "a sum of other dims": (TOTAL, shorter),
    "a sum of rows": (TOTAL, lambda said: said._replace(value=ROWS)),
    "a sum of another segment": (TOTAL, lambda said: said._replace(segment=1, value=said.value[:-1])),
}


@pytest.mark.parametrize("lie", LIES)
def test_others_go_on_without_one_whose_part_is_not_as_theirs(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    kind, change = LIES[lie]
    send = Ring._send

    def lies(self: Ring, of: str, to: int, payload: Any) -> None:
        if self.index == 2 and payload.variable == "z" and of == kind:
            payload = change(payload)
        send(self, of, to, payload)

    monkeypatch.setattr(Ring, "_send", lies)
    exchanged = Exchanged(tmp_path, "-1, 1000", 48)
    exchanged.beside.threads["trainer_2"].join(30)
    problem = exchanged.beside.problems.pop("trainer_2")
    assert isinstance(problem, PeerRefused)
    found = exchanged.beside.end()
    assert len(found["trainer_0"]) == len(found["trainer_1"]) == 3
    assert "\x1b" not in capfd.readouterr().err


def test_where_nobody_knows_who_is_wrong_all_end(tmp_path: Path) -> None:
    """Each of the trainers is fed a batch of another size."""

    def feed(trainer: int, step: int) -> dict[str, Any] | None:
        x = np.ones((16 + trainer, 1000), "float32")
        return {"x": x, "y": x[:, :20].copy()} if step < 3 else None

    beside = Exchanged(tmp_path, "-1, 1000", 48, feed=feed).beside
    for thread in beside.threads.values():
        thread.join(30)
    assert len(beside.problems) == 3
    assert all(isinstance(problem, DiagnosticError | PeerRefused) for problem in beside.problems.values())
    assert "the trainers of ring_0 do not do the same" in " ".join(map(str, beside.problems.values()))
