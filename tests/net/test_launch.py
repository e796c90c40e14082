"""`launch` when it is told to end, ends without being told, or loses a machine: no process is left, and it says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

PROGRAM = str(Path(__file__).parents[2] / "examples" / "regression.ir")

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")


def take_interrupts() -> None:
    """A shell has what it starts in the background ignore interrupts, and so do all processes from there on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def launched(folder: Path) -> subprocess.Popen[str]:
    """A job on 2 servers and 2 trainers that has done a few of its many steps."""
    x = np.zeros((2000, 4, 1000), "float32")
    np.savez_compressed(folder / "data.npz", x=x, y=x[:, :, :20])
    command = [sys.executable, "-m", "pstranspile", "launch", PROGRAM, "--pservers", "2", "--trainers", "2"]
    command += ["--feed", str(folder / "data.npz")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=take_interrupts
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 3/"):
            return process
    raise AssertionError(process.communicate()[1])


def stat(process: int) -> list[str]:
    """State, parent and so on of a process; a zombie's state if it has gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z", "0"]


def machines(launch: int) -> dict[str, int]:
    """The processes of a job, by role."""
    found: dict[str, int] = {}
    for process in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()):
        if int(stat(process)[1]) == launch:
            words = Path(f"/proc/{process}/cmdline").read_text().split("\0")
            found[words[words.index("--role") + 1]] = process
    return found


def all_gone(processes: dict[str, int]) -> bool:
    end = time.monotonic() + 20
    while any(stat(process)[0] != "Z" for process in processes.values()):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_process_outlives_launch(number: int, status: int, tmp_path: Path) -> None:
    launch = launched(tmp_path)
    processes = machines(launch.pid)
    assert sorted(processes) == ["pserver_0", "pserver_1", "trainer_0", "trainer_1"]
    launch.send_signal(number)
    launch.communicate(timeout=30)
    assert launch.returncode == status
    assert all_gone(processes)


def test_a_death_ends_in_a_report_of_who_waited_for_what(tmp_path: Path) -> None:
    launch = launched(tmp_path)
    processes = machines(launch.pid)
    os.kill(processes["pserver_1"], signal.SIGKILL)
    told = launch.communicate(timeout=30)[1]
    assert launch.returncode == 1
    assert "error[launch-ended]: pserver_1 has ended by SIGKILL" in told
    for trainer in ("trainer_0", "trainer_1"):
        assert f"note: {trainer} waits at " in told
    assert "not come: pserver_1" in told
    assert all_gone(processes)
