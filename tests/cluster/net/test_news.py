"""What is told of machines that go and come: trainers that the others go on without, and processes started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pstranspile.cluster.net.supervisor import LogFolderInUse, Member, Supervisor, log_folder
from tests.cluster.net.test_launch import launched, machines

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")


def read_until(stream: object, told: str) -> str:
    read = ""
    for line in stream:  # type: ignore[attr-defined]
        read += line
        if told in line:
            return read
    raise AssertionError(read)


def test_a_trainer_that_is_given_up_is_named_by_all_and_told_when_it_comes_back(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    launch = launched(tmp_path, "--lease", "2", "--logs", str(logs))
    processes = machines(launch.pid)
    os.kill(processes["trainer_1"], signal.SIGSTOP)
    why = "it was not heard for 2 seconds"
    read = read_until(launch.stderr, "goes on without trainer_1")
    assert re.search(rf"^pstranspile launch: (pserver_.|trainer_0): .*goes on without trainer_1: {why}$", read, re.M)
    time.sleep(1)  # the others may say so as well
    os.kill(processes["trainer_1"], signal.SIGCONT)
    errors = launch.communicate(timeout=60)[1]
    assert launch.returncode == 1
    assert "goes on without" not in errors  # is said once
    assert "error[launch-ended]: trainer_1 has ended with status 1" in errors
    assert "trainer_1 was given up: it was not heard for 2 seconds" in errors
    for server in ("pserver_0", "pserver_1"):
        assert f"{server}: goes on without trainer_1: {why}\n" in (logs / f"{server}.log").read_text()
    told = re.findall("trainer_0: pserver_[01] goes on without trainer_1: (.*)\n", (logs / "trainer_0.log").read_text())
    assert told == [why]


def test_a_restart_is_a_line_of_the_launcher_and_of_the_log(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    launch = launched(tmp_path, "--restarts", "1", "--lease", "5", "--steps", "400", "--logs", str(logs))
    os.kill(machines(launch.pid)["pserver_1"], signal.SIGKILL)
    errors = launch.communicate(timeout=60)[1]
    assert launch.returncode == 0, errors
    again = "pserver_1 has ended by SIGKILL, and is started again (1 of 1)\n"
    assert f"pstranspile launch: {again}" in errors
    assert errors.endswith(f"pstranspile launch: all 4 machines have ended well; logs in {logs}\n")
    told = (logs / "pserver_1.log").read_text()
    assert re.search(re.escape(again) + "(.*\n)*pserver_1: goes on from its kept state, after update [0-9]+\n", told)
    assert "trainer_0: pserver_1 is back, as a new process\n" in (logs / "trainer_0.log").read_text()


def test_a_trainer_that_comes_again_is_named_as_well(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    launch = launched(tmp_path, "--restarts", "1", "--lease", "5", "--steps", "400", "--logs", str(logs))
    os.kill(machines(launch.pid)["trainer_1"], signal.SIGKILL)
    errors = launch.communicate(timeout=60)[1]
    assert launch.returncode == 0, errors
    assert "trainer_1 has ended by SIGKILL, and is started again (1 of 1)\n" in errors
    told = (logs / "pserver_0.log").read_text()
    assert "pserver_0: goes on without trainer_1: another process has come in its place\n" in told
    assert "pserver_0: trainer_1 is back, as a new process\n" in told


def test_who_ends_first_is_named_first(tmp_path: Path) -> None:
    """Though both have ended when the supervisor looks."""
    slow = [sys.executable, "-c", "import time; time.sleep(0.5); exit(3)"]
    members = {role: Member(role, slow if role == "a" else ["false"], tmp_path / role) for role in "ab"}
    supervisor = Supervisor(members, on_look=lambda: time.sleep(1.5))
    assert not supervisor.run()
    assert supervisor.failed[0] == (members["b"], 1)


def test_an_interrupt_while_processes_are_ended_kills_them(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
    code = f"""
from pathlib import Path
from pstranspile.cluster.net.supervisor import Member, Supervisor
import os, signal, sys, threading, time
member = Member("a", [sys.executable, "-c", {stubborn!r}], Path("log"))
def interrupt():
    while not member.log.exists() or not member.log.read_text():
        time.sleep(0.05)
    print(member.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
begun = time.monotonic()
try:
    Supervisor({{"a": member}}).run()
except KeyboardInterrupt:
    sys.exit(member.process.returncode == -9)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert not Path(f"/proc/{done.stdout.strip()}").exists()


def test_logs_of_an_earlier_run_are_set_apart_and_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    names = re.compile(r"[ab]\.log")
    folder = tmp_path / "logs"
    for number in range(3):
        with log_folder(folder, names) as earlier:
            assert earlier == (folder / f"earlier_{number}" if number else None)
            (folder / "a.log").write_text(str(number))
            (folder / "mine.log").write_text("stays")
            with pytest.raises(LogFolderInUse), log_folder(folder, names):
                pass
    assert [(folder / name / "a.log").read_text() for name in ("earlier_1", "earlier_2", ".")] == ["0", "1", "2"]
    assert (folder / "mine.log").read_text() == "stays"
