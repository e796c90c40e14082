"""Machines as processes: what they train is what the simulation trains, also when processes are killed."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstranspile.cluster.machines.simulate import simulate
from pstranspile.cluster.machines.snapshots import Snapshot, write_snapshot
from pstranspile.cluster.net import supervisor as supervisor_module
from pstranspile.cluster.net.job import JobFolder, load_job_folder
from pstranspile.cluster.net.parts import gather
from pstranspile.cluster.net.status import STATUS, StatusPipe
from pstranspile.cluster.net.supervisor import Member, Ports, Supervisor, command_of
from pstranspile.cluster.net.terms import Terms, role_of_environment
from pstranspile.ir.diagnostics import DiagnosticError
from pstranspile.tools.cli import main

PROGRAM = str(Path(__file__).parents[3] / "examples" / "regression.ir")
STEPS = 120
LOSS = "loss"


@pytest.fixture(scope="module")
def feeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.RandomState(3)
    file = tmp_path_factory.mktemp("data") / "data.npz"
    x, y = random.rand(STEPS, 8, 1000).astype("float32"), random.rand(STEPS, 8, 20).astype("float32")
    np.savez(file, x=x, y=y)
    return file


def compiled(folder: Path, *options: str) -> JobFolder:
    assert main(["compile", PROGRAM, "--pservers", "2", "--trainers", "2", *options, "-o", str(folder)]) == 0
    return load_job_folder(folder)


class Run:
    """A job as processes; `victim` is killed when trainer_0 has done `at` steps, and started again."""

    def __init__(self, job: JobFolder, folder: Path, feeds: Path, work: Path, victim: str = "", at: int = 0):
        ports = Ports(len(job.roles))
        addresses = dict(zip(job.roles, ports.addresses, strict=True))
        self.results = {name: str(work / f"{name}.result") for name in job.roles}
        shared = ["--feed", str(feeds), "--fetch", LOSS, "--state", str(work), "--state-every", "7", "--lease", "5"]
        self.members = {
            name: Member(
                name, command_of(name, str(folder), addresses, [*shared, "--result", result]), work / f"{name}.log"
            )
            for name, result in self.results.items()
        }
        self.victim, self.at, self.killed = victim, at, False
        self.done = Supervisor(self.members, restarts=1, on_report=self.reported).run()
        ports.close()

    def reported(self, member: Member, fields: dict[str, Any]) -> None:
        if self.victim and not self.killed and member.role == "trainer_0" and fields.get("step", 0) >= self.at:
            self.killed = True
            process = self.members[self.victim].process
            assert process is not None
            process.send_signal(signal.SIGKILL)

    def logs(self) -> str:
        return "\n".join(f"{m.role} {m.exit_status}: {m.log_tail(20)}" for m in self.members.values())


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("arithmetic", ["numpy", "fluid"])
def test_processes_train_as_the_simulation_does(arithmetic: str, feeds: Path, tmp_path: Path) -> None:
    save, reference = tmp_path / "real.npz", tmp_path / "simulated.npz"
    job = [PROGRAM, "--pservers", "2", "--trainers", "2", "--feed", str(feeds), "--fetch", LOSS]
    job += ["--steps", "9", "--arithmetic", arithmetic]
    assert main(["launch", *job, "--save", str(save)]) == 0
    assert main(["run", *job, "--save", str(reference)]) == 0
    with np.load(save) as real, np.load(reference) as expected:
        assert same(dict(real), dict(expected))


@pytest.mark.parametrize("mode", ["nccl2", "grad-allreduce", "local-sgd"])
def test_trainers_among_themselves(mode: str, feeds: Path, tmp_path: Path) -> None:
    save, reference = tmp_path / "real.npz", tmp_path / "simulated.npz"
    job = [PROGRAM, "--mode", mode, "--trainers", "127.0.0.1:7000,127.0.0.1:7001", "--feed", str(feeds), "--steps", "9"]
    assert main(["launch", *job, "--save", str(save)]) == 0
    assert main(["run", *job, "--save", str(reference)]) == 0
    with np.load(save) as real, np.load(reference) as expected:
        assert same(dict(real), dict(expected))


@pytest.mark.parametrize("mode", ["nccl2", "grad-allreduce"])
def test_trainers_meet_where_their_programs_say(mode: str, feeds: Path, tmp_path: Path) -> None:
    ports = Ports(2)
    trainers = ["--mode", mode, "--trainers", ",".join(ports.addresses)]
    job = tmp_path / "job"
    assert main(["compile", PROGRAM, *trainers, "-o", str(job)]) == 0
    started = [["--feed", str(feeds), "--steps", "3", "--save", str(tmp_path / f"{i}.npz")] for i in range(2)]
    play_all(job, {f"trainer_{i}": options for i, options in enumerate(started)})
    ports.close()
    assert main(["run", PROGRAM, *trainers, "--feed", str(feeds), "--steps", "3", "--save", f"{tmp_path}/run.npz"]) == 0
    with np.load(tmp_path / "0.npz") as real, np.load(tmp_path / "run.npz") as expected:
        assert np.array_equal(real["param/w"], expected["param/w"])


def play_all(job: Path, options: dict[str, list[str]]) -> None:
    """Starts machines one by one, and waits until all have ended well."""
    start = [sys.executable, "-m", "pstranspile", "start", str(job), "--role"]
    processes = {
        role: subprocess.Popen([*start, role, *own], stderr=subprocess.PIPE, text=True) for role, own in options.items()
    }
    told = {role: process.communicate(timeout=60)[1] for role, process in processes.items()}
    assert not any(process.returncode for process in processes.values()), told


def test_options_say_where_machines_are(feeds: Path, tmp_path: Path) -> None:
    """Servers listen where they are told to, and trainers find them where they are told that these are."""
    job = tmp_path / "job"
    compiled(job)  # at ports that others may have
    ports = Ports(2)
    servers = {f"pserver_{i}": ["--listen", address] for i, address in enumerate(ports.addresses)}
    given = ["--servers", ",".join(ports.addresses), "--feed", str(feeds), "--steps", "2"]
    trainers = {f"trainer_{i}": [*given, "--save", f"{tmp_path}/{i}.npz"] for i in range(2)}
    play_all(job, {**servers, **trainers})
    ports.close()
    with np.load(tmp_path / "1.npz") as found:
        assert len(found["step/loss"]) == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--servers", "127.0.0.1:1"], "give the 2 of the job as HOST:PORT,HOST:PORT"),
        (["--listen", "6174"], "--listen 6174: give it as HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "--listen 127.0.0.1:99999: give it as HOST:PORT"),
        (["--listen", ":6174"], "--listen :6174: give it as HOST:PORT"),
        (["--address", "pserver_0"], "--address pserver_0: give it as ROLE=HOST:PORT"),
        (["--tls", ""], "--tls: the name is empty"),
    ],
)
def test_addresses_that_are_none(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled(tmp_path / "job")
    assert main(["start", str(tmp_path / "job"), "--role", "pserver_0", *options]) == 2
    assert told in capsys.readouterr().err


def test_addresses_that_can_not_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(tmp_path / "job")
    trainer = ["start", str(tmp_path / "job"), "--role", "trainer_0"]
    assert main([*trainer, "--address", "pserver_7=127.0.0.1:7"]) == 1
    assert "the job has no machine pserver_7; did you mean pserver_1?" in capsys.readouterr().err
    assert main([*trainer, "--servers", "127.0.0.1:7,127.0.0.1:7"]) == 1
    assert "pserver_0 and pserver_1 are both at 127.0.0.1:7" in capsys.readouterr().err


def test_two_processes_do_not_listen_at_one_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A port that is kept for a process may be listened on, but by one alone."""
    compiled(tmp_path / "job")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert main(["start", str(tmp_path / "job"), "--role", "pserver_0", "--listen", address]) == 1
    told = f"pserver_0: it can't listen at {address}: somebody does already"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("state", [{}, {"@peers": {"trainer_7": {}}, "@in": {}, "@out": {}, "@announced": []}])
def test_a_kept_state_that_does_not_fit_is_refused(
    state: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever has changed it has given it its hash."""
    job = compiled(tmp_path / "job")
    if state:
        state = {"@job": job.hash, **state}
    write_snapshot(tmp_path / "pserver_0.kept", "pserver_0", Snapshot({}, state, {}, {}, {}))
    assert main(["start", str(tmp_path / "job"), "--role", "pserver_0", "--state", str(tmp_path)]) == 1
    assert "error[cluster-kept]: does not fit the job, or was changed: KeyError: " in capsys.readouterr().err


def test_a_kept_state_of_another_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two jobs of one program have the same variables, so that nothing else tells their states apart."""
    job = compiled(tmp_path / "job")
    state = {"@job": "0123456789abcdef", "@peers": {}, "@in": {}, "@out": {}, "@announced": []}
    write_snapshot(tmp_path / "pserver_0.kept", "pserver_0", Snapshot({}, state, {}, {}, {}))
    assert main(["start", str(tmp_path / "job"), "--role", "pserver_0", "--state", str(tmp_path)]) == 1
    told = f"error[cluster-kept]: is of another job: 0123456789ab, not {job.hash[:12]}; give this one another folder"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("before", "now"), [("one", "another"), ("one", ""), ("", "one")])
def test_a_kept_state_of_another_run_is_refused(
    before: str, now: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainers of a new run begin anew, and a server that went on from an old state would train with its parameters."""
    job = compiled(tmp_path / "job")
    run = Terms(job.hash, before).run_hash()
    assert "one" not in run
    state = {"@job": job.hash, "@run": run, "@peers": {}, "@in": {}, "@out": {}, "@announced": []}
    write_snapshot(tmp_path / "pserver_0.kept", "pserver_0", Snapshot({}, state, {}, {}, {}))
    monkeypatch.delenv("PSTRANSPILE_TOKEN", raising=False)
    if now:
        monkeypatch.setenv("PSTRANSPILE_TOKEN", now)
    assert main(["start", str(tmp_path / "job"), "--role", "pserver_0", "--state", str(tmp_path)]) == 1
    assert "error[cluster-kept]: is of another run of this job, which had another token" in capsys.readouterr().err


@pytest.mark.parametrize("token", ["", " \n"])
@pytest.mark.parametrize("role", ["pserver_0", "trainer_0"])
def test_an_empty_token_is_refused(
    role: str, token: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would let in anybody; whoever has set the variable wants a token."""
    compiled(tmp_path / "job")
    monkeypatch.setenv("PSTRANSPILE_TOKEN", token)
    assert main(["start", str(tmp_path / "job"), "--role", role]) == 2
    assert "error[start-token]: PSTRANSPILE_TOKEN is set, but " in capsys.readouterr().err


def test_what_is_fetched_is_known_before_any_process_begins(
    feeds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled(tmp_path / "job")
    capsys.readouterr()
    assert main(["launch", str(tmp_path / "job"), "--feed", str(feeds), "--fetch", "nope"]) == 1
    told = "error[run-fetch-unknown]: nope is fetched"
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'job' / 'trainer_0.ir'}: {told}")


def test_the_end_of_a_log_begins_where_something_goes_wrong(tmp_path: Path) -> None:
    log = tmp_path / "log"
    member = Member("pserver_0", [], log)
    quoted = ["a.ir:3:5: error[cluster-op]: wrong", "    3 | send(", "      | ^^^^", "note: the message"]
    log.write_text("\n".join([*"abcdef", *quoted]))
    assert member.log_tail() == "\n".join(quoted)
    log.write_text("\n".join(["error[a]: b", *"abcdefgh", "error[c]: one", "/x: error[c]: two"]))
    assert member.log_tail() == "error[c]: one\n/x: error[c]: two"
    log.write_text("\n".join("abcdef"))
    assert member.log_tail() == "d\ne\nf"


@pytest.mark.parametrize(("victim", "at"), [("pserver_1", 15), ("pserver_0", 100)])
def test_a_server_that_is_killed_changes_nothing(victim: str, at: int, feeds: Path, tmp_path: Path) -> None:
    job = compiled(tmp_path / "job")
    run = Run(job, tmp_path / "job", feeds, tmp_path, victim, at)
    assert run.killed, run.logs()
    assert run.done, run.logs()
    outcome = gather(job.cluster(fetch=[LOSS]), run.results)
    with np.load(feeds) as archive:
        expected = simulate(job.roles, dict(archive), STEPS, [LOSS])
    assert same(outcome.arrays(), expected.arrays())


@pytest.mark.parametrize("victim", ["trainer_1", "trainer_0"])
def test_a_trainer_that_is_killed_takes_part_again(victim: str, feeds: Path, tmp_path: Path) -> None:
    job = compiled(tmp_path / "job")
    run = Run(job, tmp_path / "job", feeds, tmp_path, victim, 20)
    assert run.killed, run.logs()
    assert run.done, run.logs()
    cluster = gather(job.cluster(fetch=[LOSS]), run.results).cluster
    other, again = cluster.trainers if victim == "trainer_1" else reversed(cluster.trainers)
    assert [result.step for result in other.results] == list(range(STEPS))
    assert [result.step for result in again.results] == list(range(STEPS))[STEPS - len(again.results) :]
    assert all(np.isfinite(value).all() for value in cluster.parameters().values())


@pytest.mark.parametrize(("told", "done"), [("done", True), ("training", False)])
def test_a_process_that_told_that_its_part_is_done_is_not_missed(told: str, done: bool, tmp_path: Path) -> None:
    """Whatever ends it then, it is not started again."""
    tells = f"import os; os.write(int(os.environ['PSTRANSPILE_STATUS']), b'{{\"state\": \"{told}\"}}\\n'); os._exit(9)"
    member = Member("pserver_0", [sys.executable, "-c", tells], tmp_path / "log")
    supervisor = Supervisor({"pserver_0": member}, restarts=1)
    assert supervisor.run() == done
    assert member.starts == (1 if done else 2)


def test_two_jobs_do_not_keep_their_states_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Though their programs are the same: a server that is started again would go on with the other's parameters."""
    compiled(tmp_path / "job")
    kept = tmp_path / "kept"
    kept.mkdir()
    with (kept / "pserver_0.kept.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert main(["start", str(tmp_path / "job"), "--role", "pserver_0", "--state", str(kept)]) == 1
    told = f"{kept / 'pserver_0.kept'}: error[cluster-kept]: another process keeps its state there"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("stubborn", [False, True])
def test_workers_that_outlive_their_machine_are_not_waited_for_but_ended(
    stubborn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though they hold its end of the pipe on which it reports, as a worker does that a feeding function has forked."""
    monkeypatch.setattr(supervisor_module, "LEFT_GRACE", 0.3)
    worker = """
import os, signal, sys, time
from pathlib import Path
workers, machine = Path(sys.argv[1]), os.getpid()
if os.fork() == 0:
    if sys.argv[2] == "True":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (workers / f"{machine}.{os.getpid()}").touch()
    time.sleep(600)
while not list(workers.glob(f"{machine}.*")):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "workers").mkdir()
    command = [sys.executable, "-c", worker, str(tmp_path / "workers"), str(stubborn)]
    member = Member("trainer_0", command, tmp_path / "log")
    begun = time.monotonic()
    assert not Supervisor({"trainer_0": member}, restarts=1).run()
    assert time.monotonic() - begun < 10
    assert member.starts == 2
    workers = [int(path.suffix[1:]) for path in (tmp_path / "workers").iterdir()]
    assert len(workers) == 2
    end = time.monotonic() + 5
    while any(_runs(worker) for worker in workers) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(_runs, workers))


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_processes_that_a_machine_forks_or_starts_do_not_hold_its_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    monkeypatch.setenv(STATUS, str(writing))
    pipe = StatusPipe()
    started = subprocess.Popen(["sleep", "60"], close_fds=False)
    forked = os.fork()
    if forked == 0:
        pipe(state="of another process")
        time.sleep(60)
        os._exit(0)
    try:
        pipe(step=1)
        del pipe
        gc.collect()
        with os.fdopen(reading, "rb") as stream:
            assert json.loads(stream.read())["step"] == 1  # and nobody else can write
    finally:
        started.kill()
        started.wait()
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)


def test_a_trainer_says_at_which_address_another_server_is(
    feeds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled(tmp_path / "job")
    ports = Ports(2)
    servers = ",".join(ports.addresses)
    start = [sys.executable, "-m", "pstranspile", "start", str(tmp_path / "job"), "--servers", servers, "--role"]
    processes = [subprocess.Popen([*start, f"pserver_{number}"]) for number in (0, 1)]
    try:
        swapped = ",".join(reversed(ports.addresses))
        command = ["start", str(tmp_path / "job"), "--role", "trainer_0", "--servers", swapped, "--steps", "1"]
        assert main([*command, "--feed", str(feeds)]) == 1
    finally:
        for process in processes:
            process.kill()
            process.wait()
        ports.close()
    told = capsys.readouterr().err
    assert re.search(
        r"pserver_(.) at \S+ refuses trainer_0: pserver_\1 was expected at this address, where pserver_", told
    )


def test_a_trainer_says_which_server_it_does_not_find(feeds: Path, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    compiled(folder)
    command = [sys.executable, "-m", "pstranspile", "start", str(folder), "--role", "trainer_0", "--patience", "0.5"]
    done = subprocess.run([*command, "--feed", str(feeds)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "pstranspile start: trainer_0: nobody answers for 0.5 seconds: pserver_0 at 127.0.0.1:6174"
    )


def test_a_role_that_the_job_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled(tmp_path / "job")
    assert main(["start", str(tmp_path / "job"), "--role", "trainer_2"]) == 1
    assert "error[start-role]: the job has no machine trainer_2; did you mean trainer_1?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "role", "addresses"),
    [
        ({"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "1"}, "trainer_1", {}),
        ({"TRAINING_ROLE": "PSERVER", "POD_IP": "10.0.0.2", "PADDLE_PORT": "6174"}, "pserver_1", {}),
        (
            {
                "TRAINING_ROLE": "PSERVER",
                "PADDLE_CURRENT_ENDPOINT": "b:2",
                "PADDLE_PSERVERS_IP_PORT_LIST": "a:1,b:2",
            },
            "pserver_1",
            {"pserver_0": "a:1", "pserver_1": "b:2"},
        ),
    ],
)
def test_the_environment_says_who_a_process_is(
    environment: dict[str, str], role: str, addresses: dict[str, str]
) -> None:
    servers = {"pserver_0": "10.0.0.1:6174", "pserver_1": "10.0.0.2:6174"}
    assert role_of_environment(environment, servers) == (role, addresses)


def test_the_environment_says_which_of_trainers_alone_a_process_is() -> None:
    """As Fluid's launcher of collective jobs sets it, without a role."""
    trainers = {"trainer_0": "a:1", "trainer_1": "b:1"}
    environment = {"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINER_ENDPOINTS": "c:1,d:1"}
    assert role_of_environment(environment, trainers) == ("trainer_1", {"trainer_0": "c:1", "trainer_1": "d:1"})
    with pytest.raises(DiagnosticError, match="PADDLE_TRAINER_ENDPOINTS names 1 machines, the job has 2 that listen"):
        role_of_environment({**environment, "PADDLE_TRAINER_ENDPOINTS": "c:1"}, trainers)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"TRAINING_ROLE": "WORKER"}, "set TRAINING_ROLE to PSERVER or TRAINER, not to WORKER"),
        ({"PADDLE_TRAINER_ID": "²"}, "PADDLE_TRAINER_ID is no number"),
        ({"PADDLE_TRAINERS_NUM": "5"}, "PADDLE_TRAINERS_NUM is 5, the job has 2 trainers"),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": "a:1,b"}, "PADDLE_PSERVERS_IP_PORT_LIST has b, which is no HOST:PORT"),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": "a:1,b:x"}, "PADDLE_PSERVERS_IP_PORT_LIST has b:x, which is no HOST:PORT"),
    ],
)
def test_an_environment_that_contradicts_the_job(environment: dict[str, str], told: str) -> None:
    usual = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "2"}
    servers = {"pserver_0": "10.0.0.1:6174", "pserver_1": "10.0.0.2:6174"}
    assert role_of_environment(usual, servers, 2) == ("trainer_0", {})
    with pytest.raises(DiagnosticError, match=told):
        role_of_environment({**usual, **environment}, servers, 2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["launch", "job", "--record", "x", "--restarts", "1"], "--record can't be combined with --restarts"),
        (["run", PROGRAM, "--pservers", "1", "--replay", "x", "--seed", "1"], "--replay can't be combined with --seed"),
    ],
)
def test_what_can_not_be_recorded_or_replayed(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_a_trainer_that_the_servers_have_given_up_is_not_waited_for(tmp_path: Path) -> None:
    """They are done; it would look for them until its patience ends."""
    tells = "import os; os.write(int(os.environ['PSTRANSPILE_STATUS']), b'{\"state\": \"done\"}\\n')"
    server = Member("pserver_0", [sys.executable, "-c", tells], tmp_path / "server")
    trainer = Member("trainer_0", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "trainer")
    supervisor = Supervisor({"pserver_0": server, "trainer_0": trainer})
    assert not supervisor.run()
    assert supervisor.left_out == [trainer]
    assert trainer.exit_status
